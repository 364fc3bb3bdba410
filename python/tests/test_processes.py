"""Forked children, and the end of the interpreter while threads are busy."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import umemcg

SECONDS_MAX = 60


def run(program: str) -> subprocess.CompletedProcess:
    """Runs a program of its own, which must end by itself."""
    # -P: the installed package, not the directory of the tests.
    arguments = [sys.executable, "-P", "-X", "faulthandler", "-c", textwrap.dedent(program)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS_MAX)


def status_of(child: int) -> int:
    """Waits for a child; a hanging child is killed, and fails the test."""
    give_up = time.monotonic() + SECONDS_MAX
    while time.monotonic() < give_up:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail(f"a child was not at its end after {SECONDS_MAX} s")


def test_a_forked_child_gets_errors(engine, group):
    cache = umemcg.ObjectCache(engine, "p")
    cache.insert(b"k", b"v", group)
    view = cache.get(b"k")
    account = group.account()
    charge = group.charge(4096)
    child = os.fork()
    if child == 0:
        try:
            for call in (
                lambda: umemcg.Engine(),
                lambda: group.charge(1),
                lambda: group.usage,
                lambda: group["memory.max"],
                lambda: account.try_grow(1),
                lambda: cache.get(b"k"),
                lambda: engine.root,
            ):
                try:
                    call()
                    os._exit(1)
                except umemcg.Forked:
                    pass
            account.close()
            charge.close()
            if bytes(view) != b"v":
                os._exit(2)
            os._exit(7)
        finally:
            os._exit(3)
    assert status_of(child) == 7
    account.close()
    charge.close()
    group.charge(4096).close()


FORKS = """
    import os, sys, threading
    import umemcg

    engine = umemcg.Engine(16 << 20, workers=1)
    group = engine.group("/a")
    cache = umemcg.ObjectCache(engine, "p", listener=lambda *told: None)
    is_over = False

    def churn():
        key = 0
        while not is_over:
            key += 1
            cache.insert(key.to_bytes(4, "little"), bytes(4096), group)

    group["memory.max"] = 1 << 20
    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            is_over = True
            del engine, group, cache
            # Like any program: exit handlers, then the end of the interpreter, which drops everything.
            sys.exit(7)
        pid, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
    is_over = True
    for thread in threads:
        thread.join()
    print("done")
"""


def test_children_of_a_busy_process_end_as_usual():
    done = run(FORKS)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


ENDS = {
    "daemon threads that charge and insert": """
        import threading, umemcg
        engine = umemcg.Engine(16 << 20, workers=2)
        group = engine.group("/a")
        group["memory.max"] = 1 << 20
        cache = umemcg.ObjectCache(engine, "p", listener=lambda *told: None)
        def churn(nr):
            key = 0
            while True:
                key += 1
                cache.insert((nr, key).__repr__().encode(), bytes(4096), group)
                group.charge(4096).close()
        for nr in range(3):
            threading.Thread(target=churn, args=(nr,), daemon=True).start()
        import time; time.sleep(0.2)
    """,
    "workers that call back": """
        import threading, umemcg
        engine = umemcg.Engine(16 << 20, workers=2)
        group = engine.group("/a")
        group["memory.max"] = 4 << 20
        group["memory.high_wmark_distance"] = 3 << 20
        group["memory.low_wmark_distance"] = 2 << 20
        called = threading.Event()
        def count(group_id):
            called.set()
            return 1000
        shrinker = umemcg.Shrinker(engine, "s", count, lambda group_id, nr, wanted: (nr, 4096))
        shrinker.announce(group)
        charge = group.charge(3 << 20)
        assert called.wait(30)
    """,
    "objects that live in modules and cycles": """
        import sys, umemcg
        engine = umemcg.Engine(16 << 20)
        group = engine.group("/a")
        sys.kept = [engine, group, group.charge(4096), group.account(), group.guarantee(4096)]
        class Cycle:
            def __init__(self):
                self.shrinker = umemcg.Shrinker(engine, "s", self.count, lambda group_id, nr, wanted: None)
                self.cache = umemcg.ObjectCache(engine, "p", listener=self.removed)
                self.cache.insert(b"k", b"v", group)
                self.view = self.cache.get(b"k")
            def count(self, group_id): return 0
            def removed(self, *told): pass
            def __del__(self): group.usage
        sys.cycle = Cycle()
    """,
    "a group that is entered": """
        import umemcg
        umemcg.Engine(16 << 20).group("/a").__enter__()
    """,
    "exit handlers that run last": """
        import atexit, sys
        late = []
        atexit.register(lambda: late[0]())
        import umemcg
        engine = umemcg.Engine(16 << 20)
        group = engine.group("/a")
        def charge():
            try:
                group.charge(4096)
            except umemcg.Ending:
                print("ending")
        late.append(charge)
    """,
}


@pytest.mark.parametrize("what", ENDS)
def test_an_interpreter_ends_with(what):
    for _ in range(3):
        done = run(ENDS[what])
        assert done.returncode == 0, done.stderr
        assert "Fatal" not in done.stderr and "panicked" not in done.stderr, done.stderr
        if what == "exit handlers that run last":
            assert done.stdout == "ending\n"


def test_a_spawned_process_may_use_the_package():
    done = run(
        """
        import multiprocessing, umemcg
        if __name__ == "__main__":
            engine = umemcg.Engine(16 << 20)
            context = multiprocessing.get_context("spawn")
        """
    )
    assert done.returncode == 0, done.stderr
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-P", "-c", "import umemcg; umemcg.Engine(16 << 20).group('/a')"])
    assert status_of(child) == 0
