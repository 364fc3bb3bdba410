//! SeaweedFS as a process on a directory, which can be killed and started again.
//!
//! Without a library, so that tests of other crates have it, too.
#![allow(dead_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub const KEY: &str = "umemcg-test";
pub const SECRET: &str = "umemcg-test-secret";

/// How long it may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may be silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a program of the virtual environment.
pub fn installed(program: &str) -> PathBuf {
    let directory = std::env::var_os("OBJECT_SERVERS").expect("OBJECT_SERVERS (make test-object sets it)");
    PathBuf::from(directory).join("bin").join(program)
}

/// Returns four free ports. The port 10,000 above each is free as well: SeaweedFS takes both. All
/// are below the range of outgoing connections. A locked file keeps each from the tests of other
/// processes until this process ends.
pub fn free_pairs() -> [u16; 4] {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap();
    let is_free = |port: &u16| {
        let path = std::env::temp_dir().join(format!("umemcg-test-port-{port}.lock"));
        let file = File::options().create(true).append(true).open(path).unwrap();
        let is_ours = file.try_lock().is_ok();
        let listens = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let is_free = is_ours && listens(*port) && listens(port + 10_000);
        if is_free {
            taken.push(file);
        }
        is_free
    };
    // Not all at the same port, so that few ask for one in vain.
    let first = std::process::id() % 1200 * 10;
    let ports = (0..12_000).map(|more| 10_000 + ((first + more) % 12_000) as u16);
    let ports: Vec<u16> = ports.filter(is_free).take(4).collect();
    ports.try_into().expect("four free ports")
}

/// A server, which ends with it.
pub struct Weed {
    directory: tempfile::TempDir,
    ports: [u16; 4],
    child: Option<Child>,
}

impl Weed {
    /// Starts one on a new directory, and waits until it listens. If it is `open`, it does
    /// everything for those that do not say their name, too.
    pub fn start(is_open: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let anonymous = r#"{"name":"anonymous","actions":["Admin","Read","Write","List","Tagging"]},"#;
        let json = format!(
            r#"{{"identities":[{}{{"name":"t","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],
            "actions":["Admin","Read","Write","List","Tagging"]}}]}}"#,
            if is_open { anonymous } else { "" }
        );
        std::fs::write(directory.path().join("s3.json"), json).unwrap();
        let mut weed = Self { directory, ports: free_pairs(), child: None };
        weed.start_again();
        weed
    }

    /// Starts it again on its directory, and waits until it listens.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "one process at a time");
        let (directory, ports) = (self.directory.path().display(), self.ports);
        let mut command = Command::new(installed("weed"));
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=200", "-filer", "-s3"]);
        command.arg("-master.volumeSizeLimitMB=64").arg(format!("-dir={directory}"));
        command.arg(format!("-master.port={}", ports[0])).arg(format!("-volume.port={}", ports[1]));
        command.arg(format!("-filer.port={}", ports[2])).arg(format!("-s3.port={}", ports[3]));
        command.arg(format!("-s3.config={directory}/s3.json"));
        // Else it waits for other masters for a while.
        command.args(["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]);
        // Catalogs on fixed ports, of which a machine has one each.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        let log = File::create(self.directory.path().join("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let child = self.child.insert(child);
        let until = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", ports[3])).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{command:?} has ended");
            assert!(Instant::now() < until, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns its process, while it runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn port(&self) -> u16 {
        self.ports[3]
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Sends a request, of one that does not say its name, to a server that is open. Returns the
    /// status and the body of the answer.
    ///
    /// # Errors
    /// The connection's.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port()))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        // Version 1.0: the answer comes in one piece, and ends with the connection.
        let head =
            format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let is_broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(is_broken)? + 4;
        let body = answer.split_off(end);
        let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(is_broken)?;
        let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if len.is_some_and(|len| len != body.len()) && method != "HEAD" {
            return Err(is_broken());
        }
        Ok((status, body))
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}
