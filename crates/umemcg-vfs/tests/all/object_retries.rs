//! Uploads that failed are reported, and retried in the background. Above a bucket that the test
//! plays.

use std::time::Duration;

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno, wait_for};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;

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
