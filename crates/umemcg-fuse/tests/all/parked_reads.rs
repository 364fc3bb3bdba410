//! Reads of a mount whose store begins reads and answers late: they hold no thread of the daemon,
//! and each is answered once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::late_volume::LateVolume;
use crate::common::{TIMEOUT, TestMount, can_mount, end_of, within};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_fuse::wait_charge::REQUEST_BYTES;
use umemcg_fuse::{DataFs, Lifetimes, RootOnly, Unmount};
use umemcg_vfs::{RemoveError, Volumes};

const PAGE: usize = 4096;
const NR_FILES: usize = 4;
const NR_READS: usize = 200;
/// Threads that are left while they wait: fewer than the 16 that reads of one group would hold.
const NR_THREADS_MAX: usize = 10;
/// Threads that they may take when they go on, far more than may run then.
const NR_THREADS_GOING_ON_MAX: usize = NR_READS / 2;

struct Ground {
    mount: TestMount,
    volume: Arc<LateVolume>,
    engine: Arc<Engine>,
    contents: Vec<Vec<u8>>,
}

impl Ground {
    fn new() -> Self {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let root = Arc::clone(engine.root());
        Self::paid_by(engine, root)
    }

    fn paid_by(engine: Arc<Engine>, group: Arc<Group>) -> Self {
        let byte = |file: usize, at: usize| (at / 7 + at / PAGE * 31 + file * 101) as u8;
        let contents: Vec<Vec<u8>> =
            (0..NR_FILES).map(|file| (0..200 * PAGE).map(|at| byte(file, at)).collect()).collect();
        let volume = LateVolume::new(&engine, contents.clone());
        let payer = Arc::new(RootOnly(group));
        let volumes = Volumes::single(Arc::clone(&volume) as _);
        let data_fs = DataFs::new(&engine, volumes, payer, Lifetimes::default()).unwrap();
        Self { mount: TestMount::new(data_fs), volume, engine, contents }
    }

    fn open(&self, file: usize) -> File {
        File::open(self.mount.path(&file.to_string())).unwrap()
    }

    fn wait_parked(&self, nr: usize) {
        let counts = || self.mount.session.pool_counts();
        let is_so = within(TIMEOUT, || counts().nr_parked == nr && counts().nr_running == 0);
        assert!(is_so.is_some(), "{:?}", counts());
    }

    /// Everything is answered and given back.
    fn wait_settled(&self) {
        self.wait_parked(0);
        let session = &self.mount.session;
        let is_so = within(TIMEOUT, || session.pool_counts().nr_waiting == 0 && session.nr_inflight() == 0);
        assert!(is_so.is_some(), "{:?}", session.pool_counts());
        let waiting = || self.engine.root().stat_local(StatItem::SlabUnreclaimable);
        assert!(within(TIMEOUT, || waiting() < 16 << 10).is_some(), "{} bytes", waiting());
    }
}

/// Not side by side, and the first page of no file: each is a read of the store.
fn place(nr: usize) -> (usize, usize) {
    (nr % NR_FILES, (2 + nr / NR_FILES * 3) * PAGE)
}

#[test]
fn reads_that_wait_for_their_store_hold_no_threads() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let files: Vec<File> = (0..NR_FILES).map(|file| ground.open(file)).collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..NR_READS)
            .map(|nr| {
                let (file, offset) = place(nr);
                let open = &files[file];
                scope.spawn(move || {
                    let mut bytes = vec![0; PAGE];
                    open.read_exact_at(&mut bytes, offset as u64).map(|()| bytes)
                })
            })
            .collect();
        ground.wait_parked(NR_READS);
        // A busy machine has some more start, which end when they were not needed for ten seconds.
        let counts = || ground.mount.session.pool_counts();
        let are_few = within(TIMEOUT, || counts().nr_threads <= NR_THREADS_MAX);
        let waiting = counts();
        let nr_begun = ground.volume.answerer.nr_begun();
        // The mount still answers, and one more read of a page is no read of the store.
        assert_eq!(ground.mount.path("1").metadata().unwrap().len(), 200 * PAGE as u64);
        let root = ground.engine.root();
        let charged = root.usage_bytes();
        let kept = root.stat_local(StatItem::SlabUnreclaimable) / NR_READS as i64;
        ground.volume.answerer.answer();
        for (nr, reader) in readers.into_iter().enumerate() {
            let (file, offset) = place(nr);
            assert!(reader.join().unwrap().unwrap() == ground.contents[file][offset..offset + PAGE], "{nr}");
        }
        assert_eq!(nr_begun, NR_READS);
        assert!(are_few.is_some(), "{waiting:?}");
        assert!(charged >= (NR_READS * PAGE) as u64, "{charged} bytes are charged");
        assert!(kept >= 1536, "{kept} bytes are charged beside the pages of each");
        assert!(counts().nr_threads <= NR_THREADS_GOING_ON_MAX, "when they went on: {:?}", counts());
    });
    ground.wait_settled();
    ground.mount.unmount(Unmount::ByForce).unwrap();
    assert!(ground.mount.session.wait(Some(TIMEOUT)));
}

#[test]
fn a_parked_read_makes_room_for_what_it_keeps() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
    let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
    let limit = 1 << 20;
    engine.set_max(&group, limit);
    let ground = Ground::paid_by(engine, Arc::clone(&group));
    ground.volume.answerer.answer();
    let read = |file: usize| {
        let open = ground.open(file);
        for (nr, expected) in ground.contents[file].chunks(32 * PAGE).enumerate() {
            let mut bytes = vec![0; expected.len()];
            open.read_exact_at(&mut bytes, (nr * 32 * PAGE) as u64).unwrap();
            assert!(bytes == *expected, "{nr} of {file}");
        }
    };
    // A request that waits for a thread is charged in any case.
    let most = limit + NR_FILES as u64 * REQUEST_BYTES;
    // Rarely, one read takes the room made by another, whose charge then exceeds the limit.
    let peaks: Vec<u64> = (0..10)
        .map(|_| {
            group.reset_peak();
            std::thread::scope(|scope| {
                for file in 0..NR_FILES {
                    let read = &read;
                    scope.spawn(move || (0..20).for_each(|_| read(file)));
                }
            });
            group.peak_bytes()
        })
        .collect();
    assert!(peaks.iter().all(|&peak| peak > limit - (256 << 10)), "{peaks:?} bytes: it was never full");
    assert!(peaks.iter().filter(|&&peak| peak > most).count() <= 4, "{peaks:?} bytes of {most}");
}

#[test]
fn readers_of_one_page_are_each_answered() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let file = ground.open(0);
    std::thread::scope(|scope| {
        let read = || {
            let mut bytes = vec![0; 10];
            file.read_exact_at(&mut bytes, 50 * PAGE as u64).unwrap();
            bytes
        };
        let readers: Vec<_> = (0..40).map(|_| scope.spawn(read)).collect();
        ground.wait_parked(40);
        let nr_begun = ground.volume.answerer.nr_begun();
        ground.volume.answerer.answer();
        for reader in readers {
            assert!(reader.join().unwrap() == ground.contents[0][50 * PAGE..50 * PAGE + 10]);
        }
        assert_eq!(nr_begun, 1);
    });
    ground.wait_settled();
}

#[test]
fn a_killed_reader_is_gone_while_its_read_is_parked() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let reader_of = |file: usize| -> Child {
        let mut command = Command::new("env");
        command.args(["--default-signal", "cat"]).arg(ground.mount.path(&file.to_string()));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..NR_FILES).map(reader_of).collect();
    ground.wait_parked(NR_FILES);
    for child in &mut children {
        child.kill().unwrap();
        end_of(child);
    }
    assert_eq!(ground.mount.session.pool_counts().nr_parked, NR_FILES, "the store still hangs");
    ground.volume.answerer.answer();
    ground.wait_settled();
    assert!(std::fs::read(ground.mount.path("2")).unwrap() == ground.contents[2]);
}

#[test]
fn the_end_of_a_mount_fails_what_is_parked_and_waits_for_it() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let file = ground.open(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| file.read_at(&mut [0; 10], 0));
        ground.wait_parked(1);
        ground.mount.unmount(Unmount::ByForce).unwrap();
        assert!(reader.join().unwrap().is_err());
    });
    assert!(ground.mount.session.wait_gone(Some(TIMEOUT)));
    assert_eq!(ground.mount.session.pool_counts().nr_parked, 1, "the store still hangs");
    ground.volume.answerer.answer();
    assert!(ground.mount.session.wait(Some(TIMEOUT)), "{:?}", ground.mount.session);
    let is_back = || ground.volume.files[0].try_read(0, 10, &umemcg::files::Readahead::new()).is_some();
    assert!(within(TIMEOUT, is_back).is_some(), "what was read stays in the cache");
}

#[test]
fn a_volume_is_busy_until_its_parked_reads_have_ended() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
    let (late, volumes) = (LateVolume::new(&engine, vec![vec![7; PAGE]]), Volumes::many());
    let member = volumes.add("v", |_| Ok(Arc::clone(&late) as _)).unwrap();
    let payer = Arc::new(RootOnly(Arc::clone(engine.root())));
    let data_fs = DataFs::new(&engine, Arc::clone(&volumes), payer, Lifetimes::default()).unwrap();
    let mount = TestMount::new(Arc::clone(&data_fs) as _);
    let file = File::open(mount.path("v/0")).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = [0; 10];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes)
        });
        let counts = || mount.session.pool_counts();
        let is_parked = within(TIMEOUT, || counts().nr_parked == 1);
        let busy = volumes.begin_remove("v", false, Duration::ZERO).map(drop);
        let leaving = volumes.begin_remove("v", true, Duration::ZERO).unwrap();
        drop(leaving.finish());
        data_fs.close_all_of(&member);
        let nr_open = member.nr_open();
        late.answerer.answer();
        assert_eq!(reader.join().unwrap().unwrap(), [7; 10]);
        assert!(is_parked.is_some(), "{:?}", counts());
        assert!(matches!(busy, Err(RemoveError::Busy { nr_open: 1, .. })), "{busy:?}");
        assert_eq!(nr_open, 1, "the read still has it");
    });
    assert!(within(TIMEOUT, || member.nr_open() == 0).is_some());
}
