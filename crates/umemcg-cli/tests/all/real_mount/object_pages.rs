//! Pages of objects that the kernel keeps (`--page-cache kernel`), above moto. Built only with the
//! feature `object`.

use crate::harness::{Mount, Options, SLACK_BYTES, needs_mount, until};
use crate::real_mount::objects::{Moto, figure};

const MIB: u64 = 1 << 20;

/// A mount of one volume of objects that can be written to; its name is `o`.
struct Ground {
    mount: Mount,
    moto: Moto,
    _staging: tempfile::TempDir,
}

impl Ground {
    /// Starts one above objects that Python puts.
    fn new(objects: &str) -> Self {
        let moto = Moto::start();
        moto.python(objects);
        let mount = Mount::start_with(&Options {
            volumes: true,
            arguments: vec!["--page-cache", "kernel"],
            ..Options::default()
        });
        let (mnt, staging) = (mount.mnt(), tempfile::tempdir().unwrap());
        let store = ["--store", "s3://bucket/p", "--endpoint", &moto.endpoint, "--region", "us-east-1"];
        let place = ["--mount", mnt.to_str().unwrap(), "--staging", staging.path().to_str().unwrap()];
        mount.umemcg(&[&["volume", "add", "o"], &store[..], &place].concat()).good();
        Self { mount, moto, _staging: staging }
    }

    /// Returns a figure of the volume.
    fn figure(&self, name: &str) -> u64 {
        let mnt = self.mount.mnt();
        figure(
            self.mount.umemcg(&["volume", "list", "--json", "--mount", mnt.to_str().unwrap()]).good(),
            name,
        )
    }

    fn kept(&self, group: &str) -> u64 {
        self.mount.value(group, "memory.stat", "file_kernel")
    }

    /// Pages that requests of a group asked the daemon for.
    fn nr_asked(&self, group: &str) -> u64 {
        ["total_cache_hit", "total_cache_miss"]
            .iter()
            .map(|name| self.mount.value(group, "memory.stat", name))
            .sum()
    }
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_that_were_read_are_read_again_without_a_request() {
    needs_mount!();
    let ground = Ground::new("put('p/f', bytes(range(256)) * (16 << 10))");
    ground.mount.group("tenant", "64m");
    let cost = || {
        let before = [ground.nr_asked("tenant"), ground.figure("gets"), ground.figure("heads")];
        ground.mount.sh_in("tenant", "cat $MNT/o/f > /dev/null").good();
        let after = [ground.nr_asked("tenant"), ground.figure("gets"), ground.figure("heads")];
        [after[0] - before[0], after[1] - before[1], after[2] - before[2]]
    };
    let [_, gets, heads] = cost();
    assert!(gets <= 6 && heads <= 1, "{gets} GETs, {heads} HEADs for 4 MiB");
    // Read again each time: another test may have the host drop its caches.
    until("it is read again without a request", || {
        let [asked, gets, heads] = cost();
        (asked, gets) == (0, 0) && heads <= 1 && ground.kept("tenant") == 4 * MIB
    });
    // A new version is seen by the next open, whatever the kernel has.
    ground.moto.python("put('p/f', b'other')");
    ground.mount.sh_in("tenant", "[ $(cat $MNT/o/f) = other ]").good();
    ground.mount.sh("echo 0 > $CG/tenant/memory.force_empty").good();
    until("the kernel has given all back", || ground.kept("tenant") == 0);
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_of_one_tenant_stay_in_the_kernel_beside_another() {
    needs_mount!();
    let ground = Ground::new(
        "put('p/own', bytes(range(255)) * (4 << 10))\n\
         for nr in range(4): put('p/%d' % nr, bytes([nr]) * (3 << 20))",
    );
    for group in ["streams", "stays"] {
        ground.mount.group(group, "6m");
    }
    ground.mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
    // Again until rounds beside a stream were hits: another test may have the host drop its caches.
    until("it is read beside a stream without a request", || {
        let mut stream = ground
            .mount
            .shell("echo $$ > $CG/streams/tasks; for n in 1 2 3 4 5; do cat $MNT/o/[0-3] > /dev/null; done");
        let (mut stream, mut nr_hits) = (stream.spawn().unwrap(), 0);
        while stream.try_wait().unwrap().is_none() {
            let before = ground.nr_asked("stays");
            ground.mount.sh_in("stays", "cat $MNT/o/own > /dev/null").good();
            nr_hits += u64::from(ground.nr_asked("stays") == before);
        }
        assert!(stream.wait().unwrap().success());
        nr_hits >= 2
    });
    let peak = ground.mount.number("streams", "memory.max_usage_in_bytes");
    assert!(peak <= 6 * MIB + SLACK_BYTES, "{peak}");
}

#[test]
#[ignore = "needs moto and the feature object (make test-object)"]
fn objects_in_the_kernel_are_changed_by_real_programs() {
    needs_mount!();
    let mut ground = Ground::new("put('p/old', b'before')");
    ground.mount.group("tenant", "16m");
    let identity = "export HOME=$MNT/..; git config --global user.name t; git config --global user.email t@t; \
                    git config --global safe.directory '*'";
    let script = format!(
        "{identity}; cd $MNT/o; git init -q --template= -b main a; cd a
         for n in $(seq 6); do seq $n 4000 > $n; done; git add .; git commit -qm first
         for n in $(seq 3); do echo $n >> 1; git commit -qam $n; done
         cd ..; git clone -q --template= --no-local a b; git -C b fsck --full --strict
         cmp a/1 b/1; [ -z \"$(git -C b status --porcelain)\" ]; git -C b log --format=%s | wc -l"
    );
    assert_eq!(ground.mount.sh_in("tenant", &script).good(), "4");
    let sqlite = "import sqlite3,sys; c = sqlite3.connect(sys.argv[1]); c.execute('create table t(a)'); \
                  c.executemany('insert into t values(?)', [(n,) for n in range(20000)]); c.commit(); \
                  c.execute('delete from t where a % 3'); c.commit(); c.execute('vacuum'); c.close()";
    ground.mount.sh_in("tenant", &format!("python3 -c \"{sqlite}\" $MNT/o/db")).good();
    let count = "sqlite3 $MNT/o/db 'PRAGMA integrity_check; SELECT count(*) FROM t;'";
    assert_eq!(ground.mount.sh_in("tenant", count).good(), "ok\n6667");
    let peak = ground.mount.number("tenant", "memory.max_usage_in_bytes");
    assert!(peak <= 16 * MIB + SLACK_BYTES, "{peak}");
    assert!(ground.kept("tenant") > 0, "not by own pages");
    ground.mount.umount();
    // What the kernel showed is what is stored.
    let database = ground.mount.outside().join("db");
    ground.moto.python(&format!(
        "import sqlite3\nclient.download_file('bucket', 'p/db', {database:?})\n\
         assert sqlite3.connect({database:?}).execute('SELECT count(*) FROM t').fetchone() == (6667,)"
    ));
}
