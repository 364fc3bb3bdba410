//! Names that are made, removed and changed on a volume of objects, above a bucket that the test
//! plays.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::common::gate::Gate;
use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno, pattern, wait_for};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{Attributes, Names, NodeId, OFlags, RenameFlags, Volume};

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE);

fn refused() -> ChangeFault {
    ChangeFault::Refused(BucketError::Unavailable("503".into()))
}

#[test]
fn create_opens_what_is_there_unless_it_must_be_new() {
    let w = World::new();
    w.put("a", b"bytes").unwrap();
    assert_eq!(errno(w.create("a")), Some(Errno::EXIST));
    let file = w.create_with("a", NEW).unwrap();
    assert_eq!(w.read(&file).unwrap(), b"bytes");
    drop(file);
    w.release(w.create("new").unwrap());
    assert_eq!(errno(w.create("new")), Some(Errno::EXIST));
    assert_eq!(w.stored("new").unwrap(), b"", "a release without a close stores it, too");
    w.mkdir("d").unwrap();
    assert_eq!(errno(w.create_with("d", NEW)), Some(Errno::ISDIR));
    assert_eq!(errno(w.create("d/\u{1}")), Some(Errno::INVAL));
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    let created = umemcg_vfs::Create::create(&*w.volume, &w.me, umemcg_vfs::NodeId::ROOT, name, 0, NEW);
    assert_eq!(errno(created), Some(Errno::ILSEQ));
    assert_eq!(errno(w.create(&"n".repeat(256))), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(w.create("nowhere/x")), Some(Errno::NOENT));
}

#[test]
fn a_file_without_a_name_is_not_stored() {
    let w = World::new();
    w.put("old", b"bytes").unwrap();
    for key in ["new", "old"] {
        let file = w.open(key, OFlags::RDWR).or_else(|_| w.create(key)).unwrap();
        w.write(&file, 0, b"BY").unwrap();
        w.unlink(key).unwrap();
        assert_eq!(errno(w.attr(key)), Some(Errno::NOENT));
        w.write(&file, 2, b"T").unwrap();
        assert_eq!(&w.read(&file).unwrap()[..3], b"BYT", "as long as it is open");
        file.flush().unwrap();
        drop(file);
        assert_eq!(w.stored(key), None);
    }
    assert_eq!((w.nr_staging_files(), w.names("")), (0, Vec::new()));
    let file = w.create("new").unwrap();
    w.unlink("new").unwrap();
    w.put("new", b"another").unwrap();
    drop(file);
    assert_eq!(w.stored("new").unwrap(), b"another");
}

#[test]
fn keys_below_a_file_are_shown_when_the_file_is_gone() {
    for is_moved in [false, true] {
        let w = World::new();
        w.put("a", b"bytes").unwrap();
        w.bucket.put("a/b", "below");
        let names = w.names("").into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names, ["a"]);
        assert_eq!(errno(w.attr("a/b")), Some(Errno::NOTDIR), "looked up, it is the same as listed");
        if is_moved {
            w.rename("a", "c", RenameFlags::empty()).unwrap();
            assert_eq!(w.stored("c").unwrap(), b"bytes");
        } else {
            w.unlink("a").unwrap();
        }
        assert_eq!(w.get("a/b").unwrap(), b"below");
        assert_eq!(w.stored("a"), None);
    }
}

#[test]
fn an_open_file_without_a_name_has_attributes() {
    let w = World::new();
    w.put("old", b"bytes").unwrap();
    w.put("replaced", b"bytes").unwrap();
    for (key, is_written) in [("new", true), ("old", true), ("replaced", false)] {
        let file = w.open(key, OFlags::RDWR).or_else(|_| w.create(key)).unwrap();
        if is_written {
            w.write(&file, 0, b"BYTES").unwrap();
        }
        if key == "replaced" {
            w.put("other", b"another").unwrap();
            w.rename("other", key, RenameFlags::empty()).unwrap();
            assert_eq!(w.attr(key).unwrap().nlink, 1);
        } else {
            w.unlink(key).unwrap();
        }
        for attr in [w.volume.getattr(file.node()).unwrap(), file.getattr().unwrap()] {
            assert_eq!((attr.size, attr.nlink), (5, 0), "{key}");
        }
    }
}

#[test]
fn directories_are_objects_that_end_with_a_slash() {
    let w = World::new();
    w.mkdir("d").unwrap();
    assert_eq!(errno(w.mkdir("d")), Some(Errno::EXIST));
    assert_eq!(w.bucket.keys(), ["d/"]);
    w.put("d/f", b"bytes").unwrap();
    assert_eq!(errno(w.rmdir("d")), Some(Errno::NOTEMPTY));
    assert_eq!(errno(w.rmdir("d/f")), Some(Errno::NOTDIR));
    assert_eq!(errno(w.unlink("d")), Some(Errno::ISDIR));
    w.unlink("d/f").unwrap();
    let file = w.create("d/open").unwrap();
    assert_eq!(errno(w.rmdir("d")), Some(Errno::NOTEMPTY), "of what is not stored yet");
    drop(file);
    w.unlink("d/open").unwrap();
    w.rmdir("d").unwrap();
    assert!(w.bucket.keys().is_empty());
    assert_eq!(errno(w.attr("d")), Some(Errno::NOENT));
    // A directory that only is in the keys below it outlives them while it is known.
    w.bucket.put("implicit/f", "");
    let known = w.find("implicit").unwrap();
    w.unlink("implicit/f").unwrap();
    assert!(w.names("implicit").is_empty());
    w.rmdir("implicit").unwrap();
    umemcg_vfs::Lookup::forget(&*w.volume, known.node, 1);
}

#[test]
fn an_empty_object_is_a_directory_if_it_says_so() {
    let w = World::new();
    let mark = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    for (key, told) in [
        ("azure", mark("hdi_isfolder", "true")),
        ("typed", mark(":content-type", "application/x-directory; charset=UTF-8")),
        ("s3fs", mark("mode", "16872")),
    ] {
        w.bucket.put_with(key, "", told.clone());
        w.bucket.put_with("file", "bytes", told);
        let mode = if key == "s3fs" { 0o040_750 } else { 0o040_755 };
        assert_eq!(w.attr(key).unwrap().mode, mode, "{key}");
        assert_eq!(w.get("file").unwrap(), b"bytes", "only an empty one: {key}");
        let below = format!("{key}/x");
        w.put(&below, b"below").unwrap();
        assert_eq!(w.get(&below).unwrap(), b"below");
        w.unlink(&below).unwrap();
        w.rename(key, "moved", RenameFlags::empty()).unwrap();
        w.rmdir("moved").unwrap();
        assert_eq!(w.bucket.keys(), ["file"], "{key}");
    }
    w.bucket.put_with("empty", "", mark(":content-type", "text/plain"));
    assert_eq!(w.attr("empty").unwrap().mode, 0o100_644);
}

#[test]
fn the_mark_of_a_directory_goes_with_it() {
    let w = World::new();
    for key in ["d", "d/f", "e", "e/f"] {
        w.bucket.put(key, "");
    }
    w.rename("d", "moved", RenameFlags::empty()).unwrap();
    assert_eq!(w.bucket.keys(), ["e", "e/f", "moved/f"]);
    let known = w.find("e").unwrap();
    w.unlink("e/f").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(w.attr("e").unwrap().mode & 0o040_000 != 0, "it is known as a directory");
    w.rmdir("e").unwrap();
    assert_eq!(w.bucket.keys(), ["moved/f"]);
    umemcg_vfs::Lookup::forget(&*w.volume, known.node, 1);
    // Another program replaces the mark: its object stays.
    w.bucket.put("g", "");
    w.bucket.put("g/f", "");
    let known = w.find("g").unwrap();
    w.unlink("g/f").unwrap();
    let bucket = Arc::clone(&w.bucket);
    *w.bucket.hook.lock().unwrap() = Some(Arc::new(move |method, key| {
        if (method, key) == ("HEAD", "g") {
            bucket.put("g", "new");
        }
    }));
    Names::rmdir(&*w.volume, &w.me, NodeId::ROOT, OsStr::new("g")).unwrap();
    *w.bucket.hook.lock().unwrap() = None;
    assert_eq!(w.stored("g").unwrap(), b"new");
    umemcg_vfs::Lookup::forget(&*w.volume, known.node, 1);
}

#[test]
fn a_directory_without_keys_is_no_file_in_a_listing() {
    let w = World::uniform();
    w.bucket.put("e", "");
    w.bucket.put("e/f", "");
    let known = w.find("e").unwrap();
    w.unlink("e/f").unwrap();
    assert_eq!(w.names(""), [("e".to_owned(), 0)]);
    let again = w.find("e").unwrap();
    assert_eq!((again.node, again.attr.mode & 0o040_000), (known.node, 0o040_000));
    w.rmdir("e").unwrap();
    assert!(w.bucket.keys().is_empty());
    (0..2).for_each(|_| umemcg_vfs::Lookup::forget(&*w.volume, known.node, 1));
}

#[test]
fn a_directory_with_what_is_not_stored_yet_is_there() {
    let w = World::new();
    w.bucket.put("d/e/f", "");
    let file = w.create("d/e/new").unwrap();
    w.bucket.delete("d/e/f");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(w.names("d"), [("e".to_owned(), 0)]);
    assert_eq!(w.names("d/e"), [("new".to_owned(), 0)]);
    file.flush().unwrap();
    assert_eq!(w.bucket.keys(), ["d/e/new"]);
}

#[test]
fn a_listing_has_each_name_once() {
    let w = World::new();
    let files: Vec<_> = ["b", "d", "f"].map(|name| w.create(name).unwrap()).into();
    for key in ["a", "c", "d", "e"] {
        w.bucket.put(key, "xx");
    }
    let names: Vec<_> = w.names("").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(w.names("")[3].1, 0, "what is being written is shown");
    drop(files);
}

#[test]
fn a_file_is_renamed_by_a_copy() {
    let w = World::new();
    w.mkdir("d").unwrap();
    w.put("a", b"bytes").unwrap();
    let reader = w.open("a", OFlags::RDONLY).unwrap();
    let node = reader.node();
    w.rename("a", "d/b", RenameFlags::empty()).unwrap();
    assert_eq!(w.bucket.keys(), ["d/", "d/b"]);
    assert_eq!(errno(w.attr("a")), Some(Errno::NOENT));
    assert_eq!(w.read(&reader).unwrap(), b"bytes", "open files go on");
    assert_eq!(w.open("d/b", OFlags::RDONLY).unwrap().node(), node);
    w.put("c", b"other").unwrap();
    assert_eq!(errno(w.rename("c", "d/b", RenameFlags::NOREPLACE)), Some(Errno::EXIST));
    assert_eq!(errno(w.rename("c", "d/b", RenameFlags::EXCHANGE)), Some(Errno::INVAL));
    w.rename("c", "d/b", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("d/b").unwrap(), w.stored("c")), (b"other".to_vec(), None));
    assert_eq!(w.get("d/b").unwrap(), b"other");
    assert_eq!(errno(w.rename("d/b", "d", RenameFlags::empty())), Some(Errno::ISDIR));
    assert_eq!(errno(w.rename("d", "d/b", RenameFlags::empty())), Some(Errno::NOTDIR));
    assert_eq!(errno(w.rename("nothing", "x", RenameFlags::empty())), Some(Errno::NOENT));
    w.rename("d/b", "d/b", RenameFlags::empty()).unwrap();
    w.bucket.fail_changes([refused()]);
    assert_eq!(errno(w.rename("d/b", "x", RenameFlags::empty())), Some(Errno::IO));
    assert_eq!(w.get("d/b").unwrap(), b"other");
    w.bucket.put("d/b", "changed elsewhere");
    assert_eq!(errno(w.rename("d/b", "x", RenameFlags::empty())), Some(Errno::STALE));
    w.rename("d/b", "x", RenameFlags::empty()).unwrap();
    assert_eq!(w.stored("x").unwrap(), b"changed elsewhere");
}

#[test]
fn a_removal_waits_for_a_rename_onto_its_name() {
    let w = World::new();
    w.put("a", b"renamed").unwrap();
    let gate = Arc::new(Gate::default());
    gate.close();
    let at_copy = Arc::clone(&gate);
    w.bucket.on_request(move |method, key| {
        if (method, key) == ("COPY", "a") {
            at_copy.pass();
        }
    });
    std::thread::scope(|scope| {
        let renaming = scope.spawn(|| errno(w.rename("a", "b", RenameFlags::empty())));
        wait_for("the copy begins", || gate.nr_waiting() == 1);
        // Its version is replaced by the copy.
        w.put("b", b"made meanwhile").unwrap();
        let removal = scope.spawn(|| errno(w.unlink("b")));
        wait_for("the removal waits", || w.volume.nr_waiting_for_turn() == 1 || removal.is_finished());
        gate.open();
        assert_eq!(renaming.join().unwrap(), None);
        // The kernel then removes the file that has the name by now.
        assert_eq!(removal.join().unwrap(), Some(Errno::STALE));
    });
    assert_eq!(w.bucket.keys(), ["b"]);
    w.unlink("b").unwrap();
    assert!(w.bucket.keys().is_empty());
}

/// A removal of the old name must not remove the file under its new one.
#[test]
fn a_removal_waits_for_a_rename_of_its_name() {
    let w = World::new();
    w.put("a", b"renamed").unwrap();
    let gate = Arc::new(Gate::default());
    gate.close();
    let at_copy = Arc::clone(&gate);
    w.bucket.on_request(move |method, key| {
        if (method, key) == ("COPY", "a") {
            at_copy.pass();
        }
    });
    std::thread::scope(|scope| {
        let renaming = scope.spawn(|| errno(w.rename("a", "b", RenameFlags::empty())));
        wait_for("the copy begins", || gate.nr_waiting() == 1);
        let removal = scope.spawn(|| errno(w.unlink("a")));
        wait_for("the removal waits", || w.volume.nr_waiting_for_turn() == 1 || removal.is_finished());
        gate.open();
        assert_eq!(renaming.join().unwrap(), None);
        assert_eq!(removal.join().unwrap(), Some(Errno::STALE));
    });
    assert_eq!(w.stored("b").unwrap(), b"renamed");
}

#[test]
fn a_file_that_is_being_written_is_stored_under_its_new_name() {
    let w = World::new();
    w.put("target", b"old").unwrap();
    let open_target = w.open("target", OFlags::RDWR).unwrap();
    w.write(&open_target, 0, b"dirty").unwrap();
    let file = w.create("tmp").unwrap();
    w.write(&file, 0, b"fresh").unwrap();
    w.rename("tmp", "target", RenameFlags::empty()).unwrap();
    assert_eq!((w.bucket.keys(), w.stored("target").unwrap()), (vec!["target".into()], b"fresh".into()));
    open_target.flush().unwrap();
    drop(open_target);
    w.write(&file, 5, b"!").unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("target").unwrap(), b"fresh!");
    w.write(&file, 0, b"F").unwrap();
    w.rename("target", "moved", RenameFlags::NOREPLACE).unwrap();
    drop(file);
    assert_eq!((w.bucket.keys(), w.get("moved").unwrap()), (vec!["moved".into()], b"Fresh!".into()));
    let file = w.open("moved", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"x").unwrap();
    let (rival, is_first) = (Arc::clone(&w.bucket), AtomicBool::new(true));
    w.bucket.on_request(move |at, of| {
        if (at, of) == ("PUT", "x") && is_first.swap(false, Relaxed) {
            rival.put("x", "theirs");
        }
    });
    assert_eq!(errno(w.rename("moved", "x", RenameFlags::NOREPLACE)), Some(Errno::EXIST));
    w.bucket.on_request(|_, _| {});
    file.flush().unwrap();
    assert_eq!(w.stored("moved").unwrap(), b"xresh!", "that was no loss");
}

#[test]
fn a_directory_is_renamed_with_what_is_below() {
    let w = World::new();
    for key in ["d/", "d/a", "d/e/b", "d/e/f/c", "dd"] {
        w.bucket.put(key, key);
    }
    let open = w.open("d/e/b", OFlags::RDWR).unwrap();
    let new = w.create("d/e/new").unwrap();
    w.write(&new, 0, b"new").unwrap();
    w.rename("d", "moved", RenameFlags::empty()).unwrap();
    assert_eq!(w.bucket.keys(), ["dd", "moved/", "moved/a", "moved/e/b", "moved/e/f/c", "moved/e/new"]);
    assert_eq!(errno(w.attr("d")), Some(Errno::NOENT));
    assert_eq!(w.open("moved/e/b", OFlags::RDONLY).unwrap().node(), open.node());
    w.write(&open, 0, b"D").unwrap();
    w.write(&new, 0, b"N").unwrap();
    w.release(open);
    w.release(new);
    assert_eq!(w.stored("moved/e/b").unwrap(), b"D/e/b");
    assert_eq!(w.stored("moved/e/new").unwrap(), b"New");
    assert_eq!(errno(w.rename("moved", "moved/e/x", RenameFlags::empty())), Some(Errno::INVAL));
    w.mkdir("full").unwrap();
    w.put("full/x", b"").unwrap();
    assert_eq!(errno(w.rename("moved", "full", RenameFlags::empty())), Some(Errno::NOTEMPTY));
    w.unlink("full/x").unwrap();
    w.rename("moved", "full", RenameFlags::empty()).unwrap();
    assert_eq!(w.get("full/a").unwrap(), b"d/a");
    let before = w.bucket.keys();
    w.bucket.fail_changes([refused()]);
    assert_eq!(errno(w.rename("full", "again", RenameFlags::empty())), Some(Errno::IO));
    assert_eq!(w.bucket.keys(), before);
    for nr in 0..1001 {
        w.bucket.put(&format!("many/{nr}"), "");
    }
    assert_eq!(errno(w.rename("many", "few", RenameFlags::empty())), Some(Errno::XDEV));
    w.bucket.put("odd//x", "");
    assert_eq!(errno(w.rename("odd", "even", RenameFlags::empty())), Some(Errno::XDEV));
}

#[test]
fn threads_may_change_the_same_names_at_once() {
    const NAMES: [&str; 4] = ["a", "b", "d/a", "d/b"];
    let w = World::with(16 << 20, 64 << 20);
    w.mkdir("d").unwrap();
    let w = &w;
    std::thread::scope(|scope| {
        for thread in 0..6_usize {
            scope.spawn(move || {
                for nr in 0..60_usize {
                    let (name, other) = (NAMES[(nr + thread) % 4], NAMES[(nr * 3 + thread) % 4]);
                    // What one thread does may be in another's way; nothing else goes wrong.
                    let done = match (nr + thread) % 5 {
                        0 => w.put(name, &pattern(20_000 + nr, thread as u8)),
                        1 => w.rename(name, other, RenameFlags::empty()),
                        2 => w.unlink(name),
                        3 => w.get(name).map(drop),
                        _ => w.volume.syncfs(),
                    };
                    let expected = [None, Some(Errno::NOENT), Some(Errno::STALE), Some(Errno::IO)];
                    let found = errno(done);
                    assert!(expected.contains(&found), "{found:?}");
                    w.names("d");
                }
            });
        }
    });
    w.volume.syncfs().unwrap();
    let keys: Vec<_> = w.bucket.keys().into_iter().filter(|key| !key.ends_with('/')).collect();
    for name in NAMES {
        let shown = w.get(name).ok();
        assert!(shown == w.stored(name), "{name}");
        assert_eq!(shown.is_some(), keys.contains(&name.to_owned()), "{name}");
    }
    assert!(w.staged().iter().all(|file| file.is_lost));
    assert_eq!(w.nr_staging_files(), 0);
}
