import gc
import signal
import threading
import time

import pytest

import umemcg

MIB = 1 << 20


def test_values_come_and_go(engine, group):
    with umemcg.ObjectCache(engine, "pages") as cache:
        cache.insert(b"one", b"value", group)
        with group:
            cache.insert(bytearray(b"two"), memoryview(b"other"))
        assert cache.get(b"one") == b"value" and cache.get(b"two") == b"other"
        assert cache.get(b"none") is None and len(cache) == 2
        cache.insert(b"", b"", group)
        assert cache.get(b"") == b""
        assert cache.remove(b"one") and not cache.remove(b"one")
        cache.clear()
        assert len(cache) == 0
        assert cache.stats()["inserted"] == 3 and cache.stats(group)["hits"] == 3
    with pytest.raises(umemcg.Removed):
        cache.get(b"one")
    cache.close()


def test_a_group_keeps_to_its_limit(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")
    for key in range(1000):
        cache.insert(key.to_bytes(4, "little"), bytes(8192), group)
    assert group.usage <= MIB and cache.stats(group)["evicted"] > 800
    with pytest.raises(umemcg.Refused) as caught:
        cache.insert(b"big", bytes(2 * MIB), group)
    assert caught.value.group == "/a" and cache.get(b"big") is None


def test_a_view_stays_while_it_exists(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")
    cache.insert(b"k", b"v" * 10000, group)
    view = cache.get(b"k")
    part = view[5000:]
    assert view.readonly and view.nbytes == 10000
    with pytest.raises(TypeError):
        view[0] = 1
    cache.insert(b"k", b"w" * 10000, group)
    cache.clear()
    cache.close()
    del cache
    view.release()
    gc.collect()
    assert bytes(part) == b"v" * 5000


@pytest.mark.parametrize("loads", [False, True])
def test_a_view_keeps_its_value_charged(engine, group, loads):
    cache = umemcg.ObjectCache(engine, "pages")
    if loads:
        view = cache.get_or_insert(b"k", lambda: bytes(100_000), group)
        assert cache.stats()["hits"] == 0 and cache.stats()["misses"] == 1
    else:
        cache.insert(b"k", bytes(100_000), group)
        view = cache.get(b"k")
    cache.remove(b"k")
    group["memory.force_empty"] = 0
    assert group.usage >= 100_000 and cache.stats()["pinned_bytes"] >= 100_000
    del view
    group["memory.force_empty"] = 0
    assert group.usage < 100_000 and cache.stats()["pinned_bytes"] == 0


def test_a_view_is_no_copy(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")
    cache.insert(b"k", bytes(65536), group)
    addresses = set()
    for _ in range(3):
        import ctypes

        # A view of the same bytes from C: PyObject_GetBuffer through ctypes needs them to be writable, so
        # the address is taken from the buffer protocol's own struct.
        view = cache.get(b"k")
        buffer = (ctypes.c_char * 256)()
        status = ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), buffer, 0)
        assert status == 0
        addresses.add(bytes(buffer[:8]))
        ctypes.pythonapi.PyBuffer_Release(buffer)
    assert len(addresses) == 1


def test_a_missing_value_is_loaded_once(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")
    loads = []

    def load() -> bytes:
        loads.append(1)
        time.sleep(0.05)
        return b"loaded"

    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(bytes(cache.get_or_insert(b"k", load, group))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [b"loaded"] * 8 and len(loads) == 1


def test_ctrl_c_ends_a_wait_for_another_threads_load(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")
    loading, ends = threading.Event(), threading.Event()

    def load() -> bytes:
        loading.set()
        assert ends.wait(60)
        return b"loaded"

    loader = threading.Thread(target=lambda: cache.get_or_insert(b"k", load, group))
    loader.start()
    assert loading.wait(60)
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        cache.get_or_insert(b"k", lambda: b"not this", group)
    timer.join(60)
    assert loader.is_alive() and cache.get(b"k") is None
    ends.set()
    loader.join(60)
    assert cache.get(b"k") == b"loaded"


def test_what_a_load_raises_reaches_its_caller(engine, group):
    cache = umemcg.ObjectCache(engine, "pages")

    def fail() -> bytes:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        cache.get_or_insert(b"k", fail, group)
    with pytest.raises((TypeError, BufferError)):
        cache.get_or_insert(b"k", lambda: 5, group)
    with pytest.raises(RuntimeError, match="the key that it loads"):
        cache.get_or_insert(b"k", lambda: cache.get_or_insert(b"k", lambda: b"", group), group)
    # A load may use the cache for other keys, and a group.
    nested = cache.get_or_insert(b"a", lambda: bytes(cache.get_or_insert(b"b", lambda: b"x", group)), group)
    assert nested == b"x" and cache.get(b"b") == b"x" and cache.get(b"k") is None


def test_a_listener_hears_every_removal(engine, group):
    heard = []
    cache = umemcg.ObjectCache(engine, "p", listener=lambda *told: heard.append((told[0], bytes(told[1]), told[2])))
    cache.insert(b"a", b"1", group)
    cache.insert(b"a", b"2", group)
    cache.remove(b"a")
    assert heard == [(b"a", b"1", "replaced"), (b"a", b"2", "removed")]
    for key in range(300):
        cache.insert(key.to_bytes(4, "little"), bytes(8192), group)
    assert [why for _, _, why in heard].count("evicted") == cache.stats()["evicted"] > 0


def test_a_listener_that_raises_changes_nothing_else(engine, group, unraisable):
    def listener(key: bytes, value: memoryview, why: str) -> None:
        raise ValueError(key)

    cache = umemcg.ObjectCache(engine, "p", listener=listener)
    for key in range(300):
        cache.insert(key.to_bytes(4, "little"), bytes(8192), group)
    evicted = cache.stats()["evicted"]
    assert evicted > 0 and len(unraisable) == evicted
    assert all(isinstance(error, ValueError) for error in unraisable)
    cache.close()
    group["memory.force_empty"] = 0
    assert group.usage == 0


def test_a_listener_cannot_wait_for_itself(engine, group, unraisable):
    cache = umemcg.ObjectCache(
        engine, "p", listener=lambda key, value, why: (cache.insert(b"x", b"y", group), None)
    )
    cache.insert(b"a", b"1", group)
    cache.remove(b"a")
    assert [type(error) for error in unraisable] == [umemcg.InCallback]


def test_another_engine_is_an_error(engine, group):
    other = umemcg.Engine(8 * MIB, workers=1)
    cache = umemcg.ObjectCache(other, "p")
    with pytest.raises(umemcg.OtherEngine) as caught:
        cache.insert(b"k", b"v", group)
    assert caught.value.group == "/a"
    with pytest.raises(umemcg.OtherEngine):
        cache.stats(group)


def test_wrong_arguments_are_errors(engine, group):
    cache = umemcg.ObjectCache(engine, "p")
    for wrong in (1, "text", None, object()):
        with pytest.raises((TypeError, BufferError)):
            cache.insert(wrong, b"v", group)
        with pytest.raises((TypeError, BufferError)):
            cache.get(wrong)
        with pytest.raises(TypeError):
            umemcg.ObjectCache(wrong, "p")
    for wrong in (-1.0, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError):
            umemcg.ObjectCache(engine, "p", time_to_live=wrong)
    with pytest.raises(TypeError):
        umemcg.ObjectCache(engine, "p", listener=5)
    with pytest.raises(TypeError):
        cache.get_or_insert(b"k", 5, group)
    with pytest.raises(TypeError):
        cache.insert(b"k", b"v", engine)
