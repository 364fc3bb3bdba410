"""The native part. Everything public is in `umemcg` itself."""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Optional, Self

from typing_extensions import Buffer

class Engine:
    """One pool of memory shared by a tree of groups. Its threads end with the last of its objects.

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
        """Returns the group at a path from the root, such as `/a/b`, and creates missing groups.

        Raises `NotFound` without `create`, and `InvalidArgument` for an invalid path.
        """

    def stats(self) -> dict[str, Optional[int]]:
        """The statistics of the root group."""

    def trim(self) -> None:
        """Returns free memory to the operating system. Takes milliseconds for each hundred megabytes."""

class Group:
    """A group. `group[key]` reads and writes its control keys, such as `memory.max`, in bytes or counts;
    `None` is no limit. docs/semantics/control-files.md defines the control file of the same name.

    `with group:` makes it the current group of the task or thread. Accounts and caches charge the current
    group unless another is given.
    """

    @property
    def path(self) -> str: ...
    @property
    def id(self) -> int:
        """A number unique among all groups of this process, ever; callbacks of shrinkers get it."""

    @property
    def usage(self) -> int:
        """The bytes charged to it and all groups below it."""

    def __getitem__(self, key: str) -> Optional[int]: ...
    def __setitem__(self, key: str, value: Optional[int]) -> None:
        """May reclaim. Raises `Busy` when usage cannot be brought below a limit, and `NotFound`."""

    def remove(self) -> None:
        """Removes it; its charges move to the group above. Raises `Busy` if it has groups below it."""

    def stats(self) -> dict[str, Optional[int]]:
        """Its statistics with everything below it, by name. Names ending in `_bytes` are bytes."""

    def account(self) -> Account:
        """Opens an account in it."""

    def charge(self, bytes: int, *, force: bool = False) -> Charge:
        """Charges memory of the program's own. May reclaim and wait; raises `Refused`. With `force`, charges
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
    """A share of the pool set aside for a group until it is closed or collected."""

    @property
    def bytes(self) -> int: ...

class Account(_Closable):
    """Memory of the program's own that grows and shrinks, such as the buffers of a query. Any number of
    threads may use it. Without a group it belongs to the current one."""

    def __init__(self, group: Optional[Group] = None) -> None: ...
    def try_grow(self, bytes: int) -> None:
        """Grows it, reclaiming from the caches of a full group. Raises `Refused` when there is no room
        now, `NeverFits` and `Overcommitted`; nothing is changed then."""

    def grow(self, bytes: int) -> None:
        """Grows it whatever the limits are, for memory already in use."""

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

    Values are read-only views without a copy: they stay unchanged while a view exists, even after
    leaving the cache. Times are in seconds. `listener` is called for each object leaving the cache; its
    exceptions go to `sys.unraisablehook`.
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
        """Returns the value, or stores and returns the result of `load`. If several threads miss a key, one
        loads and the others wait; Ctrl-C ends a wait. `load` may use the cache, but not request this key. The
        value stays charged as long as a view of it exists, unless there was no room for it in the cache."""

    def remove(self, key: Buffer) -> bool:
        """Removes a key; returns whether it had a value."""

    def clear(self) -> None: ...
    def __len__(self) -> int: ...
    def stats(self, group: Optional[Group] = None) -> dict[str, int]:
        """Its statistics, for the objects of one group or for all objects."""

class Shrinker(_Closable):
    """A cache of the program's own that gives memory back.

    `count(group_id)` returns the number of objects of the group that could be freed: 0 for none at all (then
    it is not called again before `announce`), or `None` when the number is unknown. `scan(group_id, nr,
    wanted)` scans up to `nr` objects, frees the freeable ones, and returns the numbers of scanned objects and
    of freed bytes, or `None`; it may stop once it has freed `wanted` bytes. `reparent(group_id, parent_id)`
    is called after the removal of a group. The callbacks run on any thread and must not charge; their
    exceptions go to `sys.unraisablehook` and count as `None`.
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
        """Announces that it has objects of the group, after `count` can see them."""

def _close() -> None: ...
