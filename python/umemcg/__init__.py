"""umemcg: memory cgroups inside one process.

An `Engine` has a pool of memory and a tree of groups. Memory kept in the pool is charged to a group
and to all groups above it. A group at its limit loses its own memory, not that of other groups.
"""

import atexit as _atexit

from . import _native
from ._context import current_group
from ._errors import (
    Busy,
    Ending,
    Error,
    Exists,
    Forked,
    InCallback,
    InvalidArgument,
    NeverFits,
    NotFound,
    NotHeld,
    OtherEngine,
    Overcommitted,
    Refused,
    Removed,
)
from ._native import Account, Charge, Engine, Group, Guarantee, ObjectCache, Shrinker

# Before the interpreter ends, so that no thread of an engine waits for it by then.
_atexit.register(_native._close)

__version__ = "0.1.0"
__all__ = [
    "Account",
    "Busy",
    "Charge",
    "Ending",
    "Engine",
    "Error",
    "Exists",
    "Forked",
    "Group",
    "Guarantee",
    "InCallback",
    "InvalidArgument",
    "NeverFits",
    "NotFound",
    "NotHeld",
    "ObjectCache",
    "OtherEngine",
    "Overcommitted",
    "Refused",
    "Removed",
    "Shrinker",
    "current_group",
]
