//! A server, a mount of one of its buckets, with a staging directory or without, and what can be
//! seen of both from outside.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::harness::{Mount, Options, is_mounted, until};
use crate::weed::Weed;

const POOL: &str = "128M";

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// By way of a staging directory.
    Staged,
    /// Without a staging directory.
    Streamed,
}

/// See the module text.
pub struct World {
    pub weed: Weed,
    pub mount: Mount,
    endpoint: String,
    staging: TempDir,
    writes: Writes,
}

/// A file that did not reach the store.
pub struct Lost {
    pub key: String,
    /// An upload in parts of it had begun, so all of it is there.
    pub is_whole: bool,
    pub bytes: Vec<u8>,
}

impl World {
    /// Starts both on new directories.
    pub fn start(writes: Writes) -> Self {
        let weed = Weed::start(true);
        until("there is a bucket", || {
            weed.request("PUT", "/bucket", b"").is_ok_and(|(status, _)| [200, 409].contains(&status))
        });
        wait_until_it_stores(&weed);
        let (endpoint, staging) = (weed.endpoint(), tempfile::tempdir().unwrap());
        let data = Some(PathBuf::from("s3://bucket/p"));
        let arguments = arguments(&endpoint, staging.path(), writes);
        let mount = Mount::start_with(&Options { pool: POOL, data, arguments, ..Options::default() });
        Self { weed, mount, endpoint: endpoint.clone(), staging, writes }
    }

    /// Takes out of the tree what a daemon has left that is dead.
    pub fn detach(&self) {
        for path in [self.mount.mnt(), self.mount.cg()] {
            if is_mounted(&path) {
                unmount(path.as_path(), UnmountFlags::DETACH).unwrap();
            }
        }
    }

    pub fn mount_again(&mut self) {
        let pool = ["--pool", POOL];
        let more = arguments(&self.endpoint, self.staging.path(), self.writes);
        self.mount.start_daemon(&[&pool[..], &more].concat());
    }

    pub fn start_server_again(&mut self) {
        self.weed.start_again();
        wait_until_it_stores(&self.weed);
    }

    /// Waits until the server has taken note of the death of its clients: until then it may begin
    /// what they have asked for.
    pub fn wait_until_none_is_connected(&self) {
        const ESTABLISHED_OR_CLOSING: [&str; 2] = ["01", "08"];
        let port = format!(":{:04X}", self.weed.port());
        until("the server has no client", || {
            ["tcp", "tcp6"].iter().all(|kind| {
                let sockets = fs::read_to_string(format!("/proc/net/{kind}")).unwrap();
                !sockets.lines().skip(1).any(|line| {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    words[1].ends_with(&port) && ESTABLISHED_OR_CLOSING.contains(&words[3])
                })
            })
        });
    }

    /// Returns the object of a name, as the server gives it to others.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        let (status, body) = self.weed.request("GET", &format!("/bucket/p/{name}"), b"").unwrap();
        match status {
            200 => Some(body),
            404 => None,
            _ => panic!("GET of {name}: {status} {}", String::from_utf8_lossy(&body)),
        }
    }

    /// Returns what the mount shows of a name.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        let read = || fs::read(self.mount.mnt().join(name));
        // The kernel lets go of a file after the answer to its close.
        until("no stream is open", || !read().is_err_and(|error| error.kind() == ErrorKind::ResourceBusy));
        match read() {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            read => Some(read.unwrap_or_else(|error| panic!("reading {name}: {error}"))),
        }
    }

    /// Returns the keys below the prefix.
    pub fn keys(&self) -> BTreeSet<String> {
        let listed = self.list("/bucket?list-type=2&prefix=p/");
        values(&listed, "Key").map(|key| key.trim_start_matches("p/").to_owned()).collect()
    }

    /// Returns the ids of the uploads in parts that are not over.
    pub fn uploads(&self) -> Vec<String> {
        values(&self.list("/bucket?uploads"), "UploadId").map(str::to_owned).collect()
    }

    fn list(&self, path: &str) -> String {
        let (status, body) = self.weed.request("GET", path, b"").unwrap();
        let text = String::from_utf8(body).unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        text
    }

    /// Returns the volume's subdirectory of the staging directory.
    fn staged_dir(&self) -> PathBuf {
        let mut dirs = fs::read_dir(self.staging.path()).unwrap();
        dirs.next().expect("the volume has a directory").unwrap().path()
    }

    /// Returns whether an upload in parts is noted there, or goes on without a note.
    pub fn has_noted_upload(&self) -> bool {
        if self.writes == Writes::Streamed {
            return !self.uploads().is_empty();
        }
        let records = fs::read_dir(self.staged_dir()).unwrap().flatten().map(|entry| entry.path());
        records
            .filter_map(|path| fs::read_to_string(path).ok())
            .any(|text| text.starts_with("umemcg draft") && text.contains("\nupload "))
    }

    /// Returns the drafts and records there.
    pub fn drafts(&self) -> Vec<String> {
        if self.writes == Writes::Streamed {
            return Vec::new();
        }
        let entries = fs::read_dir(self.staged_dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lost" && name != "volume").collect()
    }

    /// Takes away and returns what did not reach the store.
    pub fn take_lost(&self) -> Vec<Lost> {
        if self.writes == Writes::Streamed {
            return Vec::new();
        }
        let dir = self.staged_dir().join("lost");
        let paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        let drafts = paths.iter().filter(|path| path.extension().is_none());
        let lost = drafts.map(|path| {
            let record = fs::read_to_string(path.with_extension("record"));
            let record = record.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let value =
                |word: &str| record.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned);
            Lost {
                key: value("key ").expect("a key"),
                is_whole: value("upload ").is_some(),
                bytes: fs::read(path).unwrap(),
            }
        });
        let lost: Vec<_> = lost.collect();
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        lost
    }
}

fn arguments<'a>(endpoint: &'a str, staging: &'a Path, writes: Writes) -> Vec<&'a str> {
    let staging = staging.to_str().unwrap();
    let how: &[&str] = match writes {
        Writes::Staged => &["--staging", staging],
        Writes::Streamed => &["--writes", "streamed"],
    };
    [&["--endpoint", endpoint, "--region", "us-east-1"], how].concat()
}

/// It listens before it can store, and finds what it has stored.
fn wait_until_it_stores(weed: &Weed) {
    let is_good = |method: &str, body: &[u8]| {
        weed.request(method, "/bucket/ready", body).is_ok_and(|(status, _)| status == 200)
    };
    until("the server stores", || is_good("PUT", b"1") && is_good("GET", b""));
}

/// Returns the contents of the elements of one name.
fn values<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let found: Vec<&str> =
        text.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0)).collect();
    found.into_iter()
}
