//! What a daemon leaves that is killed: uploads in parts, which are ended at once or at a later
//! start, and drafts with their records. Above a bucket that the test plays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::memory_bucket::{ChangeFault, PART_BYTES};
use crate::common::object_world::{World, errno, pattern};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{RenameFlags, Volume, VolumeFile};

/// Begins an upload that stays, of a new file.
fn begin_upload(w: &World, name: &str) -> Arc<dyn VolumeFile> {
    let file = w.create(name).unwrap();
    w.write(&file, 0, &pattern(PART_BYTES as usize + 1, 3)).unwrap();
    w.bucket.fail_changes([ChangeFault::Crash]);
    file.fsync(false).unwrap_err();
    assert_eq!(w.bucket.uploads().len(), 1);
    file
}

fn fail_aborts(w: &World, is_failing: bool) {
    let failure = is_failing.then(|| BucketError::Unavailable("503".into()));
    *w.bucket.abort_failure.lock().unwrap() = failure;
}

#[test]
fn an_upload_of_a_file_that_is_removed_is_ended() {
    let w = World::new();
    let file = begin_upload(&w, "a");
    w.unlink("a").unwrap();
    drop(file);
    assert!(w.bucket.uploads().is_empty());
    assert_eq!(w.nr_staging_files(), 0);
    // As one that is replaced.
    w.put("b", b"b").unwrap();
    let file = begin_upload(&w, "a");
    w.rename("b", "a", RenameFlags::empty()).unwrap();
    drop(file);
    assert!(w.bucket.uploads().is_empty());
    assert_eq!(w.nr_staging_files(), 0);
}

#[test]
fn an_upload_of_a_removed_file_is_ended_by_the_next_start() {
    let w = World::new();
    let file = begin_upload(&w, "a");
    fail_aborts(&w, true);
    w.unlink("a").unwrap();
    drop(file);
    assert_eq!(w.bucket.uploads().len(), 1);
    fail_aborts(&w, false);
    let w = w.restart();
    assert!(w.bucket.uploads().is_empty());
    assert_eq!((w.nr_staging_files(), w.staged().len()), (0, 0), "nothing is kept of it");
}

#[test]
fn an_upload_that_a_start_cannot_end_is_ended_by_a_later_one() {
    let w = World::new();
    std::mem::forget(begin_upload(&w, "a"));
    fail_aborts(&w, true);
    let w = w.restart_elsewhere();
    assert_eq!((w.bucket.uploads().len(), w.staged().len()), (1, 1));
    let w = w.restart();
    assert_eq!(w.bucket.uploads().len(), 1);
    fail_aborts(&w, false);
    let w = w.restart();
    assert!(w.bucket.uploads().is_empty());
    assert_eq!((w.nr_staging_files(), w.staged().len()), (0, 1));
    assert_eq!((w.staged()[0].key.as_str(), w.staged()[0].bytes), ("a", PART_BYTES + 1));
}

#[test]
fn an_upload_of_a_lost_file_is_ended_by_the_next_start() {
    let w = World::new();
    let file = begin_upload(&w, "a");
    fail_aborts(&w, true);
    w.volume.abandon();
    drop(file);
    fail_aborts(&w, false);
    let w = w.restart();
    assert!(w.bucket.uploads().is_empty());
    assert_eq!((w.nr_staging_files(), w.staged().len()), (0, 1));
}

#[test]
fn an_upload_is_ended_under_the_key_that_it_was_begun_with() {
    let w = World::new();
    let file = begin_upload(&w, "a");
    fail_aborts(&w, true);
    assert_eq!(errno(w.rename("a", "b", RenameFlags::empty())), Some(Errno::IO));
    std::mem::forget(file);
    fail_aborts(&w, false);
    let w = w.restart_elsewhere();
    assert!(w.bucket.uploads().is_empty());
}

/// A daemon may be killed at any moment, and would leave what is to be kept without its key.
#[test]
fn a_draft_is_never_without_its_record() {
    let w = World::new();
    let below = std::fs::read_dir(w.staging.path()).unwrap().next().unwrap().unwrap().path();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for entry in std::fs::read_dir(&below).unwrap().flatten() {
                    let (path, name) = (entry.path(), entry.file_name());
                    let is_draft = name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
                    let has_record = !is_draft || path.with_extension("record").exists();
                    // The bytes go first.
                    assert!(has_record || !path.exists(), "{}", path.display());
                }
            }
        });
        for _ in 0..200 {
            if looks.is_finished() {
                break;
            }
            let file = w.create("a").unwrap();
            file.flush().unwrap();
            drop(file);
            w.unlink("a").unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        looks.join().unwrap();
    });
}
