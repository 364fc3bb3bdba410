//! Requests that wait on the control mount: which group pays for them, and which requests do not
//! wait behind them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, mpsc};

use crate::common::by_thread::ByThread;
use crate::common::hanging::Hanging;
use crate::common::{Gate, TIMEOUT, TestMount, can_mount, within};
use umemcg::{Engine, EngineConfig, StatItem};
use umemcg_control::{ControlTree, KEPT_BYTES};
use umemcg_fuse::wait_charge::REQUEST_BYTES;
use umemcg_fuse::{ControlFs, ProcessClassifier};

const MIB: u64 = 1 << 20;
const NR_READERS: usize = 200;

/// Opens the gate also when the test fails, so that the threads that wait for it end.
struct OpenAtEnd<'a>(&'a Gate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[test]
fn a_client_pays_for_what_waits_and_delays_no_other() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
    let [hostile, neighbour] =
        ["hostile", "neighbour"].map(|name| engine.create_group(engine.root(), OsStr::new(name)).unwrap());
    // No room at all: control files work all the same.
    hostile.store_max(0);
    let groups = ByThread::new(engine.root());
    let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
    let gate = Arc::new(Gate::default());
    let closed = Arc::clone(&gate);
    let tree = ControlTree::new(Arc::clone(&engine), Hanging::new(&classifier, move || closed.pass()));
    let files = ControlFs::new(Arc::new(tree), Arc::clone(&groups) as _);
    let mount = TestMount::new(Arc::clone(&files) as _);
    std::fs::create_dir(mount.path("shared")).unwrap();
    let charged = || hostile.stat_local(StatItem::SlabUnreclaimable).max(0).cast_unsigned();
    std::thread::scope(|scope| {
        let _open = OpenAtEnd(&gate);
        for _ in 0..NR_READERS {
            scope.spawn(|| {
                groups.run(&hostile, || {
                    std::fs::read_to_string(mount.path("shared/tasks")).unwrap();
                });
            });
        }
        let pool_counts = || mount.session.pool_counts();
        let all_wait = within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == NR_READERS);
        let now = pool_counts();
        assert!(all_wait.is_some() && now.nr_waiting > NR_READERS / 2, "{now:?}");
        let least = now.nr_waiting as u64 * REQUEST_BYTES;
        assert!(charged() >= least && charged() <= 2 * least, "{} of {least} bytes; {now:?}", charged());
        // The neighbour looks at the very group that the others wait for.
        let (said, heard) = mpsc::channel();
        let (groups, neighbour, path) = (&groups, &neighbour, mount.path("shared/memory.max"));
        scope.spawn(move || said.send(groups.run(neighbour, || std::fs::read_to_string(path).unwrap())));
        assert_eq!(heard.recv_timeout(TIMEOUT).as_deref(), Ok("max\n"), "{:?}", pool_counts());
    });
    assert!(within(TIMEOUT, || charged() == 0 && files.nr_open_files() == 0).is_some(), "{}", charged());
}

#[test]
fn a_text_that_is_half_read_is_its_readers() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("reader")).unwrap();
    let groups = ByThread::new(engine.root());
    let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
    let tree = ControlTree::new(Arc::clone(&engine), classifier);
    let mount = TestMount::new(ControlFs::new(Arc::new(tree), Arc::clone(&groups) as _));
    let directory = mount.path("a");
    std::fs::create_dir(&directory).unwrap();
    let charged = || group.stat_local(StatItem::SlabUnreclaimable).max(0).cast_unsigned();
    groups.run(&group, || {
        let mut file = File::open(directory.join("memory.stat")).unwrap();
        let mut piece = [0; 100];
        file.read_exact(&mut piece).unwrap();
        let kept = charged();
        assert!(kept > 100 && kept <= KEPT_BYTES, "{kept}");
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.len() as u64 + 100, charged()), (kept, 0));
    });
    assert!(within(TIMEOUT, || charged() == 0).is_some(), "{}", charged());
}
