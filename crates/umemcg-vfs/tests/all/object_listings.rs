//! Names that are looked up while their directory is read: what the store has told of them then is
//! not asked for again, unless something is known to be different.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, config, errno, wait_for};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::object::{Freshness, ObjectConfig};
use umemcg_vfs::{Lookup, NodeId, OFlags, ObjectVolume, Open, RenameFlags, Volume, VolumeDir};

const NR_OBJECTS: usize = 1500;

/// A volume with the attributes of a listing, that can be written to.
fn world() -> World {
    world_with(Freshness::CloseToOpen)
}

fn world_with(freshness: Freshness) -> World {
    let w = World::new();
    let staging = w.staging.path().join("uniform");
    std::fs::create_dir(&staging).unwrap();
    let config =
        ObjectConfig { stores_attributes: false, freshness, ..config(&w.bucket, &staging, 64 << 20) };
    let volume = ObjectVolume::open(&w.engine, &config, 1 << 40).unwrap();
    (0..NR_OBJECTS).for_each(|nr| w.bucket.put(&format!("d/{nr:04}"), "1"));
    World { volume, ..w }
}

/// Opens a directory and reads it up to a name, as a kernel does that asks for names alone.
fn begin_listing(w: &World, path: &str, last: &str) -> Arc<dyn VolumeDir> {
    let entry = w.find(path).unwrap();
    let directory = w.volume.opendir(&w.me, entry.node).unwrap();
    w.volume.forget(entry.node, 1);
    read_on(&directory, last);
    directory
}

fn read_on(directory: &Arc<dyn VolumeDir>, last: &str) {
    let (mut offset, mut is_there) = (0, false);
    while !is_there {
        let before = offset;
        directory
            .readdir(offset, &mut |entry| {
                offset = entry.next_offset;
                is_there = entry.name == OsStr::new(last);
                !is_there
            })
            .unwrap();
        assert!(offset > before, "{last} is not listed");
    }
}

#[test]
fn a_name_is_looked_up_in_what_was_just_listed() {
    let w = world();
    let heads = || w.bucket.asked().1;
    let directory = begin_listing(&w, "d", "0005");
    let before = heads();
    for nr in [0, 5, 999] {
        assert_eq!(w.attr(&format!("d/{nr:04}")).unwrap().size, 1);
    }
    assert_eq!(heads(), before);
    assert_eq!(w.attr("d/1200").unwrap().size, 1);
    assert_eq!(heads(), before + 1, "the store has not listed so far");
    read_on(&directory, "1001");
    assert_eq!((w.attr("d/1200").unwrap().size, heads()), (1, before + 1));
    // Absent names are asked for.
    assert_eq!(errno(w.attr("d/x")), Some(Errno::NOENT));
    assert_eq!(heads(), before + 2);
    drop(directory);
    // One for the directory, too, which nothing knows any more.
    assert_eq!((w.attr("d/1201").unwrap().size, heads()), (1, before + 4));
}

#[test]
fn a_full_group_lists_without_a_request_for_each_name() {
    let w = world();
    let directory = begin_listing(&w, "d", "0000");
    let entry = w.find("d").unwrap();
    let before = w.bucket.asked().1;
    // No room for one name more without reclaim.
    w.group().drain_stocks();
    w.engine.set_max(w.group(), w.group().usage_bytes());
    let mut nr_listed = 0;
    directory
        .readdirplus(&w.me, 2, &mut |listed| {
            let found = listed.entry.map(|entry| entry.node);
            found.into_iter().for_each(|node| w.volume.forget(node, 1));
            nr_listed += 1;
            nr_listed < 100
        })
        .unwrap();
    w.engine.set_max(w.group(), u64::MAX);
    for nr in 0..99 {
        let name = format!("{nr:04}");
        let found = w.volume.lookup(&w.me, entry.node, OsStr::new(&name)).unwrap();
        w.volume.forget(found.node, 1);
    }
    assert_eq!(w.bucket.asked().1, before);
    w.volume.forget(entry.node, 1);
}

#[test]
fn an_open_sees_another_version_than_was_listed() {
    let w = world();
    let directory = begin_listing(&w, "d", "0000");
    assert_eq!(w.attr("d/0007").unwrap().size, 1);
    w.bucket.put("d/0007", "another");
    w.bucket.put("d/0008", "another");
    for key in ["d/0007", "d/0008"] {
        assert_eq!(w.get(key).unwrap(), b"another");
        assert_eq!(w.attr(key).unwrap().size, 7);
    }
    w.bucket.delete("d/0009");
    assert_eq!(errno(w.open("d/0009", OFlags::RDONLY)), Some(Errno::NOENT));
    assert_eq!(errno(w.attr("d/0009")), Some(Errno::NOENT));
    // As does a read.
    let file = w.open("d/0010", OFlags::RDONLY).unwrap();
    w.bucket.put("d/0010", "another");
    assert_eq!(errno(w.read(&file)), Some(Errno::STALE));
    assert_eq!(w.attr("d/0010").unwrap().size, 7);
    drop((file, directory));
}

#[test]
fn what_was_listed_is_believed_for_its_time_only() {
    let time = Duration::from_millis(20);
    let w = world_with(Freshness::Ttl(time));
    let directory = begin_listing(&w, "d", "0000");
    let listed = Instant::now();
    w.bucket.put("d/0001", "another");
    wait_for("the time is over", || listed.elapsed() > time);
    assert_eq!(w.attr("d/0001").unwrap().size, 7);
    drop(directory);
}

#[test]
fn an_absent_name_leaves_the_others_listed() {
    let w = world();
    let heads = || w.bucket.asked().1;
    let directory = begin_listing(&w, "d", "0000");
    for name in ["d/x", "d/y"] {
        assert_eq!(errno(w.attr(name)), Some(Errno::NOENT));
    }
    let before = heads();
    assert_eq!((w.attr("d/0001").unwrap().size, heads()), (1, before));
    // One that was listed, and is found to be gone.
    w.bucket.delete("d/0002");
    assert_eq!(errno(w.open("d/0002", OFlags::RDONLY)), Some(Errno::NOENT));
    assert_eq!(errno(w.attr("d/0002")), Some(Errno::NOENT));
    let before = heads();
    assert_eq!((w.attr("d/0003").unwrap().size, heads()), (1, before));
    // It comes back.
    w.bucket.put("d/0002", "again");
    assert_eq!((w.attr("d/0002").unwrap().size, heads()), (5, before + 1));
    drop(directory);
}

#[test]
fn what_is_done_here_counts_more_than_what_was_listed() {
    let w = world();
    let directory = begin_listing(&w, "d", "0000");
    w.put("d/0001", b"longer").unwrap();
    assert_eq!(w.attr("d/0001").unwrap().size, 6);
    w.unlink("d/0002").unwrap();
    assert_eq!(errno(w.attr("d/0002")), Some(Errno::NOENT));
    drop(directory);
    let directory = begin_listing(&w, "d", "0000");
    w.rename("d/0003", "d/0004", RenameFlags::empty()).unwrap();
    assert_eq!(errno(w.attr("d/0003")), Some(Errno::NOENT));
    assert_eq!(w.get("d/0004").unwrap(), b"1");
    drop(directory);
    let directory = begin_listing(&w, "d", "0000");
    let nr_nodes = w.volume.nr_nodes();
    let file = w.open("d/0005", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"stored").unwrap();
    w.close(file).unwrap();
    assert_eq!(w.volume.nr_nodes(), nr_nodes);
    assert_eq!(w.attr("d/0005").unwrap().size, 6, "and the name is not even known meanwhile");
    drop(directory);
}

#[test]
fn a_name_that_was_never_stored_is_not_found_in_what_was_listed() {
    let w = world();
    let file = w.create("d/new").unwrap();
    w.write(&file, 0, b"new").unwrap();
    let directory = begin_listing(&w, "d", "new");
    w.bucket.fail_changes([ChangeFault::Refused(BucketError::Unavailable("503".into()))]);
    let _ = w.close(file);
    w.bucket.put("d/new", "theirs");
    // Nothing but the listing knows the name when its file is lost.
    let _ = w.volume.syncfs();
    wait_for("its loss", || w.staged().iter().any(|staged| staged.is_lost));
    w.bucket.delete("d/new");
    assert_eq!(errno(w.attr("d/new")), Some(Errno::NOENT));
    drop(directory);
}

#[test]
fn a_new_name_that_is_gone_stays_so_when_a_listing_comes_to_it() {
    let w = world();
    let remove: [fn(&World); 2] =
        [|w| w.unlink("d/new").unwrap(), |w| w.rename("d/new", "d/newer", RenameFlags::empty()).unwrap()];
    for remove in remove {
        let file = w.create("d/new").unwrap();
        w.write(&file, 0, b"new").unwrap();
        let directory = begin_listing(&w, "d", "0000");
        w.close(file).unwrap();
        remove(&w);
        let (mut offset, mut before, mut kept) = (2, 0, Vec::new());
        while offset > before {
            before = offset;
            directory
                .readdirplus(&w.me, before, &mut |listed| {
                    offset = listed.next_offset;
                    kept.extend(listed.entry.map(|entry| entry.node));
                    true
                })
                .unwrap();
        }
        assert_eq!(errno(w.attr("d/new")), Some(Errno::NOENT));
        kept.into_iter().for_each(|node| w.volume.forget(node, 1));
        drop(directory);
    }
}

#[test]
fn a_directory_that_is_renamed_has_its_copies() {
    let w = world();
    (0..5).for_each(|nr| w.bucket.put(&format!("e/{nr}"), "1"));
    let directory = begin_listing(&w, "e", "0");
    w.rename("e", "f", RenameFlags::empty()).unwrap();
    for nr in 0..5 {
        // At once, as the same version that a lookup finds.
        let found = w.find(&format!("f/{nr}")).unwrap();
        let file = w.volume.open(&w.me, found.node, OFlags::RDONLY).unwrap();
        assert_eq!(w.read(&file).unwrap(), b"1");
        w.volume.forget(found.node, 1);
    }
    assert_eq!(errno(w.find("e").map(|entry| entry.node)), Some(Errno::NOENT));
    assert_ne!(w.find("f").unwrap().node, NodeId::ROOT);
    drop(directory);
}

#[test]
fn a_directory_is_renamed_with_several_requests_at_a_time() {
    let w = world();
    (0..20).for_each(|nr| w.bucket.put(&format!("e/{nr}"), "1"));
    let begun = ["COPY", "DELETE"].map(|method| (method, AtomicUsize::new(0)));
    let others = Arc::new(begun);
    let (counts, deadline) = (Arc::clone(&others), Instant::now() + Duration::from_secs(60));
    w.bucket.on_request(move |method, _| {
        let Some((_, nr)) = counts.iter().find(|(counted, _)| *counted == method) else { return };
        nr.fetch_add(1, Ordering::Relaxed);
        // The first request waits for another one.
        while nr.load(Ordering::Relaxed) < 2 && Instant::now() < deadline {
            thread::yield_now();
        }
    });
    w.rename("e", "f", RenameFlags::empty()).unwrap();
    w.bucket.on_request(|_, _| {});
    assert!(Instant::now() < deadline, "one request at a time");
    assert!(others.iter().all(|(_, nr)| nr.load(Ordering::Relaxed) == 20), "{others:?}");
    assert!((0..20).all(|nr| w.attr(&format!("f/{nr}")).is_ok()));
}

/// How long names are believed beside rivals.
const BELIEVED: Duration = Duration::from_millis(100);

/// A change of a name: when it began, when it was over, and the length since, if it is there.
type Change = (Instant, Option<Instant>, Option<u64>);

/// What one name stood for. One thread changes it.
#[derive(Default)]
struct History(Mutex<Vec<Change>>);

impl History {
    fn begin(&self, to: Option<u64>) {
        self.0.lock().unwrap().push((Instant::now(), None, to));
    }

    fn end(&self) {
        self.0.lock().unwrap().last_mut().unwrap().1 = Some(Instant::now());
    }

    /// Fails unless what was shown was so at a time between these.
    #[track_caller]
    fn check(&self, name: &str, shown: Option<u64>, (from, until): (Instant, Instant)) {
        let history = self.0.lock().unwrap();
        let was_so = history.iter().enumerate().any(|(at, &(begun, _, state))| {
            let over = history.get(at + 1).and_then(|(_, ended, _)| *ended).unwrap_or(until);
            state == shown && begun <= until && over >= from
        });
        let last = &history[history.len().saturating_sub(8)..];
        assert!(was_so, "{name}: {shown:?} between {from:?} and {until:?}, of {last:#?}");
    }
}

/// Names that one thread changes, each with its history.
struct Names {
    histories: Vec<(String, History)>,
    /// How old what is shown of them may be.
    bound: Duration,
}

impl Names {
    fn new(names: [String; 4], bound: Duration) -> Self {
        Self { histories: names.map(|name| (name, History::default())).into(), bound }
    }

    /// Looks one of them up, and checks what is shown.
    fn look(&self, w: &World, nr: usize) {
        let (name, history) = &self.histories[nr % self.histories.len()];
        let begun = Instant::now();
        let shown = match w.attr(name) {
            Ok(attr) => Some(attr.size),
            Err(error) if error.errno() == Errno::NOENT => None,
            Err(error) => panic!("{name}: {error:?}"),
        };
        history.check(name, shown, (begun - self.bound, Instant::now()));
    }

    /// Makes a change of some of them.
    fn change<R>(&self, to: &[(usize, Option<u64>)], make: impl FnOnce() -> R) -> R {
        to.iter().for_each(|(at, to)| self.histories[*at].1.begin(*to));
        let made = make();
        to.iter().for_each(|(at, _)| self.histories[*at].1.end());
        made
    }
}

/// Changes names as another client does.
fn change_outside(w: &World, names: &Names, nr: usize) {
    let name = &names.histories[nr % 4].0;
    if nr / 4 % 3 == 2 {
        names.change(&[(nr % 4, None)], || w.bucket.delete(name));
    } else {
        names.change(&[(nr % 4, Some(nr as u64))], || w.bucket.put(name, vec![b'x'; nr]));
    }
}

/// Changes names through the mount: stores, removes and renames them.
fn change_here(w: &World, names: &Names, nr: usize) {
    let (name, len) = (|at: usize| &*names.histories[at].0, Some(nr as u64));
    let put = |at| {
        // It is empty first, which all see.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = names.change(&[(at, Some(0))], || match w.create_with(name(at), flags) {
            // As a kernel does, when what it knew by the name is found to be gone.
            Err(error) if error.errno() == Errno::STALE => w.create_with(name(at), flags),
            created => created,
        });
        let file = file.unwrap();
        let write = || w.write(&file, 0, &vec![b'x'; nr]).and_then(|()| file.flush());
        names.change(&[(at, len)], write).unwrap();
    };
    match nr % 4 {
        at @ (0 | 1) => put(at),
        2 => {
            put(2);
            let rename = || w.rename(name(2), name(3), RenameFlags::empty());
            names.change(&[(2, None), (3, len)], rename).unwrap();
        }
        _ => names.change(&[(1, None)], || w.unlink(name(1))).unwrap(),
    }
}

/// Reads the directory in pieces, again and again, with one handle, as long as others change it,
/// and looks their names up meanwhile.
fn list_beside(w: &World, all: &[Names], nr_changing: &AtomicUsize) {
    let node = w.find("d").unwrap().node;
    let directory = w.volume.opendir(&w.me, node).unwrap();
    let (mut offset, mut nr) = (0, 0);
    while nr_changing.load(Ordering::Relaxed) > 0 {
        let before = offset;
        let mut nr_taken = 0;
        directory
            .readdirplus(&w.me, before, &mut |listed| {
                let is_taken = nr_taken < 60;
                nr_taken += 1;
                if is_taken {
                    offset = listed.next_offset;
                    listed.entry.inspect(|entry| w.volume.forget(entry.node, 1));
                }
                is_taken
            })
            .unwrap();
        if offset == before {
            offset = 0;
        }
        all.iter().for_each(|names| names.look(w, nr));
        nr += 1;
    }
    drop(directory);
    w.volume.forget(node, 1);
    assert!(nr > 10, "{nr} pieces");
}

#[test]
fn beside_rivals_a_name_is_what_it_was_within_the_bound() {
    const NR_CHANGES: usize = 400;
    let w = world_with(Freshness::Ttl(BELIEVED));
    let names = |of: &str| ["0000", "0700", "1000", "1400"].map(|before| format!("d/{before}-{of}"));
    let all = [
        Names::new(names("theirs"), BELIEVED),
        // What is done here is shown at once.
        Names::new(names("ours"), Duration::ZERO),
        Names::new(names("also-ours"), Duration::ZERO),
    ];
    all.iter().flat_map(|names| &names.histories).for_each(|(_, history)| history.begin(None));
    let nr_changing = AtomicUsize::new(all.len());
    thread::scope(|scope| {
        for (nr, names) in all.iter().enumerate() {
            let (w, nr_changing) = (w.of_thread(10 + nr as u32), &nr_changing);
            scope.spawn(move || {
                let change = if nr == 0 { change_outside } else { change_here };
                for nr in 0..NR_CHANGES {
                    change(&w, names, nr);
                    thread::sleep(Duration::from_millis(2));
                }
                nr_changing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for nr in 0..2 {
            let (w, all, nr_changing) = (w.of_thread(20 + nr), &all, &nr_changing);
            scope.spawn(move || list_beside(&w, all, nr_changing));
        }
    });
}
