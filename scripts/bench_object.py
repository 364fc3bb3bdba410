#!/usr/bin/env python3
"""Mounts of one bucket compared: umemcg, JuiceFS, `weed mount`, rclone and s3fs, on one SeaweedFS.

For each: a file of 64 MiB is read with nothing cached, and again; 10,000 names are listed with their attributes; 10,000
blocks of 4 KiB are read at random places of the file, with nothing cached; 256 MiB are copied into the mount. Prints a table
of seconds, requests that came to the store, and the most memory that the mount's process had resident, as docs/objects.md has
it. umemcg reads the blocks in a group of 16 MiB; the others have no groups, and their defaults.

Then, of umemcg alone, how long a tenant waits for blocks that it has cached, while another streams through ten times the pool,
reading and writing.

Arguments: the program umemcg, the counting proxy (`cargo build -p umemcg-object --example counting_proxy`), the virtual
environment with `weed` and `juicefs`, and the scale (1; smaller ones have less of everything).
"""

import concurrent.futures
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

program, proxy_program, servers, scale = *(os.path.abspath(path) for path in sys.argv[1:4]), float(sys.argv[4])
BIG_MIB, NR_NAMES, NR_READS, UPLOAD_MIB = (max(int(n * scale), 1) for n in (64, 10_000, 10_000, 256))
KEY, SECRET = "umemcg-bench", "umemcg-bench-secret"
os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
# rclone refuses it, and nothing here is encrypted.
os.environ.pop("AWS_CA_BUNDLE", None)


def wait_for(what, condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {seconds} s, but never: {what}")
        time.sleep(0.02)


class Store:
    """SeaweedFS with one bucket, and the proxy before it."""

    def __init__(self, work):
        self.work = work
        free = (port for port in iter(lambda: random.randrange(10_000, 22_000), None) if self.is_free(port))
        self.ports = [next(free) for _ in range(4)]
        actions = '["Admin","Read","Write","List","Tagging"]'
        with open(f"{work}/s3.json", "w") as config:
            config.write(f'{{"identities":[{{"name":"anonymous","actions":{actions}}},{{"name":"b","credentials":'
                         f'[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],"actions":{actions}}}]}}')
        os.mkdir(f"{work}/server")
        names = ("master", "volume", "filer", "s3")
        self.process = subprocess.Popen(
            [f"{servers}/bin/weed", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=200", "-filer", "-s3",
             "-master.volumeSizeLimitMB=64", f"-dir={work}/server", f"-s3.config={work}/s3.json", "-s3.port.iceberg=0",
             "-s3.port.lance=0", "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
            + [f"-{name}.port={port}" for name, port in zip(names, self.ports)],
            stdout=subprocess.DEVNULL, stderr=open(f"{work}/server.log", "w"))
        wait_for("SeaweedFS stores", lambda: self.put("/bench", b"") and self.put("/bench/ready", b"1"))
        self.proxy = subprocess.Popen([proxy_program, f"http://127.0.0.1:{self.ports[3]}"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        self.endpoint = self.proxy.stdout.readline().strip()

    @staticmethod
    def is_free(port):
        def listens(port):
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0
        # Its other port.
        return not listens(port) and not listens(port + 10_000)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[3], timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        length = len(answer.read()) if method != "HEAD" else int(answer.headers.get("Content-Length", 0))
        return answer.status, length

    def put(self, path, body):
        try:
            return self.ask("PUT", path, body)[0] == 200
        except OSError:
            return False

    def requests(self):
        self.proxy.stdin.write("\n")
        self.proxy.stdin.flush()
        words = self.proxy.stdout.readline().split()
        return dict(zip(words[::2], map(int, words[1::2])))

    def end(self):
        for process in (self.proxy, self.process):
            process.kill()
            process.wait()


class Peer:
    """One mount. It is started anew for what has to be cold."""

    name = None
    is_counted = True
    # Where its files are below the mount, and the key prefix of uploads; None if objects are its own.
    prefix = ""

    def __init__(self, store):
        self.store, self.process, self.resident = store, None, 0
        self.dir = f"{store.work}/{self.name.replace(' ', '-')}"
        self.mnt = f"{self.dir}/mnt"
        os.makedirs(self.mnt)

    def start(self):
        shutil.rmtree(f"{self.dir}/cache", ignore_errors=True)
        os.mkdir(f"{self.dir}/cache")
        with open(f"{self.dir}/log", "a") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env={**os.environ, "HOME": self.dir})
        wait_for(f"{self.name} is mounted (see {self.dir}/log)", lambda: os.path.ismount(self.mnt))

    def note_memory(self):
        """Adds up the process and its children."""
        total, pids = 0, [self.process.pid]
        for pid in pids:
            try:
                status = open(f"/proc/{pid}/status").read()
                pids.extend(map(int, open(f"/proc/{pid}/task/{pid}/children").read().split()))
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        self.resident = max(self.resident, total // 1024)

    def stop(self):
        self.note_memory()
        subprocess.run(["umount", self.mnt], check=False, stderr=subprocess.DEVNULL)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            subprocess.run(["umount", "-l", self.mnt], check=False, stderr=subprocess.DEVNULL)

    def prepare(self):
        """Makes what is read, if the mount does not show what other clients store."""

    def path(self, name):
        return f"{self.mnt}/{name}"

    def wait_until_stored(self, name, length):
        wait_for(f"{self.name} has stored {name}", lambda: self.store.ask("HEAD", f"/bench/{name}") == (200, length))

    def in_group(self, command):
        return command


class Umemcg(Peer):
    name = "umemcg"
    POOL_MIB = 128

    def __init__(self, store):
        super().__init__(store)
        for name in ("cg", "staging"):
            os.mkdir(f"{self.dir}/{name}")

    def command(self):
        return [program, "mount", "s3://bench", self.mnt, "--control", f"{self.dir}/cg", "--pool", f"{self.POOL_MIB}M",
                "--endpoint", self.store.endpoint, "--region", "us-east-1", "--staging", f"{self.dir}/staging",
                "--attributes", "uniform"]

    def in_group(self, command):
        group = f"{self.dir}/cg/reader"
        if not os.path.isdir(group):
            os.mkdir(group)
            with open(f"{group}/memory.max", "w") as limit:
                limit.write("16m")
        return ["sh", "-c", 'echo $$ > "$0"; exec "$@"', f"{group}/cgroup.procs", *command]


class JuiceFs(Peer):
    name = "JuiceFS"

    def command(self):
        return [f"{servers}/bin/juicefs", "mount", f"sqlite3://{self.dir}/meta.db", self.mnt, "--no-usage-report",
                "--cache-dir", f"{self.dir}/cache"]

    def prepare(self):
        subprocess.run([f"{servers}/bin/juicefs", "format", "--storage", "s3", "--bucket", f"{self.store.endpoint}/juicefs",
                        "--access-key", KEY, "--secret-key", SECRET, f"sqlite3://{self.dir}/meta.db", "bench"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.start()
        shutil.copyfile(f"{self.store.work}/big", self.path("big"))
        os.mkdir(self.path("many"))
        for nr in range(NR_NAMES):
            with open(self.path(f"many/{nr:05}"), "w") as file:
                file.write("x")
        self.stop()

    def wait_until_stored(self, name, length):
        """Its close has stored it."""


class WeedMount(Peer):
    name = "weed mount"
    # It asks the filer and the servers of volumes, not the one of S3.
    is_counted = False

    def command(self):
        return [f"{servers}/bin/weed", "mount", f"-filer=127.0.0.1:{self.store.ports[2]}", f"-dir={self.mnt}",
                "-filer.path=/buckets/bench", f"-cacheDir={self.dir}/cache"]


class Rclone(Peer):
    name = "rclone"

    def command(self):
        return ["rclone", "mount", ":s3:bench", self.mnt, "--config", "/dev/null", "--s3-provider", "Other", "--s3-endpoint",
                self.store.endpoint, "--s3-access-key-id", KEY, "--s3-secret-access-key", SECRET, "--vfs-cache-mode", "writes",
                "--cache-dir", f"{self.dir}/cache"]


class S3fs(Peer):
    name = "s3fs"

    def command(self):
        return ["s3fs", "bench", self.mnt, "-f", "-o", f"url={self.store.endpoint}", "-o", "use_path_request_style",
                "-o", "complement_stat", "-o", f"tmpdir={self.dir}/cache"]

    def start(self):
        os.environ.update(AWSACCESSKEYID=KEY, AWSSECRETACCESSKEY=SECRET)
        super().start()


READ_RANDOMLY = """
import os, random, sys
file = os.open(sys.argv[1], os.O_RDONLY)
blocks = os.fstat(file).st_size // 4096
places = random.Random(1)
for _ in range(int(sys.argv[2])):
    assert len(os.pread(file, 4096, places.randrange(blocks) * 4096)) == 4096
"""


# Reads a file, and then blocks of it at a steady rate. Prints how long each read took, from the shortest on.
READ_STEADILY = """
import os, random, sys, time
path, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
file = os.open(path, os.O_RDONLY)
while os.read(file, 1 << 20):
    pass
blocks = os.fstat(file).st_size // 4096
places, took, start = random.Random(1), [], time.monotonic()
for nr in range(int(seconds * rate)):
    time.sleep(max(start + nr / rate - time.monotonic(), 0))
    at = places.randrange(blocks) * 4096
    before = time.perf_counter()
    assert len(os.pread(file, 4096, at)) == 4096
    took.append(time.perf_counter() - before)
print(*(f"{seconds * 1e6:.0f}" for seconds in sorted(took)))
"""
STEADY_SECONDS, STEADY_READS_PER_SECOND = max(20 * scale, 2), 1000


class Neighbours:
    """A tenant with its blocks in the cache, and another beside it, on one volume of one daemon."""

    LIMIT_MIB = 32

    def __init__(self, peer):
        self.peer, self.rows = peer, []
        # Ten times the pool.
        nr_times = 10 * Umemcg.POOL_MIB // BIG_MIB + 1
        self.beside = {
            "no neighbour": None,
            "two busy loops": "while :; do :; done & while :; do :; done",
            "a reader of ten times the pool": f"for i in $(seq {nr_times}); do cat {peer.path('big')} >/dev/null; done",
            "a writer of ten times the pool":
                f"for i in $(seq {nr_times}); do cp {peer.path('big')} {peer.path('copied')}; done",
        }

    def group(self, name):
        group = f"{self.peer.dir}/cg/{name}"
        os.mkdir(group)
        with open(f"{group}/memory.max", "w") as limit:
            limit.write(f"{self.LIMIT_MIB}m")
        return group

    def figure(self, group, name):
        with open(f"{group}/memory.stat") as stat:
            return next(int(line.split()[1]) for line in stat if line.startswith(f"{name} "))

    def all(self):
        self.peer.start()
        quiet, noisy = self.group("quiet"), self.group("noisy")
        enter = 'echo $$ > "$0"/cgroup.procs; exec "$@"'
        read = [sys.executable, "-c", READ_STEADILY, self.peer.path("own"), str(STEADY_SECONDS), str(STEADY_READS_PER_SECOND)]
        for what, script in self.beside.items():
            neighbour = script and subprocess.Popen(["sh", "-c", enter, noisy, "sh", "-c", script], start_new_session=True)
            before = [self.figure(quiet, name) for name in ("cache_hit", "cache_miss")]
            run = subprocess.run(["sh", "-c", enter, quiet, *read], check=True, stdout=subprocess.PIPE, text=True)
            hits, misses = (self.figure(quiet, name) - value for name, value in zip(("cache_hit", "cache_miss"), before))
            if neighbour:
                os.killpg(neighbour.pid, signal.SIGKILL)
                neighbour.wait()
            took = list(map(int, run.stdout.split()))
            at = [took[min(int(len(took) * part), len(took) - 1)] for part in (0.5, 0.99, 0.999)]
            with open(f"{noisy}/memory.peak") as peak:
                most = int(peak.read()) >> 20
            self.rows.append(f"| {what} | " + " | ".join(f"{us} µs" for us in at) + f" | {hits}, {misses} | {most} MiB |")
            print(f"  beside {what}: {self.rows[-1]}", file=sys.stderr)
        self.peer.stop()

    def table(self):
        print("\n| beside | p50 | p99 | p99.9 | hits, misses of the daemon | neighbour at most |\n|---|---|---|---|---|---|")
        print("\n".join(self.rows))


class Run:
    """What one mount is measured doing."""

    def __init__(self, peer):
        self.peer, self.cells = peer, {}

    def measure(self, what, command):
        before, start = self.peer.store.requests(), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if what == "upload":
            self.peer.wait_until_stored("copied", os.path.getsize(f"{self.peer.store.work}/upload"))
        seconds, after = time.monotonic() - start, self.peer.store.requests()
        new = {kind: after[kind] - before[kind] for kind in after}
        asked = ", ".join(f"{count} {kind}" for kind, count in new.items() if count) or "none"
        self.cells[what] = f"{seconds:.2f} s; {asked}" if self.peer.is_counted else f"{seconds:.2f} s"
        self.peer.note_memory()
        print(f"  {self.peer.name}: {what}: {self.cells[what]}", file=sys.stderr)

    def all(self):
        peer = self.peer
        peer.prepare()
        peer.start()
        self.measure("cat", ["cat", peer.path("big")])
        self.measure("again", ["cat", peer.path("big")])
        peer.stop()
        peer.start()
        self.measure("ls", ["ls", "-l", peer.path("many")])
        peer.stop()
        peer.start()
        self.measure("random", peer.in_group([sys.executable, "-c", READ_RANDOMLY, peer.path("big"), str(NR_READS)]))
        peer.stop()
        peer.start()
        self.measure("upload", ["cp", f"{peer.store.work}/upload", peer.path("copied")])
        peer.stop()
        if not isinstance(peer, JuiceFs):
            peer.store.ask("DELETE", "/bench/copied")


def main():
    work = tempfile.mkdtemp(prefix="umemcg-bench-")
    store = Store(work)
    try:
        for name, mib in (("big", BIG_MIB), ("upload", UPLOAD_MIB)):
            with open(f"{work}/{name}", "wb") as file:
                for _ in range(mib):
                    file.write(os.urandom(1 << 20))
        with open(f"{work}/big", "rb") as file:
            assert store.put("/bench/big", file.read())
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda nr: store.put(f"/bench/many/{nr:05}", b"x"), range(NR_NAMES)))
        rows = {"cat": f"`cat` of {BIG_MIB} MiB", "again": "again", "ls": f"`ls -l` of {NR_NAMES:,} objects",
                "random": f"{NR_READS:,} random reads of 4 KiB", "upload": f"upload of {UPLOAD_MIB} MiB"}
        runs = []
        for kind in (Umemcg, JuiceFs, WeedMount, Rclone, S3fs):
            run = Run(kind(store))
            try:
                run.all()
            except (Exception, SystemExit) as error:
                print(f"  {run.peer.name}: {error}", file=sys.stderr)
                run.peer.stop()
            runs.append(run)
        assert store.put("/bench/own", os.urandom(16 << 20))
        neighbours = Neighbours(runs[0].peer)
        neighbours.all()
        commit = subprocess.check_output(["git", "describe", "--always", "--exclude=*", "--dirty= (modified)"], text=True)
        print(f"At commit {commit.strip()} on {time.strftime('%F', time.gmtime())}:\n")
        print("| |", " | ".join(run.peer.name for run in runs), "|")
        print("|---|" + "---|" * len(runs))
        for what, label in rows.items():
            print(f"| {label} |", " | ".join(run.cells.get(what, "failed") for run in runs), "|")
        print("| resident at most |", " | ".join(f"{run.peer.resident} MiB" for run in runs), "|")
        neighbours.table()
    finally:
        store.end()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
