#!/usr/bin/env python3
"""Repeats the tests until one fails by chance, and names those that did.

Runs the whole suite RUNS times, every second time beside load, and each test program whose tests take less than ten
seconds together REPEATS times. These repeats are the load; once none is left, processes that keep all processors busy
are. Every run's output is kept below the directory given; a test that failed is printed with the output of its first
failure. Exits with 1 if any failed.

No session has the hours for many runs, so with CI_RECORD each run is a line of .ci/flaky.tsv, with its commit, and the
end says how many there were since the last failure, at whichever commits. `make test-odd-store` adds lines, too.

usage: flaky.py RUNS REPEATS DIRECTORY COMMAND...   where COMMAND is `cargo nextest run` with its selection
"""
import collections
import concurrent.futures
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

SHORT_SECONDS = 10
# As many repeats of a program as one command runs: the end of the suite waits for no more.
NR_AT_ONCE = 5
ENDED = re.compile(r"^ +(?:TRY \d+ )?([A-Z]+)(?: \+ LEAK)? \[ *>?([0-9.]+)s\] (?:[(\[][^)\]]*[)\]] )*(\S+)(?: (\S+))?$")


RECORD = pathlib.Path(".ci/flaky.tsv")
# What the suite runs beside.
SUITE = ("idle", "beside load")


def record(what, nr, failed):
    """Writes down that something ran so many times, and the tests that failed."""
    if not os.environ.get("CI_RECORD"):
        return
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    is_changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!.ci"]).returncode != 0
    line = [commit + "+" * is_changed, datetime.date.today().isoformat(), what, str(nr), ", ".join(failed) or "-"]
    with open(RECORD, "a") as file:
        print(*line, sep="\t", file=file)


def since_last_failure():
    """Returns how many times what ran since it last had a failure."""
    counts = collections.Counter()
    for line in RECORD.read_text().splitlines() if RECORD.exists() else []:
        _, _, what, nr, failed = line.split("\t")
        if failed != "-":
            # A failure beside load is one of the suite.
            for kind in SUITE if what in SUITE else (what,):
                counts[kind] = 0
        else:
            counts[what] += int(nr)
    return counts


def run(command, log, is_apart=False):
    """Runs a command, and returns its exit code with each test's program, name, seconds and whether it passed.

    Ctrl-C does not end a command that is apart: it would have failed by that.
    """
    with open(log, "w") as file:
        how = dict(stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=is_apart)
        code = subprocess.run(command, **how).returncode
    ended = [ENDED.match(line) for line in log.read_text(errors="replace").splitlines()]
    return code, [(e[3], e[4], float(e[2]), e[1] in ("PASS", "LEAK")) for e in ended if e and e[1] not in ("SLOW", "SKIP")]


def main():
    nr_runs, nr_repeats, directory = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    command = sys.argv[4:] + ["--status-level", "all", "--final-status-level", "none"]
    directory.mkdir(parents=True, exist_ok=True)
    failures = collections.defaultdict(list)
    nr_bad = 0
    nr_left = collections.Counter()
    nr_passed = collections.Counter()

    def record_passed():
        """Writes down the repeats that have passed: a line for each program."""
        for program in sorted(+nr_passed):
            record(program, nr_passed.pop(program), [])

    def count(what, log, outcome, kind, nr):
        nonlocal nr_bad
        code, tests = outcome
        if not tests:
            # It was not built, or was ended: neither passed nor failed by chance.
            sys.exit(f"{what}: no test ran, see {log}")
        failed = sorted({f"{program} {name}" for program, name, _, passed in tests if not passed})
        for test in failed:
            failures[test].append((what, log))
        nr_bad += code != 0
        if code == 0 and kind not in SUITE:
            nr_passed[kind] += nr
        else:
            if code:
                record_passed()
            record(kind, nr, failed or (["exit code"] if code else []))
        print(f"{what}: {len(tests)} tests, {len(failed)} failed, exit code {code}", *failed, sep="\n    ", flush=True)
        return tests

    def repeat():
        """Runs the program with most repeats left a few times."""
        program = max(sorted(nr_left), key=nr_left.get)
        nr = min(NR_AT_ONCE, nr_left[program])
        log = directory / f"{program.replace('::', '-').replace('/', '-')}-{nr_left[program]}.log"
        nr_left[program] -= nr
        repeated = ["--stress-count", str(nr), "-E", f"binary_id(={program})"]
        count(f"{program}, {nr} times", log, run(command + repeated, log, is_apart=True), program, nr)

    def load(has_ended):
        while not has_ended.is_set() and +nr_left:
            repeat()
        busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count())]
        has_ended.wait()
        for process in busy:
            process.kill()
            process.wait()

    # What has passed is written down at a SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for number in range(1, nr_runs + 1):
            is_loaded = number % 2 == 0
            has_ended = threading.Event()
            started = time.monotonic()
            log = directory / f"run-{number}.log"
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                beside = pool.submit(load, has_ended) if is_loaded else None
                try:
                    outcome = run(command, log)
                    took = time.monotonic() - started
                finally:
                    has_ended.set()
            if beside:
                beside.result()
            where = SUITE[is_loaded]
            tests = count(f"run {number} of {nr_runs}, {where}, {took:.0f} s", log, outcome, where, 1)
            if number == 1 and nr_repeats:
                seconds = collections.Counter()
                for program, _, test_seconds, _ in tests:
                    seconds[program] += test_seconds
                nr_left.update({program: nr_repeats for program in seconds if seconds[program] < SHORT_SECONDS})
        while +nr_left:
            repeat()
    finally:
        record_passed()

    for test, found in sorted(failures.items()):
        print(f"\n{test}: failed {len(found)} times: " + "; ".join(what for what, _ in found))
        lines = found[0][1].read_text(errors="replace").splitlines()
        name = test.split(" ", 1)[1]
        at = next((at for at, line in enumerate(lines) if name in line and re.match(r" +(FAIL|SIG|TIMEOUT)", line)), 0)
        print(*lines[at : at + 60], sep="\n    ")
    counts = since_last_failure()
    nr_idle, nr_loaded = (counts[where] for where in SUITE)
    programs = (nr for what, nr in counts.items() if what not in SUITE and not what.startswith("odd-store"))
    least = min(programs, default=0)
    print(f"since the last failure: {nr_idle} runs idle, {nr_loaded} beside load, each program {least} times at least")
    print(f"flaky: {nr_runs} runs and {len(nr_left)} programs {nr_repeats} times, {nr_bad} with a failure, {len(failures)} tests")
    sys.exit(nr_bad != 0)


main()
