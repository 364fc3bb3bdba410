//! A bucket of SeaweedFS as a volume that can be written to, and the bucket as another client sees
//! it. Built only with the feature `object`.

use std::fs;
use std::path::PathBuf;

use crate::harness::{Mount, Options, holds_in_time, until};
use crate::weed::Weed;

/// See the module text.
pub struct StagedVolume {
    pub weed: Weed,
    pub mount: Mount,
    staging: tempfile::TempDir,
}

impl StagedVolume {
    /// Starts a server with a bucket, and a mount with this pool and a volume `o` of the bucket.
    pub fn start(pool: &str) -> Self {
        let weed = Weed::start(true);
        // It listens before it can store.
        let status = |path, body| weed.request("PUT", path, body).map_or(0, |(status, _)| status);
        until("the server stores", || {
            [200, 409].contains(&status("/bucket", b"")) && status("/bucket/p/ready", b"1") == 200
        });
        let mount = Mount::start_with(&Options { volumes: true, pool, ..Options::default() });
        let volume = Self { weed, mount, staging: tempfile::tempdir().unwrap() };
        volume.add_again();
        volume
    }

    /// Adds the volume `o`, which was removed.
    pub fn add_again(&self) {
        self.add("o", &["--staging", self.staging.path().to_str().unwrap()]);
    }

    /// Adds a volume of the same keys with these options.
    pub fn add(&self, name: &str, more: &[&str]) {
        let mnt = self.mount.mnt();
        let (mnt, endpoint) = (mnt.to_str().unwrap(), self.weed.endpoint());
        let store = ["--store", "s3://bucket/p", "--endpoint", &endpoint, "--region", "us-east-1"];
        let add = [&["volume", "add", name, "--mount", mnt][..], &store, more].concat();
        self.mount.umemcg(&add).good();
    }

    /// Runs a script in the volume and in the group `tight`, with a directory beside the mount as
    /// `$OUT`.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let out = self.mount.outside().display();
        self.mount.sh_in("tight", &format!("OUT={out}; cd $MNT/o\n{script}")).good().to_owned()
    }

    /// Returns an object as another client gets it.
    #[track_caller]
    pub fn object(&self, name: &str) -> Vec<u8> {
        let (status, body) = self.weed.request("GET", &format!("/bucket/p/{name}"), b"").unwrap();
        assert_eq!(status, 200, "{name}");
        body
    }

    /// Stores an object as another client.
    #[track_caller]
    pub fn put(&self, name: &str, bytes: &[u8]) {
        assert_eq!(self.weed.request("PUT", &format!("/bucket/p/{name}"), bytes).unwrap().0, 200, "{name}");
    }

    /// Removes the volume, which must have stored everything; what was known of it is forgotten.
    pub fn remove(&self) {
        let mnt = self.mount.mnt();
        let remove = ["volume", "remove", "o", "--mount", mnt.to_str().unwrap()];
        // The kernel tells of the last close when it gets round to it.
        let mut refused = String::new();
        let is_removed = holds_in_time(|| {
            let ended = self.mount.umemcg(&remove);
            refused = ended.stderr;
            ended.status.success()
        });
        assert!(is_removed, "the volume is never removed: {refused}");
        let volumes = fs::read_dir(self.staging.path()).unwrap().map(|entry| entry.unwrap().path());
        let left: Vec<PathBuf> = volumes
            .flat_map(|volume| [volume.join("lost"), volume])
            .flat_map(|dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()))
            .filter(|path| !path.ends_with("lost") && !path.ends_with("volume"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
