//! The plugin's work, recorded on disk. This is its only state: after a kill, the next plugin
//! continues from these records and the mount table.
//!
//! ```text
//! STATE/lock           held by the one plugin that uses the directory
//! STATE/created/NAME   a volume that the controller made
//! STATE/staged/NAME    a volume that is staged on this node
//! STATE/published/N    a target, with its volume and its pod
//! STATE/damaged/KIND/  records of these kinds that a plugin could not read when it started
//! ```
//!
//! A record is written before its work is done, and removed after it is undone. So interrupted work
//! has a record; doing or undoing it again finishes it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;
use umemcg_base::own_directory::make_own_with_parents;

use crate::daemon::VolumeData;
use crate::pod::Pod;

/// A volume made by the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its id, equal to the requested name.
    pub volume_id: String,
    /// Its capacity, in bytes; 0 if the request gave none.
    pub capacity_bytes: i64,
    /// Its attributes.
    pub context: BTreeMap<String, String>,
}

/// A staged volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// Its id.
    pub volume_id: String,
    /// Its name in the daemon.
    pub name: String,
    /// Where its data is.
    pub data: VolumeData,
    /// The namespace of its claim; empty if unknown, or if the volume is ephemeral.
    #[serde(default)]
    pub namespace: String,
}

impl Staged {
    /// Returns the name of the volume's directory in the daemon's mount.
    pub fn served_name(&self) -> &str {
        match &self.data {
            VolumeData::Existing { volume } => volume,
            _ => &self.name,
        }
    }
}

/// A target path that shows a volume to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The path.
    pub target: String,
    /// The volume, staged or ephemeral.
    pub volume: Staged,
    /// The volume lives as long as this target.
    pub is_ephemeral: bool,
    /// Writes are refused.
    pub is_read_only: bool,
    /// Flags of the mount.
    pub flags: Vec<String>,
    /// No other target may show the volume.
    pub is_single: bool,
    /// The pod; none if the orchestrator names none.
    pub pod: Option<Pod>,
    /// Limits of its group, from this volume's attributes.
    pub limits: BTreeMap<String, String>,
    /// The plugin made the group of the namespace, and removes it.
    pub owns_namespace: bool,
    /// The plugin made the group of the pod, and removes it.
    pub owns_group: bool,
    /// The limits are set.
    pub is_limited: bool,
    /// The limit of the namespace's group, if the plugin has decided it.
    #[serde(default)]
    pub share_bytes: Option<u64>,
}

impl Published {
    /// Returns whether its volume is memory that the author of a pod asked for.
    pub fn is_inline_memory(&self) -> bool {
        self.is_ephemeral && matches!(self.volume.data, VolumeData::Tmpfs { .. })
    }

    /// Returns whether its pod has the same group as another.
    pub fn is_of_group(&self, pod: &Pod) -> bool {
        self.pod.as_ref().is_some_and(|own| own.group() == pod.group())
    }

    /// Returns whether its pod has the same namespace as another.
    pub fn is_of_namespace(&self, pod: &Pod) -> bool {
        self.pod.as_ref().is_some_and(|own| own.namespace == pod.namespace)
    }
}

/// A record, in the directory of its kind.
pub trait Record: Serialize + DeserializeOwned {
    /// The name of that directory.
    const KIND: &'static str;
}

impl Record for Created {
    const KIND: &'static str = "created";
}

impl Record for Staged {
    const KIND: &'static str = "staged";
}

impl Record for Published {
    const KIND: &'static str = "published";
}

/// The directory of the records.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    /// The lock on the directory. The kernel releases it when the process ends, even if killed.
    _lock: File,
}

impl Records {
    /// Opens a directory, which no other user may write to; creates it if it is missing. Moves
    /// damaged records away, before any other thread uses them: a record damaged by the disk must
    /// not keep the plugin from serving the others.
    ///
    /// # Errors
    /// `ResourceBusy` if another plugin uses it; the system's errors.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let me = rustix::process::geteuid().as_raw();
        make_own_with_parents(dir, me)?;
        for kind in [Created::KIND, Staged::KIND, Published::KIND] {
            for own in [dir.join(kind), dir.join("damaged").join(kind)] {
                make_own_with_parents(&own, me)?;
            }
        }
        let lock = File::create(dir.join("lock"))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another plugin uses the directory"));
            }
            Err(errno) => return Err(errno.into()),
        }
        move_damaged::<Created>(dir)?;
        move_damaged::<Staged>(dir)?;
        move_damaged::<Published>(dir)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    fn path_of<T: Record>(&self, name: &str) -> PathBuf {
        self.dir.join(T::KIND).join(name)
    }

    /// Returns the record of this name.
    ///
    /// # Errors
    /// `Internal`.
    pub fn get<T: Record>(&self, name: &str) -> Result<Option<T>, Status> {
        read(&self.path_of::<T>(name)).map_err(failed)
    }

    /// Returns all records of a kind, by name.
    ///
    /// # Errors
    /// `Internal`.
    pub fn all<T: Record>(&self) -> Result<BTreeMap<String, T>, Status> {
        read_all(&self.dir.join(T::KIND)).map_err(failed)
    }

    /// Writes or replaces a record.
    ///
    /// # Errors
    /// `Internal`.
    pub fn keep<T: Record>(&self, name: &str, record: &T) -> Result<(), Status> {
        let written = draft(&self.dir.join(T::KIND), record).and_then(|draft| {
            let placed = draft.persist(self.path_of::<T>(name));
            placed.map(drop).map_err(|refused| refused.error)
        });
        written.map_err(failed)
    }

    /// Removes a record, if it is there.
    ///
    /// # Errors
    /// `Internal`.
    pub fn forget<T: Record>(&self, name: &str) -> Result<(), Status> {
        remove(&self.path_of::<T>(name)).map_err(failed)
    }

    /// Returns whether a damaged record of a staged volume was moved away at a start.
    pub fn has_damaged_staged(&self, name: &str) -> bool {
        self.dir.join("damaged/staged").join(name).exists()
    }

    /// Removes the record of a staged volume, if it is there, damaged or not.
    ///
    /// # Errors
    /// `Internal`.
    pub fn forget_staged(&self, name: &str) -> Result<(), Status> {
        remove(&self.dir.join("damaged/staged").join(name)).map_err(failed)?;
        self.forget::<Staged>(name)
    }

    /// Returns the namespace of a staged volume: its claim's, else that of a pod with the volume;
    /// empty if none is known.
    pub fn tenant_of(&self, name: &str) -> String {
        let staged = self.get::<Staged>(name).ok().flatten().map(|staged| staged.namespace);
        staged.filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| {
            let published = self.all::<Published>().unwrap_or_default();
            let of_volume = published.into_values().filter(|known| known.volume.name == name);
            of_volume.filter_map(|known| known.pod).map(|pod| pod.namespace).next().unwrap_or_default()
        })
    }

    /// Returns the namespace of the pod of a target; empty if none is known.
    pub fn tenant_at(&self, target: &str) -> String {
        let published = self.all::<Published>().unwrap_or_default();
        let known = published.into_values().find(|known| known.target == target);
        known.and_then(|known| known.pod).map_or_else(String::new, |pod| pod.namespace)
    }

    /// Writes the record of a new target. Returns the name of the record.
    ///
    /// # Errors
    /// `Internal`.
    pub fn add_published(&self, published: &Published) -> Result<String, Status> {
        let mut draft = draft(&self.dir.join(Published::KIND), published).map_err(failed)?;
        for number in 0_u64.. {
            // Refused if the name is taken: another target may get its record at the same time.
            match draft.persist_noclobber(self.path_of::<Published>(&number.to_string())) {
                Ok(_) => return Ok(number.to_string()),
                Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => draft = refused.file,
                Err(refused) => return Err(failed(refused.error)),
            }
        }
        Err(failed(io::ErrorKind::StorageFull.into()))
    }
}

fn failed(error: io::Error) -> Status {
    Status::internal(format!("cannot use the records of the plugin: {error}"))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Names of records. Skips the drafts of a killed plugin: they begin with a dot.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn move_damaged<T: Record>(dir: &Path) -> io::Result<()> {
    let (good, damaged) = (dir.join(T::KIND), dir.join("damaged").join(T::KIND));
    for name in names(&good)? {
        let (from, to) = (good.join(&name), damaged.join(&name));
        if let Some(error) = read::<T>(&from).err().filter(is_damage) {
            fs::rename(from, &to)?;
            tracing::error!(record = %to.display(), %error, "a record cannot be read, and is moved here");
        }
    }
    Ok(())
}

fn read_all<T: DeserializeOwned>(dir: &Path) -> io::Result<BTreeMap<String, T>> {
    let mut found = BTreeMap::new();
    for name in names(dir)? {
        match read(&dir.join(&name)) {
            Ok(Some(record)) => drop(found.insert(name, record)),
            // Another request may have removed the record meanwhile.
            Ok(None) => {}
            // Damaged since the start.
            Err(error) if is_damage(&error) => {
                tracing::error!(record = %dir.join(&name).display(), %error, "a record cannot be read; it is left out");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn draft<T: Serialize>(dir: &Path, record: &T) -> io::Result<tempfile::NamedTempFile> {
    let mut draft = tempfile::Builder::new().prefix(".draft-").tempfile_in(dir)?;
    draft.write_all(&serde_json::to_vec(record)?)?;
    draft.as_file().sync_data()?;
    Ok(draft)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(id: &str) -> Staged {
        let data = VolumeData::Tmpfs { size_bytes: Some(1) };
        Staged { volume_id: id.into(), name: id.into(), data, namespace: "shop".into() }
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let text = r#"{"volume_id":"a","name":"a","data":{"tmpfs":{"size_bytes":1}}}"#;
        fs::write(dir.path().join("staged/a"), text).unwrap();
        assert_eq!(
            records.get::<Staged>("a").unwrap(),
            Some(Staged { namespace: String::new(), ..staged("a") })
        );
    }

    #[test]
    fn another_process_reads_what_was_kept() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        assert_eq!(Records::open(dir.path()).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        records.keep("a", &staged("a")).unwrap();
        let published = Published {
            target: "/t".into(),
            volume: staged("a"),
            is_ephemeral: false,
            is_read_only: true,
            flags: vec!["noexec".into()],
            is_single: false,
            pod: None,
            limits: BTreeMap::new(),
            owns_namespace: false,
            owns_group: true,
            is_limited: false,
            share_bytes: Some(4096),
        };
        let first = records.add_published(&published).unwrap();
        let second = records.add_published(&published).unwrap();
        assert_ne!(first, second);
        records.forget::<Published>(&first).unwrap();
        records.forget::<Published>(&first).unwrap();
        // A killed plugin leaves a draft.
        fs::write(dir.path().join("published/.draft-x"), "{").unwrap();
        // A failed disk leaves damaged records.
        let damaged = [("cut", "{"), ("empty", ""), ("other", "[]")];
        for (name, text) in damaged {
            fs::write(dir.path().join("published").join(name), text).unwrap();
        }
        assert_eq!(records.all::<Published>().unwrap().len(), 1);
        drop(records);
        let records = Records::open(dir.path()).unwrap();
        assert_eq!(records.get::<Staged>("a").unwrap(), Some(staged("a")));
        assert_eq!(records.all::<Published>().unwrap(), BTreeMap::from([(second, published)]));
        for (name, text) in damaged {
            assert!(!dir.path().join("published").join(name).exists());
            assert_eq!(fs::read_to_string(dir.path().join("damaged/published").join(name)).unwrap(), text);
        }
        records.forget_staged("a").unwrap();
        assert_eq!(records.all::<Staged>().unwrap(), BTreeMap::new());
    }
}
