//! Event files that are polled on a real mount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TestMount, can_mount, within};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use umemcg::internal::Stalled;
use umemcg::{Engine, EngineConfig, EventKind, Group};
use umemcg_control::ControlTree;
use umemcg_fuse::{ControlFs, ProcessClassifier};

const LONG: Duration = crate::common::TIMEOUT;

struct Mount {
    engine: Arc<Engine>,
    mount: TestMount,
}

impl Mount {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let engine = Engine::new(EngineConfig::new(32 << 20)).unwrap();
        let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
        let tree = ControlTree::new(Arc::clone(&engine), Arc::clone(&classifier) as _);
        let mount = TestMount::new(ControlFs::new(Arc::new(tree), classifier));
        Some(Self { engine, mount })
    }
    fn mkdir(&self, name: &str) -> Arc<Group> {
        std::fs::create_dir(self.mount.path(name)).unwrap();
        self.engine.tree().lookup(format!("/{name}").as_ref()).unwrap()
    }
    fn open(&self, name: &str) -> File {
        File::open(self.mount.path(name)).unwrap()
    }
}

/// Returns the events of a poll that asks for news alone.
fn poll_for(file: &File, timeout: Duration) -> PollFlags {
    let mut fds = [PollFd::new(file, PollFlags::PRI)];
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    poll(&mut fds, Some(&timeout)).unwrap();
    fds[0].revents()
}

fn read(file: &File) -> String {
    let mut text = [0; 4096];
    let len = file.read_at(&mut text, 0).unwrap();
    String::from_utf8(text[..len].to_vec()).unwrap()
}

const NEWS: PollFlags = PollFlags::PRI.union(PollFlags::ERR);
const NONE: PollFlags = PollFlags::empty();

#[test]
fn a_poller_sleeps_until_an_event_and_a_read_makes_it_old() {
    let Some(mount) = Mount::new() else { return };
    let group = mount.mkdir("g");
    let file = mount.open("g/memory.events");
    assert_eq!(poll_for(&file, Duration::ZERO), NEWS, "it has not been read yet");
    assert!(read(&file).contains("max 0\n"));
    assert_eq!(poll_for(&file, Duration::ZERO), NONE);
    let (text, said) = std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll_for(&file, LONG));
        group.event(EventKind::Max);
        let said = poller.join().unwrap();
        (read(&file), said)
    });
    assert_eq!(said, NEWS);
    assert!(text.contains("max 1\n"), "{text}");
    assert_eq!(poll_for(&file, Duration::ZERO), NONE);
    let mut fds = [PollFd::new(&file, PollFlags::IN | PollFlags::OUT)];
    assert_eq!(poll(&mut fds, None).unwrap(), 1, "it can always be read and written");
}

#[test]
fn a_poller_hears_when_a_group_is_populated_and_when_it_is_not() {
    let Some(mount) = Mount::new() else { return };
    mount.mkdir("g");
    mount.mkdir("g/below");
    let file = mount.open("g/cgroup.events");
    assert_eq!(poll_for(&file, Duration::ZERO), NEWS, "it has not been read yet");
    assert_eq!(read(&file), "populated 0\nfrozen 0\n");
    assert_eq!(poll_for(&file, Duration::ZERO), NONE);
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll_for(&file, LONG));
        std::fs::write(mount.mount.path("g/below/cgroup.procs"), child.id().to_string()).unwrap();
        assert_eq!(poller.join().unwrap(), NEWS);
    });
    assert_eq!(read(&file), "populated 1\nfrozen 0\n");
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll_for(&file, LONG));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(poller.join().unwrap(), NEWS);
    });
    assert_eq!(read(&file), "populated 0\nfrozen 0\n");
    assert_eq!(poll_for(&file, Duration::ZERO), NONE);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll_for(&file, LONG));
        std::fs::remove_dir(mount.mount.path("g/below")).unwrap();
        std::fs::remove_dir(mount.mount.path("g")).unwrap();
        assert_eq!(poller.join().unwrap(), NEWS);
    });
}

#[test]
fn each_open_file_has_its_own_news_and_local_events_are_local() {
    let Some(mount) = Mount::new() else { return };
    mount.mkdir("a");
    let below = mount.mkdir("a/b");
    let names = ["a/memory.events", "a/memory.events", "a/memory.events.local", "a/b/memory.events.local"];
    let files = names.map(|name| mount.open(name));
    files.iter().for_each(|file| drop(read(file)));
    below.event(EventKind::High);
    let say = || files.each_ref().map(|file| poll_for(file, Duration::ZERO) == NEWS);
    assert_eq!(say(), [true, true, false, true]);
    read(&files[0]);
    assert_eq!(say(), [false, true, false, true]);
}

#[test]
fn a_removed_group_wakes_its_pollers() {
    let Some(mount) = Mount::new() else { return };
    mount.mkdir("g");
    let file = mount.open("g/memory.events");
    read(&file);
    let said = std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll_for(&file, LONG));
        std::fs::remove_dir(mount.mount.path("g")).unwrap();
        poller.join().unwrap()
    });
    assert_eq!(said, NEWS);
    assert!(file.read_at(&mut [0; 8], 0).is_err());
}

/// The poller reads until it has seen the last event. Any wake-up that is lost leaves it asleep for
/// ever.
#[test]
fn no_event_is_slept_through() {
    let Some(mount) = Mount::new() else { return };
    const NR_EVENTS: u64 = 2000;
    let group = mount.mkdir("g");
    let file = mount.open("g/memory.events");
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while seen.load(Ordering::Relaxed) < NR_EVENTS {
                assert_eq!(poll_for(&file, LONG), NEWS, "after {seen:?} of {NR_EVENTS}");
                let text = read(&file);
                let count = text.lines().find_map(|line| line.strip_prefix("max ")).unwrap();
                seen.store(count.parse().unwrap(), Ordering::Relaxed);
            }
        });
        for n in 1..=NR_EVENTS {
            group.event(EventKind::Max);
            // Now and then the poller comes to rest before the next.
            if n % 7 == 0 {
                assert!(within(LONG, || seen.load(Ordering::Relaxed) >= n).is_some());
            }
        }
    });
}

#[test]
fn a_pressure_trigger_wakes_its_poller_once_in_a_window() {
    let Some(mount) = Mount::new() else { return };
    let group = mount.mkdir("g");
    let file = File::options().read(true).write(true).open(mount.mount.path("g/memory.pressure")).unwrap();
    let text = read(&file);
    let zero = "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    assert_eq!(text, format!("some {zero}full {zero}"));
    assert_eq!(poll_for(&file, Duration::ZERO), NEWS, "without a trigger there is nothing to wait for");
    for bad in ["some 1 1", "some 0 1000000", "nobody 1 1000000", "some 100000 20000000"] {
        assert_eq!(file.write_at(bad.as_bytes(), 0).unwrap_err().raw_os_error(), Some(22), "{bad}");
    }
    file.write_at(b"some 50000 10000000", 0).unwrap();
    assert_eq!(
        file.write_at(b"some 50000 10000000", 0).unwrap_err().raw_os_error(),
        Some(16),
        "one for a file"
    );
    assert_eq!(poll_for(&file, Duration::ZERO), NONE);
    let stalled = Stalled::begin(&group);
    assert_eq!(poll_for(&file, LONG), PollFlags::PRI);
    // The window is the longest that there is, so that it has not passed by now.
    assert_eq!(poll_for(&file, Duration::ZERO), NONE, "a poll that has told of it has told of it");
    drop(stalled);
    let text = read(&file);
    let total = text.lines().next().unwrap().rsplit_once("total=").unwrap().1;
    assert!(total.parse::<u64>().unwrap() >= 50_000, "{text}");
    assert!(umemcg::internal::pressure(mount.engine.root()).some.total >= Duration::from_millis(50));
}
