//! Notes about the multipart uploads of streams, on a local disk. The next volume of the same URL
//! aborts the uploads left in the store by a killed daemon.
//!
//! ```text
//! DIR/s3-bucket-prefix-0123456789abcdef/      of a volume; several daemons may have one
//!     1234-17.record      an upload of the daemon that has it locked; see `draft_record`
//! ```
//!
//! There is no record without an upload under way. A record not locked by any daemon belongs to an
//! upload that could not be aborted, or to a killed daemon. An upload goes on even if its note
//! fails: after a crash a lifecycle rule of the store has to abort it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use umemcg::Group;
use umemcg_base::LeafMutex;
use umemcg_base::own_directory::{check_own, make_own_with_parents};

use super::draft_record::DraftRecord;
use super::failure_log::FailureLog;
use super::staging::subdirectory_of;
use crate::bucket::{Bucket, BucketError, UploadNote};
use crate::host::descriptor_share::{DescriptorShare, Purpose};

/// The extension of a record's file name.
const RECORD: &str = "record";
/// Most attempts to make a record, when others look whether it is left over.
const NR_TRIES: u32 = 100;

/// Aborts an upload of a key, as [`Bucket::abort_upload`] does.
type Abort<'a> = &'a dyn Fn(&str, &str) -> Result<(), BucketError>;

/// The notes of a volume.
#[derive(Debug)]
pub(super) struct UploadNotes {
    dir: PathBuf,
    failures: FailureLog,
}

/// The note of one upload. Its record stays when this is dropped before the upload is over.
#[derive(Debug)]
struct Noted {
    notes: Arc<UploadNotes>,
    /// The group of the writer.
    group: Arc<Group>,
    key: String,
    record: LeafMutex<Option<Arc<Record>>>,
}

/// A file locked for as long as it is open.
#[derive(Debug)]
struct Record {
    path: PathBuf,
    file: File,
    /// For its descriptor.
    _share: DescriptorShare,
}

impl UploadNotes {
    /// Returns the notes of a bucket's uploads, after aborting the uploads of daemons that are
    /// gone. May sleep for the store.
    pub(super) fn open(below: &Path, bucket: &Arc<dyn Bucket>) -> Arc<Self> {
        let dir = below.join(subdirectory_of(bucket.url(), bucket.endpoint()));
        Self::open_at(dir, &|key, upload| bucket.abort_upload(key, upload))
    }

    fn open_at(dir: PathBuf, abort: Abort<'_>) -> Arc<Self> {
        if let Err(error) = end_left(&dir, abort)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %dir.display(), %error, "cannot look for uploads that were begun before");
        }
        Arc::new(Self { dir, failures: FailureLog::new() })
    }

    /// Returns the note of an upload of this key by a group, without making a record yet.
    pub(super) fn of(self: &Arc<Self>, key: &str, group: &Arc<Group>) -> Arc<dyn UploadNote> {
        let (notes, group, key) = (Arc::clone(self), Arc::clone(group), key.to_owned());
        Arc::new(Noted { notes, group, key, record: LeafMutex::default() })
    }

    fn make(&self, group: &Arc<Group>) -> io::Result<Record> {
        /// (A) Relaxed: only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let share = DescriptorShare::take(group, 1, Purpose::Open, None)?;
        for _ in 0..NR_TRIES {
            make_own_with_parents(&self.dir, rustix::process::geteuid().as_raw())?;
            let name = format!("{}-{}.{RECORD}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = self.dir.join(name);
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let file = match made {
                // A process of the same number has it, earlier or in another container. Or the last
                // record has just gone, and the directory with it.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
                {
                    continue;
                }
                made => made?,
            };
            flock(&file, FlockOperation::LockExclusive)?;
            // A new record looks left over, and may have been removed before it was locked.
            if file.metadata()?.nlink() > 0 {
                return Ok(Record { path, file, _share: share });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Noted {
    fn write(&self, upload: &str) -> io::Result<()> {
        let known = self.record.lock().clone();
        let is_new = known.is_none();
        let record = known.map_or_else(|| self.notes.make(&self.group).map(Arc::new), Ok)?;
        if is_new {
            *self.record.lock() = Some(Arc::clone(&record));
        }
        let upload = Some((self.key.clone(), upload.to_owned()));
        let text = DraftRecord { key: self.key.clone(), upload, ..DraftRecord::default() }.to_text();
        record.file.write_all_at(text.as_bytes(), 0)?;
        record.file.set_len(text.len() as u64)?;
        // The id is added to a durable record: until it is there, all uploads of the key are meant.
        if is_new {
            record.file.sync_all()?;
            File::open(&self.notes.dir)?.sync_all()?;
        }
        Ok(())
    }
}

impl UploadNote for Noted {
    fn note(&self, upload: Option<&str>) -> io::Result<()> {
        let Some(upload) = upload else {
            let record = self.record.lock().take();
            return record.map_or(Ok(()), |record| record.remove());
        };
        if let Err(error) = self.write(upload) {
            let why = format!(
                "an upload cannot be noted in {}: {error}; a rule of the store has to end it after a crash",
                self.notes.dir.display()
            );
            self.notes.failures.note_refusal(&self.key, &why);
        }
        Ok(())
    }
}

impl Record {
    /// Removes it, with the directory if it is the last one.
    fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// Aborts the uploads whose records are not locked by any daemon.
fn end_left(dir: &Path, abort: Abort<'_>) -> io::Result<()> {
    check_own(dir, rustix::process::geteuid().as_raw())?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == RECORD) {
            end_one(&path, abort).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "cannot read the note of an upload");
            });
        }
    }
    // The last removal took it along, unless a daemon was killed in between.
    let _ = fs::remove_dir(dir);
    Ok(())
}

fn end_one(path: &Path, abort: Abort<'_>) -> io::Result<()> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
        locked => locked?,
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    // A record without any text: the upload was not begun.
    let record = DraftRecord::parse(&text);
    if record.is_none() && !text.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if let Some((key, upload)) = record.and_then(|record| record.upload)
        && let Err(error) = abort(&key, &upload)
    {
        tracing::warn!(%error, key, upload, "cannot end an upload that was begun before; the next start tries again");
        return Ok(());
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use umemcg::{Engine, EngineConfig};

    use super::*;
    use crate::bucket::UNKNOWN_UPLOAD;

    #[derive(Default)]
    struct Store {
        aborted: RefCell<Vec<(String, String)>>,
        is_down: Cell<bool>,
    }

    impl Store {
        /// Opens the notes as a starting daemon. Returns the uploads aborted by it.
        fn open(&self, dir: &Path) -> (Arc<UploadNotes>, Vec<(String, String)>) {
            let notes = UploadNotes::open_at(dir.to_owned(), &|key, upload| {
                if self.is_down.get() {
                    return Err(BucketError::Unavailable("503".into()));
                }
                self.aborted.borrow_mut().push((key.to_owned(), upload.to_owned()));
                Ok(())
            });
            (notes, self.aborted.take())
        }
    }

    fn under_way(notes: &Arc<UploadNotes>, key: &str, upload: Option<&str>) -> Arc<dyn UploadNote> {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let note = notes.of(key, engine.root());
        note.note(Some(UNKNOWN_UPLOAD)).unwrap();
        if upload.is_some() {
            note.note(upload).unwrap();
        }
        note
    }

    fn ended(key: &str, upload: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), upload.to_owned())]
    }

    #[test]
    fn what_is_under_way_is_noted_and_left_alone() {
        let (store, below) = (Store::default(), tempfile::tempdir().unwrap());
        let dir = below.path().join("a/b");
        let (notes, _) = store.open(&dir);
        assert!(!below.path().join("a").exists(), "nothing is made for nothing");
        let [one, other] = ["one", "other"].map(|key| under_way(&notes, key, Some("id")));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        assert_eq!(store.open(&dir).1, [], "their daemon lives");
        one.note(None).unwrap();
        one.note(None).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        other.note(None).unwrap();
        assert!(!dir.exists());
        under_way(&notes, "again", None).note(None).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn what_a_killed_daemon_left_is_ended_by_the_next_start() {
        let (store, below) = (Store::default(), tempfile::tempdir().unwrap());
        let dir = below.path().join("a");
        let (notes, _) = store.open(&dir);
        // As the kernel does with the locks of a killed process.
        drop(under_way(&notes, "a/line\nand more", Some("id")));
        store.is_down.set(true);
        assert_eq!((store.open(&dir).1, fs::read_dir(&dir).unwrap().count()), (vec![], 1));
        store.is_down.set(false);
        assert_eq!((store.open(&dir).1, dir.exists()), (ended("a/line\nand more", "id"), false));
        drop(under_way(&notes, "unknown", None));
        assert_eq!(store.open(&dir).1, ended("unknown", UNKNOWN_UPLOAD));
    }

    #[test]
    fn what_is_no_record_is_left_alone() {
        let (store, below) = (Store::default(), tempfile::tempdir().unwrap());
        for (name, text) in [("1-1.record", "no record"), ("note", ""), ("2-2.record", "")] {
            fs::write(below.path().join(name), text).unwrap();
        }
        assert_eq!(store.open(below.path()).1, []);
        let mut left: Vec<_> =
            fs::read_dir(below.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["1-1.record", "note"], "one that was not begun goes");
    }

    #[test]
    fn a_note_beyond_the_share_of_its_group_is_left_out() {
        let (store, below) = (Store::default(), tempfile::tempdir().unwrap());
        let dir = below.path().join("a");
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let note = store.open(&dir).0.of("key", engine.root());
        let take = |nr| DescriptorShare::take(engine.root(), nr, Purpose::Open, None).ok();
        let held: Vec<_> = (0..40).rev().filter_map(|power| take(1 << power)).collect();
        note.note(Some(UNKNOWN_UPLOAD)).unwrap();
        assert!(!dir.exists(), "it has no descriptor");
        drop(held);
        note.note(Some("id")).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        note.note(None).unwrap();
    }

    #[test]
    fn an_upload_goes_on_without_a_note() {
        let (store, below) = (Store::default(), tempfile::tempdir().unwrap());
        let dir = below.path().join("file");
        fs::write(&dir, "").unwrap();
        let note = under_way(&store.open(&dir).0, "a", Some("id"));
        note.note(None).unwrap();
    }
}
