"""The group that a piece of the program is in: a context variable, so each task and thread has its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Optional, Tuple

if TYPE_CHECKING:
    from ._native import Group

# The group, and what was there before; nested `with` blocks make a chain.
_Chain = Optional[Tuple["Group", "_Chain"]]
_current: ContextVar[_Chain] = ContextVar("umemcg.current_group", default=None)


def current_group() -> Group | None:
    """Returns the group of the innermost `with group:`, if the program is in one."""
    chain = _current.get()
    return chain[0] if chain else None


def push(group: Group) -> None:
    _current.set((group, _current.get()))


def pop() -> None:
    chain = _current.get()
    if chain:
        _current.set(chain[1])
