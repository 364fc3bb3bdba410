//! Real servers, started for one test each: two of the S3 protocol, one of Azure's, and one of
//! Google's.
#![allow(dead_code)]

mod azurite;
mod google;
pub mod proxy;
pub mod source;
mod weed;

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use umemcg_object::{ObjectOptions, open};
use umemcg_vfs::bucket::Bucket;
use weed::{KEY, SECRET, Weed, free_pairs, installed};

// Not all tests that have these servers use all of them.
#[allow(unused_imports)]
pub use azurite::Azurite;
#[allow(unused_imports)]
pub use google::FakeGcs;

pub trait Server {
    fn endpoint(&self) -> String;

    /// Returns the prefix of a bucket as a volume sees it.
    fn bucket(&self, place: &str) -> Arc<dyn Bucket> {
        bucket_at(&self.endpoint(), place)
    }

    /// Returns a client beside ours, with a new bucket.
    fn store(&self, bucket: &str) -> AmazonS3 {
        self.python(&format!("client.create_bucket(Bucket={bucket:?})"));
        client_at(&self.endpoint(), bucket).build().unwrap()
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

/// Returns a client of the library alone.
pub fn client_at(endpoint: &str, bucket: &str) -> AmazonS3Builder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
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
pub struct SeaweedFs(Weed);

impl SeaweedFs {
    pub fn start() -> Self {
        let server = Self(Weed::start(false));
        server.wait_until_it_stores();
        server
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
        self.0.endpoint()
    }
}
