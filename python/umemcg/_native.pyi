"""The native part. Everything public is in `umemcg` itself."""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Optional, Self

from typing_extensions import Buffer

class Engine:
    """One pool of memory shared by a tree of groups. Its threads end with the last object that belongs to
    it.

    `workers` reclaim in the background for groups with watermarks; 0 means one for each processor, four at
    most. With `pool_marks` the pool itself has watermarks.
    """

    def __init__(
        self,
        pool_bytes: int = ...,
        *,
        workers: int = 0,
        pool_marks: bool = False,
        recursive_protection: bool = True,
    ) -> None: ...
    @property
    def root(self) -> Group:
        """The group above all; its limit is the size of the pool."""

    def group(self, path: str, *, create: bool = True) -> Group:
        """Returns the group at a path from the root, such as `/a/b`, and makes what is missing of it.

        Raises `NotFound` without `create`, and `InvalidArgument` for what is no path.
        """

    def stats(self) -> dict[str, Optional[int]]:
        """The statistics of the root group."""

    def trim(self) -> None:
        """Returns free memory to the operating system. Takes milliseconds for each hundred megabytes."""

class Group:
    """A group. `group[key]` reads and writes its control keys, such as `memory.max`, in bytes or counts;
    `None` is no limit. SEMANTICS.md says what the control file of the same name means.

    `with group:` makes it the current group of the task or thread, to which accounts and caches charge
    what names no other.
    """

    @property
    def path(self) -> str: ...
    @property
    def id(self) -> int:
        """A number that no other group of this process ever has; callbacks of shrinkers get it."""

    @property
    def usage(self) -> int:
        """The bytes charged to it and all below it."""

    def __getitem__(self, key: str) -> Optional[int]: ...
    def __setitem__(self, key: str, value: Optional[int]) -> None:
        """May reclaim. Raises `Busy` when usage cannot be brought below a limit, and `NotFound`."""

    def remove(self) -> None:
        """Removes it; what is charged to it belongs to the group above. Raises `Busy` if it has groups
        below it."""

    def stats(self) -> dict[str, Optional[int]]:
        """Its statistics with everything below it, by name. Names that end in `_bytes` are bytes."""

    def account(self) -> Account:
        """Opens an account in it."""

    def charge(self, bytes: int, *, force: bool = False) -> Charge:
        """Charges memory of the program's own. May reclaim and wait; raises `Refused`. With `force`
        whatever the limits are."""

    def guarantee(self, bytes: int) -> Guarantee:
        """Sets bytes of the pool aside for it. Raises `Overcommitted`."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: Optional[type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class _Closable:
    def close(self) -> None:
        """Ends it; does nothing if it has ended."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: Optional[type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...

class Charge(_Closable):
    """Bytes charged to a group until it is closed or collected."""

    @property
    def bytes(self) -> int: ...

class Guarantee(_Closable):
    """A share of the pool that is set aside for a group until it is closed or collected."""

    @property
    def bytes(self) -> int: ...

class Account(_Closable):
    """Memory of the program's own that grows and shrinks, such as the buffers of a query. Any number of
    threads may use it. Without a group it belongs to the current one."""

    def __init__(self, group: Optional[Group] = None) -> None: ...
    def try_grow(self, bytes: int) -> None:
        """Grows it, reclaiming from caches of a group that is full. Raises `Refused` when there is no room
        now, `NeverFits` and `Overcommitted`; nothing is changed then."""

    def grow(self, bytes: int) -> None:
        """Grows it whatever the limits are, for memory that is in use already."""

    def shrink(self, bytes: int) -> None:
        """Gives bytes back. Raises `NotHeld`."""

    def split(self, bytes: int) -> Account:
        """Moves bytes to an account of their own. Raises `NotHeld`."""

    @property
    def bytes(self) -> int: ...
    @property
    def peak(self) -> int: ...

Cause = Literal["evicted", "expired", "removed", "replaced", "outdated"]

class ObjectCache(_Closable):
    """A cache of bytes by bytes. Each object is charged to the group that inserts it.

    Values are read-only views without a copy: they stay as they are while a view exists, also when they
    leave the cache. Times are in seconds. `listener` is called for each object that leaves the cache; what
    it raises goes to `sys.unraisablehook`.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        bytes_max: Optional[int] = None,
        time_to_live: Optional[float] = None,
        time_to_idle: Optional[float] = None,
        listener: Optional[Callable[[bytes, memoryview, Cause], object]] = None,
    ) -> None: ...
    def get(self, key: Buffer) -> Optional[memoryview]:
        """Returns a view of the value, which stays charged to its group while a view exists."""

    def insert(self, key: Buffer, value: Buffer, group: Optional[Group] = None) -> None:
        """Stores a copy of the value. May reclaim; raises `Refused`, and the key has no value then."""

    def get_or_insert(
        self, key: Buffer, load: Callable[[], Buffer], group: Optional[Group] = None
    ) -> memoryview:
        """Returns the value, or what `load` returns and stores it. Of several threads that miss a key, one
        loads and the others wait; Ctrl-C ends a wait. `load` may use the cache, but not ask for this key. The
        value stays charged as long as a view of it exists, unless there was no room for it in the cache."""

    def remove(self, key: Buffer) -> bool:
        """Removes a key; returns whether it had a value."""

    def clear(self) -> None: ...
    def __len__(self) -> int: ...
    def stats(self, group: Optional[Group] = None) -> dict[str, int]:
        """Its statistics: of the objects of one group, or of all."""

class Shrinker(_Closable):
    """A cache of the program's own that gives memory back.

    `count(group_id)` returns how many objects of the group could be freed, 0 for none at all (it is not
    asked again before `announce`), or `None` when nothing can be told. `scan(group_id, nr, wanted)` looks at
    up to `nr` objects, frees what can be freed, and returns how many it looked at and the bytes freed, or
    `None`; it may stop when it has freed the bytes that are wanted.
    `reparent(group_id, parent_id)` is told that a group was removed. They run on any thread, and must not
    charge; what they raise goes to `sys.unraisablehook` and counts as `None`.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        count: Callable[[int], Optional[int]],
        scan: Callable[[int, int, int], Optional[tuple[int, int]]],
        *,
        reparent: Optional[Callable[[int, int], object]] = None,
        seeks: int = 2,
        batch: int = 128,
    ) -> None: ...
    def announce(self, group: Group) -> None:
        """Says that it has objects of the group, after they can be counted."""

def _close() -> None: ...
