//! The staging directory of a volume: numbered host files with drafts and their records.
//!
//! ```text
//! DIR/s3-bucket-prefix-0123456789abcdef/      the volume's, locked while it is open
//!     17            the bytes of a draft
//!     17.record     what it is; see `draft_record`
//!     volume        the volume's URL and server
//!     lost/         drafts that did not reach the store, with their records
//! ```
//!
//! A file is deleted here only when it is in the store or its name was removed. After a daemon has
//! ended early, the next one moves its drafts to `lost/` and lists them with the volume. A record
//! without bytes belongs to a multipart upload that could not be aborted yet. The next start aborts
//! it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use umemcg::files::StoreId;
use umemcg_base::LeafMutex;
use umemcg_base::own_directory::make_own;

use super::draft_record::{DraftRecord, DraftState};
use super::failure_log::FailureLog;
use super::staging_room::StagingRoom;
use crate::bucket::{Bucket, StagedFile};
use crate::error::VolumeError;
use crate::host::directory::HostDirectory;
use crate::volume_config::{IoMode, Resolve, VolumeConfig};

/// The file that names the volume of a directory.
const VOLUME: &str = "volume";
/// The extension of a record's file name.
const RECORD: &str = "record";
/// Most drafts in `lost/` that are listed.
const NR_LISTED_MAX: usize = 1000;
/// The subdirectory of drafts that did not reach the store.
const LOST: &str = "lost";
/// Longest readable part of the subdirectory's name.
const NAME_BYTES: usize = 64;

/// See the module text.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) host_dir: Arc<HostDirectory>,
    pub(super) room: Arc<StagingRoom>,
    dir: PathBuf,
    /// (A) The next number. Relaxed: only uniqueness matters.
    next: AtomicU64,
    lost: LeafMutex<Vec<StagedFile>>,
    /// Failures of the disk. Apart from the store's, so that neither takes the other's turns in the
    /// log.
    failures: FailureLog,
}

impl Staging {
    /// Opens the subdirectory of a volume. Sets aside the drafts of an earlier daemon, and aborts
    /// its multipart uploads.
    ///
    /// # Errors
    /// [`VolumeError::Staging`], and [`VolumeError::InUse`] if another daemon has it.
    pub(super) fn open(
        below: &Path,
        max_bytes: u64,
        store_id: StoreId,
        bucket: &Arc<dyn Bucket>,
    ) -> Result<Arc<Self>, VolumeError> {
        let dir = below.join(subdirectory_of(bucket.url(), bucket.endpoint()));
        let failed = |error: io::Error| VolumeError::Staging {
            url: bucket.url().to_owned(),
            dir: dir.clone(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        };
        let me = rustix::process::geteuid().as_raw();
        for own in [&dir, &dir.join(LOST)] {
            make_own(own, me).map_err(|error| failed(refusal(error)))?;
        }
        // Uploads read recently written bytes, so the kernel must not drop them by itself.
        let io_mode = IoMode::DropBehind;
        let config = VolumeConfig { resolve: Resolve::Names, io_mode, ..VolumeConfig::new(&dir) };
        let host_dir = HostDirectory::open_as(store_id, &config)?;
        try_to_write(&dir).map_err(failed)?;
        sign(&dir, &**bucket).map_err(failed)?;
        let found = Found::look(&dir).map_err(failed)?;
        for &serial in &found.serials {
            set_aside(&dir, serial, bucket).map_err(failed)?;
        }
        let (lost, lost_bytes) = list_lost(&dir).map_err(failed)?;
        if !lost.is_empty() {
            tracing::warn!(
                nr = lost.len(), dir = %dir.join(LOST).display(), url = bucket.url(),
                "files from before did not reach the store"
            );
        }
        Ok(Arc::new(Self {
            host_dir,
            room: StagingRoom::new(max_bytes, lost_bytes),
            next: AtomicU64::new(found.last + 1),
            lost: LeafMutex::new(lost),
            failures: FailureLog::new(),
            dir,
        }))
    }

    /// Returns the error of any other failure to open the volume.
    pub(super) fn failure(&self, bucket: &Arc<dyn Bucket>, errno: Errno) -> VolumeError {
        VolumeError::Staging { url: bucket.url().to_owned(), dir: self.dir.clone(), errno }
    }

    /// Logs a failure of the disk; returns its error number.
    pub(super) fn report(&self, errno: Errno) -> Errno {
        self.failures.report_disk(&self.dir, errno)
    }

    /// Creates the file of a draft, after its record: the next start would keep bytes without a
    /// record.
    pub(super) fn create(&self, record: &DraftRecord) -> io::Result<(u64, OwnedFd)> {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        self.write_record(serial, record, false)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let created = rustix::fs::openat(&*self.host_dir.root, serial.to_string(), flags, mode);
        Ok((serial, created.inspect_err(|_| self.remove_record(serial))?))
    }

    /// Replaces the record of a draft; `durably` if it must survive a power cut.
    pub(super) fn write_record(&self, serial: u64, record: &DraftRecord, durably: bool) -> io::Result<()> {
        let fresh = self.dir.join(format!("{serial}.new"));
        // Temporary records must not pile up on a full disk.
        self.replace_record(&fresh, serial, (record, durably)).inspect_err(|_| remove(&fresh))
    }

    fn replace_record(
        &self,
        fresh: &Path,
        serial: u64,
        (record, durably): (&DraftRecord, bool),
    ) -> io::Result<()> {
        let mut file = File::create(fresh)?;
        file.write_all(record.to_text().as_bytes())?;
        if durably {
            file.sync_all()?;
        }
        fs::rename(fresh, record_path(&self.dir, serial))?;
        if durably { File::open(&self.dir)?.sync_all() } else { Ok(()) }
    }

    /// Deletes the bytes of a draft, before its record: the next start would keep bytes without a
    /// record.
    pub(super) fn remove_bytes(&self, serial: u64) {
        remove(&self.path_of(serial));
    }

    /// Deletes the record of a draft.
    pub(super) fn remove_record(&self, serial: u64) {
        remove(&record_path(&self.dir, serial));
    }

    /// Moves a draft to `lost/`: it will not be stored. Returns the path of its bytes.
    pub(super) fn lose(&self, serial: u64, key: &str) -> PathBuf {
        let record = read_record(&record_path(&self.dir, serial));
        let has_upload = record.is_some_and(|record| record.upload.is_some());
        let path = match move_to_lost(&self.dir, serial, has_upload) {
            Ok(path) => path,
            Err(error) => {
                let path = self.path_of(serial);
                tracing::error!(path = %path.display(), %error, "cannot move a staged file");
                path
            }
        };
        let bytes = fs::metadata(&path).map_or(0, |found| found.len());
        let mut lost = self.lost.lock();
        if lost.len() < NR_LISTED_MAX {
            lost.push(StagedFile { key: key.to_owned(), path: path.clone(), bytes, is_lost: true });
        }
        path
    }

    /// Returns the path of a draft.
    pub(super) fn path_of(&self, serial: u64) -> PathBuf {
        self.dir.join(serial.to_string())
    }

    /// Returns the lost drafts.
    pub(super) fn lost(&self) -> Vec<StagedFile> {
        self.lost.lock().clone()
    }
}

/// The numbers of the drafts in a directory.
struct Found {
    serials: Vec<u64>,
    /// The highest number, lost drafts included.
    last: u64,
}

impl Found {
    fn look(dir: &Path) -> io::Result<Self> {
        let mut serials = serials_in(dir)?;
        serials.sort_unstable();
        serials.dedup();
        let last = serials.iter().copied().chain(serials_in(&dir.join(LOST))?).max().unwrap_or(0);
        Ok(Self { serials, last })
    }
}

/// Returns the number of files in a volume's subdirectory that did not reach the store.
pub(super) fn nr_unsaved(dir: &Path) -> usize {
    let is_unsaved = |serial: &u64| {
        let record = read_record(&record_path(dir, *serial));
        let is_there = dir.join(serial.to_string()).exists();
        is_there && record.is_none_or(|record| record.state == DraftState::Staged)
    };
    let drafts = Found::look(dir).map_or_else(|_| Vec::new(), |found| found.serials);
    let nr_lost = list_lost(dir).map_or(0, |(lost, _)| lost.len());
    drafts.into_iter().filter(is_unsaved).count() + nr_lost
}

/// Returns the numbers of drafts and records.
fn serials_in(dir: &Path) -> io::Result<Vec<u64>> {
    let mut serials = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let stem = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
        serials.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    Ok(serials)
}

/// Aborts the multipart upload of a draft, if one was begun. Then deletes the draft if it is in the
/// store, and otherwise moves it to `lost/`. The record stays if the upload cannot be aborted yet.
fn set_aside(dir: &Path, serial: u64, bucket: &Arc<dyn Bucket>) -> io::Result<()> {
    let _ = fs::remove_file(dir.join(format!("{serial}.new")));
    let record = read_record(&record_path(dir, serial));
    let bytes = dir.join(serial.to_string());
    let mut has_upload = false;
    if let Some((key, id)) = record.as_ref().and_then(|record| record.upload.as_ref())
        && let Err(error) = bucket.abort_upload(key, id)
    {
        tracing::warn!(%error, key, upload = id, "cannot end an upload that was begun before; it is tried again");
        has_upload = true;
    }
    if bytes.exists() && record.is_none_or(|record| record.state == DraftState::Staged) {
        return move_to_lost(dir, serial, has_upload).map(drop);
    }
    remove(&bytes);
    if !has_upload {
        remove(&record_path(dir, serial));
    }
    Ok(())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a staged file");
    }
}

/// Moves a draft to `lost/`, durably. If it `has_upload` to abort, a copy of its record stays.
fn move_to_lost(dir: &Path, serial: u64, has_upload: bool) -> io::Result<PathBuf> {
    let lost = dir.join(LOST);
    let path = lost.join(serial.to_string());
    // The record first: after a crash in between, the next start finds the bytes left behind.
    let (record, moved) = (record_path(dir, serial), record_path(&lost, serial));
    let moving = if has_upload { fs::copy(&record, &moved).map(drop) } else { fs::rename(&record, &moved) };
    match moving {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::rename(dir.join(serial.to_string()), &path)?,
    }
    // The bytes may not be durable yet.
    for kept in [&path, &moved] {
        match File::open(kept) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            kept => kept?.sync_all()?,
        }
    }
    for changed in [&*lost, dir] {
        File::open(changed)?.sync_all()?;
    }
    Ok(path)
}

/// Returns the drafts in `lost/`, as far as they are listed, and the bytes of all of them.
fn list_lost(dir: &Path) -> io::Result<(Vec<StagedFile>, u64)> {
    let (mut listed, mut all_bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(dir.join(LOST))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == RECORD) {
            continue;
        }
        let bytes = fs::metadata(&path).map_or(0, |found| found.len());
        all_bytes += bytes;
        if listed.len() == NR_LISTED_MAX {
            continue;
        }
        let record = read_record(&path.with_extension(RECORD));
        let key = record.map_or_else(String::new, |record| record.key);
        listed.push(StagedFile { key, path, bytes, is_lost: true });
    }
    listed.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok((listed, all_bytes))
}

fn read_record(path: &Path) -> Option<DraftRecord> {
    DraftRecord::parse(&fs::read_to_string(path).ok()?)
}

fn record_path(dir: &Path, serial: u64) -> PathBuf {
    dir.join(format!("{serial}.{RECORD}"))
}

/// Returns an error with a number. An error without one is logged: the directory is not the
/// daemon's own.
fn refusal(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    tracing::error!(%error, "a staging directory cannot be used");
    Errno::ACCESS.into()
}

/// Writes the name of its volume into a directory.
fn sign(dir: &Path, bucket: &dyn Bucket) -> io::Result<()> {
    let text = match bucket.endpoint() {
        Some(endpoint) => format!("{} at {endpoint}\n", bucket.url()),
        None => format!("{}\n", bucket.url()),
    };
    if fs::read_to_string(dir.join(VOLUME)).is_ok_and(|known| known == text) {
        return Ok(());
    }
    fs::write(dir.join(VOLUME), text)
}

/// Writes a block, so that a full or read-only directory is reported at the mount.
fn try_to_write(dir: &Path) -> io::Result<()> {
    let path = dir.join("try");
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&[0; 4096])?;
        file.sync_all()
    });
    let _ = fs::remove_file(&path);
    written
}

/// Returns the name of a volume's subdirectory: the URL in readable form, and a hash of URL and
/// server. It stays the same from release to release.
pub(super) fn subdirectory_of(url: &str, endpoint: Option<&str>) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let mut readable: String = url.replace("://", "-").chars().map(kept).collect();
    readable.truncate(NAME_BYTES);
    let text = [url.as_bytes(), endpoint.unwrap_or("").as_bytes()].join(&0);
    // FNV-1a.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}-{hash:016x}", readable.trim_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_a_directory_of_its_own() {
        let name = subdirectory_of("s3://bucket/a/b c", None);
        assert!(name.starts_with("s3-bucket-a-b-c-"), "{name}");
        assert_ne!(name, subdirectory_of("s3://bucket/a/b-c", None));
        assert_ne!(name, subdirectory_of("s3://bucket/a/b c", Some("http://localhost:1")));
        assert_eq!(name, subdirectory_of("s3://bucket/a/b c", None));
        assert!(subdirectory_of(&"x".repeat(1000), None).len() < 100);
    }
}
