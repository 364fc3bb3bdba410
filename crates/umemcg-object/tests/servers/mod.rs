//! Real servers of the S3 protocol, started for one test each.
#![allow(dead_code)]

pub mod proxy;
pub mod source;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use umemcg_object::{ObjectOptions, open};
use umemcg_vfs::object::Bucket;

const KEY: &str = "umemcg-test";
const SECRET: &str = "umemcg-test-secret";

pub trait Server {
    fn endpoint(&self) -> String;

    /// Returns the prefix of a bucket as a volume sees it.
    fn bucket(&self, place: &str) -> Arc<dyn Bucket> {
        bucket_at(&self.endpoint(), place)
    }

    /// Returns a client beside ours, with a new bucket.
    fn store(&self, bucket: &str) -> AmazonS3 {
        self.python(&format!("client.create_bucket(Bucket={bucket:?})"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = AmazonS3Builder::new()
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_bucket_name(bucket)
            .with_region("us-east-1")
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET);
        builder.build().unwrap()
    }

    /// Stores objects whose keys the library below refuses.
    fn put_odd(&self, bucket: &str, keys: &[&str]) {
        self.python(&format!(
            "[client.put_object(Bucket={bucket:?}, Key=key, Body=b'1') for key in {keys:?}]"
        ));
    }

    /// Returns the number of uploads in parts that are not over.
    fn nr_uploads(&self, bucket: &str) -> usize {
        let uploads = format!("client.list_multipart_uploads(Bucket={bucket:?}).get('Uploads', [])");
        self.python(&format!("print(len({uploads}))")).trim().parse().unwrap()
    }

    fn python(&self, statement: &str) -> String {
        let program = format!(
            "import boto3\nclient = boto3.client('s3', endpoint_url={:?}, aws_access_key_id={KEY:?}, \
             aws_secret_access_key={SECRET:?}, region_name='us-east-1')\n{statement}\n",
            self.endpoint()
        );
        let run = Command::new(installed("python")).arg("-c").arg(program).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    }
}

/// Returns the prefix of a bucket of a server as a volume sees it.
pub fn bucket_at(endpoint: &str, place: &str) -> Arc<dyn Bucket> {
    // All tests of the process use the same.
    let credentials = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    let is_set = credentials.iter().all(|(name, value)| std::env::var(name).as_deref() == Ok(value));
    assert!(is_set, "run with {credentials:?} in the environment (make test-object does)");
    let (endpoint, region) = (Some(endpoint.to_owned()), Some("us-east-1".to_owned()));
    open(&format!("s3://{place}"), &ObjectOptions { endpoint, region, anonymous: false }).unwrap()
}

/// Returns a program of the virtual environment.
fn installed(program: &str) -> PathBuf {
    let directory = std::env::var_os("OBJECT_SERVERS").expect("OBJECT_SERVERS (make test-object sets it)");
    PathBuf::from(directory).join("bin").join(program)
}

/// Returns four ports that are free, as those are that are 10,000 higher: SeaweedFS takes these,
/// too. They are below those that the system gives to outgoing connections.
fn free_pairs() -> [u16; 4] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 1200 * 10;
    let ports = std::iter::repeat_with(|| 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000);
    let is_free = |port: &u16| {
        [*port, *port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
    };
    let ports: Vec<u16> = ports.filter(is_free).take(4).collect();
    ports.try_into().unwrap()
}

/// A server's process, which ends with it.
struct Running {
    child: Child,
    port: u16,
}

impl Running {
    /// Returns `None` if it has ended instead of listening, as it does where another program was
    /// faster to take its port.
    fn start(command: &mut Command, port: u16) -> Option<Self> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut running = Self { child, port };
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let listens = TcpStream::connect(("127.0.0.1", port)).is_ok();
            // What listens may be that other program.
            if running.child.try_wait().unwrap().is_some() {
                eprintln!("{command:?} has ended");
                return None;
            }
            if listens {
                return Some(running);
            }
            assert!(Instant::now() < until, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// moto, which keeps everything in memory.
pub struct Moto(Running);

impl Moto {
    pub fn start() -> Self {
        let start = |_| {
            let port = free_pairs()[0];
            let mut command = Command::new(installed("moto_server"));
            Running::start(command.args(["-H", "127.0.0.1", "-p", &port.to_string()]), port)
        };
        Self((0..20).find_map(start).expect("moto ends"))
    }
}

impl Server for Moto {
    fn endpoint(&self) -> String {
        self.0.endpoint()
    }
}

/// SeaweedFS, which keeps everything on disk.
pub struct SeaweedFs {
    running: Running,
    _directory: tempfile::TempDir,
}

impl SeaweedFs {
    pub fn start() -> Self {
        let server = (0..20).find_map(|_| Self::try_start()).expect("SeaweedFS ends");
        server.wait_until_it_stores();
        server
    }

    /// Returns `None` if it has ended.
    fn try_start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let identities = directory.path().join("s3.json");
        let json = format!(
            r#"{{"identities":[{{"name":"t","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],
            "actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
        );
        std::fs::write(&identities, json).unwrap();
        let ports = free_pairs();
        let port = ports[3];
        let mut command = Command::new(installed("weed"));
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=200", "-filer", "-s3"]);
        command.arg("-master.volumeSizeLimitMB=64").arg(format!("-dir={}", directory.path().display()));
        command.arg(format!("-master.port={}", ports[0])).arg(format!("-volume.port={}", ports[1]));
        command.arg(format!("-filer.port={}", ports[2])).arg(format!("-s3.port={port}"));
        command.arg(format!("-s3.config={}", identities.display()));
        // Catalogs on fixed ports, of which a machine has one each.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        let running = Running::start(&mut command, port)?;
        Some(Self { running, _directory: directory })
    }

    /// It listens before it can store.
    fn wait_until_it_stores(&self) {
        self.python(
            "import time\nclient.create_bucket(Bucket='ready')\nfor attempt in range(120):\n    try:\n        \
             client.put_object(Bucket='ready', Key='k', Body=b'1')\n        break\n    except Exception:\n        \
             time.sleep(0.5)\nelse:\n    raise SystemExit('it does not store')",
        );
    }
}

impl Server for SeaweedFs {
    fn endpoint(&self) -> String {
        self.running.endpoint()
    }
}
