//! Mode, owner, times, extended attributes and symbolic links of a volume of objects, above a
//! bucket that the test plays.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::memory_bucket::{ChangeFault, MemoryBucket};
use crate::common::object_world::{World, config, errno, pattern};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{
    Attr, Attributes, Caller, Create, DirEntry, FileKind, NodeId, OFlags, ObjectVolume, Open, RenameFlags,
    SetAttr, SetTime, Timestamp, VfsError, VolumeFile, XattrFlags, Xattrs,
};

const TIME: Timestamp = Timestamp { seconds: 1_600_000_000, nanoseconds: 123_456_789 };

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn all() -> SetAttr {
    let at = Some(SetTime::At(TIME));
    SetAttr { mode: Some(0o750), uid: Some(11), gid: Some(12), mtime: at, atime: at, ..SetAttr::default() }
}

fn shows_all(attr: &Attr, kind: u32) {
    assert_eq!((attr.mode, attr.uid, attr.gid), (kind | 0o750, 11, 12));
    assert_eq!((attr.mtime, attr.atime), (TIME, TIME));
}

fn metadata(w: &World, key: &str, name: &str) -> Option<String> {
    let (_, metadata) = w.bucket.object(key)?;
    metadata.into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

/// Another mount of the same bucket.
fn other(w: &World) -> World {
    World::on(Arc::clone(&w.bucket), Arc::new(tempfile::tempdir().unwrap()), 16 << 20, 16 << 20)
}

fn set_xattr(w: &World, path: &str, name: &str, value: &[u8], flags: XattrFlags) -> Result<(), VfsError> {
    let entry = w.find(path)?;
    let set = w.volume.setxattr(&w.me, entry.node, OsStr::new(name), value, flags, false);
    umemcg_vfs::Lookup::forget(&*w.volume, entry.node, 1);
    set
}

fn xattr(w: &World, path: &str, name: &str) -> Result<Vec<u8>, VfsError> {
    let entry = w.find(path)?;
    let value = w.volume.getxattr(entry.node, OsStr::new(name));
    umemcg_vfs::Lookup::forget(&*w.volume, entry.node, 1);
    value
}

fn symlink(w: &World, path: &str, target: &str) -> Result<Attr, VfsError> {
    let made = w.at(path, |parent, name| w.volume.symlink(&w.me, parent, name, OsStr::new(target)))??;
    umemcg_vfs::Lookup::forget(&*w.volume, made.node, 1);
    Ok(made.attr)
}

fn readlink(w: &World, path: &str) -> Result<String, VfsError> {
    let entry = w.find(path)?;
    let target = w.volume.readlink(entry.node);
    umemcg_vfs::Lookup::forget(&*w.volume, entry.node, 1);
    Ok(target?.into_string().unwrap())
}

fn create_as(w: &World, me: &Caller, name: &str, mode: u32) -> Arc<dyn VolumeFile> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    let (entry, file) = w.volume.create(me, NodeId::ROOT, OsStr::new(name), mode, flags).unwrap();
    umemcg_vfs::Lookup::forget(&*w.volume, entry.node, 1);
    file
}

/// Returns the kinds that a listing tells of its names, and whether attributes come with them.
fn listed(w: &World) -> Vec<(String, Option<FileKind>, Option<Attr>)> {
    let directory = w.volume.opendir(&w.me, NodeId::ROOT).unwrap();
    let mut listed = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        entry.entry.inspect(|found| umemcg_vfs::Lookup::forget(&*w.volume, found.node, 1));
        let name = entry.name.to_str().unwrap().to_owned();
        listed.push((name, entry.kind, entry.entry.map(|found| found.attr)));
        true
    };
    directory.readdirplus(&w.me, 0, &mut sink).unwrap();
    let names = listed.into_iter().filter(|(name, ..)| !matches!(name.as_str(), "." | ".."));
    names.collect()
}

#[test]
fn a_new_file_has_what_its_maker_gives() {
    let w = World::new();
    let me = Caller { uid: 3, gid: 4, umask: 0o027, ..w.me.clone() };
    let file = create_as(&w, &me, "tool", 0o777);
    file.setattr(&me, &SetAttr { mtime: Some(SetTime::At(TIME)), ..SetAttr::default() }).unwrap();
    file.flush().unwrap();
    drop(file);
    assert_eq!(metadata(&w, "tool", "mode").unwrap(), 0o100_750.to_string());
    assert_eq!(metadata(&w, "tool", "mtime").unwrap(), "1600000000.123456789");
    for w in [&other(&w), &w] {
        let attr = w.attr("tool").unwrap();
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.mtime), (0o100_750, 3, 4, TIME));
    }
}

#[test]
fn a_change_while_a_file_is_written_does_not_store_it() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"half").unwrap();
    shows_all(&w.set("a", &all()).unwrap(), 0o100_000);
    assert_eq!(w.stored("a"), None, "not half of it");
    w.write(&file, 4, b" and whole").unwrap();
    w.set("a", &mode(0o750)).unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"half and whole");
    assert_eq!(other(&w).attr("a").unwrap().mode, 0o100_750);
    // Also one that has no name any more, as the kernel asks for at a cut.
    w.unlink("a").unwrap();
    let cut = SetAttr { size: Some(2), kill_set_id: true, ..SetAttr::default() };
    assert_eq!(file.setattr(&w.me, &cut).unwrap().size, 2);
    assert_eq!(w.stored("a"), None);
}

#[test]
fn what_leaves_no_room_for_attributes_is_not_written() {
    let w = World::new();
    w.bucket.put_with("a", b"a".to_vec(), vec![("long".into(), "x".repeat(2000))]);
    let file = w.open("a", OFlags::RDWR).unwrap();
    assert_eq!(errno(w.write(&file, 0, b"b")), Some(Errno::NOSPC), "and not at the close");
    assert_eq!(errno(w.set("a", &all())), Some(Errno::NOSPC));
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"a");
}

#[test]
fn a_change_of_what_is_stored_stores_no_bytes() {
    let w = World::new();
    w.bucket.put("a", pattern(100_000, 1));
    assert_eq!(w.attr("a").unwrap().mode, 0o100_644);
    let reader = w.open("a", OFlags::RDONLY).unwrap();
    let puts = w.bucket.puts.load(Relaxed);
    shows_all(&w.set("a", &all()).unwrap(), 0o100_000);
    assert_eq!((w.bucket.puts.load(Relaxed), w.bucket.copies.load(Relaxed)), (puts, 1));
    shows_all(&other(&w).attr("a").unwrap(), 0o100_000);
    shows_all(&reader.getattr().unwrap(), 0o100_000);
    assert_eq!(w.read(&reader).unwrap(), pattern(100_000, 1));
    // With the next change of the bytes, too.
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"x").unwrap();
    file.flush().unwrap();
    w.set("a", &mode(0o700)).unwrap();
    w.write(&file, 0, b"y").unwrap();
    file.flush().unwrap();
    let attr = other(&w).attr("a").unwrap();
    assert_eq!((attr.mode, attr.uid, w.stored("a").unwrap()[0]), (0o100_700, 11, b'y'));
}

#[test]
fn a_store_that_cannot_replace_metadata_takes_the_object_anew() {
    let w = World::new();
    w.bucket.stores_anew.store(true, Relaxed);
    w.bucket.put("a", pattern(100_000, 1));
    shows_all(&w.set("a", &all()).unwrap(), 0o100_000);
    assert_eq!((w.bucket.puts.load(Relaxed), w.bucket.copies.load(Relaxed)), (1, 0));
    shows_all(&other(&w).attr("a").unwrap(), 0o100_000);
    assert_eq!((w.stored("a").unwrap(), w.staged().len()), (pattern(100_000, 1), 0));
}

#[test]
fn what_another_program_changes_is_seen() {
    // After a second the look-up asks, and not the open.
    for pause in [0, 1100] {
        let w = World::new();
        w.bucket.put("a", b"a".to_vec());
        let before = w.attr("a").unwrap();
        let file = w.open("a", OFlags::RDONLY).unwrap();
        shows_all(&other(&w).set("a", &all()).unwrap(), 0o100_000);
        std::thread::sleep(Duration::from_millis(pause));
        // An open asks again.
        drop(w.open("a", OFlags::RDONLY).unwrap());
        shows_all(&w.attr("a").unwrap(), 0o100_000);
        shows_all(&file.getattr().unwrap(), 0o100_000);
        assert_eq!(before.ino, w.attr("a").unwrap().ino, "the same file");
    }
}

#[test]
fn a_change_that_comes_too_late_changes_nothing() {
    let w = World::new();
    w.bucket.put("a", b"a".to_vec());
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.bucket.put("a", b"another".to_vec());
    assert_eq!(errno(file.setattr(&w.me, &all())), Some(Errno::STALE));
    assert_eq!(metadata(&w, "a", "mode"), None);
    assert_eq!(w.attr("a").unwrap().size, 7, "the name stands for the other at once");
    drop(file);
    let unavailable = BucketError::Unavailable("503".into());
    w.attr("a").unwrap();
    w.bucket.fail_changes([ChangeFault::Refused(unavailable)]);
    assert_eq!(errno(w.set("a", &all())), Some(Errno::IO));
    assert_eq!(w.attr("a").unwrap().mode, 0o100_644);
    shows_all(&w.set("a", &all()).unwrap(), 0o100_000);
}

#[test]
fn a_directory_has_a_mode() {
    let w = World::new();
    let made = w.at("d", |parent, name| w.volume.mkdir(&w.me, parent, name, 0o700)).unwrap().unwrap();
    assert_eq!(made.attr.mode, 0o040_700);
    assert_eq!(other(&w).attr("d").unwrap().mode, 0o040_700);
    shows_all(&w.set("d", &all()).unwrap(), 0o040_000);
    shows_all(&other(&w).attr("d").unwrap(), 0o040_000);
    // One without an object of its own gets one.
    w.bucket.put("e/a", b"a".to_vec());
    shows_all(&w.set("e", &all()).unwrap(), 0o040_000);
    shows_all(&other(&w).attr("e").unwrap(), 0o040_000);
    w.rename("e", "f", RenameFlags::empty()).unwrap();
    shows_all(&w.attr("f").unwrap(), 0o040_000);
    shows_all(&other(&w).attr("f").unwrap(), 0o040_000);
    // The top has no object.
    let top = w.volume.setattr(&w.me, NodeId::ROOT, &mode(0o711)).unwrap();
    assert_eq!((top.mode, w.volume.getattr(NodeId::ROOT).unwrap().mode), (0o040_711, 0o040_711));
}

#[test]
fn a_set_group_id_directory_hands_down_its_group_and_bit() {
    let w = World::new();
    w.mkdir("d").unwrap();
    w.set("d", &SetAttr { mode: Some(0o2775), gid: Some(12), ..SetAttr::default() }).unwrap();
    let me = Caller { uid: 3, gid: 4, ..w.me.clone() };
    let d = w.find("d").unwrap().node;
    let flags = OFlags::RDWR | OFlags::CREATE;
    let (made, file) = w.volume.create(&me, d, OsStr::new("file"), 0o644, flags).unwrap();
    file.flush().unwrap();
    drop(file);
    let below = w.volume.mkdir(&me, d, OsStr::new("below"), 0o755).unwrap();
    let link = w.volume.symlink(&me, d, OsStr::new("link"), OsStr::new("file")).unwrap();
    for node in [made.node, below.node, link.node, d] {
        umemcg_vfs::Lookup::forget(&*w.volume, node, 1);
    }
    for w in [&w, &other(&w)] {
        for (path, mode) in [("d/file", 0o100_644), ("d/below", 0o042_755), ("d/link", 0o120_777)] {
            let attr = w.attr(path).unwrap();
            assert_eq!((attr.mode, attr.uid, attr.gid), (mode, 3, 12), "{path}");
        }
    }
}

#[test]
fn symbolic_links_are_objects_with_their_target() {
    let w = World::new();
    w.put("file", b"bytes").unwrap();
    assert_eq!(symlink(&w, "link", "../some/where").unwrap().mode, 0o120_777);
    assert_eq!(w.stored("link").unwrap(), b"../some/where");
    assert_eq!(metadata(&w, "link", "mode").unwrap(), 0o120_777.to_string());
    assert_eq!(errno(symlink(&w, "link", "x")), Some(Errno::EXIST));
    assert_eq!(errno(symlink(&w, "long", &"x".repeat(4096))), Some(Errno::NAMETOOLONG));
    for w in [&w, &other(&w)] {
        let attr = w.attr("link").unwrap();
        assert_eq!((attr.mode, attr.size), (0o120_777, 13));
        assert_eq!(readlink(w, "link").unwrap(), "../some/where");
        assert_eq!(errno(readlink(w, "file")), Some(Errno::INVAL));
    }
    w.rename("link", "moved", RenameFlags::empty()).unwrap();
    assert_eq!(readlink(&w, "moved").unwrap(), "../some/where");
    let at = SetAttr { mtime: Some(SetTime::At(TIME)), ..SetAttr::default() };
    assert_eq!(w.set("moved", &at).unwrap().mtime, TIME);
    assert_eq!(readlink(&other(&w), "moved").unwrap(), "../some/where");
    w.unlink("moved").unwrap();
    assert_eq!(w.stored("moved"), None);
}

#[test]
fn extended_attributes_are_stored() {
    let w = World::new();
    w.bucket.put_with("a", b"a".to_vec(), vec![("colour".into(), "red".into())]);
    w.mkdir("d").unwrap();
    let file = w.create("new").unwrap();
    for path in ["a", "d", "new"] {
        assert_eq!(errno(xattr(&w, path, "user.x")), Some(Errno::NODATA));
        set_xattr(&w, path, "user.x", b"1", XattrFlags::CREATE).unwrap();
        assert_eq!(errno(set_xattr(&w, path, "user.x", b"1", XattrFlags::CREATE)), Some(Errno::EXIST));
        set_xattr(&w, path, "user.y", b"\0\xff", XattrFlags::empty()).unwrap();
        let long = set_xattr(&w, path, "user.z", &[1; 4000], XattrFlags::empty());
        assert_eq!(errno(long), Some(Errno::NOSPC));
        assert_eq!(
            errno(set_xattr(&w, path, "trusted.x", b"1", XattrFlags::empty())),
            Some(Errno::OPNOTSUPP)
        );
        // One that is being written is stored when it is closed.
        file.flush().unwrap();
        for w in [&w, &other(&w)] {
            assert_eq!(xattr(w, path, "user.x").unwrap(), b"1", "{path}");
            assert_eq!(xattr(w, path, "user.y").unwrap(), b"\0\xff");
            let entry = w.find(path).unwrap();
            assert_eq!(w.volume.listxattr(&w.me, entry.node).unwrap(), b"user.x\0user.y\0");
        }
        let entry = w.find(path).unwrap();
        w.volume.removexattr(&w.me, entry.node, OsStr::new("user.x")).unwrap();
        assert_eq!(errno(xattr(&other(&w), path, "user.x")), Some(Errno::NODATA));
    }
    // A change of the bytes keeps them, and what others have stored.
    drop(file);
    w.put("a", b"changed").unwrap();
    assert_eq!(xattr(&other(&w), "a", "user.y").unwrap(), b"\0\xff");
    assert_eq!(metadata(&w, "a", "colour").as_deref(), Some("red"));
    let node = w.find("a").unwrap().node;
    assert!(w.volume.is_known_absent(node, OsStr::new("security.capability")));
}

#[test]
fn a_listing_tells_what_is_known() {
    let w = World::new();
    for key in ["a", "d/b"] {
        w.bucket.put(key, b"a".to_vec());
    }
    symlink(&w, "link", "a").unwrap();
    // As long as the kernel knows it.
    let known = w.find("a").unwrap();
    w.volume.setattr(&w.me, known.node, &mode(0o700)).unwrap();
    let of_a = |w| listed(w).into_iter().find(|(name, ..)| name == "a").unwrap();
    assert_eq!(of_a(&w).2.unwrap().mode, 0o100_700);
    let unknown = listed(&other(&w));
    assert!(unknown.iter().all(|(_, _, attr)| attr.is_none()), "{unknown:?}");
    let kinds: Vec<_> = unknown.iter().map(|(name, kind, _)| (name.as_str(), *kind)).collect();
    assert_eq!(kinds, [("a", None), ("d", Some(FileKind::Directory)), ("link", None)]);
    // What another program has given other metadata is asked for again.
    w.bucket.touch("a");
    assert_eq!(of_a(&w).2, None);
}

#[test]
fn where_all_files_have_the_same_no_other_can_be_given() {
    let bucket = Arc::<MemoryBucket>::default();
    let (w, staging) = (World::new(), tempfile::tempdir().unwrap());
    bucket.put_with("a", b"a".to_vec(), vec![("mode".into(), 0o120_777.to_string())]);
    let mut config = config(&bucket, staging.path(), 1 << 20);
    config.stores_attributes = false;
    let volume = ObjectVolume::open(&w.engine, &config, 0).unwrap();
    let w = World { volume, bucket, ..w };
    let attr = w.attr("a").unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o100_644, 7, 8));
    w.set("a", &mode(0o644)).unwrap();
    assert_eq!(errno(w.set("a", &mode(0o755))), Some(Errno::PERM));
    assert_eq!(errno(symlink(&w, "link", "a")), Some(Errno::PERM));
    assert_eq!(errno(set_xattr(&w, "a", "user.x", b"1", XattrFlags::empty())), Some(Errno::OPNOTSUPP));
    let at = SetAttr { mtime: Some(SetTime::At(TIME)), ..SetAttr::default() };
    let known = w.find("a").unwrap();
    assert_eq!(w.volume.setattr(&w.me, known.node, &at).unwrap().mtime, TIME, "remembered");
    assert_eq!(w.attr("a").unwrap().mtime, TIME);
    w.mkdir("d").unwrap();
    w.set("d", &at).unwrap();
    assert_eq!(errno(w.set("d", &mode(0o700))), Some(Errno::PERM));
}

#[test]
fn a_write_clears_set_id_bits_if_the_kernel_asks() {
    let w = World::new();
    let file = w.create("tool").unwrap();
    file.setattr(&w.me, &mode(0o6755)).unwrap();
    file.write(w.group(), 0, b"x", false).unwrap();
    assert_eq!(file.getattr().unwrap().mode, 0o106_755);
    file.write(w.group(), 0, b"x", true).unwrap();
    assert_eq!(file.getattr().unwrap().mode, 0o100_755);
}
