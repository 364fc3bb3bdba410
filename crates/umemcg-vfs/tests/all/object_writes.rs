//! Writing to a volume of objects, above a bucket that the test plays.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use crate::common::memory_bucket::{ChangeFault, PART_BYTES};
use crate::common::object_world::{World, config, errno, pattern};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{
    Attributes, FallocateFlags, OFlags, ObjectVolume, RenameFlags, SetAttr, SetTime, Timestamp, Volume,
    VolumeError, Xattrs,
};

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE);

fn refused() -> ChangeFault {
    ChangeFault::Refused(BucketError::Unavailable("503".into()))
}

#[test]
fn a_new_file_is_in_the_store_when_it_is_closed() {
    let w = World::new();
    let file = w.create("new").unwrap();
    assert_eq!(w.names(""), [("new".to_owned(), 0)], "seen at once");
    let bytes = pattern(300_000, 1);
    w.write(&file, 0, &bytes).unwrap();
    assert_eq!(w.stored("new"), None);
    assert_eq!(w.attr("new").unwrap().size, 300_000);
    assert_eq!(w.staged().len(), 1);
    assert_eq!(w.get("new").unwrap(), bytes, "others read it meanwhile");
    file.flush().unwrap();
    assert_eq!(w.stored("new").unwrap(), bytes);
    assert!(w.staged().is_empty());
    drop(file);
    assert_eq!(w.nr_staging_files(), 0);
    assert_eq!(w.get("new").unwrap(), bytes);
    assert_eq!(w.names(""), [("new".to_owned(), 300_000)]);
    let (_, metadata) = w.bucket.object("new").unwrap();
    assert!(metadata.contains(&("mode".into(), "33188".into())));
}

#[test]
fn an_empty_file_is_stored_and_a_clean_one_is_not_again() {
    let w = World::new();
    let file = w.create("empty").unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("empty").unwrap(), b"");
    let puts = w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed);
    file.flush().unwrap();
    file.fsync(false).unwrap();
    drop(file);
    let file = w.open("empty", OFlags::RDWR).unwrap();
    file.flush().unwrap();
    drop(file);
    assert_eq!(w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed), puts);
}

#[test]
fn a_new_file_costs_few_requests() {
    let cost = || {
        let w = World::new();
        let before = w.bucket.asked();
        // The kernel looks a name up before it creates a file.
        assert_eq!(errno(w.attr("new")), Some(Errno::NOENT));
        w.put("new", b"bytes").unwrap();
        let (gets, heads, lists) = w.bucket.asked();
        assert_eq!(w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(errno(w.create("new")), Some(Errno::EXIST));
        (gets - before.0, heads - before.1, lists - before.2)
    };
    // A thread that is off its processor for long asks again.
    let mut costs = std::iter::repeat_with(cost).take(20).inspect(|cost| eprintln!("{cost:?}"));
    assert!(costs.any(|cost| cost == (0, 1, 1)));
}

#[test]
fn a_copy_that_comes_damaged_is_made_again() {
    let w = World::new();
    let mut bytes = pattern(9 << 20, 1);
    w.bucket.put("a", bytes.clone());
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.bucket.damages.store(1, Ordering::Relaxed);
    w.write(&file, 5_000_000, b"changed").unwrap();
    file.fsync(true).unwrap();
    bytes[5_000_000..5_000_007].copy_from_slice(b"changed");
    assert!(w.stored("a").unwrap() == bytes);
}

#[test]
fn a_file_that_is_changed_in_place_is_copied_first() {
    let w = World::new();
    let mut bytes = pattern(9 << 20, 1);
    w.bucket.put("a", bytes.clone());
    let reader = w.open("a", OFlags::RDONLY).unwrap();
    assert_eq!(w.read(&reader).unwrap(), bytes);
    let file = w.open("a", OFlags::RDWR).unwrap();
    assert_eq!(w.nr_staging_files(), 0, "not before something changes");
    w.write(&file, 5_000_000, b"changed").unwrap();
    bytes[5_000_000..5_000_007].copy_from_slice(b"changed");
    assert_eq!(w.read(&reader).unwrap(), bytes, "all see it");
    file.fsync(true).unwrap();
    assert_eq!(w.stored("a").unwrap(), bytes);
    assert!(w.bucket.uploads().is_empty());
    w.write(&file, 0, b"again").unwrap();
    bytes[..5].copy_from_slice(b"again");
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), bytes);
    drop((file, reader));
    assert_eq!((w.nr_staging_files(), w.get("a").unwrap() == bytes), (0, true));
}

#[test]
fn a_file_grows_at_its_end_and_is_cut() {
    let w = World::new();
    w.put("log", b"one\n").unwrap();
    let one = w.open("log", OFlags::WRONLY | OFlags::APPEND).unwrap();
    let other = w.open("log", OFlags::WRONLY | OFlags::APPEND).unwrap();
    w.write(&one, 0, b"two\n").unwrap();
    w.write(&other, 0, b"three\n").unwrap();
    one.flush().unwrap();
    other.flush().unwrap();
    assert_eq!(w.stored("log").unwrap(), b"one\ntwo\nthree\n");
    drop((one, other));
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(w.set("log", &size(3)).unwrap().size, 3);
    assert_eq!(w.stored("log").unwrap(), b"one", "without an open");
    w.set("log", &size(5)).unwrap();
    assert_eq!(w.stored("log").unwrap(), b"one\0\0");
    let gets = w.bucket.asked().0;
    let file = w.open("log", OFlags::WRONLY | OFlags::TRUNC).unwrap();
    assert_eq!(w.attr("log").unwrap().size, 0);
    file.flush().unwrap();
    assert_eq!((w.stored("log").unwrap(), w.bucket.asked().0), (Vec::new(), gets), "nothing is read");
    file.setattr(&w.me, &size(2)).unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("log").unwrap(), b"\0\0");
}

#[test]
fn a_file_that_is_only_cut_by_its_open_is_stored() {
    let w = World::new();
    w.put("a", b"bytes").unwrap();
    w.release(w.open("a", OFlags::RDONLY | OFlags::TRUNC).unwrap());
    assert_eq!(w.stored("a").unwrap(), b"");
}

#[test]
fn holes_are_zeroes_in_the_store() {
    let w = World::new();
    let file = w.create("sparse").unwrap();
    w.write(&file, 10_000, b"end").unwrap();
    file.fallocate(w.group(), FallocateFlags::empty(), 0, 12_000, false).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    file.fallocate(w.group(), punch, 10_001, 1, false).unwrap();
    file.flush().unwrap();
    let stored = w.stored("sparse").unwrap();
    assert_eq!((stored.len(), &stored[9_999..10_004]), (12_000, &b"\0e\0d\0"[..]));
}

#[test]
fn what_fails_is_told_once_and_stored_the_next_time() {
    let w = World::new();
    let file = w.create("a").unwrap();
    let other = w.open("a", OFlags::WRONLY).unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.fail_changes([refused()]);
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    assert_eq!((w.stored("a"), w.staged().len()), (None, 1));
    assert_eq!(errno(other.flush()), Some(Errno::IO), "each open file is told");
    assert_eq!(w.stored("a").unwrap(), b"bytes");
    other.flush().unwrap();
    w.bucket.fail_changes([refused(), refused()]);
    w.write(&file, 0, b"B").unwrap();
    assert_eq!(errno(file.fsync(false)), Some(Errno::IO));
    drop(other);
    // What was tried and failed is not tried by the last release, but by a sync.
    drop(file);
    assert_eq!(w.get("a").unwrap(), b"Bytes", "it stays, with nothing open");
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    assert_eq!(w.stored("a").unwrap(), b"bytes");
    w.volume.syncfs().unwrap();
    assert_eq!((w.stored("a").unwrap(), w.nr_staging_files()), (b"Bytes".to_vec(), 0));
}

#[test]
fn a_lost_race_is_told_and_what_was_written_is_kept() {
    let w = World::new();
    for (key, flags) in [("changed", OFlags::RDWR), ("new", NEW), ("exclusive", NEW | OFlags::EXCL)] {
        if flags == OFlags::RDWR {
            w.put(key, b"before").unwrap();
        }
        let file = match flags {
            OFlags::RDWR => w.open(key, flags).unwrap(),
            _ => w.create_with(key, flags).unwrap(),
        };
        w.write(&file, 0, b"ours").unwrap();
        w.bucket.put(key, "theirs");
        assert_eq!(errno(file.flush()), Some(Errno::IO), "{key}");
        file.flush().unwrap();
        assert_eq!(errno(w.write(&file, 0, b"more")), Some(Errno::IO), "nothing more is accepted");
        drop(file);
        assert_eq!(w.stored(key).unwrap(), b"theirs");
        assert_eq!(w.get(key).unwrap(), b"theirs");
        let lost = w.staged().into_iter().find(|file| file.key == key).unwrap();
        assert!(lost.is_lost);
        let ours: &[u8] = if flags == OFlags::RDWR { b"oursre" } else { b"ours" };
        assert_eq!(std::fs::read(&lost.path).unwrap(), ours);
    }
    assert_eq!(w.nr_staging_files(), 0);
}

#[test]
fn a_removed_object_is_a_lost_race_too() {
    let w = World::new();
    w.put("a", b"before").unwrap();
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"B").unwrap();
    w.bucket.delete("a");
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    drop(file);
    assert_eq!((w.stored("a"), errno(w.attr("a"))), (None, Some(Errno::NOENT)));
    assert_eq!(std::fs::read(&w.staged()[0].path).unwrap(), b"Before");
}

#[test]
fn an_upload_whose_answer_is_lost_is_known_as_ours() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"one").unwrap();
    w.bucket.fail_changes([ChangeFault::AnswerLost]);
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    file.flush().unwrap();
    w.write(&file, 0, b"two").unwrap();
    w.bucket.fail_changes([ChangeFault::AnswerLost]);
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    w.write(&file, 3, b"!").unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"two!");
    assert!(w.staged().is_empty());
}

#[test]
fn the_time_of_a_file_is_stored_with_it() {
    let w = World::new();
    let file = w.create("a").unwrap();
    let at = Timestamp { seconds: 12345, nanoseconds: 6 };
    let time = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    assert_eq!(file.setattr(&w.me, &time).unwrap().mtime, at);
    file.flush().unwrap();
    let (_, metadata) = w.bucket.object("a").unwrap();
    assert!(metadata.contains(&("mtime".into(), "12345.000000006".into())), "{metadata:?}");
    assert_eq!(w.attr("a").unwrap().mtime, at);
    drop(file);
    assert_eq!(w.attr("a").unwrap().mtime, at);
}

#[test]
fn staging_is_bounded_and_comes_back() {
    let w = World::with(64 << 20, 4 << 20);
    w.bucket.put("huge", vec![0; 5 << 20]);
    w.bucket.put("big", vec![0; 7 << 19]);
    let file = w.open("huge", OFlags::RDWR).unwrap();
    assert_eq!(errno(w.write(&file, 0, b"x")), Some(Errno::FBIG));
    drop(file);
    let file = w.open("big", OFlags::RDWR).unwrap();
    assert_eq!(errno(w.write(&file, 0, b"x")), Some(Errno::NOSPC), "three quarters");
    drop(file);
    for _ in 0..3 {
        let file = w.create("a").unwrap();
        w.write(&file, 0, &vec![1; 2 << 20]).unwrap();
        assert_eq!(errno(w.write(&file, 2 << 20, &vec![1; 2 << 20])), Some(Errno::NOSPC));
        let grow = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
        assert_eq!(errno(file.setattr(&w.me, &grow)), Some(Errno::NOSPC));
        file.flush().unwrap();
        drop(file);
        w.unlink("a").unwrap();
    }
    assert_eq!(w.nr_staging_files(), 0);
}

#[test]
fn what_a_crash_leaves_is_kept_and_listed() {
    let w = World::new();
    w.put("stored", b"in the store").unwrap();
    let keep = w.open("stored", OFlags::RDWR).unwrap();
    w.write(&keep, 0, b"IN").unwrap();
    keep.fsync(false).unwrap();
    let unsaved = w.create("d").unwrap();
    w.write(&unsaved, 0, b"not in the store").unwrap();
    w.bucket.fail_changes([refused()]);
    unsaved.fsync(false).unwrap_err();
    let big = w.create("big").unwrap();
    w.write(&big, 0, &pattern(PART_BYTES as usize + 1, 3)).unwrap();
    w.bucket.fail_changes([ChangeFault::Crash]);
    big.fsync(false).unwrap_err();
    assert_eq!(w.bucket.uploads().len(), 1);
    std::mem::forget((keep, unsaved, big));
    let w = w.restart_elsewhere();
    assert!(w.bucket.uploads().is_empty(), "an upload that was begun is ended");
    let staged: Vec<_> = w.staged().into_iter().map(|file| (file.key, file.bytes, file.is_lost)).collect();
    assert_eq!(staged, [("d".into(), 16, true), ("big".into(), PART_BYTES + 1, true)]);
    assert_eq!(std::fs::read(&w.staged()[0].path).unwrap(), b"not in the store");
    assert_eq!((w.nr_staging_files(), w.get("stored").unwrap()), (0, b"IN the store".to_vec()));
    let w = w.restart();
    assert_eq!(w.staged().len(), 2, "for good");
}

#[test]
fn a_volume_that_ends_with_unsaved_files_keeps_them() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.fail_with(Some(BucketError::Unavailable("down".into())));
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    drop(file);
    w.bucket.fail_with(None);
    let w = w.restart();
    let staged = w.staged();
    assert_eq!((staged.len(), &*staged[0].key, staged[0].is_lost), (1, "a", true));
    assert_eq!(std::fs::read(&staged[0].path).unwrap(), b"bytes");
}

#[test]
fn a_volume_that_is_removed_by_force_keeps_unsaved_files() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.volume.abandon();
    drop(file);
    let w = w.restart();
    assert_eq!(std::fs::read(&w.staged()[0].path).unwrap(), b"bytes");
    assert_eq!(w.stored("a"), None);
}

#[test]
fn a_staging_directory_that_cannot_be_used_is_told() {
    let w = World::new();
    let open = |dir: &std::path::Path| {
        ObjectVolume::open(&w.engine, &config(&w.bucket, dir, 1 << 20), 0).unwrap_err()
    };
    assert!(matches!(open(w.staging.path()), VolumeError::InUse { .. }), "two volumes never share one");
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = open(file.path());
    assert!(matches!(error, VolumeError::Staging { .. }), "{error}");
    assert!(error.to_string().contains("memory://bucket"), "{error}");
    let error = open(&w.staging.path().join("none"));
    assert!(matches!(error, VolumeError::Staging { errno: Errno::NOENT, .. }), "{error}");
}

#[test]
fn a_group_without_room_still_stores_what_it_wrote() {
    let w = World::new();
    w.engine.set_max(w.group(), 1 << 20);
    let bytes = pattern(10 << 20, 7);
    w.put("a", &bytes).unwrap();
    assert!(w.stored("a").unwrap() == bytes);
    assert!(w.group().usage_bytes() <= 2 << 20, "{}", w.group().usage_bytes());
    let w = &w;
    std::thread::scope(|scope| {
        for nr in 0..4 {
            scope.spawn(move || w.put(&format!("f{nr}"), &pattern(3 << 20, nr)).unwrap());
        }
    });
    (0..4).for_each(|nr| assert!(w.stored(&format!("f{nr}")).unwrap() == pattern(3 << 20, nr)));
}

#[test]
fn all_that_was_charged_comes_back() {
    let w = World::new();
    for nr in 0..50 {
        w.put(&format!("f{nr}"), &pattern(10_000, nr)).unwrap();
    }
    for nr in 0..50 {
        w.rename(&format!("f{nr}"), &format!("g{nr}"), RenameFlags::empty()).unwrap();
        w.unlink(&format!("g{nr}")).unwrap();
    }
    assert_eq!((w.volume.nr_nodes(), w.nr_staging_files()), (0, 0));
    w.group().drain_stocks();
    assert!(w.group().usage_bytes() < 4096, "{}", w.group().usage_bytes());
}

#[test]
fn a_file_that_the_store_refuses_keeps_no_other_from_it() {
    let w = World::new();
    let files = ["a", "b", "c"].map(|name| {
        let file = w.create(name).unwrap();
        w.write(&file, 0, name.as_bytes()).unwrap();
        file
    });
    w.bucket.fail_changes([ChangeFault::Refused(BucketError::Denied("403".into()))]);
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::ACCESS));
    assert_eq!(["a", "b", "c"].map(|name| w.stored(name).is_some()), [false, true, true]);
    w.volume.syncfs().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"a");
    drop(files);
}

#[test]
fn what_a_close_could_not_store_goes_with_its_attributes() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.fail_changes([refused()]);
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    drop(file);
    w.set("a", &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    assert_eq!((w.stored("a").unwrap(), w.staged().len()), (b"bytes".to_vec(), 0));
}

#[test]
fn a_record_that_cannot_be_written_leaves_no_file() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    let below = std::fs::read_dir(w.staging.path()).unwrap().next().unwrap().unwrap().path();
    let paths = || std::fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().path());
    let record = paths().find(|path| path.extension().is_some()).unwrap();
    let serial: u64 = record.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let next = below.join((serial + 1).to_string()).with_extension(record.extension().unwrap());
    std::fs::create_dir(&next).unwrap();
    w.create("b").unwrap_err();
    assert_eq!(paths().filter(|path| path.extension().is_some_and(|of| of == "new")).count(), 0);
    std::fs::remove_dir(&next).unwrap();
    file.flush().unwrap();
}

#[test]
fn a_file_without_a_name_is_changed_while_it_is_open() {
    for replaces in [false, true] {
        let w = World::new();
        w.bucket.stores_anew.store(!replaces, Ordering::Relaxed);
        w.put("stored", b"stored").unwrap();
        let stored = w.open("stored", OFlags::RDWR).unwrap();
        w.write(&stored, 0, b"S").unwrap();
        stored.fsync(false).unwrap();
        let new = w.create("new").unwrap();
        w.write(&new, 0, b"bytes").unwrap();
        for (name, file) in [("stored", &stored), ("new", &new)] {
            let node = w.find(name).unwrap().node;
            w.unlink(name).unwrap();
            let change = SetAttr { mode: Some(0o600), size: Some(3), ..SetAttr::default() };
            let attr = w.volume.setattr(&w.me, node, &change).unwrap();
            assert_eq!((attr.mode & 0o777, attr.size, attr.nlink), (0o600, 3, 0), "{name}");
            let colour = OsStr::new("user.colour");
            w.volume.setxattr(&w.me, node, colour, b"red", XattrFlags::empty(), false).unwrap();
            assert_eq!(w.volume.getxattr(node, colour).unwrap(), b"red");
            w.volume.removexattr(&w.me, node, colour).unwrap();
            w.write(file, 3, b"more").unwrap();
            assert_eq!(w.read(file).unwrap(), if name == "new" { b"bytmore" } else { b"Stomore" });
            file.fsync(false).unwrap();
        }
        drop((stored, new));
        w.volume.syncfs().unwrap();
        assert_eq!((w.stored("stored"), w.stored("new"), w.nr_staging_files()), (None, None, 0));
    }
}

#[test]
fn attributes_of_a_removed_file_that_is_read_are_remembered() {
    let w = World::new();
    w.put("a", b"bytes").unwrap();
    let file = w.open("a", OFlags::RDONLY).unwrap();
    let node = w.find("a").unwrap().node;
    w.unlink("a").unwrap();
    let change = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    let attr = w.volume.setattr(&w.me, node, &change).unwrap();
    assert_eq!((attr.mode & 0o777, attr.nlink, attr.ino), (0o640, 0, file.getattr().unwrap().ino));
    assert_eq!(w.volume.getattr(node).unwrap().mode & 0o777, 0o640);
    assert_eq!(w.stored("a"), None);
}
