//! Accepted files of other volumes below a staging directory: not stored, and served by no daemon.
//!
//! A volume finds its own directory by its URL and its server. If the same store is spelled in
//! another way the next time, no volume takes over the files accepted under the old name. So each
//! directory names its volume, and every start names the directories with waiting files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::bucket::Bucket;
use super::draft_record::{DraftRecord, DraftState};

/// The file that names the volume of a directory.
const VOLUME: &str = "volume";
/// The extension of a record's file name.
pub(super) const RECORD: &str = "record";

/// A directory with accepted files not taken over by any volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    /// The directory.
    pub dir: PathBuf,
    /// The URL of its volume and its server, if the directory names them.
    pub volume: Option<String>,
    /// How many files wait there.
    pub nr_files: usize,
}

/// Writes the name of its volume into a directory.
///
/// # Errors
/// The host's.
pub(super) fn sign(dir: &Path, bucket: &dyn Bucket) -> io::Result<()> {
    let text = match bucket.endpoint() {
        Some(endpoint) => format!("{} at {endpoint}\n", bucket.url()),
        None => format!("{}\n", bucket.url()),
    };
    if fs::read_to_string(dir.join(VOLUME)).is_ok_and(|known| known == text) {
        return Ok(());
    }
    fs::write(dir.join(VOLUME), text)
}

/// Returns the directories below a staging directory with waiting accepted files and no volume
/// using them now. Unreadable ones are left out.
#[must_use]
pub fn left_behind(below: &Path) -> Vec<LeftBehind> {
    let Ok(entries) = fs::read_dir(below) else { return Vec::new() };
    let mut found: Vec<LeftBehind> = entries.flatten().filter_map(|entry| look(entry.path())).collect();
    found.sort_by(|one, other| one.dir.cmp(&other.dir));
    found
}

fn look(dir: PathBuf) -> Option<LeftBehind> {
    let is_accepted = |path: &Path| {
        let is_record = path.extension().is_some_and(|end| end == RECORD);
        let record = fs::read_to_string(path).ok().filter(|_| is_record);
        let state = record.and_then(|text| DraftRecord::parse(&text)).map(|record| record.state);
        matches!(state, Some(DraftState::Accepted(_)))
    };
    let nr_files = fs::read_dir(&dir).ok()?.flatten().filter(|entry| is_accepted(&entry.path())).count();
    // The lock of a volume using it.
    let is_free = || {
        let opened = fs::File::open(&dir).ok()?;
        flock(&opened, FlockOperation::NonBlockingLockShared).ok()
    };
    if nr_files == 0 || is_free().is_none() {
        return None;
    }
    let volume = fs::read_to_string(dir.join(VOLUME)).ok().map(|text| text.trim_end().to_owned());
    Some(LeftBehind { dir, volume, nr_files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::draft_record::Promise;

    #[test]
    fn only_what_was_accepted_and_has_no_daemon_is_left_behind() {
        let below = tempfile::tempdir().unwrap();
        let record = |dir: &str, state| {
            let dir = below.path().join(dir);
            fs::create_dir(&dir).unwrap();
            let text = DraftRecord { key: "k".into(), state, ..DraftRecord::default() }.to_text();
            fs::write(dir.join("1.record"), text).unwrap();
        };
        let accepted =
            || DraftState::Accepted(Promise { nr_changes: 1, mark: "m".into(), ..Promise::default() });
        record("waits", accepted());
        record("written", DraftState::Staged);
        record("served", accepted());
        fs::write(below.path().join("waits/volume"), "s3://b/p at http://x\n").unwrap();
        fs::write(below.path().join("a file"), "").unwrap();
        let served = fs::File::open(below.path().join("served")).unwrap();
        flock(&served, FlockOperation::NonBlockingLockExclusive).unwrap();
        let volume = Some("s3://b/p at http://x".to_owned());
        let expected = LeftBehind { dir: below.path().join("waits"), volume, nr_files: 1 };
        assert_eq!(left_behind(below.path()), [expected]);
        drop(served);
        assert_eq!(left_behind(below.path()).len(), 2);
        assert!(left_behind(Path::new("/absent")).is_empty());
    }
}
