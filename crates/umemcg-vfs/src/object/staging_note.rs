//! The note of a volume's staging directory, on a local disk beside the notes of uploads
//! (`upload_notes`). Files that did not reach the store stay in the staging directory. The next
//! start may have another one, or none, and would not see them. So each start looks at the noted
//! directories, and logs the ones with files.
//!
//! ```text
//! DIR/s3-bucket-prefix-0123456789abcdef/       of a volume
//!     staging-volume-0123456789abcdef.staging  a link to its part of a staging directory
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use umemcg_base::own_directory::{check_own, make_own_with_parents};

use super::staging::{nr_unsaved, subdirectory_of};
use crate::bucket::Bucket;

/// The extension of a note's file name.
const STAGING: &str = "staging";

/// The note of an open volume. It stays when this is dropped while files are left there.
#[derive(Debug)]
pub(super) struct StagingNote {
    path: PathBuf,
    /// The volume's part of the staging directory.
    dir: PathBuf,
}

impl StagingNote {
    /// Logs other staging directories of a bucket's volume with files that did not reach the store.
    /// Returns the note of its present one, a subdirectory of `staging`.
    pub(super) fn open(below: &Path, bucket: &dyn Bucket, staging: Option<&Path>) -> Option<Self> {
        let volume = subdirectory_of(bucket.url(), bucket.endpoint());
        let notes = below.join(&volume);
        let absolute = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let own = staging.map(|staging| absolute(staging).join(&volume));
        for (dir, nr) in left(&notes, own.as_deref()) {
            tracing::warn!(
                nr, dir = %dir.display(), url = bucket.url(),
                "files from before did not reach the store, and are in a staging directory that the volume does not have now"
            );
        }
        let made = Self::make(&notes, own?);
        made.inspect_err(|error| {
            tracing::info!(dir = %notes.display(), %error, "cannot note the staging directory of a volume");
        })
        .ok()
    }

    fn make(notes: &Path, dir: PathBuf) -> io::Result<Self> {
        make_own_with_parents(notes, rustix::process::geteuid().as_raw())?;
        let path = notes.join(format!("{}.{STAGING}", subdirectory_of(&dir.to_string_lossy(), None)));
        match symlink(&dir, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { path, dir }),
        }
    }
}

impl Drop for StagingNote {
    fn drop(&mut self) {
        if nr_unsaved(&self.dir) == 0 {
            remove(&self.path);
        }
    }
}

/// Returns the noted directories with files that did not reach the store, and how many, except for
/// the volume's `own` and those in use by a daemon. Removes the notes of empty directories.
fn left(notes: &Path, own: Option<&Path>) -> Vec<(PathBuf, usize)> {
    let mut left = Vec::new();
    if check_own(notes, rustix::process::geteuid().as_raw()).is_err() {
        return left;
    }
    let Ok(entries) = fs::read_dir(notes) else { return left };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_note = path.extension().is_some_and(|extension| extension == STAGING);
        let Ok(dir) = fs::read_link(&path) else { continue };
        // A directory that cannot be opened may be on a disk not mounted now.
        if !is_note || own == Some(&*dir) || !is_free(&dir) {
            continue;
        }
        match nr_unsaved(&dir) {
            0 => remove(&path),
            nr => left.push((dir, nr)),
        }
    }
    left
}

/// Returns whether no daemon has a directory locked.
fn is_free(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|dir| flock(&dir, FlockOperation::NonBlockingLockShared).is_ok())
}

/// Removes a note, with the directory if it is the last one.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::draft_record::{DraftRecord, DraftState};

    #[test]
    fn files_left_in_another_staging_directory_are_found() {
        let below = tempfile::tempdir().unwrap();
        let (notes, dir) = (below.path().join("notes/volume"), below.path().join("volume"));
        assert!(left(&notes, None).is_empty());
        let note = StagingNote::make(&notes, dir.clone()).unwrap();
        fs::create_dir_all(dir.join("lost")).unwrap();
        let record = DraftRecord { key: "k".into(), state: DraftState::Staged, ..DraftRecord::default() };
        fs::write(dir.join("1.record"), record.to_text()).unwrap();
        fs::write(dir.join("1"), "bytes").unwrap();
        drop(note);
        assert_eq!(left(&notes, None), [(dir.clone(), 1)]);
        assert!(left(&notes, Some(&dir)).is_empty(), "the volume lists them itself");
        let served = File::open(&dir).unwrap();
        flock(&served, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(left(&notes, None).is_empty(), "a daemon has them");
        drop(served);
        // The next volume with this directory has moved it.
        for name in ["1.record", "1"] {
            fs::rename(dir.join(name), dir.join("lost").join(name)).unwrap();
        }
        assert_eq!(left(&notes, None), [(dir.clone(), 1)]);
        ["1.record", "1"].iter().for_each(|name| fs::remove_file(dir.join("lost").join(name)).unwrap());
        assert!(left(&notes, None).is_empty());
        assert!(!notes.exists(), "the note is gone with the last file");
        drop(StagingNote::make(&notes, dir).unwrap());
        assert!(!notes.exists(), "nothing is left");
    }
}
