//! Pages of objects that the kernel of a real mount keeps: they are read without the daemon, are of
//! the version that was opened, are within the limits of the group that reads, and their requests
//! wait for a store without a thread.

#[allow(dead_code)]
#[path = "../../../umemcg-vfs/tests/all/common/gate.rs"]
mod gate;
#[allow(dead_code)]
#[path = "../../../umemcg-vfs/tests/all/common/memory_bucket.rs"]
pub mod memory_bucket;

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::by_thread::ByThread;
use crate::common::{TIMEOUT, TestMount, can_mount, end_of, within};
use memory_bucket::MemoryBucket;
use rustix::fs::{Advice, fadvise};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_fuse::{DataFs, Lifetimes, Unmount};
use umemcg_vfs::object::{Freshness, StagingConfig};
use umemcg_vfs::{ObjectConfig, ObjectVolume, Volumes};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const NR_FILES: usize = 4;
const NR_READS: usize = 200;
/// Threads that are left while they wait: fewer than the 16 that reads of one group would hold.
const NR_THREADS_MAX: usize = 10;

struct Ground {
    mount: TestMount,
    bucket: Arc<MemoryBucket>,
    engine: Arc<Engine>,
    payers: Arc<ByThread>,
    _staging: tempfile::TempDir,
}

/// Returns the configuration of a volume above a bucket in memory.
pub fn staged(bucket: &Arc<MemoryBucket>, staging: StagingConfig) -> ObjectConfig {
    ObjectConfig {
        bucket: Arc::clone(bucket) as _,
        freshness: Freshness::CloseToOpen,
        stores_attributes: false,
        uid: 0,
        gid: 0,
        streams: false,
        notes: None,
        staging: Some(staging),
    }
}

impl Ground {
    fn new() -> Self {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let (bucket, staging) = (Arc::<MemoryBucket>::default(), tempfile::tempdir().unwrap());
        let config = staged(&bucket, StagingConfig::new(staging.path().to_owned(), 64 << 20));
        let volume = ObjectVolume::open(&engine, &config, 0).unwrap();
        let payers = ByThread::new(engine.root());
        let lifetimes = Lifetimes { pages: true, ..Lifetimes::default() };
        let data_fs =
            DataFs::new(&engine, Volumes::single(volume), Arc::clone(&payers) as _, lifetimes).unwrap();
        Self { mount: TestMount::new(data_fs), bucket, engine, payers, _staging: staging }
    }

    fn put(&self, name: &str, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 7 + at / PAGE * 31) as u8 ^ seed).collect();
        self.bucket.put(name, bytes.clone());
        bytes
    }

    fn open(&self, name: &str) -> File {
        File::open(self.mount.path(name)).unwrap()
    }

    fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.mount.path(name)).unwrap()
    }

    fn kept(&self) -> usize {
        kept(self.engine.root())
    }

    /// Waits until so many reads wait for the store, and no thread with them.
    fn wait_parked(&self, nr: usize) {
        let counts = || self.mount.session.pool_counts();
        let is_so = within(TIMEOUT, || counts().nr_parked == nr && counts().nr_running == 0);
        assert!(is_so.is_some(), "{:?}", counts());
    }
}

fn kept(group: &Group) -> usize {
    group.stat_total(StatItem::FileKernel) as usize
}

/// Python that maps the file and reads it, both as a program does that has it open for writing.
fn python(script: &str, path: &std::path::Path) -> Command {
    let mut command = Command::new("python3");
    let head = "import mmap,os,sys\npath=sys.argv[1]\nf=open(path,'r+b',0)\nm=mmap.mmap(f.fileno(),0)\n";
    command.args(["-c", &format!("{head}{script}")]).arg(path);
    command
}

#[test]
fn what_was_read_once_is_read_again_without_a_request() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let own = || {
        let lists = [StatItem::ActiveFile, StatItem::InactiveFile];
        lists.map(|item| ground.engine.root().stat_total(item)).iter().sum::<i64>()
    };
    let (mut nr_attempts, mut seen) = (0, None);
    // With another object each time: another program may have the host drop its caches, and a page
    // that is looked at when it is given back stays here.
    let is_kept = within(TIMEOUT, || {
        let name = format!("f{nr_attempts}");
        nr_attempts += 1;
        let (bytes, before) = (ground.put(&name, 2 * MIB, 1), (ground.kept(), own()));
        assert!(ground.get(&name) == bytes);
        let nr_gets = ground.bucket.asked().0;
        assert!(ground.get(&name) == bytes);
        let now = (ground.bucket.asked().0 - nr_gets, ground.kept() - before.0, own() - before.1);
        seen = Some(now);
        now == (0, 2 * MIB, 0)
    });
    assert!(is_kept.is_some(), "reads again, the kernel's bytes, and own: {seen:?}");
}

#[test]
fn a_change_by_another_program_shows_at_the_next_open() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let mut bytes = ground.put("f", 64 * PAGE, 0);
    for seed in 1..50 {
        let before = ground.open("f");
        let mut part = vec![0; 16 * PAGE];
        before.read_exact_at(&mut part, 0).unwrap();
        let old = std::mem::replace(&mut bytes, ground.put("f", (64 + usize::from(seed)) * PAGE, seed));
        assert!(ground.get("f") == bytes, "{seed}");
        // What is not cached any more cannot be read: not from the other version either.
        match before.read_exact_at(&mut part, 0) {
            Ok(()) => assert!(part == old[..part.len()], "{seed}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle),
        }
        let end = before.read_at(&mut part, 60 * PAGE as u64);
        assert!(end.is_err() || part[..4 * PAGE] == old[60 * PAGE..64 * PAGE], "{seed}");
    }
}

#[test]
fn cold_reads_of_the_kernel_hold_no_threads() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let contents: Vec<_> =
        (0..NR_FILES).map(|nr| ground.put(&nr.to_string(), 200 * PAGE, nr as u8)).collect();
    let files: Vec<File> = (0..NR_FILES).map(|nr| ground.open(&nr.to_string())).collect();
    files.iter().for_each(|file| fadvise(file, 0, None, Advice::Random).unwrap());
    ground.bucket.hold_reads();
    // Not side by side, and the first page of no file: each is a read of the store.
    let place = |nr: usize| (nr % NR_FILES, (2 + nr / NR_FILES * 3) * PAGE);
    std::thread::scope(|scope| {
        let read = |nr: usize| {
            let (file, offset) = place(nr);
            let open = &files[file];
            scope.spawn(move || {
                let mut bytes = vec![0; PAGE];
                open.read_exact_at(&mut bytes, offset as u64).map(|()| bytes)
            })
        };
        let readers: Vec<_> = (0..NR_READS).map(read).collect();
        ground.wait_parked(NR_READS);
        // A busy machine has some more start, which end when they were not needed for ten seconds.
        let counts = || ground.mount.session.pool_counts();
        let are_few = within(TIMEOUT, || counts().nr_threads <= NR_THREADS_MAX);
        let (waiting, nr_begun) = (counts(), ground.bucket.nr_begun());
        ground.bucket.answer_reads();
        for (nr, reader) in readers.into_iter().enumerate() {
            let (file, offset) = place(nr);
            assert!(reader.join().unwrap().unwrap() == contents[file][offset..offset + PAGE], "{nr}");
        }
        assert_eq!(nr_begun, NR_READS);
        assert!(are_few.is_some(), "{waiting:?}");
    });
    ground.wait_parked(0);
    let is_charged = within(TIMEOUT, || ground.kept() <= NR_READS * PAGE);
    assert!(is_charged.is_some() && ground.kept() > 0, "{} bytes", ground.kept());
}

#[test]
fn a_reader_may_be_killed_while_its_pages_are_parked() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.put("f", 2 * MIB, 3);
    ground.bucket.hold_reads();
    let mut reader: Child = Command::new("env")
        .args(["--default-signal", "cat"])
        .arg(ground.mount.path("f"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let counts = || ground.mount.session.pool_counts();
    assert!(within(TIMEOUT, || counts().nr_parked > 0 && counts().nr_running == 0).is_some());
    reader.kill().unwrap();
    end_of(&mut reader);
    assert!(counts().nr_parked > 0, "the store still hangs");
    ground.bucket.answer_reads();
    ground.wait_parked(0);
    assert!(ground.get("f") == bytes);
    ground.mount.unmount(Unmount::ByForce).unwrap();
    assert!(ground.mount.session.wait(Some(TIMEOUT)));
}

#[test]
fn a_tenant_that_streams_stays_within_its_limit() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let group = |name: &str| ground.engine.create_group(ground.engine.root(), name.as_ref()).unwrap();
    let (streams, stays) = (group("streams"), group("stays"));
    let limit = 8 * MIB;
    ground.engine.set_max(&streams, limit as u64);
    (0..NR_FILES).for_each(|nr| drop(ground.put(&nr.to_string(), 4 * MIB, nr as u8)));
    let own = ground.put("own", MIB, 9);
    let nr_own_reads = Arc::new(AtomicU64::new(0));
    let nr = Arc::clone(&nr_own_reads);
    ground.bucket.on_request(move |method, key| {
        nr.fetch_add(u64::from(method == "GET" && key == "own"), Ordering::Relaxed);
    });
    let (is_over, nr_hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stays = &stays;
        scope.spawn(|| {
            ground.payers.run(stays, || {
                while !is_over.load(Ordering::Relaxed) {
                    let before = nr_own_reads.load(Ordering::Relaxed);
                    assert!(ground.get("own") == own);
                    let is_hit = nr_own_reads.load(Ordering::Relaxed) == before;
                    nr_hits.fetch_add(u64::from(is_hit), Ordering::Relaxed);
                }
            });
        });
        // Again and again, so that they are no stream that is kept out of the kernel's cache.
        // Until rounds beside it were hits: another program may have the host drop its caches.
        let stream = || {
            let round = || (0..NR_FILES).for_each(|nr| drop(ground.get(&nr.to_string())));
            (0..5).for_each(|_| round());
            let wanted = nr_hits.load(Ordering::Relaxed) + 3;
            assert!(
                within(TIMEOUT, || {
                    round();
                    nr_hits.load(Ordering::Relaxed) >= wanted
                })
                .is_some(),
                "no hits beside a stream"
            );
        };
        let streamed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ground.payers.run(&streams, stream);
        }));
        is_over.store(true, Ordering::Relaxed);
        streamed.unwrap();
    });
    let peak = streams.peak_bytes() as usize;
    assert!(peak <= limit + 4 * MIB && peak >= limit / 2, "{peak}");
    assert!(kept(&streams) > limit / 4, "{} bytes are the kernel's", kept(&streams));
    assert!(kept(&stays) > MIB / 2, "{} bytes", kept(&stays));
}

#[test]
fn writes_are_seen_through_mappings_and_reads() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.put("f", 64 * PAGE, 1);
    let script = "
other=open(path,'rb',0)
before=m[:]
assert os.pread(other.fileno(),len(before),0)==before
os.pwrite(f.fileno(),b'written',5000)
assert m[5000:5007]==b'written' and os.pread(other.fileno(),7,5000)==b'written'
m[9000:9006]=b'mapped'
assert os.pread(other.fileno(),6,9000)==b'mapped'
os.ftruncate(f.fileno(),20000)
os.ftruncate(f.fileno(),30000)
assert m[19999]==before[19999] and m[20000:30000]==bytes(10000)
os.pwrite(f.fileno(),b'end',29997)
d=os.open(path,os.O_RDWR|os.O_DIRECT)
a=mmap.mmap(-1,4096); a[:]=b'd'*4096
assert os.pwrite(d,a,4096*4)==4096
assert m[4096*4:4096*5]==b'd'*4096 and os.pread(other.fileno(),4096,4096*4)==b'd'*4096
os.close(d)
";
    assert!(python(script, &ground.mount.path("f")).status().unwrap().success());
    let stored = ground.bucket.object("f").unwrap().0;
    assert_eq!((stored.len(), &stored[5000..5007], &stored[29997..]), (30000, &b"written"[..], &b"end"[..]));
    assert_eq!((&stored[9000..9006], &stored[4 * PAGE..5 * PAGE]), (&b"mapped"[..], &[b'd'; PAGE][..]));
    // The draft is gone, and what the kernel kept of it is what the object has.
    let nr_gets = ground.bucket.asked().0;
    assert!(ground.get("f") == stored);
    let again = ground.bucket.asked().0 - nr_gets;
    assert!(again <= 1, "{again} requests");
}

#[test]
fn what_a_mapping_could_not_write_is_not_shown() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    // More than there is room for in staging.
    let bytes = ground.put("f", 65 * MIB, 1);
    let script = "
m[9000:9006]=b'mapped'
try:
 m.flush()
except OSError:
 sys.exit(0)
sys.exit(7)
";
    assert!(python(script, &ground.mount.path("f")).status().unwrap().success(), "msync tells of it");
    let shown = || {
        let mut part = vec![0; 4 * PAGE];
        ground.open("f").read_exact_at(&mut part, 0).unwrap();
        part
    };
    assert!(within(TIMEOUT, || shown() == bytes[..4 * PAGE]).is_some());
}
