//! What the kernel, which the test plays, is told of changes by other programs.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Fixture, ROOT, name};
use umemcg_vfs::{Create, IdleInode, KernelCache, Lookup, NodeId, Volume};

/// The longest wait for what must come.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Attributes(NodeId),
    Name(NodeId, String, bool),
    All,
}

/// A kernel that says what it is told.
#[derive(Debug)]
struct Kernel {
    told: Mutex<Sender<Told>>,
    /// Messages about names wait while the test holds it.
    busy: Mutex<()>,
    knows_inodes: AtomicBool,
    nr_all: AtomicU32,
}

impl KernelCache for Kernel {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, _idle: Vec<IdleInode>) -> bool {
        true
    }
    fn attributes_changed(&self, node: NodeId) -> bool {
        self.told.lock().unwrap().send(Told::Attributes(node)).unwrap();
        self.knows_inodes.load(Ordering::Relaxed)
    }
    fn can_be_told(&self) -> bool {
        true
    }
    fn name_changed(&self, parent: NodeId, name: &OsStr, may_stay: bool) {
        drop(self.busy.lock().unwrap());
        self.told.lock().unwrap().send(Told::Name(parent, name.to_str().unwrap().into(), may_stay)).unwrap();
    }
    fn all_names_changed(&self) {
        self.nr_all.fetch_add(1, Ordering::Relaxed);
        self.told.lock().unwrap().send(Told::All).unwrap();
    }
}

/// Threads of all watches of this process.
fn nr_watching_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("umemcg-watch")).count()
}

/// A volume that is watched.
struct World {
    fixture: Fixture,
    kernel: Arc<Kernel>,
    told: Receiver<Told>,
}

impl World {
    /// Returns `None` where nothing can be watched.
    fn new() -> Option<Self> {
        // A process has few watches, and those of tests that have ended go with their threads.
        let (deadline, mut nr_alone) = (Instant::now() + WAIT_MAX, 0);
        while nr_alone < 20 {
            let is_last = Instant::now() >= deadline;
            if let Some(world) = Self::watched() {
                return Some(world);
            }
            if is_last {
                break;
            }
            // A thread that starts has no name yet.
            nr_alone += u32::from(nr_watching_threads() == 0);
            std::thread::sleep(Duration::from_millis(10));
        }
        let must_run = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!must_run, "the file system cannot be watched");
        eprintln!("SKIPPED: the file system cannot be watched");
        None
    }

    fn watched() -> Option<Self> {
        let fixture = Fixture::new();
        let (told, heard) = channel();
        let kernel = Arc::new(Kernel {
            told: Mutex::new(told),
            busy: Mutex::new(()),
            knows_inodes: AtomicBool::new(true),
            nr_all: AtomicU32::new(0),
        });
        fixture.vfs.set_kernel(Arc::<Kernel>::clone(&kernel));
        let is_watched = fixture.vfs.moment().is_some();
        is_watched.then_some(Self { fixture, kernel, told: heard })
    }

    /// Changes the directory as another program.
    fn outside(&self, script: &str) {
        let done = Command::new("sh").arg("-ec").arg(script).current_dir(self.fixture.dir.path()).status();
        assert!(done.unwrap().success(), "{script}");
    }

    fn lookup(&self, path: &str) -> NodeId {
        self.fixture.vfs.lookup(&self.fixture.root, ROOT, name(path)).unwrap().node
    }

    /// Waits until the kernel is told something.
    #[track_caller]
    fn expect(&self, expected: &Told) {
        self.expect_each([expected.clone()]);
    }

    /// Waits until the kernel is told all of what one script has changed, in any order.
    #[track_caller]
    fn expect_each(&self, expected: impl IntoIterator<Item = Told>) {
        let (mut left, deadline) = (expected.into_iter().collect::<Vec<_>>(), Instant::now() + WAIT_MAX);
        while !left.is_empty() {
            match self.told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                // Events were lost, or held up by a busy machine, which tells of all names.
                Ok(Told::All) => left.retain(|expected| matches!(expected, Told::Attributes(_))),
                Ok(told) => left.retain(|expected| *expected != told),
                Err(error) => panic!("never told: {left:?}: {error}"),
            }
        }
    }
}

fn named(name: &str) -> Told {
    Told::Name(ROOT, name.into(), false)
}

#[test]
fn each_change_by_another_program_is_told() {
    let Some(world) = World::new() else { return };
    let ino = std::fs::metadata(world.fixture.dir.path()).unwrap().ino();
    // Changes of other inodes are noted in the same places.
    let unchanged =
        || world.fixture.vfs.moment().filter(|&moment| world.fixture.vfs.is_unchanged(ino, moment));
    let moment = (0..100).find_map(|_| unchanged()).expect("a directory that does not change");
    world.outside("echo text > f");
    world.expect_each([Told::Attributes(ROOT), named("f")]);
    assert!(!world.fixture.vfs.is_unchanged(ino, moment), "answers meanwhile count for a short time");
    let node = world.lookup("f");
    for script in ["echo more >> f", "chmod 600 f", "ln f other"] {
        world.outside(script);
        world.expect(&Told::Attributes(node));
    }
    world.outside("mv other new; rm f");
    world.expect_each(["other", "new", "f"].map(named));
}

#[test]
fn what_the_volume_does_itself_is_not_told() {
    let Some(world) = World::new() else { return };
    let vfs = &world.fixture.vfs;
    // Again if events were lost, or held up by a busy machine, which tells of all names and inodes.
    let mut has_told_all = false;
    for round in 0..20 {
        for n in 0..100 {
            vfs.mkdir(&world.fixture.root, ROOT, name(&format!("d{round}-{n}")), 0o755).unwrap();
        }
        let last = format!("last{round}");
        world.outside(&format!("touch {last}"));
        loop {
            match world.told.recv_timeout(WAIT_MAX).unwrap() {
                Told::All => {
                    has_told_all = true;
                    break;
                }
                told if told == named(&last) => return,
                Told::Attributes(node) if node == ROOT || has_told_all => {}
                // The last of a round before.
                Told::Name(ROOT, name, false) if name.starts_with("last") => {}
                told => panic!("{told:?}"),
            }
        }
    }
    panic!("all names are told of, again and again");
}

#[test]
fn a_name_that_may_be_a_working_directory_stays() {
    let Some(world) = World::new() else { return };
    world.outside("mkdir d; echo > d/f; echo > f");
    world.expect(&named("d"));
    world.lookup("d");
    world.lookup("f");
    world.outside("mv d e; mv e d; mv f g; mv g f");
    world.expect_each([Told::Name(ROOT, "d".into(), true), named("f")]);
}

#[test]
fn an_inode_that_is_not_known_yet_is_told_by_name() {
    let Some(world) = World::new() else { return };
    world.outside("echo > f");
    world.expect(&named("f"));
    let node = world.lookup("f");
    // The answer to the lookup is still on its way.
    world.kernel.knows_inodes.store(false, Ordering::Relaxed);
    world.outside("chmod 600 f");
    world.expect_each([Told::Attributes(node), named("f")]);
}

#[test]
fn a_name_that_is_held_up_has_all_names_expire() {
    let Some(world) = World::new() else { return };
    let busy = world.kernel.busy.lock().unwrap();
    for n in 1..=3 {
        world.outside(&format!("echo > f{n}"));
        world.expect(&Told::All);
    }
    drop(busy);
    world.expect(&named("f1"));
    let nr_all = || world.kernel.nr_all.load(Ordering::Relaxed);
    // A busy machine may hold one up, too.
    let is_told_alone = |n| {
        let before = nr_all();
        world.outside(&format!("echo > g{n}"));
        world.expect(&named(&format!("g{n}")));
        nr_all() == before
    };
    assert!((0..20).any(is_told_alone), "only while one is held up");
}

#[test]
fn a_watch_ends_with_its_volume() {
    let Some(world) = World::new() else { return };
    let (World { fixture, kernel, .. }, before) = (world, nr_watching_threads());
    drop(fixture);
    // Other tests have some, too.
    let deadline = Instant::now() + WAIT_MAX;
    while Arc::strong_count(&kernel) > 1 {
        let now = nr_watching_threads();
        assert!(Instant::now() < deadline, "its threads run on; of {before} there are {now}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
