//! The admin socket of a mount's daemon, for `umemcg sync`, `umount`, `volume` and `csi`. Only its
//! owner may open it.
//!
//! Both ends derive the socket's name from the device number of the mounted file system. The kernel
//! gives a device number to one mounted file system at a time. So a name always means the current
//! mount, however often its path was mounted before. The next daemon of that user with that number
//! removes a socket left by a dead daemon.
//!
//! A connection carries one request and one or more replies, each one line of JSON. The daemon
//! serves only its own user and root.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umemcg_base::clock::Worker;
use umemcg_base::own_directory::{check_above, make_own};
use umemcg_fuse::mountinfo::Mount;

use crate::acceptor::{AGAIN_AFTER, Acceptor};
use crate::exit::LostFile;
use crate::stores::StoreSource;

/// The longest request line, in bytes. A longer line is refused.
const MAX_REQUEST_BYTES: u64 = 16 << 10;
/// The timeout of a peer for sending its request, and for receiving each part of a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections served at a time; others get [`Reply::TooMany`].
const NR_CONNECTIONS_MAX: usize = 32;

/// Where the data of a volume is kept.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VolumeSource {
    /// In a directory of the host.
    Dir {
        /// Its absolute path.
        path: PathBuf,
    },
    /// In the pool.
    Tmpfs {
        /// Its size limit in bytes; if absent, only the limits of groups apply.
        size_bytes: Option<u64>,
        /// Its used bytes; set by the daemon.
        #[serde(default)]
        used_bytes: u64,
    },
    /// In an object store.
    Store(Box<StoreSource>),
}

/// A volume in a listing.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeRow {
    /// Its name.
    pub name: String,
    /// Where its data is kept.
    pub data: VolumeSource,
    /// The number of files and directories open on it.
    pub nr_open: usize,
}

/// A request of a client to the daemon.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Make all earlier writes durable.
    Sync {
        /// How long to try; the mount's own setting if absent.
        flush_timeout_ms: Option<u64>,
    },
    /// Make everything durable, then unmount and end the daemon.
    Umount {
        /// How long to try; the mount's own setting if absent.
        flush_timeout_ms: Option<u64>,
    },
    /// Add a volume.
    VolumeAdd {
        /// Its name.
        name: String,
        /// Where its data is kept.
        data: VolumeSource,
        /// A directory is a directory of the node, even if the daemon is in a container.
        #[serde(default)]
        of_node: bool,
    },
    /// Read the configuration again, and apply it.
    Reload,
    /// Return the metrics.
    Metrics {
        /// Levels below the root; all if absent.
        depth: Option<usize>,
    },
    /// List the volumes.
    VolumeList,
    /// Place the processes of a pod into a group.
    PodAdd {
        /// The pod's uid.
        uid: String,
        /// The path of the group.
        group: String,
    },
    /// Remove the rule for a pod.
    PodRemove {
        /// The pod's uid.
        uid: String,
    },
    /// Make a volume durable and remove it.
    VolumeRemove {
        /// Its name.
        name: String,
        /// Remove it even if it is in use or cannot be made durable.
        force: bool,
        /// How long to try; the mount's own setting if absent.
        flush_timeout_ms: Option<u64>,
    },
}

/// A reply of the daemon. `Progress` may come many times; any other is the last.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// Progress of a flush.
    Progress {
        /// Bytes not yet durable.
        dirty_bytes: u64,
    },
    /// Everything is durable, and unmounted if that was requested.
    Done,
    /// All volumes, or the newly added volume.
    Volumes {
        /// The volumes, in the order of their addition.
        volumes: Vec<VolumeRow>,
    },
    /// The configuration has been read again.
    Reloaded(Reloaded),
    /// The metrics.
    Metrics {
        /// The metrics in the OpenMetrics format.
        text: String,
    },
    /// The volume has been removed.
    Removed {
        /// The files that are not durable; empty without force.
        lost: Vec<LostFile>,
        /// The number of open files and directories that return errors from now on; 0 without
        /// force.
        nr_closed: usize,
    },
    /// Some data is not durable. After `Umount` the mount is gone nevertheless.
    Lost {
        /// The files that are not durable.
        files: Vec<LostFile>,
    },
    /// Everything is durable, but the mount is in use and remains.
    Busy {
        /// The processes using it, as far as the daemon can see.
        users: Vec<String>,
    },
    /// Too many requests are served at the same time; this one has not begun.
    TooMany,
    /// The request failed.
    Failed {
        /// The reason.
        message: String,
    },
}

/// The result of a reload of the configuration, as human-readable lines.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Reloaded {
    /// The changes.
    pub changed: Vec<String>,
    /// Settings of the file that are not in force, with the reason.
    pub left: Vec<String>,
}

/// Serves requests, each on its own thread.
pub trait Serve: Send + Sync + 'static {
    /// Serves a request. May block. May call `progress` any number of times. Returns the last
    /// reply.
    fn serve(&self, request: Request, progress: &mut dyn FnMut(Reply)) -> Reply;

    /// Called when a connection has been accepted.
    fn begin(&self) {}

    /// Called when the last reply of a connection has been sent, or its peer has gone.
    fn end(&self) {}
}

/// The daemon's end. Dropping it removes the socket files. Requests in progress continue.
#[derive(Debug, Default)]
pub struct Endpoint {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    path: PathBuf,
    /// Device and inode of the bound socket file. The kernel reuses a device number as soon as its
    /// mount is gone, so another daemon may already listen under the same name.
    identity: (u64, u64),
    listener: Arc<UnixListener>,
    /// (A) Relaxed: the shutdown of the socket follows, or the next look.
    has_ended: Arc<AtomicBool>,
    worker: Option<Worker>,
}

impl Socket {
    /// Removes the file unless another daemon has replaced it.
    fn remove_file(&self) {
        let _names = lock_names(&self.path);
        let is_ours = identity_of(&self.path).is_ok_and(|identity| identity == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Waits for the lock of the directory of `path`. Other daemons cannot change names there until the
/// result is dropped.
fn lock_names(path: &Path) -> io::Result<fs::File> {
    let directory = fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(directory)
}

impl Endpoint {
    /// Listens for each of these mounts (data and control are two mounts of one daemon).
    ///
    /// # Errors
    /// When the directory for sockets cannot be created, is not ours, or a socket cannot be bound.
    pub fn listen(mounts: &[&Mount], serve: &Arc<dyn Serve>) -> io::Result<Self> {
        let me = rustix::process::geteuid().as_raw();
        let directory = directory_of(me, true);
        make_own(&directory, me)?;
        let mut endpoint = Self { sockets: Vec::new() };
        for mount in mounts {
            endpoint.bind(socket_path(&directory, &mount.device), serve)?;
        }
        Ok(endpoint)
    }

    /// Also listens at a path. Replaces only a socket left by a dead daemon.
    ///
    /// # Errors
    /// `AddrInUse` if a daemon listens there or the path is not a socket; `PermissionDenied` if
    /// another user may change names there; the system's errors.
    pub fn listen_at(&mut self, path: &Path, serve: &Arc<dyn Serve>) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        check_above(&path, rustix::process::geteuid().as_raw())?;
        if let Ok(metadata) = fs::symlink_metadata(&path) {
            if !metadata.file_type().is_socket() || UnixStream::connect(&path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            fs::remove_file(&path)?;
        }
        self.bind(path, serve)
    }

    fn bind(&mut self, path: PathBuf, serve: &Arc<dyn Serve>) -> io::Result<()> {
        // Bound under a temporary name until only the owner may open it.
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&draft);
        let listener = Arc::new(UnixListener::bind(&draft)?);
        let identity = identity_of(&draft)?;
        let placed = fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).and_then(|()| {
            let _names = lock_names(&path)?;
            fs::rename(&draft, &path)
        });
        placed.inspect_err(|_| drop(fs::remove_file(&draft)))?;
        let (accepting, serve) = (Arc::clone(&listener), Arc::clone(serve));
        let has_ended = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&has_ended);
        let socket = Socket { path, identity, listener, has_ended, worker: None };
        let worker = Worker::spawn("umemcg-endpoint", move || accept_all(&accepting, &serve, &ends));
        let worker = worker.inspect_err(|_| socket.remove_file())?;
        self.sockets.push(Socket { worker: Some(worker), ..socket });
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for socket in &mut self.sockets {
            socket.remove_file();
            socket.has_ended.store(true, Ordering::Relaxed);
            // `accept` fails then, and the accepting thread ends.
            let _ = rustix::net::shutdown(&socket.listener, rustix::net::Shutdown::Both);
            drop(socket.worker.take());
        }
    }
}

fn accept_all(listener: &UnixListener, serve: &Arc<dyn Serve>, ends: &AtomicBool) {
    let nr_open: Arc<()> = Arc::new(());
    let mut acceptor = Acceptor::new(
        || listener.accept().map(|(stream, _)| stream),
        || rustix::io::fcntl_dupfd_cloexec(listener, 0).ok(),
        || {
            std::thread::sleep(AGAIN_AFTER);
            !ends.load(Ordering::Relaxed)
        },
    );
    while let Some(stream) = acceptor.next() {
        let counted = Arc::clone(&nr_open);
        if Arc::strong_count(&nr_open) > NR_CONNECTIONS_MAX + 1 {
            refuse(&stream);
            continue;
        }
        let (stream, begun) = (Arc::new(stream), Begun::new(Arc::clone(serve)));
        let of_thread = Arc::clone(&stream);
        let spawned = std::thread::Builder::new().name("umemcg-request".into()).spawn(move || {
            if let Err(error) = answer(&of_thread, &*begun.0) {
                tracing::debug!(%error, "a request on the socket failed");
            }
            drop(counted);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread for a request on the socket");
            refuse(&stream);
        }
    }
}

/// Sends a client the reply to try again. Never waits for the client.
fn refuse(stream: &UnixStream) {
    let _ = stream.set_nonblocking(true).and_then(|()| send(stream, &Reply::TooMany));
}

/// A connection in service.
struct Begun(Arc<dyn Serve>);

impl Begun {
    fn new(serve: Arc<dyn Serve>) -> Self {
        serve.begin();
        Self(serve)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn answer(stream: &UnixStream, serve: &dyn Serve) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let myself = rustix::process::geteuid();
    if !peer.uid.is_root() && peer.uid != myself {
        return send(
            stream,
            &Reply::Failed { message: "only the user that mounted it, or root, may request that".into() },
        );
    }
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let line = read_request(stream)?;
    let request = match serde_json::from_slice(&line) {
        Ok(request) => request,
        Err(error) => {
            return send(stream, &Reply::Failed { message: format!("request not understood: {error}") });
        }
    };
    tracing::debug!(?request, "request on the socket");
    // A client that disconnects does not cancel its request.
    let last = serve.serve(request, &mut |progress| drop(send(stream, &progress)));
    send(stream, &last)
}

/// Reads one line, up to the length limit of a request. The timeout covers the whole line, so a
/// client sending single bytes cannot hold the thread.
fn read_request(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while line.len() < MAX_REQUEST_BYTES as usize && !line.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            nr => line.extend_from_slice(&piece[..nr]),
        }
    }
    Ok(line)
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Returns the candidate sockets of a mount's daemon: in the directory of this user, of the
/// mounting user, and in the fallback directory of the mounting user.
pub fn sockets_of(mount: &Mount) -> Vec<PathBuf> {
    let mut directories = vec![directory_of(rustix::process::geteuid().as_raw(), true)];
    directories.extend(mount.fuse_owner().map(|owner| directory_of(owner, false)));
    directories.extend(mount.fuse_owner().map(fallback_directory));
    directories.iter().map(|directory| socket_path(directory, &mount.device)).collect()
}

fn socket_path(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("{}.sock", device.replace(':', "-")))
}

/// Removes the socket that an earlier daemon has left for the device number of a new mount. A
/// killed daemon that cannot end still has it open after its mount is gone.
pub fn remove_left(device: &str) {
    let directory = directory_of(rustix::process::geteuid().as_raw(), true);
    let _ = fs::remove_file(socket_path(&directory, device));
}

/// Returns the directory of a user's sockets. Uses the environment only with `mine`: `uid` is our
/// own user.
fn directory_of(uid: u32, mine: bool) -> PathBuf {
    let from_environment =
        std::env::var_os("XDG_RUNTIME_DIR").filter(|_| mine && uid != 0).map(PathBuf::from);
    match (uid, from_environment) {
        (0, _) => PathBuf::from("/run/umemcg"),
        (_, Some(directory)) if is_owned_by(&directory, uid) => directory.join("umemcg"),
        _ => {
            let usual = PathBuf::from(format!("/run/user/{uid}"));
            if usual.is_dir() { usual.join("umemcg") } else { fallback_directory(uid) }
        }
    }
}

fn fallback_directory(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/umemcg-{uid}"))
}

fn is_owned_by(directory: &Path, uid: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{AskError, ask, connect};
    use std::io::{BufRead, BufReader};

    struct Twice;

    impl Serve for Twice {
        fn serve(&self, request: Request, progress: &mut dyn FnMut(Reply)) -> Reply {
            progress(Reply::Progress { dirty_bytes: 2 });
            match request {
                Request::Sync { .. } => Reply::Done,
                Request::Umount { .. } => Reply::Busy { users: vec!["bash (12)".into()] },
                _ => Reply::Failed { message: "not here".into() },
            }
        }
    }

    /// Returns a mount that does not exist: FUSE never gets device numbers of this major.
    fn imaginary_mount(minor: u32) -> Mount {
        let uid = rustix::process::geteuid().as_raw();
        let line = format!("1 1 4095:{minor} / /nowhere rw - fuse.umemcg x rw,user_id={uid}\n");
        umemcg_fuse::mountinfo::parse(line.as_bytes()).next_back().unwrap()
    }

    #[test]
    fn a_client_finds_the_daemon_of_its_mount() {
        let minor = std::process::id();
        let mount = imaginary_mount(minor);
        let serve: Arc<dyn Serve> = Arc::new(Twice);
        let endpoint = Endpoint::listen(&[&mount], &serve).unwrap();
        let mut seen = Vec::new();
        let reply =
            ask(&mount, &Request::Sync { flush_timeout_ms: None }, None, &mut |bytes| seen.push(bytes))
                .unwrap();
        assert_eq!((reply, seen), (Reply::Done, vec![2]));
        let reply = ask(&mount, &Request::Umount { flush_timeout_ms: Some(5) }, None, &mut |_| {}).unwrap();
        assert_eq!(reply, Reply::Busy { users: vec!["bash (12)".into()] });
        let socket = endpoint.sockets[0].path.clone();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);

        drop(endpoint);
        assert!(!socket.exists());
        assert!(matches!(
            ask(&mount, &Request::Sync { flush_timeout_ms: None }, None, &mut |_| {}),
            Err(AskError::NoDaemon)
        ));
    }

    #[test]
    fn an_ending_daemon_leaves_the_socket_of_its_successor() {
        let mount = imaginary_mount(std::process::id() + (1 << 23));
        let serve: Arc<dyn Serve> = Arc::new(Twice);
        let before = Endpoint::listen(&[&mount], &serve).unwrap();
        let after = Endpoint::listen(&[&mount], &serve).unwrap();
        drop(before);
        assert_eq!(
            ask(&mount, &Request::Sync { flush_timeout_ms: None }, None, &mut |_| {}).unwrap(),
            Reply::Done
        );
        drop(after);
        assert!(matches!(connect(&mount, None), Err(AskError::NoDaemon)));
    }

    #[test]
    fn no_socket_is_made_where_others_may_change_names() {
        let directory = tempfile::tempdir().unwrap();
        let serve: Arc<dyn Serve> = Arc::new(Twice);
        let path = directory.path().join("socket");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Endpoint::default().listen_at(&path, &serve).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        Endpoint::default().listen_at(&path, &serve).unwrap();
    }

    #[test]
    fn a_new_mount_does_not_have_the_socket_of_an_earlier_one() {
        let mount = imaginary_mount(std::process::id() + (3 << 23));
        let serve: Arc<dyn Serve> = Arc::new(Twice);
        let _before = Endpoint::listen(&[&mount], &serve).unwrap();
        drop(connect(&mount, None).unwrap());
        remove_left(&mount.device);
        assert!(matches!(connect(&mount, None), Err(AskError::NoDaemon)));
    }

    /// Requests block while a test holds the lock.
    impl Serve for std::sync::Mutex<()> {
        fn serve(&self, _: Request, _: &mut dyn FnMut(Reply)) -> Reply {
            self.lock().map_or(Reply::Done, |_| Reply::Done)
        }
    }

    #[test]
    fn a_request_too_many_is_told_so() {
        let mount = imaginary_mount(std::process::id() + (1 << 25));
        let lock = Arc::new(std::sync::Mutex::new(()));
        let _endpoint = Endpoint::listen(&[&mount], &(Arc::clone(&lock) as Arc<dyn Serve>)).unwrap();
        let held = lock.lock().unwrap();
        let begin = |_| {
            let mut stream = connect(&mount, None).unwrap();
            stream.write_all(b"{\"do\":\"volume_list\"}\n").unwrap();
            stream
        };
        let hung: Vec<UnixStream> = (0..NR_CONNECTIONS_MAX).map(begin).collect();
        assert!(matches!(ask(&mount, &Request::VolumeList, None, &mut |_| {}), Err(AskError::TooMany)));
        drop((held, hung));
    }

    #[test]
    fn a_line_that_is_no_request_is_answered_with_an_error() {
        let mount = imaginary_mount(std::process::id() + (1 << 24));
        let serve: Arc<dyn Serve> = Arc::new(Twice);
        let _endpoint = Endpoint::listen(&[&mount], &serve).unwrap();
        for nonsense in [&b"hello\n"[..], b"{}\n", &[b'x'; 5000][..]] {
            let mut stream = connect(&mount, None).unwrap();
            // The server may close the connection before an endless line has been sent.
            let _ = stream.write_all(nonsense);
            let mut answer = String::new();
            let _ = BufReader::new(&stream).read_line(&mut answer);
            assert!(answer.is_empty() || answer.contains("not understood"), "{answer}");
        }
        assert_eq!(
            ask(&mount, &Request::Sync { flush_timeout_ms: None }, None, &mut |_| {}).unwrap(),
            Reply::Done
        );
    }
}
