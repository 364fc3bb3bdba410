//! A socket in front of the daemon's, which holds requests back, or answers them in its place.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use tempfile::TempDir;

/// What becomes of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The daemon answers.
    Open,
    /// Those of this kind wait.
    Held(&'static str),
    /// None reaches the daemon: it has no volume, and everything is done.
    Made,
}

pub struct SlowDaemon {
    dir: TempDir,
    way: Arc<(Mutex<Way>, Condvar)>,
}

impl SlowDaemon {
    pub fn new() -> Self {
        let slow = Self {
            dir: tempfile::tempdir().unwrap(),
            way: Arc::new((Mutex::new(Way::Open), Condvar::new())),
        };
        let listener = UnixListener::bind(slow.socket()).unwrap();
        let (daemon, way) = (slow.behind(), Arc::clone(&slow.way));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, daemon, way) = (stream.unwrap(), daemon.clone(), Arc::clone(&way));
                // Either end may leave.
                std::thread::spawn(move || drop(pass_on(&stream, &daemon, &way)));
            }
        });
        slow
    }

    /// The socket of the daemon.
    pub fn behind(&self) -> PathBuf {
        self.dir.path().join("daemon.sock")
    }

    /// The socket in front of it.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("slow.sock")
    }

    pub fn set(&self, way: Way) {
        *self.way.0.lock().unwrap() = way;
        self.way.1.notify_all();
    }
}

fn pass_on(mut stream: &UnixStream, daemon: &Path, way: &(Mutex<Way>, Condvar)) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(stream).read_line(&mut request)?;
    let is_held = |way: &mut Way| matches!(way, Way::Held(kind) if request.contains(&**kind));
    let way = *way.1.wait_while(way.0.lock().unwrap(), is_held).unwrap();
    if way == Way::Made {
        let answer = match request.contains("volume_list") {
            true => "{\"answer\":\"volumes\",\"volumes\":[]}\n",
            false => "{\"answer\":\"done\"}\n",
        };
        return stream.write_all(answer.as_bytes());
    }
    let mut behind = UnixStream::connect(daemon)?;
    behind.write_all(request.as_bytes())?;
    std::io::copy(&mut behind, &mut stream).map(drop)
}
