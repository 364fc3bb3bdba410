import asyncio
import threading

import pytest

import umemcg

MIB = 1 << 20


def test_a_refused_charge_names_group_and_numbers(engine, group):
    child = engine.group("/a/b")
    with pytest.raises(umemcg.Refused) as caught:
        child.charge(2 * MIB)
    error = caught.value
    assert (error.group, error.wanted, error.limit) == ("/a", 2 * MIB, MIB)
    assert 0 < error.free <= MIB and "/a" in str(error)
    assert isinstance(error, MemoryError) and isinstance(error, umemcg.Error)


def test_a_charge_ends_when_closed_or_collected(group):
    with group.charge(65536) as charge:
        assert charge.bytes == 65536 and group.usage >= 65536
    charge.close()
    group.charge(65536)
    group["memory.force_empty"] = 0
    assert group.usage == 0


def test_control_keys_are_numbers_or_none(engine, group):
    assert group["memory.max"] == MIB
    group["memory.max"] = None
    assert group["memory.max"] is None
    group["memory.low"] = 4096
    assert group["memory.low"] == 4096
    with pytest.raises(umemcg.NotFound):
        group["memory.maximum"]
    with pytest.raises(umemcg.Busy):
        group["memory.current"] = 1
    with pytest.raises(umemcg.InvalidArgument):
        engine.root["memory.max"] = 1
    with pytest.raises((OverflowError, umemcg.Error)):
        group["memory.max"] = -1
    with pytest.raises(TypeError):
        group["memory.max"] = "1m"


def test_a_limit_below_usage_is_busy(group):
    charge = group.charge(MIB // 2)
    with pytest.raises(umemcg.Busy) as caught:
        group["memory.limit_in_bytes"] = 4096
    assert caught.value.group == "/a" and group["memory.max"] == MIB
    charge.close()
    group["memory.limit_in_bytes"] = 4096


def test_paths_open_and_make_groups(engine):
    group = engine.group("/x/y")
    assert group.path == "/x/y" and engine.group("/x/y", create=False) == group
    assert hash(engine.group("/x/y")) == hash(group) and group != engine.group("/x") and group != 1
    with pytest.raises(umemcg.NotFound) as caught:
        engine.group("/none", create=False)
    assert caught.value.group == "/none"
    for wrong in ("x", "", "/x/../y", "/a\nb", "/" + "n" * 300, "/\0"):
        with pytest.raises((umemcg.InvalidArgument, ValueError)):
            engine.group(wrong)


def test_a_removed_group_leaves_its_charges_above(engine):
    group = engine.group("/x/y")
    charge = group.charge(65536)
    with pytest.raises(umemcg.Busy):
        engine.group("/x").remove()
    group.remove()
    with pytest.raises(umemcg.Removed):
        group.remove()
    with pytest.raises(umemcg.Removed):
        group["memory.max"]
    assert engine.group("/x").usage >= 65536
    charge.close()


def test_negative_and_huge_sizes_are_errors(engine, group):
    for wrong in (-1, -(1 << 62), 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 80):
        with pytest.raises((OverflowError, umemcg.Error)):
            group.charge(wrong)
        with pytest.raises((OverflowError, umemcg.Error)):
            group.charge(wrong, force=True)
        with pytest.raises((OverflowError, umemcg.Error)):
            group.guarantee(wrong)
        with pytest.raises((OverflowError, umemcg.Error)):
            umemcg.Engine(wrong)
    with pytest.raises(umemcg.InvalidArgument):
        umemcg.Engine(4096)
    assert group.usage == 0


def test_a_guarantee_leaves_room_for_it(engine, group):
    with engine.group("/b").guarantee(12 * MIB) as guarantee:
        assert guarantee.bytes == 12 * MIB
        with pytest.raises(umemcg.Overcommitted) as caught:
            engine.group("/c").guarantee(8 * MIB)
        assert caught.value.free == 4 * MIB
    engine.group("/c").guarantee(8 * MIB).close()


def test_statistics_are_a_dict(engine, group):
    charge = group.charge(65536)
    stats = group.stats()
    assert stats["usage_bytes"] >= 65536 and stats["max_bytes"] == MIB
    assert engine.group("/free").stats()["max_bytes"] is None
    assert engine.stats()["usage_bytes"] >= stats["usage_bytes"]
    charge.close()


def test_with_makes_a_group_current(engine, group):
    other = engine.group("/other")
    assert umemcg.current_group() is None
    with group:
        assert umemcg.current_group() == group
        with other, group:
            assert umemcg.current_group() == group
        with other:
            assert umemcg.current_group() == other
        assert umemcg.current_group() == group
    assert umemcg.current_group() is None
    with pytest.raises(ValueError, match="no group"):
        umemcg.Account()


def test_tasks_and_threads_have_their_own_current_group(engine):
    async def task(name: str) -> None:
        group = engine.group(name)
        with group:
            for _ in range(20):
                await asyncio.sleep(0)
                assert umemcg.current_group() == group

    async def all_tasks() -> None:
        await asyncio.gather(*(task(f"/t{nr}") for nr in range(5)))

    asyncio.run(all_tasks())
    seen = []
    with engine.group("/t0"):
        thread = threading.Thread(target=lambda: seen.append(umemcg.current_group()))
        thread.start()
        thread.join(10)
    assert seen == [None]
