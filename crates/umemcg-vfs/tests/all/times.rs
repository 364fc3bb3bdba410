//! Times and sizes of files with cached content, and changes from outside.

use std::os::unix::fs::MetadataExt;

use crate::common::{Fixture, ROOT, both_ways, name};
use rustix::time::{ClockId, clock_gettime};
use umemcg_vfs::{
    Attributes, Lookup, Names, OFlags, RenameFlags, SetAttr, SetTime, Timestamp, Volume, Xattrs,
};

fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

fn host_mtime(v: &Fixture, path: &str) -> Timestamp {
    let meta = std::fs::metadata(v.host(path)).unwrap();
    at(meta.mtime(), meta.mtime_nsec() as u32)
}

/// Waits until the coarse clock, which files are stamped with, has passed the present moment.
fn tick() {
    let start = clock_gettime(ClockId::Realtime);
    while clock_gettime(ClockId::RealtimeCoarse) <= start {
        std::thread::yield_now();
    }
}

#[test]
fn times_move_at_the_write_and_not_at_its_write_back() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        tick();
        v.write(&file, 0, b"data");
        let accepted = v.vfs.getattr(entry.node).unwrap();
        assert!(accepted.mtime > entry.attr.mtime && accepted.ctime > entry.attr.ctime);
        assert_eq!(accepted.size, 4);
        assert_eq!(std::fs::metadata(v.host("f")).unwrap().len(), 0, "nothing was written yet");
        tick();
        file.fsync(false).unwrap();
        let written = v.attr("f");
        assert_eq!((written.mtime, written.ctime), (accepted.mtime, accepted.ctime));
        assert_eq!(host_mtime(v, "f"), accepted.mtime, "and so it stays when the cache is gone");
        drop(file);
        assert_eq!(v.attr("f").mtime, accepted.mtime);
    });
}

#[test]
fn a_later_daemon_sees_the_accepted_mtime() {
    let v = Fixture::new();
    let (_, file) = v.create(ROOT, "f");
    v.write(&file, 0, &[3; 100_000]);
    let accepted = v.attr("f");
    tick();
    drop(file);
    v.vfs.syncfs().unwrap();
    let config = umemcg_vfs::VolumeConfig::new(v.dir.path());
    let config = umemcg_vfs::VolumeConfig { is_exclusive: false, ..config };
    let again = umemcg_vfs::HostVolume::new(&v.engine, config).unwrap();
    let attr = again.lookup(&v.root, ROOT, name("f")).unwrap().attr;
    assert_eq!((attr.mtime, attr.size), (accepted.mtime, 100_000));
}

#[test]
fn a_stamp_is_never_older_than_what_the_host_stamped_before() {
    let v = Fixture::new();
    let (entry, file) = v.create(ROOT, "product");
    for n in 0..200 {
        let source = v.mkdir(ROOT, &format!("d{n}")).attr;
        v.write(&file, 0, b"x");
        let product = v.vfs.getattr(entry.node).unwrap();
        assert!(product.mtime >= source.mtime, "{n}: {product:?} {source:?}");
    }
}

#[test]
fn times_are_set_to_the_nanosecond_and_survive_write_back() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"dirty");
        let old = at(-5, 123_456_789);
        let change = SetAttr {
            atime: Some(SetTime::At(at(7, 1))),
            mtime: Some(SetTime::At(old)),
            ..SetAttr::default()
        };
        let attr = v.set(entry.node, change).unwrap();
        assert_eq!((attr.atime, attr.mtime), (at(7, 1), old));
        file.fsync(false).unwrap();
        assert_eq!((v.attr("f").mtime, host_mtime(v, "f")), (old, old));
        // Omitted ones stay, "now" is now.
        let change = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        let attr = v.set(entry.node, change).unwrap();
        assert!(attr.atime > at(1_000_000_000, 0));
        assert_eq!(attr.mtime, old);
        let bad = SetAttr { mtime: Some(SetTime::At(at(0, 1_000_000_000))), ..SetAttr::default() };
        assert_eq!(v.set(entry.node, bad).unwrap_err().errno(), rustix::io::Errno::INVAL);
    });
}

#[test]
fn truncation_moves_the_times_and_is_at_once_on_the_host() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"0123456789");
        tick();
        let before = v.attr("f");
        let attr = v.set(entry.node, SetAttr { size: Some(4), ..SetAttr::default() }).unwrap();
        assert_eq!(attr.size, 4);
        assert!(attr.mtime > before.mtime && attr.ctime > before.ctime);
        assert_eq!(std::fs::metadata(v.host("f")).unwrap().len(), 4);
        v.set(entry.node, SetAttr { size: Some(8), ..SetAttr::default() }).unwrap();
        assert_eq!(v.cat("f"), b"0123\0\0\0\0");
        drop(file);
        let file = v.open(entry.node, OFlags::WRONLY | OFlags::TRUNC);
        assert_eq!(file.getattr().unwrap().size, 0);
    });
}

#[test]
fn a_change_from_outside_is_seen_at_open() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"ours");
        file.fsync(false).unwrap();
        drop(file);
        assert_eq!(v.cat("f"), b"ours");
        tick();
        std::fs::write(v.host("f"), "theirs, longer").unwrap();
        assert_eq!(v.cat("f"), b"theirs, longer");
        tick();
        // Same length, other bytes.
        std::fs::write(v.host("f"), "THEIRS, LONGER").unwrap();
        assert_eq!(v.cat("f"), b"THEIRS, LONGER");
        let attr = v.vfs.getattr(entry.node).unwrap();
        assert_eq!(attr.mtime, host_mtime(v, "f"));
        assert_eq!(attr.size, 14);
    });
}

#[test]
fn a_change_from_outside_is_seen_by_stat_of_an_open_file_too() {
    both_ways(|v| {
        std::fs::write(v.host("log"), "one\n").unwrap();
        let node = v.walk("log").unwrap().node;
        let file = v.open(node, OFlags::RDONLY);
        assert_eq!(v.read(&file, 0, 100), b"one\n");
        tick();
        std::fs::write(v.host("log"), "one\ntwo\n").unwrap();
        assert_eq!(file.getattr().unwrap().size, 8);
        assert_eq!(v.read(&file, 4, 100), b"two\n", "as tail -f reads");
    });
}

#[test]
fn our_own_changes_of_attributes_keep_the_cache() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, &[1; 4096 * 3]);
        file.fsync(false).unwrap();
        tick();
        v.set(entry.node, SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
        v.set(entry.node, SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
        v.set(entry.node, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
        v.vfs
            .setxattr(&v.root, entry.node, name("user.x"), b"1", umemcg_vfs::XattrFlags::empty(), false)
            .unwrap();
        v.vfs.rename(&v.root, ROOT, name("f"), ROOT, name("g"), RenameFlags::empty()).unwrap();
        let again = v.open(entry.node, OFlags::RDONLY);
        assert_eq!(again.content().nr_cached_pages(), 3);
    });
}

#[test]
fn an_outside_change_to_a_dirty_file_keeps_our_dirty_data() {
    both_ways(|v| {
        std::fs::write(v.host("f"), vec![b'a'; 3 * 4096]).unwrap();
        let node = v.walk("f").unwrap().node;
        let file = v.open(node, OFlags::RDWR);
        assert_eq!(v.read(&file, 0, 4096), vec![b'a'; 4096]);
        v.write(&file, 2 * 4096, b"ours");
        tick();
        std::fs::write(v.host("f"), vec![b'b'; 3 * 4096]).unwrap();
        let other = v.open(node, OFlags::RDONLY);
        assert_eq!(v.read(&other, 0, 1), b"b", "clean pages are read again");
        assert_eq!(v.read(&other, 2 * 4096, 5), b"oursa");
        file.fsync(false).unwrap();
        assert_eq!(&std::fs::read(v.host("f")).unwrap()[2 * 4096..][..5], b"oursa");
    });
}

#[test]
fn dirty_data_has_blocks() {
    let v = Fixture::new();
    let (_, file) = v.create(ROOT, "f");
    v.write(&file, 0, &[1; 20_000]);
    assert!(v.attr("f").blocks * 512 >= 20_000, "archivers take a file without blocks for one hole");
}

#[test]
fn the_ctime_of_a_write_does_not_jump_at_a_later_look() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"x");
        drop(file);
        let first = v.vfs.getattr(entry.node).unwrap();
        tick();
        v.vfs.syncfs().unwrap();
        tick();
        assert_eq!(v.attr("f"), umemcg_vfs::Attr { blocks: v.attr("f").blocks, ..first });
    });
}

#[test]
fn a_write_after_a_look_shows_another_ctime() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        // The clock stands still for most of these.
        for round in 0..50 {
            let before = v.vfs.getattr(entry.node).unwrap();
            v.write(&file, 0, &[round]);
            let after = v.vfs.getattr(entry.node).unwrap();
            assert!(after.ctime > before.ctime && after.mtime >= before.mtime, "{before:?}, {after:?}");
            if round % 10 == 0 {
                file.fsync(false).unwrap();
                v.set(entry.node, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
            }
        }
    });
}

#[test]
fn reading_cached_data_moves_the_access_time_as_the_host_does() {
    both_ways(|v| {
        let flags = rustix::fs::statvfs(v.dir.path()).unwrap().f_flag;
        if flags.contains(rustix::fs::StatVfsMountFlags::NOATIME) {
            eprintln!("SKIPPED: the temporary directory's mount moves no access times");
            return;
        }
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"data");
        file.fsync(false).unwrap();
        let old = SetAttr {
            atime: Some(SetTime::At(at(500, 0))),
            mtime: Some(SetTime::At(at(1000, 0))),
            ..SetAttr::default()
        };
        let before = v.set(entry.node, old).unwrap();
        assert!(file.try_read(0, 4).is_some());
        let read = v.attr("f");
        assert!(read.atime > at(1000, 0), "{read:?}");
        assert_eq!((read.mtime, read.ctime), (before.mtime, before.ctime));
        assert_eq!(file.content().nr_cached_pages(), 1, "that is no change from outside");
        // One that is closed immediately, and one whose data the host does not know yet.
        let before = v.set(entry.node, old).unwrap();
        assert_eq!(v.cat("f"), b"data");
        assert!(std::fs::metadata(v.host("f")).unwrap().atime() > 1000);
        assert_eq!(v.attr("f").ctime, before.ctime);
        tick();
        v.write(&file, 0, b"DATA");
        assert!(v.attr("f").atime < v.attr("f").mtime);
        tick();
        assert!(file.try_read(0, 4).is_some());
        assert!(v.attr("f").atime > v.attr("f").mtime);
    });
}
