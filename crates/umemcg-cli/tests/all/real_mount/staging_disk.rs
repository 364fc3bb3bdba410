//! A staging disk that is full, and one that has become read-only. Built only with the feature
//! `object`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Mount, Options, needs_mount};

/// A file system in memory, as a disk; it goes when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf, options: &str) -> Self {
        fs::create_dir(&at).unwrap();
        let disk = Self(at);
        disk.run("mount", &["-t", "tmpfs", "-o", options, "tmpfs"]);
        disk
    }

    fn remount(&self, options: &str) {
        self.run("mount", &["-o", &format!("remount,{options}")]);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let run = Command::new(program).args(arguments).arg(&self.0).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Adds a volume of a directory in place of a bucket.
fn add(mount: &Mount, name: &str, staging: &Path) -> PathBuf {
    let store = mount.outside().join(format!("store-{name}"));
    fs::create_dir(&store).unwrap();
    let (mnt, url) = (mount.mnt(), format!("file://{}", store.display()));
    let (mnt, staging) = (mnt.to_str().unwrap(), staging.to_str().unwrap());
    let add = ["volume", "add", name, "--mount", mnt, "--store", &url, "--staging", staging];
    mount.umemcg(&add).good();
    store
}

#[test]
#[ignore = "needs root and the feature object (make test-object)"]
fn a_staging_disk_that_refuses_fails_its_objects_alone() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let disk = Disk::mount(mount.outside().join("disk"), "size=2m");
    let elsewhere = mount.outside().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let store = add(&mount, "o", &disk.0);
    let other = add(&mount, "other", &elsewhere);
    let both_store = |name: &str| {
        mount.sh(&format!("echo {name} > $MNT/o/{name}; echo {name} > $MNT/other/{name}")).good();
        for store in [&store, &other] {
            assert_eq!(fs::read_to_string(store.join(name)).unwrap(), format!("{name}\n"));
        }
    };
    let other_stores = |name: &str| {
        mount.sh(&format!("head -c 4M /dev/zero > $MNT/other/{name}")).good();
        assert_eq!(fs::metadata(other.join(name)).unwrap().len(), 4 << 20);
    };
    both_store("first");

    let large = "dd if=/dev/zero of=$MNT/o/large bs=64k count=64 conv=fsync";
    mount.sh(large).bad("No space left on device");
    other_stores("beside-a-full-one");
    // It was stored empty, when dd closed the first of its two descriptors.
    assert_eq!(fs::metadata(store.join("large")).unwrap().len(), 0);
    mount.sh("rm $MNT/o/large").good();
    both_store("second");

    disk.remount("ro");
    mount.sh("echo third > $MNT/o/third").bad("Read-only file system");
    other_stores("beside-a-read-only-one");
    mount.sh("cat $MNT/o/second").good();
    disk.remount("rw");
    both_store("fourth");

    mount.umemcg(&["umount", mount.mnt().to_str().unwrap()]).good();
    let ended = mount.wait();
    assert!(ended.status.success(), "{ended:?}");
    let place = disk.0.to_str().unwrap();
    for what in ["the staging disk is full: make room", "the staging disk is read-only: see"] {
        let told = ended.stderr.lines().any(|line| line.contains(what) && line.contains(place));
        assert!(told, "no `{what}` with {place}: {}", ended.stderr);
    }
}
