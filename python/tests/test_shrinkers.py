import pytest

import umemcg

MIB = 1 << 20
OBJECT_BYTES = 4096


class Objects:
    """Charged objects of one group, as a shrinker has them."""

    def __init__(self, engine: umemcg.Engine, group: umemcg.Group, nr: int) -> None:
        self.group_id = group.id
        self.charges: list[umemcg.Charge] = []
        self.shrinker = umemcg.Shrinker(engine, "my objects", self.count, self.scan, reparent=self.reparent)
        for _ in range(nr):
            self.charges.append(group.charge(OBJECT_BYTES))
            self.shrinker.announce(group)

    def count(self, group_id: int):
        return len(self.charges) if group_id == self.group_id else 0

    def scan(self, group_id: int, nr: int, wanted: int):
        freed = self.charges[:nr]
        del self.charges[:nr]
        for charge in freed:
            charge.close()
        return len(freed), len(freed) * OBJECT_BYTES

    def reparent(self, group_id: int, parent_id: int) -> None:
        if self.group_id == group_id:
            self.group_id = parent_id


def test_a_full_group_gets_objects_back(engine, group):
    objects = Objects(engine, group, 200)
    charge = group.charge(MIB // 2)
    assert len(objects.charges) < 200 and group.usage <= MIB
    charge.close()
    objects.shrinker.close()
    objects.shrinker.close()
    with pytest.raises(umemcg.Removed):
        objects.shrinker.announce(group)


def test_a_removed_group_leaves_its_objects_above(engine, group):
    objects = Objects(engine, group, 50)
    group.remove()
    assert objects.group_id == engine.root.id
    engine.root["vm.drop_caches"] = 2
    assert objects.charges == []


def test_callbacks_that_raise_leave_accounts_exact(engine, group, unraisable):
    objects = Objects(engine, group, 200)
    objects.shrinker.close()

    def fail(*_: int):
        raise ZeroDivisionError

    with umemcg.Shrinker(engine, "broken", fail, objects.scan) as broken:
        broken.announce(group)
        with pytest.raises(umemcg.Refused):
            group.charge(MIB // 2)
    with umemcg.Shrinker(engine, "broken", objects.count, fail) as broken:
        broken.announce(group)
        with pytest.raises(umemcg.Refused):
            group.charge(MIB // 2)
    assert unraisable and all(isinstance(error, ZeroDivisionError) for error in unraisable)
    assert len(objects.charges) == 200
    objects.scan(0, 200, 0)
    group["memory.force_empty"] = 0
    assert group.usage == 0


@pytest.mark.parametrize("answer", [-1, "many", 1 << 70, 2.5, (1, 2)])
def test_a_count_may_return_anything(engine, group, unraisable, answer):
    charge = group.charge(MIB // 2)
    with umemcg.Shrinker(engine, "liar", lambda group_id: answer, lambda group_id, nr, wanted: (nr, 0)) as liar:
        liar.announce(group)
        with pytest.raises(umemcg.Refused):
            group.charge(MIB)
    assert unraisable
    charge.close()


@pytest.mark.parametrize("answer", [(1 << 63, 1 << 63), ((1 << 64) - 1, (1 << 64) - 1), 5, (-1, 2), "no", None])
def test_a_scan_may_return_anything(engine, group, unraisable, answer):
    charge = group.charge(MIB // 2)
    with umemcg.Shrinker(engine, "liar", lambda group_id: 100, lambda group_id, nr, wanted: answer) as liar:
        liar.announce(group)
        with pytest.raises(umemcg.Refused):
            group.charge(MIB)
    charge.close()
    group["memory.force_empty"] = 0
    assert group.usage == 0


def test_a_scan_cannot_reclaim_again(engine, group, unraisable):
    charge = group.charge(MIB // 2)

    def scan(group_id: int, nr: int, wanted: int):
        group.charge(MIB)

    with umemcg.Shrinker(engine, "greedy", lambda group_id: 100, scan) as greedy:
        greedy.announce(group)
        with pytest.raises(umemcg.Refused):
            group.charge(MIB)
    assert unraisable and {type(error) for error in unraisable} == {umemcg.InCallback}
    charge.close()


def test_a_shrinker_may_close_itself(engine, group):
    objects = Objects(engine, group, 200)
    calls = []

    def scan(group_id: int, nr: int, wanted: int):
        calls.append(1)
        shrinker.close()
        return objects.scan(group_id, nr, wanted)

    objects.shrinker.close()
    shrinker = umemcg.Shrinker(engine, "brief", objects.count, scan)
    shrinker.announce(group)
    try:
        group.charge(MIB // 2).close()
    except umemcg.Refused:
        pass
    assert calls


def test_wrong_arguments_are_errors(engine, group):
    other = umemcg.Engine(8 * MIB, workers=1)
    for wrong in (None, 5, "x"):
        with pytest.raises(TypeError):
            umemcg.Shrinker(engine, "s", wrong, lambda group_id, nr, wanted: None)
        with pytest.raises(TypeError):
            umemcg.Shrinker(engine, "s", lambda group_id: 0, wrong)
    with umemcg.Shrinker(other, "s", lambda group_id: 0, lambda group_id, nr, wanted: None) as shrinker:
        with pytest.raises(umemcg.OtherEngine):
            shrinker.announce(group)
