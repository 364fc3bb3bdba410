"""The exceptions. Each has the group concerned, and numbers in bytes."""

from __future__ import annotations


class Error(Exception):
    """The base class of this package's exceptions.

    `group` is the path of the group that refused, or of the group concerned, if there is one. `wanted`,
    `limit`, `free` and `reclaimable` are bytes: the requested bytes, the group's limit (`None` without a
    limit), its free bytes, and the bytes of its caches that might be reclaimed later.
    """

    group: str | None = None
    wanted: int = 0
    limit: int | None = None
    free: int = 0
    reclaimable: int = 0


class Refused(Error, MemoryError):
    """A limit leaves no room now."""


class NeverFits(Refused):
    """The request exceeds the limit of a group, whatever is given back."""


class Overcommitted(Refused):
    """The room is guaranteed to others."""


class InvalidArgument(Error, ValueError):
    """An argument is invalid."""


class NotHeld(Error, ValueError):
    """The caller gives back more than is held."""


class OtherEngine(Error, ValueError):
    """The object belongs to another engine."""


class NotFound(Error, LookupError):
    """Nothing has that name."""


class Exists(Error):
    """The name is taken."""


class Busy(Error):
    """The state of the group does not allow it: usage above a new limit, groups below it, too little to
    reclaim, or a read-only or write-only key."""


class Removed(Error):
    """The group has been removed, or the object has been closed."""


class InCallback(Error, RuntimeError):
    """Called from inside a callback, where it could wait for itself."""


class Forked(Error, RuntimeError):
    """This process is a fork of a process that used the package. Use it after `exec`, for example with the
    start method `spawn` of `multiprocessing`."""


class Ending(Error, RuntimeError):
    """The interpreter is ending."""


# By the numbers of `umemcg_code` in umemcg.h.
_CLASSES: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: Removed,
    4: OtherEngine,
    5: Refused,
    6: Overcommitted,
    7: Busy,
    8: NotFound,
    9: Exists,
    10: Busy,
    11: Removed,
    12: InvalidArgument,
    13: Busy,
    14: Busy,
    15: NotHeld,
    16: InCallback,
    17: Forked,
    18: Ending,
    23: NeverFits,
}

_UNLIMITED = 2**64 - 1


def make(
    code: int, message: str, group: str | None, wanted: int, limit: int, free: int, reclaimable: int
) -> Error:
    """Returns the exception of a failure in the native part."""
    error = _CLASSES.get(code, Error)(message)
    error.group = group
    error.wanted = wanted
    error.limit = None if limit == _UNLIMITED else limit
    error.free = free
    error.reclaimable = reclaimable
    return error
