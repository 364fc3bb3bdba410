import threading

import pytest

import umemcg

MIB = 1 << 20


def test_an_account_holds_what_it_says(group):
    with group:
        account = umemcg.Account()
    account.try_grow(MIB // 2)
    assert account.bytes == MIB // 2 and group.usage >= MIB // 2
    part = account.split(65536)
    account.shrink(account.bytes)
    assert (account.bytes, account.peak, part.bytes) == (0, MIB // 2, 65536)
    part.grow(2 * MIB)
    assert group.usage >= 2 * MIB
    part.close()
    account.close()
    group["memory.force_empty"] = 0
    assert group.usage == 0


def test_a_refusal_says_what_can_be_done(engine, group):
    with group.account() as account:
        account.try_grow(MIB // 2)
        with pytest.raises(umemcg.NeverFits) as never:
            account.try_grow(2 * MIB)
        assert never.value.limit == MIB
        with pytest.raises(umemcg.Refused) as refused:
            account.try_grow(MIB - 4096)
        assert not isinstance(refused.value, umemcg.NeverFits)
        assert refused.value.group == "/a" and refused.value.free <= MIB // 2
        assert group["memory.events.oom"] == 0
        engine.group("/b")["memory.max"] = None
        with engine.group("/b").guarantee(14 * MIB):
            group["memory.max"] = 8 * MIB
            with pytest.raises(umemcg.Overcommitted):
                account.try_grow(4 * MIB)
    with pytest.raises(umemcg.Removed):
        account.bytes


def test_wrong_numbers_change_nothing(group):
    account = group.account()
    account.try_grow(4096)
    for wrong in (-1, 1 << 63, 1 << 64):
        for call in (account.try_grow, account.grow, account.shrink, account.split):
            with pytest.raises((OverflowError, umemcg.Error)):
                call(wrong)
    with pytest.raises(umemcg.NotHeld) as caught:
        account.shrink(4097)
    assert (caught.value.wanted, caught.value.free) == (4097, 4096)
    with pytest.raises(umemcg.NotHeld):
        account.split(4097)
    assert account.bytes == 4096


def test_threads_keep_an_account_exact(group):
    account = group.account()
    kept = []

    def spend() -> None:
        own = 0
        for _ in range(2000):
            try:
                account.try_grow(100)
                own += 100
                account.shrink(130)
                own -= 130
            except (umemcg.Refused, umemcg.NotHeld):
                pass
        kept.append(own)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(kept) == 4 and sum(kept) == account.bytes
