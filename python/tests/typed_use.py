"""Checked by mypy, not run: uses of the package that the hints accept, or reject where marked."""

from typing import Optional

import umemcg


def use(engine: umemcg.Engine) -> int:
    group: umemcg.Group = engine.group("/a", create=True)
    group["memory.max"] = None
    limit: Optional[int] = group["memory.max"]
    with group, umemcg.Account() as account:
        account.try_grow(4096)
    cache = umemcg.ObjectCache(engine, "p", listener=lambda key, value, why: print(key.hex(), value.nbytes, why))
    view: Optional[memoryview] = cache.get(b"k")
    loaded: memoryview = cache.get_or_insert(b"k", lambda: b"v", group)
    current: Optional[umemcg.Group] = umemcg.current_group()
    try:
        charge: umemcg.Charge = group.charge(4096)
    except umemcg.Refused as error:
        print(error.group, error.wanted, error.limit, error.free)
        raise
    stats: dict[str, Optional[int]] = group.stats()
    group.charge("4096")  # type: ignore[arg-type]
    cache.insert("k", b"v")  # type: ignore[arg-type]
    return len(cache) + charge.bytes + loaded.nbytes + len(stats) + (limit or 0) + (current is None) + (view is None)
