"""Closed and dropped objects leave nothing behind."""

import gc
import os
import weakref

import umemcg

MIB = 1 << 20
# Heaps grow by fragments; a leak would be megabytes.
KEPT_BYTES_MAX = 8 * MIB


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def one_life() -> None:
    engine = umemcg.Engine(16 * MIB, workers=1)
    group = engine.group("/a")
    group["memory.max"] = 2 * MIB
    kept = []
    with umemcg.ObjectCache(engine, "p", listener=lambda *told: kept.append(told)) as cache:
        for key in range(500):
            cache.insert(key.to_bytes(4, "little"), bytes(8192), group)
        views = [cache.get(key.to_bytes(4, "little")) for key in range(400, 450)]
    account = group.account()
    account.try_grow(65536)
    with umemcg.Shrinker(engine, "s", lambda group_id: 0, lambda group_id, nr, wanted: None) as shrinker:
        shrinker.announce(group)
    del views, kept


def test_lives_of_engines_leave_no_memory_and_no_thread():
    for _ in range(5):
        one_life()
    gc.collect()
    before, threads_before = resident_bytes(), threads()
    for _ in range(60):
        one_life()
    gc.collect()
    assert resident_bytes() - before < KEPT_BYTES_MAX
    assert threads() <= threads_before


def test_errors_and_callbacks_leave_no_objects(engine, group):
    class Callback:
        def __call__(self, *told: object) -> None:
            pass

    callback = Callback()
    dead = weakref.ref(callback)
    with umemcg.ObjectCache(engine, "p", listener=callback):
        pass
    del callback
    gc.collect()
    umemcg.current_group()
    assert dead() is None
    for _ in range(10_000):
        try:
            group.charge(2 * MIB)
        except umemcg.Refused:
            pass
    before = resident_bytes()
    for _ in range(20_000):
        try:
            group.charge(2 * MIB)
        except umemcg.Refused:
            pass
    assert resident_bytes() - before < KEPT_BYTES_MAX
