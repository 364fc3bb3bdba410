//! The start of a mount of a store: a signal that comes while it is awaited, what the mount says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{PROGRAM, is_mounted, needs_mount, patiently, run, until};

/// Starts a mount of a store that takes connections and never answers; returns when it was asked.
fn waiting(store: &TcpListener, arguments: &[&str]) -> (Child, std::net::TcpStream) {
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "--pool", "64M"]).args(arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    store.set_nonblocking(true).unwrap();
    let mut connection = None;
    until("the store is asked", || {
        connection = store.accept().ok();
        connection.is_some()
    });
    (child, connection.unwrap().0)
}

fn ends(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = patiently(None, &mut child);
    // Sooner than the store is given up, which is a failure.
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
}

#[test]
fn a_signal_ends_a_start_that_waits_for_a_store() {
    needs_mount!();
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let place = tempfile::tempdir().unwrap();
    let mnt = place.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let point = mnt.to_str().unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let of_store = ["--endpoint", &endpoint, "--region", "x", "--anonymous", "s3://b", point];
        let (child, _connection) = waiting(&store, &of_store);
        ends(child, signal);
        assert!(!is_mounted(&mnt));
    }
}

#[test]
fn a_signal_while_a_later_volume_is_awaited_flushes_first() {
    needs_mount!();
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = store.local_addr().unwrap();
    let place = tempfile::tempdir().unwrap();
    let (mnt, config) = (place.path().join("mnt"), place.path().join("umemcg.toml"));
    fs::create_dir_all(place.path().join("data")).unwrap();
    fs::create_dir(&mnt).unwrap();
    let far =
        format!("store = \"s3://b\"\nendpoint = \"http://{endpoint}\"\nregion = \"x\"\nanonymous = true\n");
    fs::write(&config, format!("[volumes.data]\ndir = \"data\"\n[volumes.far]\n{far}")).unwrap();
    let arguments = ["--config", config.to_str().unwrap(), mnt.to_str().unwrap()];
    let (child, _connection) = waiting(&store, &arguments);
    fs::write(mnt.join("data/f"), "accepted").unwrap();
    ends(child, Signal::TERM);
    assert!(!is_mounted(&mnt));
    assert_eq!(fs::read(place.path().join("data/f")).unwrap(), b"accepted");
}

/// A server with a certificate that `ca.pem` has signed, and one object.
const SERVER: &str = "
import http.server, ssl, sys
LISTING = b'<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>5</Size>' \\
    b'<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"e\"</ETag></Contents></ListBucketResult>'
class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = LISTING if 'list-type' in self.path else b'there'
        self.send_response(200)
        for field in ('Content-Length', str(len(body))), ('ETag', '\"e\"'), ('Last-Modified', 'Thu, 01 Jan 2026 00:00:00 GMT'):
            self.send_header(*field)
        self.end_headers()
        if self.command == 'GET': self.wfile.write(body)
    do_HEAD = do_GET
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Server)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()";

const CERTIFICATES: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=authority -days 2
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request -subj /CN=localhost
echo subjectAltName=DNS:localhost > names
openssl x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days 2 -out cert.pem";

#[test]
fn an_authority_of_the_environment_is_believed() {
    needs_mount!();
    let place = tempfile::tempdir().unwrap();
    let mnt = place.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let mut shell = Command::new("sh");
    let made = shell.args(["-ec", CERTIFICATES]).current_dir(place.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut server = Command::new("setpriv");
    server.args(["--pdeathsig", "KILL", "python3", "-c", SERVER]).current_dir(place.path());
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let endpoint = format!("https://localhost:{}", port.trim());
    let mount = |bundle: Option<&str>| {
        let mut command = Command::new(PROGRAM);
        command.args(["mount", "--pool", "64M", "--endpoint", &endpoint, "--region", "x", "--anonymous"]);
        command.args(["s3://b", mnt.to_str().unwrap()]).current_dir(place.path());
        command.env_remove("AWS_CA_BUNDLE").env("NO_PROXY", "localhost");
        command.envs(bundle.map(|bundle| ("AWS_CA_BUNDLE", bundle)));
        command
    };
    for (bundle, why) in [
        (None, "certificate"),
        (Some("none.pem"), "none.pem: No such file"),
        (Some("key.pem"), "key.pem: no certificate is in it"),
    ] {
        run(None, mount(bundle)).bad(why);
    }
    let mut daemon = mount(Some("ca.pem")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(fs::read(mnt.join("a")).unwrap(), b"there", "{line}");
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(patiently(None, &mut daemon).success());
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_volume_that_is_never_written_to_is_mounted_read_only() {
    needs_mount!();
    let objects = tempfile::tempdir().unwrap();
    fs::write(objects.path().join("a"), "there").unwrap();
    let place = tempfile::tempdir().unwrap();
    let (mnt, staging) = (place.path().join("mnt"), place.path().join("staging"));
    fs::create_dir(&mnt).unwrap();
    fs::create_dir(&staging).unwrap();
    let (url, staging) = (format!("file://{}", objects.path().display()), staging.to_str().unwrap());
    for (writes, is_read_only) in [(&[][..], true), (&["--staging", staging], false)] {
        let mut command = Command::new(PROGRAM);
        command.args(["mount", "--pool", "64M"]).args(writes).arg(&url).arg(&mnt);
        let mut daemon = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.contains(", read only"), is_read_only, "{line}");
        assert_eq!(fs::read(mnt.join("a")).unwrap(), b"there");
        let access = rustix::fs::access(mnt.join("a"), rustix::fs::Access::WRITE_OK);
        assert_eq!(access.is_err(), is_read_only, "{access:?}");
        kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        assert!(patiently(None, &mut daemon).success());
    }
}
