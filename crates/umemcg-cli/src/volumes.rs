//! Both ends of `umemcg volume`: the client sends a request to the daemon; the daemon adds, lists
//! and removes volumes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde::Serialize;
use umemcg_fuse::{AddVolumeError, Daemon, RemoveVolumeError, VolumeInfo};
use umemcg_vfs::volumes::{AddError, RemoveError};
use umemcg_vfs::{TmpfsConfig, VolumeConfig, VolumeError, VolumeKind, VolumeSpec};

use crate::args::{
    DaemonArguments, VolumeAddArguments, VolumeCommand, VolumeListArguments, VolumeRemoveArguments,
};
use crate::client::{DaemonAddress, milliseconds, unexpected};
use crate::endpoint::{Reply, Request, VolumeRow, VolumeSource};
use crate::exit::{Failure, LostFile};
use crate::plain_text::lines;
use crate::stores::{self, StoreSource, StoreState};
use crate::table::{TextTable, human_bytes};

/// The longest wait of adding a volume for a directory not yet released by a removed volume.
pub(crate) const ADD_WAIT: Duration = Duration::from_secs(2);
/// The interval between checks for the release of a directory.
pub(crate) const DIRECTORY_LOOK: Duration = Duration::from_millis(50);

/// The root directory of the node, as seen by its first process.
const NODE_ROOT: &str = "/proc/1/root";
/// The variable that names the root directory of the node elsewhere.
const NODE_ROOT_VARIABLE: &str = "UMEMCG_NODE_ROOT";

/// Runs `umemcg volume`.
///
/// # Errors
/// [`Failure`].
pub fn volume(command: &VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Add(arguments) => add(arguments),
        VolumeCommand::List(arguments) => list(arguments),
        VolumeCommand::Remove(arguments) => remove(arguments),
    }
}

fn add(arguments: &VolumeAddArguments) -> Result<(), Failure> {
    let data = match (&arguments.dir, &arguments.store) {
        (Some(dir), _) => {
            // The daemon may have another working directory.
            let path = dir.canonicalize().map_err(|error| Failure::at("cannot use", dir, &error))?;
            VolumeSource::Dir { path }
        }
        (None, Some(url)) => {
            let (url, mut options) = (url.clone(), arguments.options.clone());
            if let Some(staging) = &mut options.staging {
                let path = std::path::absolute(&staging);
                *staging = path.map_err(|error| Failure::at("cannot use", staging, &error))?;
            }
            VolumeSource::Store(Box::new(StoreSource { url, options, state: None }))
        }
        (None, None) => VolumeSource::Tmpfs { size_bytes: arguments.size, used_bytes: 0 },
    };
    let request = Request::VolumeAdd { name: arguments.name.clone(), data, of_node: false };
    match last_reply(&arguments.daemon, &request)? {
        Reply::Volumes { volumes } => {
            print(arguments.daemon.json, &volumes.first(), || format!("volume `{}` added\n", arguments.name))
        }
        other => Err(unexpected(&other)),
    }
}

fn list(arguments: &VolumeListArguments) -> Result<(), Failure> {
    match last_reply(&arguments.daemon, &Request::VolumeList)? {
        Reply::Volumes { volumes } => print(arguments.daemon.json, &volumes, || table(&volumes)),
        other => Err(unexpected(&other)),
    }
}

fn remove(arguments: &VolumeRemoveArguments) -> Result<(), Failure> {
    let request = Request::VolumeRemove {
        name: arguments.name.clone(),
        force: arguments.force,
        flush_timeout_ms: arguments.flush_timeout.map(milliseconds),
    };
    #[derive(Serialize)]
    struct Outcome<'a> {
        lost: &'a [LostFile],
        nr_closed: usize,
    }
    match last_reply(&arguments.daemon, &request)? {
        Reply::Removed { lost, nr_closed } => {
            print(arguments.daemon.json, &Outcome { lost: &lost, nr_closed }, || {
                let closed = match nr_closed {
                    0 => String::new(),
                    nr => format!("; {nr} open files or directories on it get errors now"),
                };
                format!("volume `{}` removed{closed}\n", arguments.name)
            })?;
            if lost.is_empty() { Ok(()) } else { Err(Failure::Lost(lost)) }
        }
        other => Err(unexpected(&other)),
    }
}

fn table(volumes: &[VolumeRow]) -> String {
    let mut table = TextTable::new(&["volume", "data", "used", "size", "open"]);
    for volume in volumes {
        let (data, used, size) = match &volume.data {
            VolumeSource::Dir { path } => (path.display().to_string(), "-".into(), "-".into()),
            VolumeSource::Tmpfs { size_bytes, used_bytes } => {
                let size = size_bytes.map_or_else(|| "unlimited".into(), human_bytes);
                ("tmpfs".into(), human_bytes(*used_bytes), size)
            }
            VolumeSource::Store(store) => {
                let notes = store.state.as_ref().map_or_else(String::new, notes);
                (store.url.clone() + &notes, "-".into(), "-".into())
            }
        };
        table.row([volume.name.clone(), data, used, size, volume.nr_open.to_string()]);
    }
    table.to_string()
}

/// Returns what is wrong with the store of a volume, for the list.
fn notes(state: &StoreState) -> String {
    let mut notes = String::new();
    if state.trouble.is_some() {
        notes.push_str(" (in trouble)");
    }
    let (nr_hidden, more) = (state.hidden_keys.len(), if state.has_more_hidden { "+" } else { "" });
    if nr_hidden > 0 {
        notes.push_str(&format!(" (hidden keys: {nr_hidden}{more})"));
    }
    notes
}

pub(crate) fn print<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let text = if json {
        let line = serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))?;
        line + "\n"
    } else {
        lines(&text()).into_owned()
    };
    crate::output::print(&text)
}

/// Sends a request to the daemon named by the arguments, and returns its last reply.
pub(crate) fn last_reply(which: &DaemonArguments, request: &Request) -> Result<Reply, Failure> {
    let daemon = DaemonAddress::of(which.socket.as_deref(), which.mount.as_deref())?;
    match daemon.last_reply(request)? {
        Reply::Busy { users } => Err(Failure::Busy(users.join(", "))),
        reply => Ok(reply),
    }
}

/// Adds a volume. Waits until another volume or daemon has released its directory.
pub(crate) fn add_when_free(
    daemon: &Daemon,
    name: &str,
    spec: &VolumeSpec,
    until: Instant,
) -> Result<VolumeInfo, AddVolumeError> {
    loop {
        match daemon.add_volume(name, spec) {
            Err(AddVolumeError::Add(AddError::Volume(VolumeError::InUse { .. })))
                if Instant::now() < until =>
            {
                std::thread::sleep(DIRECTORY_LOOK);
            }
            added => return added,
        }
    }
}

/// Returns the failure of a mount whose configured volume was not added. An absent directory, a
/// store that does not answer, or another daemon's directory may be well at the next start, so
/// these are no mistakes of the configuration.
pub(crate) fn failure(error: &AddVolumeError, message: String) -> Failure {
    match error {
        AddVolumeError::Add(AddError::Volume(VolumeError::InUse { .. })) => Failure::Busy(message),
        AddVolumeError::Add(AddError::Volume(_)) | AddVolumeError::Directory { .. } => {
            Failure::Failed(message)
        }
        AddVolumeError::Add(
            AddError::SingleVolume | AddError::Exists(_) | AddError::BadName(_) | AddError::TooMany,
        )
        | AddVolumeError::Nested { .. } => Failure::Usage(message),
    }
}

/// Serves a request about volumes.
pub fn serve(daemon: &Daemon, request: Request, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Reply {
    match request {
        Request::VolumeAdd { name, data, of_node } => {
            let node_root = || std::env::var_os(NODE_ROOT_VARIABLE).unwrap_or(NODE_ROOT.into());
            let checked = if of_node { check_on_node(&data, Path::new(&node_root())) } else { Ok(()) };
            let spec = match checked.and_then(|()| spec_of(&data)) {
                Ok(spec) => spec,
                Err(message) => {
                    return Reply::Failed { message: format!("cannot add the volume: {message}") };
                }
            };
            match add_when_free(daemon, &name, &spec, Instant::now() + ADD_WAIT) {
                Ok(info) => Reply::Volumes { volumes: vec![row_of(&info)] },
                Err(AddVolumeError::Add(AddError::Volume(error @ VolumeError::InUse { .. }))) => {
                    Reply::Busy { users: vec![error.to_string()] }
                }
                Err(error) => Reply::Failed { message: format!("cannot add the volume: {error}") },
            }
        }
        Request::VolumeList => Reply::Volumes { volumes: daemon.list_volumes().iter().map(row_of).collect() },
        Request::VolumeRemove { name, force, .. } => {
            match daemon.remove_volume(&name, force, deadline, progress) {
                Ok(removed) => Reply::Removed {
                    lost: removed.lost.into_iter().map(LostFile::from).collect(),
                    nr_closed: removed.nr_closed,
                },
                Err(RemoveVolumeError::Lost(lost)) => {
                    Reply::Lost { files: lost.into_iter().map(LostFile::from).collect() }
                }
                Err(RemoveVolumeError::Refused(busy @ RemoveError::Busy { .. })) => {
                    Reply::Busy { users: vec![format!("{busy}; --force removes it nevertheless")] }
                }
                Err(error) => Reply::Failed { message: format!("cannot remove the volume: {error}") },
            }
        }
        Request::Sync { .. }
        | Request::Umount { .. }
        | Request::Metrics { .. }
        | Request::Reload
        | Request::PodAdd { .. }
        | Request::PodRemove { .. } => Reply::Failed { message: "not a request about volumes".into() },
    }
}

/// Checks that the directory of a volume, or the staging directory of its store, is the node's. A
/// container may have a directory of its own at the same path: data written to it would be lost
/// with the container.
fn check_on_node(data: &VolumeSource, node_root: &Path) -> Result<(), String> {
    let path = match data {
        VolumeSource::Dir { path } => Some(path),
        VolumeSource::Store(store) => store.options.staging.as_ref(),
        VolumeSource::Tmpfs { .. } => None,
    };
    let Some(path) = path else { return Ok(()) };
    let identity = |root: &Path| {
        // Resolve absolute symlinks below that root, too.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty());
        let found = root.and_then(|root| openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT));
        let found = found.and_then(rustix::fs::fstat);
        found
            .map(|found| (found.st_dev, found.st_ino))
            .map_err(|errno| format!("cannot use {}: {}", path.display(), std::io::Error::from(errno)))
    };
    if identity(Path::new("/"))? == identity(node_root)? {
        return Ok(());
    }
    Err(format!(
        "{0} is not the node's in the container of the daemon; give the daemon's pod the hostPath {0} at \
         the same path",
        path.display()
    ))
}

/// Returns the specification of a volume.
///
/// # Errors
/// A message for the user.
pub fn spec_of(data: &VolumeSource) -> Result<VolumeSpec, String> {
    Ok(match data {
        VolumeSource::Dir { path } => VolumeSpec::Directory(VolumeConfig::one_of_many(PathBuf::clone(path))),
        VolumeSource::Tmpfs { size_bytes, .. } => VolumeSpec::Tmpfs(TmpfsConfig {
            size_bytes: *size_bytes,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..TmpfsConfig::default()
        }),
        VolumeSource::Store(store) => return stores::spec_of(store),
    })
}

fn row_of(info: &VolumeInfo) -> VolumeRow {
    let data = match &info.kind {
        VolumeKind::Directory { dir, .. } => VolumeSource::Dir { path: dir.clone() },
        VolumeKind::Tmpfs { size_bytes, used_bytes } => {
            VolumeSource::Tmpfs { size_bytes: *size_bytes, used_bytes: *used_bytes }
        }
        VolumeKind::Objects(state) => VolumeSource::Store(Box::new(StoreSource::of(state))),
    };
    VolumeRow { name: info.name.clone(), data, nr_open: info.nr_open }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::StoreOptions;

    #[test]
    fn only_a_mistake_of_the_file_is_a_wrong_configuration() {
        let code = |error: AddVolumeError| failure(&error, error.to_string()).code();
        let of_volume = |error| AddVolumeError::Add(AddError::Volume(error));
        let (dir, errno) = (PathBuf::from("/d"), rustix::io::Errno::NOENT);
        assert_eq!(code(AddVolumeError::Add(AddError::BadName("..".into()))), 2);
        assert_eq!(code(AddVolumeError::Nested { dir: dir.clone(), point: dir.clone() }), 2);
        let error = std::io::ErrorKind::NotFound.into();
        assert_eq!(code(AddVolumeError::Directory { dir: dir.clone(), error }), 1);
        assert_eq!(code(of_volume(VolumeError::Open { dir: dir.clone(), errno })), 1);
        let error = umemcg_vfs::bucket::BucketError::Unavailable("no answer".into());
        assert_eq!(code(of_volume(VolumeError::Bucket { url: "s3://b".into(), error })), 1);
        assert_eq!(code(of_volume(VolumeError::InUse { dir })), 5);
    }

    #[test]
    fn the_list_tells_trouble_and_hidden_keys() {
        let notes = |trouble: Option<&str>, hidden: &[&str], more: bool| {
            let state = serde_json::json!({
                "trouble": trouble, "gets": 0, "heads": 0, "lists": 0, "read_bytes": 0, "refusals": 0,
                "failures": 0, "hidden_keys": hidden, "has_more_hidden": more,
            });
            notes(&serde_json::from_value(state).unwrap())
        };
        assert_eq!(notes(None, &[], false), "");
        assert_eq!(notes(None, &["a/", "x//"], false), " (hidden keys: 2)");
        assert_eq!(notes(Some("503"), &["a/"], true), " (in trouble) (hidden keys: 1+)");
    }

    #[test]
    fn a_directory_is_the_nodes_or_refused() {
        let (container, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = container.path().join("data");
        std::fs::create_dir(&path).unwrap();
        let data = VolumeSource::Dir { path: path.clone() };
        check_on_node(&data, Path::new("/")).unwrap();
        let of_node = node.path().join(path.strip_prefix("/").unwrap());
        assert!(check_on_node(&data, node.path()).unwrap_err().contains("cannot use"), "the node has none");
        std::fs::create_dir_all(&of_node).unwrap();
        assert!(check_on_node(&data, node.path()).unwrap_err().contains("hostPath"), "another at that path");
        // A symlink passes if the node's symlink leads to the same directory.
        let (link, of_node) = (container.path().join("link"), of_node.with_file_name("link"));
        for link in [&link, &of_node] {
            std::os::unix::fs::symlink(&path, link).unwrap();
        }
        check_on_node(&VolumeSource::Dir { path: link.clone() }, Path::new("/")).unwrap();
        assert!(check_on_node(&VolumeSource::Dir { path: link }, node.path()).is_err());
        let store = |staging: Option<&Path>| {
            let options = StoreOptions { staging: staging.map(Path::to_owned), ..StoreOptions::default() };
            VolumeSource::Store(Box::new(StoreSource { url: "s3://b".into(), options, state: None }))
        };
        check_on_node(&store(Some(&path)), Path::new("/")).unwrap();
        assert!(check_on_node(&store(Some(&path)), node.path()).unwrap_err().contains("hostPath"));
        check_on_node(&store(None), node.path()).unwrap();
        check_on_node(&VolumeSource::Tmpfs { size_bytes: None, used_bytes: 0 }, node.path()).unwrap();
    }
}
