//! Write-back: a close returns when a file is durable on the staging disk, and an uploader stores
//! it later, if need be that of the next daemon. Above a bucket that the test plays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::memory_bucket::{ChangeFault, MemoryBucket};
use crate::common::object_world::{NEVER, World, errno, pattern, wait_for};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use umemcg_vfs::object::{Bucket, BucketError, StagingConfig};
use umemcg_vfs::volumes::{Syncing, Volumes};
use umemcg_vfs::{OFlags, RenameFlags, SetAttr, Volume, Xattrs};

fn refused() -> ChangeFault {
    ChangeFault::Refused(BucketError::Unavailable("503".into()))
}

/// A volume that stores nothing in the background, as if it were killed before it came to that.
fn idle() -> World {
    let w = World::writing_back();
    w.volume.stop_uploads();
    w
}

fn writing_back(bucket: Arc<MemoryBucket>, retry_pause: Duration) -> World {
    let staging = Arc::new(tempfile::tempdir().unwrap());
    let config = StagingConfig {
        writes_back: true,
        retry_pause,
        ..StagingConfig::new(staging.path().to_owned(), 64 << 20)
    };
    World::as_configured(bucket, staging, 64 << 20, config)
}

#[test]
fn a_close_does_not_wait_for_the_store() {
    let w = World::writing_back();
    w.bucket.gate.close();
    let bytes = pattern(300_000, 1);
    w.put("a", &bytes).unwrap();
    assert_eq!((w.stored("a"), w.staged().len()), (None, 1));
    assert_eq!((w.get("a").unwrap() == bytes, w.names("")), (true, vec![("a".into(), 300_000)]));
    w.bucket.gate.open();
    w.wait_until_stored("a", &bytes);
    w.wait_until_all_stored();
    wait_for("the draft goes", || w.nr_staging_files() == 0);
    assert!(w.get("a").unwrap() == bytes);
}

#[test]
fn an_fsync_goes_on_beside_an_upload_of_the_file() {
    let w = World::writing_back();
    w.bucket.gate.close();
    let file = w.create("log").unwrap();
    for nr in 0..20_u8 {
        w.write(&file, u64::from(nr), &[nr]).unwrap();
        file.fsync(false).unwrap();
    }
    w.bucket.gate.open();
    file.flush().unwrap();
    w.wait_until_stored("log", &(0..20).collect::<Vec<u8>>());
    w.wait_until_all_stored();
}

#[test]
fn what_was_accepted_is_shown_and_stored_after_a_crash() {
    let w = idle();
    w.put("d/e/f", b"").unwrap_err();
    w.mkdir("d").unwrap();
    w.mkdir("d/e").unwrap();
    let bytes = pattern(9 << 20, 3);
    w.put("d/e/f", &bytes).unwrap();
    w.put("empty", b"").unwrap();
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    w.set("empty", &mode).unwrap();
    let entry = w.find("empty").unwrap();
    w.volume.setxattr(&w.me, entry.node, "user.a".as_ref(), b"b", XattrFlags::empty(), false).unwrap();
    w.set("empty", &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    for key in ["d/", "d/e/"] {
        w.bucket.delete(key);
    }
    w.bucket.gate.close();
    let puts = w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed);
    let w = w.restart_elsewhere();
    assert!(w.get("d/e/f").unwrap() == bytes, "without the store");
    assert_eq!(w.names("d/e"), [("f".to_owned(), bytes.len() as u64)]);
    assert_eq!(w.attr("empty").unwrap().mode & 0o7777, 0o640);
    assert_eq!((w.stored("d/e/f"), w.staged().len()), (None, 2));
    w.bucket.gate.open();
    w.wait_until_stored("d/e/f", &bytes);
    w.wait_until_all_stored();
    wait_for("the drafts go", || w.nr_staging_files() == 0);
    let (_, metadata) = w.bucket.object("empty").unwrap();
    assert!(metadata.iter().any(|(name, _)| name == "xattr"), "{metadata:?}");
    assert!(metadata.contains(&("mode".into(), "33184".into())), "{metadata:?}");
    // One for each small file, at most three for one in parts.
    let puts = w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed) - puts;
    assert!(puts <= 6, "{puts}");
    assert!(w.bucket.uploads().is_empty());
}

#[test]
fn what_was_not_accepted_is_lost_by_a_crash_and_kept() {
    let w = idle();
    w.put("a", b"accepted").unwrap();
    let file = w.create("b").unwrap();
    w.write(&file, 0, b"not").unwrap();
    w.engine.sync_all(Duration::from_secs(60));
    std::mem::forget(file);
    let w = w.restart_elsewhere();
    w.wait_until_stored("a", b"accepted");
    assert_eq!((w.stored("b"), errno(w.attr("b"))), (None, Some(Errno::NOENT)));
    let lost: Vec<_> = w.staged().into_iter().filter(|staged| staged.is_lost).collect();
    assert_eq!((lost.len(), lost[0].key.as_str()), (1, "b"));
}

#[test]
fn an_accepted_file_that_grows_is_stored_as_accepted() {
    let w = idle();
    let file = w.create("log").unwrap();
    w.write(&file, 0, b"one\n").unwrap();
    file.fsync(false).unwrap();
    w.write(&file, 4, b"two\n").unwrap();
    w.engine.sync_all(Duration::from_secs(60));
    std::mem::forget(file);
    let w = w.restart_elsewhere();
    w.wait_until_stored("log", b"one\n");
    w.wait_until_all_stored();
}

#[test]
fn an_accepted_file_that_is_changed_keeps_its_other_bytes() {
    let w = idle();
    let bytes = pattern(100_000, 1);
    w.put("a", &bytes).unwrap();
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.write(&file, 50_000, &[255; 100]).unwrap();
    std::mem::forget(file);
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    let stored = w.stored("a").unwrap();
    assert_eq!(stored.len(), bytes.len());
    let is_either =
        |at: usize| stored[at] == bytes[at] || stored[at] == 255 && (50_000..50_100).contains(&at);
    assert!((0..bytes.len()).all(is_either));
}

#[test]
fn a_staging_disk_that_fails_has_the_close_store() {
    let w = idle();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    let below = std::fs::read_dir(w.staging.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_dir_all(&below).unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored("a").unwrap(), b"bytes");
    // Without the store, too, it is told.
    w.write(&file, 0, b"B").unwrap_err();
    std::fs::create_dir_all(below.join("lost")).unwrap();
    w.write(&file, 0, b"B").unwrap();
    std::fs::remove_dir_all(&below).unwrap();
    w.bucket.fail_changes([refused()]);
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    std::fs::create_dir_all(below.join("lost")).unwrap();
    file.flush().unwrap();
}

#[test]
fn a_lost_race_is_found_in_the_background_and_told() {
    let w = World::writing_back();
    w.bucket.gate.close();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"ours").unwrap();
    file.fsync(false).unwrap();
    w.bucket.put("a", "theirs");
    w.bucket.gate.open();
    wait_for("it is lost", || w.staged().iter().any(|staged| staged.is_lost));
    // Just after that.
    wait_for("it is told", || errno(file.fsync(false)) == Some(Errno::IO));
    file.fsync(false).unwrap();
    assert_eq!(errno(w.write(&file, 0, b"more")), Some(Errno::IO));
    drop(file);
    assert_eq!(std::fs::read(&w.staged()[0].path).unwrap(), b"ours");
    wait_for("theirs is shown", || w.get("a").unwrap() == b"theirs");
}

#[test]
fn a_program_that_is_told_of_a_loss_finds_the_bytes() {
    let w = World::writing_back();
    for n in 0..50 {
        let key = format!("f{n}");
        w.bucket.gate.close();
        let file = w.create(&key).unwrap();
        w.write(&file, 0, b"ours").unwrap();
        file.fsync(false).unwrap();
        w.bucket.put(&key, "theirs");
        w.bucket.gate.open();
        let until = Instant::now() + Duration::from_secs(60);
        while errno(file.fsync(false)) != Some(Errno::IO) {
            assert!(Instant::now() < until, "never told of {key}");
        }
        let staged = w.staged().into_iter().find(|staged| staged.key == key).unwrap();
        assert!(staged.is_lost, "{staged:?}");
        assert_eq!(std::fs::read(&staged.path).unwrap(), b"ours");
    }
}

#[test]
fn the_conditions_of_what_was_accepted_outlive_a_crash() {
    let w = idle();
    w.bucket.put("changed", "before");
    w.put("kept", b"before").unwrap();
    w.volume.syncfs().unwrap();
    for name in ["changed", "kept"] {
        let file = w.open(name, OFlags::RDWR).unwrap();
        w.write(&file, 0, b"ours").unwrap();
        file.flush().unwrap();
    }
    w.put("new", b"ours").unwrap();
    w.bucket.put("changed", "theirs");
    w.bucket.put("new", "theirs");
    let w = w.restart_elsewhere();
    w.wait_until_stored("kept", b"oursre");
    w.wait_until_all_stored();
    for key in ["changed", "new"] {
        assert_eq!(w.stored(key).unwrap(), b"theirs");
        wait_for("theirs is shown", || w.get(key).unwrap() == b"theirs");
        let lost = w.staged().into_iter().find(|staged| staged.key == key).unwrap();
        assert!(std::fs::read(&lost.path).unwrap().starts_with(b"ours"));
    }
}

#[test]
fn a_removed_file_does_not_come_back() {
    let w = idle();
    for name in ["a", "b", "replaced"] {
        w.put(name, b"accepted").unwrap();
    }
    let open = w.open("b", OFlags::RDWR).unwrap();
    let replaced = w.open("replaced", OFlags::RDWR).unwrap();
    w.unlink("a").unwrap();
    w.unlink("b").unwrap();
    w.put("c", b"another").unwrap();
    w.rename("c", "replaced", RenameFlags::empty()).unwrap();
    w.write(&open, 0, b"more").unwrap();
    open.fsync(false).unwrap();
    std::mem::forget((open, replaced));
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    assert_eq!(w.bucket.keys(), ["replaced"]);
    assert_eq!(w.stored("replaced").unwrap(), b"another");
    assert_eq!((w.staged().len(), w.nr_staging_files()), (0, 0));
}

#[test]
fn a_renamed_file_comes_back_under_its_new_name() {
    let w = idle();
    w.mkdir("d").unwrap();
    let mut open = Vec::new();
    for name in ["a", "d/a"] {
        let file = w.create(name).unwrap();
        w.write(&file, 0, b"first").unwrap();
        file.fsync(false).unwrap();
        open.push(file);
    }
    w.rename("a", "b", RenameFlags::empty()).unwrap();
    w.rename("d", "e", RenameFlags::empty()).unwrap();
    for file in &open {
        w.write(file, 0, b"F").unwrap();
        file.fsync(false).unwrap();
    }
    std::mem::forget(open);
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    let files: Vec<_> = w.bucket.keys().into_iter().filter(|key| !key.ends_with('/')).collect();
    assert_eq!(files, ["b", "e/a"]);
    assert_eq!((w.stored("b").unwrap(), w.stored("e/a").unwrap()), (b"First".to_vec(), b"First".to_vec()));
    assert!(w.staged().is_empty());
}

#[test]
fn an_upload_whose_answer_a_crash_lost_is_known_as_ours() {
    let w = idle();
    w.put("a", b"bytes").unwrap();
    w.bucket.fail_changes([ChangeFault::AnswerLost]);
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    assert_eq!(w.stored("a").unwrap(), b"bytes");
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    assert_eq!((w.stored("a").unwrap(), w.staged().len()), (b"bytes".to_vec(), 0));
}

#[test]
fn an_upload_that_a_crash_lost_replaces_no_later_version() {
    let w = idle();
    w.put("kept", b"before").unwrap();
    w.volume.syncfs().unwrap();
    for name in ["kept", "new"] {
        w.put(name, b"ours").unwrap();
        w.bucket.fail_changes([ChangeFault::AnswerLost]);
        assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
        assert_eq!(w.stored(name).unwrap(), b"ours");
        w.bucket.put(name, "theirs, later");
    }
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    for name in ["kept", "new"] {
        assert_eq!(w.stored(name).unwrap(), b"theirs, later");
        wait_for("theirs is shown", || w.get(name).unwrap() == b"theirs, later");
    }
}

#[test]
fn an_upload_that_a_crash_lost_is_not_sent_again() {
    let w = idle();
    w.put("a", b"before").unwrap();
    w.volume.syncfs().unwrap();
    w.put("a", b"ours").unwrap();
    w.set("a", &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    w.bucket.fail_changes([ChangeFault::AnswerLost]);
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    let etag = w.bucket.head("a").unwrap().etag;
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    assert_eq!((w.bucket.head("a").unwrap().etag, w.staged().len()), (etag, 0), "one object");
    // It stands on that version.
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.write(&file, 4, b" again").unwrap();
    file.flush().unwrap();
    w.wait_until_stored("a", b"ours again");
    w.wait_until_all_stored();
}

/// A power cut may leave an older record, and older bytes.
#[test]
fn an_old_record_overwrites_nothing_that_was_stored_since() {
    let w = idle();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"older").unwrap();
    file.fsync(false).unwrap();
    let copy = w.copy_staging();
    w.write(&file, 0, b"newer").unwrap();
    w.volume.syncfs().unwrap();
    let (bucket, config) = (Arc::clone(&w.bucket), w.config.clone());
    let w = World::as_configured(bucket, copy, 64 << 20, config);
    w.wait_until_all_stored();
    assert_eq!((w.stored("a").unwrap(), w.staged().len()), (b"newer".to_vec(), 0));
}

#[test]
fn what_is_accepted_after_a_crash_is_not_taken_for_stored() {
    let w = idle();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"first").unwrap();
    file.fsync(false).unwrap();
    let copy = w.copy_staging();
    // Many changes are stored, and a crash comes before that is noted.
    (0..20).for_each(|_| w.write(&file, 0, b"later").unwrap());
    w.volume.syncfs().unwrap();
    w.bucket.fail_changes([refused()]);
    let (bucket, config) = (Arc::clone(&w.bucket), w.config.clone());
    let w = World::as_configured(bucket, copy, 64 << 20, config);
    wait_for("the first attempt fails", || w.bucket.trouble().is_some());
    let file = w.open("a", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"FIRST").unwrap();
    file.fsync(false).unwrap();
    w.volume.syncfs().unwrap();
    assert_eq!((w.stored("a").unwrap(), w.staged().len()), (b"FIRST".to_vec(), 0));
}

#[test]
fn a_change_of_attributes_is_accepted_without_an_open() {
    let w = idle();
    w.put("a", b"bytes").unwrap();
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    w.set("a", &mode).unwrap();
    let entry = w.find("a").unwrap();
    w.volume.setxattr(&w.me, entry.node, "user.a".as_ref(), b"b", XattrFlags::empty(), false).unwrap();
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    let (_, metadata) = w.bucket.object("a").unwrap();
    assert!(metadata.contains(&("mode".into(), "33184".into())), "{metadata:?}");
    assert!(metadata.iter().any(|(name, _)| name == "xattr"), "{metadata:?}");
}

/// The answer to a close comes before the kernel lets go of the file.
#[test]
fn a_change_by_name_of_an_accepted_open_file_is_accepted() {
    let w = idle();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    file.flush().unwrap();
    w.set("a", &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    let entry = w.find("a").unwrap();
    w.volume.setxattr(&w.me, entry.node, "user.a".as_ref(), b"b", XattrFlags::empty(), false).unwrap();
    std::mem::forget(file);
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    let (_, metadata) = w.bucket.object("a").unwrap();
    assert!(metadata.contains(&("mode".into(), "33184".into())), "{metadata:?}");
    assert!(metadata.iter().any(|(name, _)| name == "xattr"), "{metadata:?}");
}

#[test]
fn what_is_renamed_while_it_is_cut_is_accepted_as_renamed() {
    let w = idle();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    file.fsync(false).unwrap();
    w.bucket.gate.close();
    let cut_to = SetAttr { size: Some(3), ..SetAttr::default() };
    std::thread::scope(|threads| {
        let puts = || w.bucket.puts.load(std::sync::atomic::Ordering::Relaxed);
        let sync = threads.spawn(|| w.volume.syncfs());
        wait_for("it is being stored", || puts() == 1);
        let rename = threads.spawn(|| w.rename("a", "b", RenameFlags::empty()));
        wait_for("the rename waits", || w.volume.nr_waiting_for_turn() == 1);
        let cut = threads.spawn(|| file.setattr(&w.me, &cut_to));
        wait_for("the cut waits after it", || w.volume.nr_waiting_for_turn() == 2);
        w.bucket.gate.open();
        sync.join().unwrap().unwrap();
        rename.join().unwrap().unwrap();
        cut.join().unwrap().unwrap();
    });
    file.fsync(false).unwrap();
    std::mem::forget(file);
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    assert_eq!((w.bucket.keys(), w.stored("b").unwrap()), (vec!["b".to_owned()], b"byt".to_vec()));
    assert!(w.staged().is_empty());
}

#[test]
fn a_sync_takes_nothing_for_done_that_goes_on() {
    let volumes = Volumes::many();
    let w = idle();
    let member = volumes.add("a", |_| Ok(Arc::clone(&w.volume) as _)).unwrap();
    let first = member.begin_sync().expect("what was adopted is to be stored");
    let second = member.begin_sync().expect("the first goes on");
    first.finish();
    second.finish();
    assert!(member.begin_sync().is_none(), "nothing has changed");
    member.touch();
    drop(member.begin_sync().expect("something has changed"));
    member.begin_sync().map(Syncing::finish).expect("the last one has failed");
    assert!(member.begin_sync().is_none());
}

#[test]
fn what_a_sync_cannot_store_the_next_start_does() {
    let w = idle();
    w.put("a", b"accepted").unwrap();
    let file = w.create("b").unwrap();
    w.write(&file, 0, b"written").unwrap();
    w.bucket.fail_changes([refused(), refused()]);
    assert_eq!(errno(w.volume.syncfs()), Some(Errno::IO));
    drop(file);
    let w = w.restart();
    w.wait_until_stored("a", b"accepted");
    w.wait_until_stored("b", b"written");
    w.wait_until_all_stored();
}

#[test]
fn what_failed_is_tried_again_in_the_background() {
    let w = writing_back(Arc::default(), Duration::from_millis(1));
    w.bucket.fail_changes((0..5).map(|_| refused()));
    w.put("a", b"bytes").unwrap();
    w.wait_until_stored("a", b"bytes");
    w.wait_until_all_stored();
    // Without write-back a caller is told, once.
    let staging = Arc::new(tempfile::tempdir().unwrap());
    let config = StagingConfig { writes_back: false, ..w.config.clone() };
    let w = World::as_configured(Arc::default(), staging, 64 << 20, config);
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.fail_changes((0..3).map(|_| refused()));
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    w.wait_until_stored("a", b"bytes");
    w.wait_until_all_stored();
    file.flush().unwrap();
    drop(file);
    wait_for("the draft goes", || w.nr_staging_files() == 0);
}

#[test]
fn a_removed_file_is_not_tried_again() {
    let w = writing_back(Arc::default(), Duration::from_millis(1));
    w.bucket.fail_changes((0..100).map(|_| refused()));
    w.put("a", b"bytes").unwrap();
    wait_for("it is removed", || w.unlink("a").is_ok());
    w.bucket.fail_no_changes();
    wait_for("the draft goes", || w.nr_staging_files() == 0);
    assert_eq!((w.stored("a"), errno(w.attr("a"))), (None, Some(Errno::NOENT)));
}

#[test]
fn a_store_that_hangs_holds_up_no_other_volume() {
    let hanging: Vec<_> = (0..10).map(|_| World::writing_back()).collect();
    for w in &hanging {
        w.bucket.gate.close();
        (0..20).for_each(|nr| w.put(&format!("f{nr}"), b"bytes").unwrap());
    }
    let w = World::writing_back();
    (0..20).for_each(|nr| w.put(&format!("f{nr}"), b"bytes").unwrap());
    w.wait_until_all_stored();
    for w in hanging {
        assert_eq!(w.staged().len(), 20);
        w.bucket.gate.open();
        w.wait_until_all_stored();
    }
}

#[test]
fn a_store_that_stops_answering_leaves_threads_to_others() {
    let bucket: Arc<MemoryBucket> = Arc::default();
    let worlds: Vec<World> = (0..40).map(|_| writing_back(Arc::clone(&bucket), NEVER)).collect();
    let put = |w: &World, name: &str| w.put(name, b"bytes").unwrap();
    for (nr, w) in worlds.iter().enumerate() {
        put(w, &format!("first{nr}"));
        w.wait_until_all_stored();
    }
    bucket.gate.close();
    for (nr, w) in worlds.iter().enumerate() {
        (0..8).for_each(|file| put(w, &format!("{nr}-{file}")));
    }
    // Half of the places; volumes and tenants have more to store.
    wait_for("uploads hang", || bucket.gate.nr_waiting() >= 32);
    let good = World::writing_back();
    put(&good, "a");
    good.wait_until_stored("a", b"bytes");
    good.bucket.gate.close();
    (0..8).for_each(|file| put(&good, &format!("b{file}")));
    wait_for("several of another store go on", || good.bucket.gate.nr_waiting() >= 4);
    assert_eq!(bucket.gate.nr_waiting(), 32);
    good.bucket.gate.open();
    bucket.gate.open();
    worlds.iter().for_each(|w| w.volume.syncfs().unwrap());
}

#[test]
fn a_tenant_without_room_holds_up_no_other() {
    let w = World::writing_back();
    w.bucket.gate.close();
    let full = w.engine.create_group(w.engine.root(), "full".as_ref()).unwrap();
    let of_full =
        World { me: umemcg_vfs::Caller { group: Arc::clone(&full), ..w.me.clone() }, ..w.of_thread(2) };
    for nr in 0..20 {
        of_full.put(&format!("full{nr}"), &pattern(100_000, nr)).unwrap();
    }
    w.engine.set_max(&full, 0, &|| false);
    w.bucket.gate.open();
    for nr in 0..20 {
        w.put(&format!("f{nr}"), b"bytes").unwrap();
        w.wait_until_stored(&format!("f{nr}"), b"bytes");
    }
    w.engine.set_max(&full, 16 << 20, &|| false);
    w.volume.syncfs().unwrap();
    assert!(w.staged().is_empty());
}

#[test]
fn nothing_is_charged_once_all_is_stored() {
    let w = idle();
    (0..50).for_each(|nr| w.put(&format!("f{nr}"), &pattern(10_000, nr)).unwrap());
    let w = w.restart_elsewhere();
    w.wait_until_all_stored();
    wait_for("the drafts go", || w.nr_staging_files() == 0);
    wait_for("the names go", || w.volume.nr_nodes() == 0);
    assert_eq!(NEVER, w.config.retry_pause);
    let file = w.create("room").unwrap();
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    file.setattr(&w.me, &size((48 << 20) - (8 << 10))).unwrap();
    assert_eq!(errno(file.setattr(&w.me, &size(48 << 20))), Some(Errno::NOSPC));
    w.unlink("room").unwrap();
}
