//! Names that are looked up while their directory is read: what the store has told of them then is
//! not asked for again, unless something is known to be different.

mod common;

use std::ffi::OsStr;
use std::sync::Arc;

use common::memory_bucket::ChangeFault;
use common::object_world::{World, config, errno, wait_for};
use rustix::io::Errno;
use umemcg_vfs::object::{BucketError, ObjectConfig};
use umemcg_vfs::{Lookup, NodeId, OFlags, ObjectVolume, Open, RenameFlags, Volume, VolumeDir};

const NR_OBJECTS: usize = 1500;

/// A volume with the attributes of a listing, that can be written to.
fn world() -> World {
    let w = World::new();
    let staging = w.staging.path().join("uniform");
    std::fs::create_dir(&staging).unwrap();
    let config = ObjectConfig { stores_attributes: false, ..config(&w.bucket, &staging, 64 << 20) };
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
    w.engine.set_max(w.group(), w.group().usage_bytes(), &|| false);
    let mut nr_listed = 0;
    directory
        .readdirplus(&w.me, 2, &mut |listed| {
            let found = listed.entry.map(|entry| entry.node);
            found.into_iter().for_each(|node| w.volume.forget(node, 1));
            nr_listed += 1;
            nr_listed < 100
        })
        .unwrap();
    w.engine.set_max(w.group(), u64::MAX, &|| false);
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
    let failed = [BucketError::Unavailable("503".into()), BucketError::Changed("412".into())];
    w.bucket.fail_changes(failed.map(ChangeFault::Refused));
    let _ = w.close(file);
    // Nothing but the listing knows the name when its file is lost.
    let _ = w.volume.syncfs();
    wait_for("its loss", || w.staged().iter().any(|staged| staged.is_lost));
    assert_eq!(errno(w.attr("d/new")), Some(Errno::NOENT));
    drop(directory);
}

#[test]
fn a_directory_that_is_renamed_has_its_copies() {
    let w = world();
    (0..5).for_each(|nr| w.bucket.put(&format!("e/{nr}"), "1"));
    let directory = begin_listing(&w, "e", "0");
    w.rename("e", "f", RenameFlags::empty()).unwrap();
    for nr in 0..5 {
        assert_eq!(w.get(&format!("f/{nr}")).unwrap(), b"1");
    }
    assert_eq!(errno(w.find("e").map(|entry| entry.node)), Some(Errno::NOENT));
    assert_ne!(w.find("f").unwrap().node, NodeId::ROOT);
    drop(directory);
}
