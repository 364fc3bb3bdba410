//! Uploads that failed are reported, and retried in the background. Above a bucket that the test
//! plays.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno, wait_for};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{Lookup, SetAttr, Xattrs};

fn refused() -> ChangeFault {
    ChangeFault::Refused(BucketError::Unavailable("503".into()))
}

/// A volume that hardly waits before a retry.
fn retrying() -> World {
    World::retrying(Duration::from_millis(1))
}

#[test]
fn what_failed_is_told_once_and_tried_again() {
    let w = retrying();
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

/// Asks for changes of a file by name that are refused.
fn be_refused(w: &World, path: &str) {
    let node = w.find(path).unwrap().node;
    let removed = w.volume.removexattr(&w.me, node, OsStr::new("user.none"));
    w.volume.forget(node, 1);
    assert_eq!(errno(removed), Some(Errno::NODATA));
    let huge = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
    assert_eq!(errno(w.set(path, &huge)), Some(Errno::NOSPC));
}

#[test]
fn a_refused_change_by_name_ends_no_retries() {
    let w = retrying();
    w.bucket.fail_changes((0..1000).map(|_| refused()));
    assert_eq!(errno(w.put("a", b"bytes")), Some(Errno::IO));
    be_refused(&w, "a");
    w.bucket.fail_no_changes();
    w.wait_until_stored("a", b"bytes");
    w.wait_until_all_stored();
}

#[test]
fn a_refused_change_by_name_stores_nothing() {
    let w = World::new();
    w.bucket.stores_anew.store(true, Ordering::Relaxed);
    w.bucket.put("a", "bytes");
    be_refused(&w, "a");
    assert!(w.staged().is_empty(), "{:?}", w.staged());
    assert_eq!(w.bucket.puts.load(Ordering::Relaxed), 0);
}

#[test]
fn a_change_that_no_close_follows_is_tried_again() {
    let w = retrying();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"old").unwrap();
    w.bucket.fail_changes((0..1000).map(|_| refused()));
    assert_eq!(errno(file.flush()), Some(Errno::IO));
    w.write(&file, 0, b"new").unwrap();
    drop(file);
    w.bucket.fail_no_changes();
    w.wait_until_stored("a", b"new");
}

#[test]
fn a_removed_file_is_not_tried_again() {
    let w = retrying();
    w.bucket.fail_changes((0..100).map(|_| refused()));
    assert_eq!(errno(w.put("a", b"bytes")), Some(Errno::IO));
    wait_for("it is removed", || w.unlink("a").is_ok());
    w.bucket.fail_no_changes();
    wait_for("the draft goes", || w.nr_staging_files() == 0);
    assert_eq!((w.stored("a"), errno(w.attr("a"))), (None, Some(Errno::NOENT)));
}

#[test]
fn a_program_that_is_told_of_a_loss_finds_the_bytes() {
    let w = retrying();
    for nr in 0..50 {
        let key = format!("f{nr}");
        let file = w.create(&key).unwrap();
        w.write(&file, 0, b"ours").unwrap();
        w.bucket.fail_changes((0..1000).map(|_| refused()));
        assert_eq!(errno(file.fsync(false)), Some(Errno::IO));
        w.bucket.put(&key, "theirs");
        w.bucket.fail_no_changes();
        // A retry has found the other object, or the fsync does.
        assert_eq!(errno(file.fsync(false)), Some(Errno::IO));
        let staged = w.staged().into_iter().find(|staged| staged.key == key).unwrap();
        assert!(staged.is_lost, "{staged:?}");
        assert_eq!(std::fs::read(&staged.path).unwrap(), b"ours");
    }
}

#[test]
fn a_close_stores_while_the_staging_disk_fails() {
    let w = World::new();
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
    assert_eq!(w.stored("a").unwrap(), b"Bytes");
}
