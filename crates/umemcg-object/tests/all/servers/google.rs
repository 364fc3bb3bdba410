//! fake-gcs-server, an emulator of Google Cloud Storage that keeps everything in memory.
//!
//! It is read as Google is, but takes objects through its JSON interface alone, judges no
//! condition, and lists everything at once. What a volume expects of a bucket that it writes to
//! cannot be shown with it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use umemcg_object::{ObjectOptions, open};
use umemcg_vfs::bucket::Bucket;

use super::Running;
use super::weed::{free_pairs, installed};

/// Sends standard input in a request.
const REQUEST: &str = r#"
import sys, urllib.request
method, url, content = sys.argv[1:]
body = sys.stdin.buffer.read()
urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": content}, method=method))
"#;

pub struct FakeGcs(Running);

impl FakeGcs {
    pub fn start() -> Self {
        let start = |_| {
            let port = free_pairs()[0];
            let mut command = Command::new(installed("fake-gcs-server"));
            command.args(["-scheme", "http", "-backend", "memory", "-log-level", "error"]);
            command.args(["-host", "127.0.0.1", "-port", &port.to_string()]);
            // The host of requests for objects, as opposed to those of its JSON interface.
            command.args(["-public-host", &format!("127.0.0.1:{port}")]);
            Running::start(&mut command, port)
        };
        Self((0..20).find_map(start).expect("fake-gcs-server ends"))
    }

    fn request(&self, method: &str, path: &str, content: &str, body: &[u8]) {
        let mut command = Command::new(installed("python"));
        command.args(["-c", REQUEST, method, &format!("{}{path}", self.0.endpoint()), content]);
        let mut run = command.stdin(Stdio::piped()).spawn().unwrap();
        run.stdin.take().unwrap().write_all(body).unwrap();
        assert!(run.wait().unwrap().success(), "{method} {path}");
    }

    pub fn make_bucket(&self, bucket: &str) {
        let body = format!("{{\"name\":{bucket:?}}}");
        self.request("POST", "/storage/v1/b?project=p", "application/json", body.as_bytes());
    }

    /// Stores an object as another client.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let path = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={}", escaped(key));
        self.request("POST", &path, "application/octet-stream", bytes);
    }

    /// Removes an object as another client.
    pub fn delete(&self, bucket: &str, key: &str) {
        self.request("DELETE", &format!("/storage/v1/b/{bucket}/o/{}", escaped(key)), "", b"");
    }

    /// Returns the prefix of a bucket as a volume sees it.
    pub fn bucket(&self, place: &str) -> Arc<dyn Bucket> {
        let endpoint = Some(self.0.endpoint());
        let options = ObjectOptions { endpoint, anonymous: true, ..ObjectOptions::default() };
        open(&format!("gs://{place}"), &options).unwrap()
    }
}

fn escaped(key: &str) -> String {
    key.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
