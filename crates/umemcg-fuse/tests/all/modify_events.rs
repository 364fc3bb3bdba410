//! The event files that are touched for inotify. The effect of a touch is tested with the program
//! that brings it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{TestMount, can_mount, within};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use umemcg::{Engine, EngineConfig, EventKind, Group};
use umemcg_base::LeafMutex;
use umemcg_control::ControlTree;
use umemcg_fuse::{ControlFs, ProcessClassifier, Touch};

const LONG: Duration = crate::common::TIMEOUT;

/// Writes down what it is asked to touch, and how many events there were by then.
#[derive(Default)]
struct Notes {
    /// The number of failures to come.
    nr_failures: u32,
    touched: Vec<(PathBuf, u64)>,
}

struct NotedTouch {
    engine: Arc<Engine>,
    notes: Arc<LeafMutex<Notes>>,
}

impl Touch for NotedTouch {
    fn touch(&mut self, path: &Path) -> io::Result<()> {
        // Of the file's own group: an event is counted there first, and above a moment later.
        let group = Path::new("/").join(path.parent().expect("a file of a group"));
        let group = self.engine.tree().lookup(&group);
        let nr_events = group.map_or(0, |group| group.event_count(EventKind::Max));
        let mut notes = self.notes.lock();
        if notes.nr_failures > 0 {
            notes.nr_failures -= 1;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        notes.touched.push((path.to_owned(), nr_events));
        Ok(())
    }
}

struct Mount {
    engine: Arc<Engine>,
    files: Arc<ControlFs>,
    notes: Arc<LeafMutex<Notes>>,
    mount: TestMount,
}

impl Mount {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let engine = Engine::new(EngineConfig::new(32 << 20)).unwrap();
        let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
        let tree = Arc::new(ControlTree::new(Arc::clone(&engine), Arc::clone(&classifier) as _));
        let notes = Arc::<LeafMutex<Notes>>::default();
        let (noted, counted) = (Arc::clone(&notes), Arc::clone(&engine));
        let files = ControlFs::with_inotify(tree, classifier, move |_| {
            Box::new(NotedTouch { engine: Arc::clone(&counted), notes: Arc::clone(&noted) })
        });
        let mount = TestMount::new(Arc::clone(&files) as _);
        Some(Self { engine, files, notes, mount })
    }

    fn mkdir(&self, name: &str) -> Arc<Group> {
        std::fs::create_dir(self.mount.path(name)).unwrap();
        self.engine.tree().lookup(format!("/{name}").as_ref()).unwrap()
    }

    fn last_touch(&self) -> Option<(PathBuf, u64)> {
        self.notes.lock().touched.last().cloned()
    }
}

#[test]
fn many_events_are_few_touches_and_the_last_is_not_lost() {
    let Some(mount) = Mount::new() else { return };
    let group = mount.mkdir("g");
    let _open = File::open(mount.mount.path("g/memory.events")).unwrap();
    let begin = Instant::now();
    let mut nr_events = 0;
    while mount.notes.lock().touched.len() < 4 {
        assert!(begin.elapsed() < LONG);
        group.event(EventKind::Max);
        nr_events += 1;
    }
    within(LONG, || mount.last_touch().is_some_and(|(_, seen)| seen == nr_events)).expect("the last event");
    let nr_passes_max = begin.elapsed().as_millis() / 100 + 1;
    let notes = mount.notes.lock();
    assert!((notes.touched.len() as u128) <= nr_passes_max, "{} touches", notes.touched.len());
    assert!(notes.touched.iter().all(|(path, _)| path == Path::new("g/memory.events")));
}

#[test]
fn a_change_that_could_not_be_told_is_told_later() {
    let Some(mount) = Mount::new() else { return };
    let group = mount.mkdir("g");
    let _open = File::open(mount.mount.path("g/memory.events.local")).unwrap();
    mount.notes.lock().nr_failures = 1;
    group.event(EventKind::Max);
    let path = PathBuf::from("g/memory.events.local");
    within(LONG, || mount.last_touch() == Some((path.clone(), 1))).expect("a second attempt");
}

#[test]
fn a_file_is_followed_only_while_it_is_watched_or_open() {
    let Some(mount) = Mount::new() else { return };
    for name in ["a", "b", "c"] {
        mount.mkdir(name);
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version: Vec<u32> =
        release.split(['.', '-']).take(2).filter_map(|number| number.parse().ok()).collect();
    if version < vec![6, 18] {
        eprintln!("\nSKIPPED: needs a kernel that can be request to let go of nodes\n");
        return;
    }
    let watches = inotify::init(CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watches, mount.mount.path("a/cgroup.events"), WatchFlags::MODIFY).unwrap();
    let open = File::open(mount.mount.path("b/memory.events")).unwrap();
    for name in ["memory.events", "memory.events.local", "cgroup.events", "memory.current"] {
        std::fs::read(mount.mount.path("c").join(name)).unwrap();
    }
    assert!(mount.files.nr_followed_files() >= 2);
    within(LONG, || mount.files.nr_followed_files() == 2).expect("those that are in use stay");
    drop(open);
    within(LONG, || mount.files.nr_followed_files() == 1).expect("the closed one goes");
    drop(watches);
    within(LONG, || mount.files.nr_followed_files() == 0).expect("none is in use");
}

#[test]
fn a_tenant_with_many_changed_files_is_one_in_the_turn() {
    let Some(mount) = Mount::new() else { return };
    mount.mkdir("many");
    let open = |name: &str| {
        let group = mount.mkdir(name);
        (group, File::open(mount.mount.path(name).join("memory.events")).unwrap())
    };
    let many: Vec<_> = (0..150).map(|nr| open(&format!("many/{nr}"))).collect();
    let (other, _open) = open("other");
    // Nothing is touched until all have changed, and a pass has seen that.
    mount.notes.lock().nr_failures = u32::MAX;
    many.iter().for_each(|(group, _)| group.event(EventKind::Max));
    other.event(EventKind::Max);
    let nr_left = || mount.notes.lock().nr_failures;
    let before = nr_left();
    within(LONG, || nr_left() <= before - 2).expect("it is tried again");
    mount.notes.lock().nr_failures = 0;
    let others = |(path, _): &(PathBuf, u64)| path.starts_with("other");
    within(LONG, || mount.notes.lock().touched.iter().any(others)).expect("its event");
    let place = mount.notes.lock().touched.iter().position(others).unwrap();
    assert!(place < 4, "{place} came before it");
}
