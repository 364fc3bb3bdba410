//! Writing to a volume of objects without a staging directory, above a bucket that the test plays.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::memory_bucket::{ChangeFault, PART_BYTES};
use crate::common::object_world::{World, errno, pattern};
use rustix::io::Errno;
use umemcg::StatItem;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{FallocateFlags, OFlags, RenameFlags, SetAttr, SetTime, Timestamp, Volume};

const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE);
const WHOLE: OFlags = NEW.union(OFlags::TRUNC);
const PART: usize = PART_BYTES as usize;
/// Two parts and a bit.
const LONG: usize = 2 * PART + 4711;

fn world() -> World {
    World::streamed(128 << 20)
}

fn puts(w: &World) -> u64 {
    w.bucket.puts.load(Ordering::Relaxed)
}

/// Waits for something.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn a_short_file_is_one_put_and_may_go_on() {
    let w = world();
    let file = w.create_with("new", NEW).unwrap();
    let bytes = pattern(300_000, 1);
    w.write(&file, 0, &bytes).unwrap();
    assert_eq!((w.stored("new"), w.attr("new").unwrap().size), (None, 300_000));
    assert_eq!(w.names(""), [("new".to_owned(), 300_000)], "seen at once");
    file.flush().unwrap();
    assert_eq!((w.stored("new").unwrap() == bytes, puts(&w)), (true, 1));
    file.flush().unwrap();
    file.fsync(false).unwrap();
    assert_eq!(puts(&w), 1, "it has not changed");
    assert_eq!(w.get("new").unwrap(), bytes, "it can be read at once");
    w.write(&file, 300_000, b"more").unwrap();
    assert_eq!(w.attr("new").unwrap().size, 300_004);
    w.release(file);
    assert_eq!(w.stored("new").unwrap(), [&bytes[..], b"more"].concat());
    assert_eq!(w.attr("new").unwrap().size, 300_004);
}

#[test]
fn a_part_is_one_put_and_a_byte_more_goes_in_parts() {
    for (len, nr_puts) in [(PART, 1), (PART + 1, 4), (LONG, 5)] {
        let w = world();
        let bytes = pattern(len, 2);
        w.put("a", &bytes).unwrap();
        assert_eq!((w.stored("a").unwrap() == bytes, puts(&w)), (true, nr_puts), "{len}");
        assert!(w.bucket.uploads().is_empty());
        assert!(w.get("a").unwrap() == bytes);
        assert!(w.bucket.parts.nr_under_way_max.load(Ordering::Relaxed) <= 2);
    }
}

#[test]
fn after_its_end_a_file_in_parts_takes_no_more() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    file.fsync(false).unwrap();
    assert_eq!(w.stored("a").unwrap().len(), LONG);
    assert_eq!(errno(w.write(&file, LONG as u64, b"x")), Some(Errno::OPNOTSUPP));
    file.setattr(&w.me, &size(LONG as u64)).unwrap();
    file.flush().unwrap();
    w.put("a", b"another").unwrap();
    w.release(file);
    assert_eq!(w.stored("a").unwrap(), b"another");
}

#[test]
fn bytes_come_in_order_or_not_at_all() {
    let w = world();
    let file = w.create_with("a", OFlags::RDWR | OFlags::CREATE).unwrap();
    w.write(&file, 0, b"abc").unwrap();
    for offset in [0, 2, 4, 1 << 40] {
        assert_eq!(errno(w.write(&file, offset, b"x")), Some(Errno::OPNOTSUPP), "{offset}");
    }
    assert_eq!(errno(file.read(w.group(), 0, 3)), Some(Errno::OPNOTSUPP));
    assert_eq!(errno(file.write_mapped(w.group(), 3, b"x")), Some(Errno::OPNOTSUPP));
    let allocated = file.fallocate(w.group(), FallocateFlags::empty(), 0, 10, false);
    assert_eq!(errno(allocated), Some(Errno::OPNOTSUPP));
    assert_eq!(errno(file.setattr(&w.me, &size(5))), Some(Errno::OPNOTSUPP));
    file.setattr(&w.me, &size(3)).unwrap();
    w.write(&file, 3, b"d").unwrap();
    w.close(file).unwrap();
    assert_eq!(w.stored("a").unwrap(), b"abcd");
    let append = OFlags::WRONLY | OFlags::APPEND;
    for flags in [OFlags::WRONLY, OFlags::RDWR, append] {
        assert_eq!(errno(w.open("a", flags)), Some(Errno::OPNOTSUPP));
    }
    assert_eq!(errno(w.set("a", &size(2))), Some(Errno::OPNOTSUPP));
    assert_eq!(w.stored("a").unwrap(), b"abcd");
    // What an appending writer takes for the end does not matter.
    w.bucket.put("empty", b"");
    let file = w.open("empty", append).unwrap();
    w.write(&file, 7, b"end").unwrap();
    w.close(file).unwrap();
    assert_eq!(w.stored("empty").unwrap(), b"end");
}

#[test]
fn a_file_is_cut_to_nothing_while_it_is_short() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, b"abc").unwrap();
    file.setattr(&w.me, &size(0)).unwrap();
    w.write(&file, 0, b"x").unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"x");
    drop(file);
    let file = w.open("a", OFlags::WRONLY | OFlags::TRUNC).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    assert_eq!(errno(file.setattr(&w.me, &size(0))), Some(Errno::OPNOTSUPP));
    w.close(file).unwrap();
    w.set("a", &size(0)).unwrap();
    assert_eq!(w.stored("a").unwrap(), b"", "without an open");
}

#[test]
fn a_cut_of_what_is_being_written_is_a_change_in_time() {
    let w = world();
    let time = Timestamp { seconds: 1_600_000_000, nanoseconds: 0 };
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, b"abc").unwrap();
    w.set("a", &SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() }).unwrap();
    assert_eq!(w.attr("a").unwrap().mtime, time);
    w.set("a", &size(0)).unwrap();
    assert_ne!(w.attr("a").unwrap().mtime, time);
    w.close(file).unwrap();
}

#[test]
fn the_old_object_stays_until_the_new_one_is_whole() {
    let w = world();
    let old = pattern(PART + 5, 9);
    w.bucket.put("a", old.clone());
    let reader = w.open("a", OFlags::RDONLY).unwrap();
    let file = w.open("a", OFlags::WRONLY | OFlags::TRUNC).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    assert_eq!(w.attr("a").unwrap().size, LONG as u64);
    assert!(w.stored("a").unwrap() == old && w.read(&reader).unwrap() == old);
    for flags in [OFlags::RDONLY, OFlags::WRONLY | OFlags::TRUNC, OFlags::RDWR] {
        assert_eq!(errno(w.open("a", flags)), Some(Errno::BUSY));
    }
    assert_eq!(errno(w.create_with("a", WHOLE)), Some(Errno::BUSY));
    w.close(file).unwrap();
    assert!(w.stored("a").unwrap() == pattern(LONG, 1) && w.get("a").unwrap() == pattern(LONG, 1));
    // A mapping of the old one has the kernel's inode of its own node.
    let new = w.open("a", OFlags::RDONLY).unwrap();
    assert_ne!(new.node(), reader.node());
    assert!(w.read(&reader).unwrap() == old);
}

#[test]
fn a_shell_closes_one_of_two_descriptors_first() {
    let w = world();
    w.bucket.put("old", b"before");
    let file = w.create_with("old", WHOLE).unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("old").unwrap(), b"before");
    w.write(&file, 0, b"after").unwrap();
    w.close(file).unwrap();
    assert_eq!(w.stored("old").unwrap(), b"after");
    // A new one is there at once, empty or not.
    let file = w.create_with("new", NEW).unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("new").unwrap(), b"");
    drop(file);
    // Nothing is written at all.
    w.release(w.create_with("old", WHOLE).unwrap());
    assert_eq!(w.stored("old").unwrap(), b"");
}

#[test]
fn a_file_that_was_closed_empty_can_be_opened_at_once() {
    let w = world();
    for flags in [OFlags::RDONLY, WHOLE] {
        w.bucket.put("a", b"before");
        let file = w.open("a", OFlags::WRONLY | OFlags::TRUNC).unwrap();
        file.flush().unwrap();
        let other = w.open("a", flags).unwrap();
        assert_eq!(other.getattr().unwrap().size, 0);
        assert_eq!(w.stored("a").unwrap(), b"");
        drop(other);
        w.release(file);
    }
}

#[test]
fn a_lost_race_is_told_once_and_changes_nothing() {
    for len in [10, LONG] {
        for is_new in [true, false] {
            let w = world();
            if !is_new {
                w.bucket.put("a", b"before");
            }
            let file = w.create_with("a", WHOLE).unwrap();
            w.write(&file, 0, &pattern(len, 1)).unwrap();
            w.bucket.put("a", b"other");
            assert_eq!(errno(file.flush()), Some(Errno::IO), "{len} {is_new}");
            file.flush().unwrap();
            assert_eq!(errno(w.write(&file, len as u64, b"x")), Some(Errno::IO));
            assert_eq!((w.stored("a").unwrap(), w.bucket.uploads().len()), (b"other".to_vec(), 0));
            assert_eq!(w.get("a").unwrap(), b"other", "the name stands for it");
            w.release(file);
            assert_eq!(w.stored("a").unwrap(), b"other");
        }
    }
}

#[test]
fn a_writer_is_told_of_what_a_sync_gave_up() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, b"ours").unwrap();
    w.bucket.put("a", "theirs");
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    file.flush().unwrap();
}

#[test]
fn a_part_that_fails_is_told_and_its_upload_ended() {
    let w = world();
    w.bucket.put("old", b"before");
    for name in ["new", "old"] {
        w.bucket.parts.faults.lock().unwrap().extend([false, true]);
        let file = w.create_with(name, WHOLE).unwrap();
        let written = w.write(&file, 0, &pattern(5 * PART, 1));
        let told = [errno(written), errno(file.flush()), errno(file.flush())];
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&Errno::IO], "{told:?}");
        assert_eq!(errno(w.write(&file, 5 * PART_BYTES, b"x")), Some(Errno::IO));
        assert!(w.bucket.uploads().is_empty());
        w.release(file);
        w.bucket.parts.faults.lock().unwrap().clear();
    }
    assert_eq!(w.stored("new"), None);
    assert_eq!(errno(w.attr("new")), Some(Errno::NOENT));
    assert_eq!(w.get("old").unwrap(), b"before");
}

#[test]
fn a_close_that_failed_can_be_followed_by_a_sync() {
    let w = world();
    let refused = ChangeFault::Refused(BucketError::Unavailable("503".into()));
    for fault in [refused, ChangeFault::AnswerLost] {
        let file = w.create_with("a", WHOLE).unwrap();
        w.write(&file, 0, b"one").unwrap();
        w.bucket.fail_changes([fault]);
        assert_eq!(errno(file.flush()), Some(Errno::IO));
        // Of another length than what may be there.
        w.write(&file, 3, b"two").unwrap();
        file.fsync(false).unwrap();
        assert_eq!(w.stored("a").unwrap(), b"onetwo");
        w.release(file);
    }
}

#[test]
fn what_is_removed_while_it_is_written_leaves_nothing() {
    let w = world();
    for len in [10, LONG] {
        let file = w.create_with("a", NEW).unwrap();
        w.write(&file, 0, &pattern(len, 1)).unwrap();
        w.unlink("a").unwrap();
        assert!(w.bucket.uploads().is_empty() && w.stored("a").is_none());
        w.write(&file, len as u64, &pattern(LONG, 1)).unwrap();
        file.flush().unwrap();
        w.release(file);
        assert!(w.bucket.uploads().is_empty() && w.stored("a").is_none());
    }
    w.bucket.put("old", b"before");
    let file = w.create_with("old", WHOLE).unwrap();
    w.unlink("old").unwrap();
    assert_eq!(w.stored("old"), None);
    w.release(file);
    assert_eq!(w.stored("old"), None);
}

#[test]
fn what_is_renamed_while_it_is_written_is_stored_first() {
    let w = world();
    w.mkdir("d").unwrap();
    let file = w.create_with("d/a", NEW).unwrap();
    w.write(&file, 0, b"abc").unwrap();
    w.rename("d/a", "d/b", RenameFlags::empty()).unwrap();
    assert_eq!((w.stored("d/b").unwrap(), w.stored("d/a")), (b"abc".to_vec(), None));
    w.release(file);
    let file = w.create_with("d/c", NEW).unwrap();
    w.write(&file, 0, b"abc").unwrap();
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(w.stored("e/c").unwrap(), b"abc");
    w.release(file);
    // In parts it cannot be.
    let file = w.create_with("e/long", NEW).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    assert_eq!(errno(w.rename("e/long", "x", RenameFlags::empty())), Some(Errno::BUSY));
    assert_eq!(errno(w.rename("e", "d", RenameFlags::empty())), Some(Errno::BUSY));
    // It is replaced like any other file.
    w.rename("e/c", "e/long", RenameFlags::empty()).unwrap();
    assert!(w.bucket.uploads().is_empty());
    w.close(file).unwrap();
    assert_eq!(w.stored("e/long").unwrap(), b"abc");
}

#[test]
fn a_file_that_ends_without_a_close_leaves_nothing() {
    let w = world();
    w.bucket.put("old", b"before");
    for name in ["new", "old"] {
        let file = w.create_with(name, WHOLE).unwrap();
        w.write(&file, 0, &pattern(LONG, 1)).unwrap();
        assert_eq!(w.bucket.uploads().len(), 1);
        drop(file);
        until("the upload is over", || w.bucket.uploads().is_empty());
    }
    assert_eq!(errno(w.attr("new")), Some(Errno::NOENT));
    assert_eq!((w.attr("old").unwrap().size, w.get("old").unwrap()), (6, b"before".to_vec()));
}

#[test]
fn a_volume_that_is_removed_gives_its_streams_up() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    w.volume.abandon();
    assert!(w.bucket.uploads().is_empty());
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    file.flush().unwrap();
    w.release(file);
    assert_eq!(w.stored("a"), None);
}

#[test]
fn attributes_go_with_what_is_written() {
    let w = world();
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let stored_mode = |key: &str| {
        let (_, metadata) = w.bucket.object(key).unwrap();
        metadata.into_iter().find(|(name, _)| name == "mode").unwrap().1.parse::<u32>().unwrap() & 0o7777
    };
    for len in [10, LONG] {
        let file = w.create_with("a", WHOLE).unwrap();
        w.write(&file, 0, &pattern(len, 1)).unwrap();
        assert_eq!(w.set("a", &mode(0o600)).unwrap().mode & 0o7777, 0o600);
        assert_eq!(w.stored("a").map(|bytes| bytes.len()).filter(|&stored| stored == len), None);
        w.close(file).unwrap();
        assert_eq!((stored_mode("a"), w.attr("a").unwrap().mode & 0o7777), (0o600, 0o600), "{len}");
        w.set("a", &mode(0o640)).unwrap();
        assert_eq!(stored_mode("a"), 0o640, "without an open");
    }
    // Where metadata cannot be replaced, it is said so in time.
    w.bucket.stores_anew.store(true, Ordering::Relaxed);
    let file = w.create_with("b", NEW).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    assert_eq!(errno(w.set("b", &mode(0o600))), Some(Errno::OPNOTSUPP));
    w.close(file).unwrap();
    assert_eq!(stored_mode("b"), 0o644);
}

#[test]
fn a_change_that_waited_for_the_end_of_a_stream_is_made() {
    let w = world();
    let stored_mode = || {
        let (_, metadata) = w.bucket.object("a").unwrap();
        metadata.into_iter().find(|(name, _)| name == "mode").unwrap().1.parse::<u32>().unwrap() & 0o7777
    };
    for (len, change) in [
        (10, SetAttr { mode: Some(0o600), ..SetAttr::default() }),
        (LONG, SetAttr { mode: Some(0o640), ..SetAttr::default() }),
        (10, size(0)),
        (LONG, size(0)),
    ] {
        let file = w.create_with("a", WHOLE).unwrap();
        w.write(&file, 0, &pattern(len, 1)).unwrap();
        let (reach, reached) = std::sync::mpsc::channel();
        w.bucket.gate.close();
        let bucket = std::sync::Arc::clone(&w.bucket);
        w.bucket.on_request(move |method, _| match method {
            "PUT" => reach.send(()).unwrap(),
            "COMPLETE" => {
                reach.send(()).unwrap();
                bucket.gate.pass();
            }
            _ => {}
        });
        std::thread::scope(|threads| {
            let close = threads.spawn(|| w.close(file));
            reached.recv().unwrap();
            let changed = threads.spawn(|| w.set("a", &change));
            until("the change waits", || w.volume.nr_waiting_for_turn() == 1);
            w.bucket.on_request(|_, _| {});
            w.bucket.gate.open();
            close.join().unwrap().unwrap();
            changed.join().unwrap().unwrap();
        });
        assert_eq!(w.stored("a").unwrap().len(), if change.size.is_some() { 0 } else { len });
        change
            .mode
            .inspect(|mode| assert_eq!((stored_mode(), w.attr("a").unwrap().mode & 0o7777), (*mode, *mode)));
        drop(w.open("a", OFlags::RDONLY).unwrap());
    }
}

#[test]
fn a_stream_goes_on_after_a_renaming_and_a_change_by_name() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, b"one").unwrap();
    file.fsync(false).unwrap();
    w.rename("a", "b", RenameFlags::empty()).unwrap();
    w.write(&file, 3, b"two").unwrap();
    file.fsync(false).unwrap();
    w.set("b", &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    w.write(&file, 6, b"three").unwrap();
    w.close(file).unwrap();
    assert_eq!((w.stored("a"), w.stored("b").unwrap()), (None, b"onetwothree".to_vec()));
    assert_eq!(w.attr("b").unwrap().mode & 0o7777, 0o600);
}

#[test]
fn what_replaces_a_file_may_go_on_after_a_sync() {
    let w = world();
    w.put("a", b"old").unwrap();
    let file = w.create_with("a", WHOLE).unwrap();
    w.write(&file, 0, b"one").unwrap();
    file.fsync(false).unwrap();
    w.write(&file, 3, b"two").unwrap();
    w.close(file).unwrap();
    assert_eq!(w.stored("a").unwrap(), b"onetwo");
}

#[test]
fn a_file_replaced_while_it_was_open_gets_a_new_node() {
    let w = world();
    w.put("a", b"old").unwrap();
    let node = w.find("a").unwrap().node;
    let reader = w.open("a", OFlags::RDONLY).unwrap();
    let file = w.create_with("a", WHOLE).unwrap();
    w.write(&file, 0, b"new").unwrap();
    file.fsync(false).unwrap();
    w.write(&file, 3, b"er").unwrap();
    file.flush().unwrap();
    w.release(file);
    assert_ne!(w.find("a").unwrap().node, node, "mappings of both would share pages");
    assert_eq!((errno(w.read(&reader)), w.get("a").unwrap()), (Some(Errno::STALE), b"newer".to_vec()));
}

#[test]
fn a_finished_file_keeps_its_node_when_a_write_is_refused() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    w.write(&file, 0, &pattern(LONG, 1)).unwrap();
    file.fsync(false).unwrap();
    let node = w.find("a").unwrap().node;
    assert_eq!(errno(w.write(&file, LONG as u64, b"x")), Some(Errno::OPNOTSUPP));
    assert_eq!(w.find("a").unwrap().node, node);
}

#[test]
fn a_sync_stores_what_goes_with_one_request() {
    let w = world();
    w.bucket.put("cut", b"before");
    let short = w.create_with("short", NEW).unwrap();
    w.write(&short, 0, b"abc").unwrap();
    let long = w.create_with("long", NEW).unwrap();
    w.write(&long, 0, &pattern(PART + 1, 1)).unwrap();
    let cut = w.create_with("cut", WHOLE).unwrap();
    w.volume.syncfs().unwrap();
    assert_eq!((w.stored("short").unwrap(), w.stored("long")), (b"abc".to_vec(), None));
    assert_eq!(w.stored("cut").unwrap(), b"before", "nothing was written in its place");
    w.write(&long, PART_BYTES + 1, b"x").unwrap();
    w.close(long).unwrap();
    assert_eq!(w.stored("long").unwrap().len(), PART + 2);
    drop((short, cut));
}

#[test]
fn a_group_without_room_for_a_part_stays_within_its_limit() {
    const LIMIT: u64 = 3 << 20;
    let w = world();
    let before = w.engine.root().usage_bytes();
    w.engine.set_max(w.group(), LIMIT);
    w.group().reset_peak();
    let bytes = pattern(3 * PART + 5, 7);
    w.put("a", &bytes).unwrap();
    assert!(w.stored("a").unwrap() == bytes);
    assert!(w.group().peak_bytes() <= LIMIT, "{}", w.group().peak_bytes());
    drop(w.open("a", OFlags::RDONLY).unwrap());
    assert!(w.engine.root().usage_bytes() < before + (1 << 20), "all is given back");
}

#[test]
fn a_writer_waits_for_the_store_and_no_other_does() {
    let w = world();
    let other = w.of_group("other");
    *w.bucket.parts.held_key.lock().unwrap() = Some("held".into());
    w.bucket.parts.gate.close();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| w.put("held", &pattern(6 * PART, 1)));
        // Two under way, and a third that is full.
        until("the writer waits", || w.attr("held").is_ok_and(|attr| attr.size == 3 * PART_BYTES));
        let bytes = pattern(LONG, 2);
        other.put("free", &bytes).unwrap();
        assert!(other.stored("free").unwrap() == bytes);
        assert_eq!((w.attr("held").unwrap().size, writer.is_finished()), (3 * PART_BYTES, false));
        let usage = w.group().usage_bytes();
        assert!((3 * PART_BYTES..=3 * PART_BYTES + (1 << 20)).contains(&usage), "{usage}");
        let [slab, dirty] =
            [StatItem::SlabUnreclaimable, StatItem::FileDirty].map(|item| w.group().stat_total(item));
        assert!(slab >= 3 * PART_BYTES as i64 && dirty == 0, "{slab} of slab, {dirty} dirty");
        w.bucket.parts.gate.open();
        writer.join().unwrap().unwrap();
    });
    assert!(w.stored("held").unwrap() == pattern(6 * PART, 1));
    assert!(w.bucket.parts.nr_under_way_max.load(Ordering::Relaxed) <= 4, "two each");
}

#[test]
fn a_group_that_is_removed_leaves_its_stream_to_its_parent() {
    let w = world();
    let other = w.of_group("other");
    let before = w.engine.root().usage_bytes();
    let file = other.create_with("a", NEW).unwrap();
    let bytes = pattern(LONG, 3);
    other.write(&file, 0, &bytes[..PART + 9]).unwrap();
    w.engine.remove_group(other.group()).unwrap();
    w.write(&file, PART_BYTES + 9, &bytes[PART + 9..]).unwrap();
    file.flush().unwrap();
    assert!(w.stored("a").unwrap() == bytes);
    w.release(file);
    assert!(w.engine.root().usage_bytes() < before + (1 << 20));
}

#[test]
fn names_are_changed_without_a_staging_directory() {
    let w = world();
    w.mkdir("d").unwrap();
    w.put("d/a", b"1").unwrap();
    w.rename("d/a", "d/b", RenameFlags::empty()).unwrap();
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(w.names("e"), [("b".to_owned(), 1)]);
    assert_eq!(errno(w.rmdir("e")), Some(Errno::NOTEMPTY));
    w.unlink("e/b").unwrap();
    w.rmdir("e").unwrap();
    assert!(w.bucket.keys().is_empty(), "{:?}", w.bucket.keys());
}
