//! Objects that another program changes while they are written, cut or renamed here: nothing of
//! either is lost unseen.

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, config, errno, wait_for};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{OFlags, ObjectVolume, RenameFlags, SetAttr};

const BOUND: Duration = Duration::from_secs(60);

/// A request that stops until it is let go.
struct Gate {
    reached: Receiver<()>,
    go: Sender<()>,
}

impl Gate {
    /// Stops the first request of a method for a key.
    fn at(w: &World, method: &'static str, key: &'static str) -> Self {
        let ((reach, reached), (go, going)) = (channel(), channel());
        let (reach, going, is_over) = (Mutex::new(reach), Mutex::new(going), AtomicBool::new(false));
        w.bucket.on_request(move |at, of| {
            if (at, of) == (method, key) && !is_over.swap(true, SeqCst) {
                reach.lock().unwrap().send(()).unwrap();
                let _ = going.lock().unwrap().recv_timeout(BOUND);
            }
        });
        Self { reached, go }
    }

    fn is_reached(&self) {
        self.reached.recv_timeout(BOUND).unwrap();
    }

    fn open(&self) {
        self.go.send(()).unwrap();
    }
}

fn changed() -> ChangeFault {
    ChangeFault::Refused(BucketError::Changed("412".into()))
}

#[test]
fn a_refusal_without_another_version_is_no_lost_race() {
    let w = World::new();
    w.bucket.put("old", "before");
    for (name, file) in [("new", w.create("new")), ("old", w.open("old", OFlags::RDWR))] {
        let file = file.unwrap();
        w.write(&file, 0, b"ours!!").unwrap();
        w.bucket.fail_changes([changed()]);
        assert_eq!(errno(file.flush()), Some(Errno::IO));
        assert!(w.staged().iter().all(|staged| !staged.is_lost), "{:?}", w.staged());
        file.flush().unwrap();
        assert_eq!(w.stored(name).unwrap(), b"ours!!");
    }
}

#[test]
fn a_renamed_directory_takes_no_unseen_version_for_its_own() {
    let w = World::new();
    w.bucket.put("d/read", "first");
    w.bucket.put("d/open", "first");
    assert_eq!(w.get("d/read").unwrap(), b"first");
    let open = w.open("d/open", OFlags::RDWR).unwrap();
    w.write(&open, 0, b"F").unwrap();
    open.flush().unwrap();
    w.bucket.put("d/read", "the second version");
    w.bucket.put("d/open", "theirs");
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(w.get("e/read").unwrap(), b"the second version", "no bytes of the first");
    let written = w.write(&open, 0, b"x").and_then(|()| open.flush());
    assert!(written.is_err(), "it stands for another version");
    drop(open);
    assert_eq!(w.stored("e/open").unwrap(), b"theirs");
}

#[test]
fn a_rename_deletes_nothing_that_another_program_stored() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let file = w.open("f", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"ours!").unwrap();
    w.bucket.put("f", "theirs");
    w.rename("f", "g", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("f").unwrap(), w.stored("g").unwrap()), (b"theirs".into(), b"ours!".into()));
    // Their own versions go, also one of which an answer was lost.
    w.write(&file, 0, b"OURS!").unwrap();
    w.rename("g", "h", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("g"), w.stored("h").unwrap()), (None, b"OURS!".into()));
}

/// Until all is deleted the store has both names, and a lookup finds the old one.
#[test]
fn a_name_that_was_renamed_is_gone_at_once() {
    for (from, to, key, method) in [("f", "g", "f", "HEAD"), ("d", "e", "d/f", "DELETE")] {
        let w = World::new();
        [key, "d/last"].iter().for_each(|key| w.bucket.put(key, "bytes"));
        let (other, is_copied, is_seen) =
            (w.of_thread(2), AtomicBool::new(false), Arc::<AtomicBool>::default());
        let seen = Arc::clone(&is_seen);
        w.bucket.on_request(move |at, of| {
            is_copied.fetch_or(at == "COPY", SeqCst);
            if is_copied.load(SeqCst) && (at, of) == (method, key) && !seen.swap(true, SeqCst) {
                // As a kernel does, which keeps it.
                other.find(from).unwrap();
            }
        });
        w.rename(from, to, RenameFlags::empty()).unwrap();
        assert!(is_seen.load(SeqCst));
        assert_eq!(errno(w.attr(from)), Some(Errno::NOENT), "{from}");
        w.attr(to).unwrap();
        w.bucket.on_request(|_, _| {});
    }
}

/// As some programs keep the metadata of what they replace.
#[test]
fn a_mark_that_another_program_kept_is_not_ours() {
    let w = World::new();
    for name in ["f", "g"] {
        let file = w.create(name).unwrap();
        w.write(&file, 0, b"first").unwrap();
        file.flush().unwrap();
        w.write(&file, 0, b"ours!").unwrap();
        let (_, metadata) = w.bucket.object(name).unwrap();
        w.bucket.put_with(name, "theirs", metadata);
        if name == "f" {
            assert_eq!(errno(file.flush()), Some(Errno::IO));
        } else {
            w.rename(name, "h", RenameFlags::empty()).unwrap();
            assert_eq!(w.stored("h").unwrap(), b"ours!");
        }
        assert_eq!(w.stored(name).unwrap(), b"theirs");
    }
}

#[test]
fn what_lost_a_race_is_kept_as_it_was_written() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let file = w.open("f", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"ours!").unwrap();
    w.bucket.fail_changes([changed()]);
    w.bucket.put("f", "theirs");
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(errno(file.setattr(&w.me, &size)), Some(Errno::IO));
    let punched = file.fallocate(w.group(), FallocateFlags::ZERO_RANGE, 0, 4096, false);
    assert_eq!(errno(punched), Some(Errno::IO));
    let staged = w.staged();
    assert_eq!((staged.len(), staged[0].is_lost), (1, true));
    assert_eq!(std::fs::read(&staged[0].path).unwrap(), b"ours!");
    assert_eq!(w.stored("f").unwrap(), b"theirs");
}

#[test]
fn room_beyond_the_end_is_not_taken_on_the_disk() {
    let w = World::new();
    let file = w.create("f").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    for mode in [FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE] {
        file.fallocate(w.group(), mode, 0, 1 << 40, false).unwrap();
        file.fallocate(w.group(), mode, 1 << 20, 1 << 40, false).unwrap();
    }
    assert_eq!(file.getattr().unwrap().size, 5);
    let collapse = file.fallocate(w.group(), FallocateFlags::COLLAPSE_RANGE, 0, 4096, false);
    assert_eq!(errno(collapse), Some(Errno::OPNOTSUPP));
    file.flush().unwrap();
    assert_eq!(w.stored("f").unwrap(), b"\0\0\0\0\0");
}

#[test]
fn a_rename_leaves_what_another_program_stores_meanwhile() {
    let w = World::new();
    for key in ["f", "d/a", "d/b"] {
        w.bucket.put(key, "first");
    }
    let bucket = Arc::clone(&w.bucket);
    // After the copy of the one, and before that of the other has ended.
    w.bucket.on_request(move |method, key| {
        if method == "COPY" && key == "d/b" {
            wait_for("the copy of the one", || bucket.object("e/a").is_some());
            bucket.put("d/a", "theirs");
        }
    });
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("d/a").unwrap(), w.stored("e/a").unwrap()), (b"theirs".into(), b"first".into()));
    assert_eq!((w.stored("d/b"), w.stored("e/b").unwrap()), (None, b"first".into()));
}

#[test]
fn a_rename_that_waits_for_one_of_its_directory_goes_there() {
    for both in [("d/a", "d/b"), ("d/s", "d/t")] {
        let w = World::new();
        for key in ["d/a", "d/s/x", "d/z"] {
            w.bucket.put(key, key);
        }
        let kept = ["d", "d/a", "d/s"].map(|path| w.find(path).unwrap());
        let gate = Gate::at(&w, "COPY", "d/z");
        thread::scope(|threads| {
            threads.spawn(|| w.rename("d", "e", RenameFlags::empty()).unwrap());
            gate.is_reached();
            let renaming = threads.spawn(|| w.rename(both.0, both.1, RenameFlags::empty()));
            // It waits, or will: both are well.
            while !renaming.is_finished() && w.volume.nr_waiting_for_turn() == 0 {
                thread::yield_now();
            }
            gate.open();
            renaming.join().unwrap().unwrap();
        });
        let keys = w.bucket.keys();
        assert!(keys.iter().all(|key| !key.starts_with("d/")), "{keys:?}");
        let moved = if both.0 == "d/a" { "e/b" } else { "e/t/x" };
        assert!(w.stored(moved).is_some(), "{keys:?}");
        kept.iter().for_each(|entry| umemcg_vfs::Lookup::forget(&*w.volume, entry.node, 1));
    }
}

#[test]
fn a_directory_is_renamed_while_others_are_written() {
    let w = World::new();
    w.bucket.put("d/a", "a");
    w.mkdir("other").unwrap();
    let gate = Gate::at(&w, "PUT", "other/slow");
    thread::scope(|threads| {
        let slow = threads.spawn(|| w.put("other/slow", b"slow"));
        gate.is_reached();
        w.rename("d", "e", RenameFlags::empty()).unwrap();
        w.put("quick", b"quick").unwrap();
        assert_eq!(w.stored("other/slow"), None);
        gate.open();
        slow.join().unwrap().unwrap();
    });
    let gate = Gate::at(&w, "COPY", "e/a");
    thread::scope(|threads| {
        let renaming = threads.spawn(|| w.rename("e", "f", RenameFlags::empty()));
        gate.is_reached();
        w.put("quick", b"again").unwrap();
        w.unlink("other/slow").unwrap();
        gate.open();
        renaming.join().unwrap().unwrap();
    });
}

#[test]
fn a_removal_whose_caller_was_killed_leaves_the_next_file() {
    let w = World::new();
    w.bucket.put("f", "old");
    let gate = Gate::at(&w, "DELETE", "f");
    thread::scope(|threads| {
        let removal = threads.spawn(|| w.unlink("f"));
        gate.is_reached();
        // The kernel no longer keeps others from the directory.
        let file = w.create_with("f", OFlags::RDWR | OFlags::CREATE).unwrap();
        gate.open();
        removal.join().unwrap().unwrap();
        let written = w.write(&file, 0, b"new").and_then(|()| file.flush());
        match written {
            Ok(()) => assert_eq!(w.stored("f").unwrap(), b"new"),
            // It was opened before it was removed.
            Err(error) => assert_eq!(error.errno(), Errno::STALE),
        }
    });
}

#[test]
fn a_file_that_lost_its_race_is_lost_once() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let files = [0; 2].map(|_| w.open("f", OFlags::RDWR).unwrap());
    w.write(&files[0], 0, b"ours!").unwrap();
    w.bucket.put("f", "theirs");
    let gate = Gate::at(&w, "PUT", "f");
    thread::scope(|threads| {
        let first = threads.spawn(|| errno(files[0].flush()));
        gate.is_reached();
        let second = threads.spawn(|| errno(files[1].flush()));
        while w.volume.nr_waiting_for_turn() == 0 {
            thread::yield_now();
        }
        gate.open();
        let told = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!(told, [Some(Errno::IO), Some(Errno::IO)]);
    });
    assert_eq!((w.staged().len(), w.stored("f").unwrap()), (1, b"theirs".into()));
    assert!(files.iter().all(|file| file.flush().is_ok()), "told once");
}

#[test]
fn a_directory_is_made_by_one() {
    let w = World::new();
    // The kernel looks a name up before it makes a directory.
    assert_eq!(errno(w.attr("d")), Some(Errno::NOENT));
    w.bucket.put("d/", "");
    assert_eq!(errno(w.mkdir("d")), Some(Errno::EXIST));
    // A renaming that fails leaves the one that was there.
    w.mkdir("from").unwrap();
    w.mkdir("to").unwrap();
    w.bucket.put("from/f", "f");
    w.bucket.fail_changes([]);
    let bucket = Arc::clone(&w.bucket);
    w.bucket.on_request(move |method, key| {
        if (method, key) == ("COPY", "from/f") {
            bucket.fail_changes([ChangeFault::Refused(BucketError::Unavailable("503".into()))]);
        }
    });
    assert_eq!(errno(w.rename("from", "to", RenameFlags::empty())), Some(Errno::IO));
    assert!(w.stored("to/").is_some() && w.stored("to/f").is_none());
}

#[test]
fn an_unlink_removes_the_version_that_its_name_was() {
    let w = World::new();
    w.bucket.put("f", "old");
    w.put("ours", b"old").unwrap();
    for name in ["f", "ours"] {
        let known = w.find(name).unwrap();
        // The daemon believes what it knows for a moment.
        w.bucket.put(name, "another program's");
        assert_eq!(errno(w.unlink(name)), Some(Errno::AGAIN), "{name}");
        assert_eq!(w.stored(name).unwrap(), b"another program's");
        w.unlink(name).unwrap();
        assert!(w.stored(name).is_none(), "{name}");
        umemcg_vfs::Lookup::forget(&*w.volume, known.node, 1);
    }
}

#[test]
fn a_rename_leaves_what_came_after_its_last_look() {
    let w = World::new();
    w.bucket.put("f", "old");
    let (bucket, is_copied) = (Arc::downgrade(&w.bucket), AtomicBool::new(false));
    w.bucket.on_request(move |method, key| match (method, key) {
        ("COPY", "f") => is_copied.store(true, SeqCst),
        ("HEAD", "f") if is_copied.swap(false, SeqCst) => {
            bucket.upgrade().unwrap().put("f", "another program's");
        }
        _ => {}
    });
    w.rename("f", "g", RenameFlags::empty()).unwrap();
    assert_eq!(w.stored("f").unwrap(), b"another program's");
    assert_eq!(w.stored("g").unwrap(), b"old");
}

#[test]
fn what_is_staged_is_there_whatever_the_store_says() {
    let (w, staging) = (World::new(), tempfile::tempdir().unwrap());
    let mut config = config(&w.bucket, staging.path(), 1 << 20);
    // Otherwise the store is asked for the metadata first.
    config.stores_attributes = false;
    let w = World { volume: ObjectVolume::open(&w.engine, &config, 0).unwrap(), ..w };
    w.bucket.put("f", vec![1; 100_000]);
    let file = w.open("f", OFlags::RDWR).unwrap();
    w.bucket.delete("f");
    assert_eq!(errno(w.read(&file)), Some(Errno::STALE));
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    file.setattr(&w.me, &size).unwrap();
    assert_eq!(w.attr("f").unwrap().size, 0);
}

#[test]
fn a_read_goes_on_with_the_new_name() {
    let w = World::new();
    let bytes = vec![7; 100_000];
    w.bucket.put("f", bytes.clone());
    let file = w.open("f", OFlags::RDONLY).unwrap();
    let gate = Gate::at(&w, "GET", "f");
    thread::scope(|threads| {
        let reading = threads.spawn(|| w.read(&file));
        gate.is_reached();
        w.rename("f", "g", RenameFlags::empty()).unwrap();
        gate.open();
        assert!(reading.join().unwrap().unwrap() == bytes);
    });
}

#[test]
fn nothing_is_made_in_a_directory_that_is_replaced() {
    let w = World::new();
    w.bucket.put("d/a", "a");
    w.mkdir("e").unwrap();
    let gate = Gate::at(&w, "COPY", "d/a");
    thread::scope(|threads| {
        let renaming = threads.spawn(|| w.rename("d", "e", RenameFlags::empty()));
        gate.is_reached();
        let making = threads.spawn(|| errno(w.put("e/new", b"new")));
        while !making.is_finished() && w.volume.nr_waiting_for_turn() == 0 {
            thread::yield_now();
        }
        gate.open();
        renaming.join().unwrap().unwrap();
        // The directory that it is made in is gone, which is told at once and not at the close.
        assert_eq!(making.join().unwrap(), Some(Errno::STALE));
    });
    assert!(w.staged().is_empty() && w.stored("e/a").is_some());
}
