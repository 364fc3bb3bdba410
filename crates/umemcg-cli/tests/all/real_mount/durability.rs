//! Acknowledged data survives the daemon: killed in the middle, or ended in order while the store
//! refuses.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::harness::{Mount, Options, TIMEOUT, lines, needs_mount, patiently, until};

const BLOCK_BYTES: usize = 10_000;

/// Contents in which each block holds its own number.
fn block(number: u64) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..BLOCK_BYTES as u64).map(|at| (seed.wrapping_mul(at + 1) >> 32) as u8).collect()
}

#[test]
fn synced_blocks_are_in_the_directory_after_a_kill() {
    needs_mount!();
    let mut mount = Mount::start();
    let path = mount.mnt().join("log");
    let acknowledged = Arc::new(AtomicU64::new(0));
    let (far_enough, is_far_enough) = mpsc::channel();
    let counter = Arc::clone(&acknowledged);
    let writer = thread::spawn(move || {
        let file = File::create(path).unwrap();
        // Until the daemon dies under it.
        for number in 0.. {
            let at = number * BLOCK_BYTES as u64;
            if file.write_all_at(&block(number), at).is_err() || file.sync_data().is_err() {
                return;
            }
            counter.store(number + 1, Ordering::SeqCst);
            if number == 300 {
                far_enough.send(()).unwrap();
            }
        }
    });
    is_far_enough.recv_timeout(TIMEOUT).expect("the writer comes that far");
    mount.kill_daemon();
    writer.join().unwrap();
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    assert!(acknowledged > 300);
    let bytes = fs::read(mount.data().join("log")).unwrap();
    for number in 0..acknowledged {
        let at = number as usize * BLOCK_BYTES;
        assert!(
            bytes.get(at..at + BLOCK_BYTES) == Some(&block(number)[..]),
            "block {number} of {acknowledged}"
        );
    }
}

#[test]
fn renaming_a_synced_file_over_an_old_one_never_leaves_neither() {
    needs_mount!();
    let mut mount = Mount::start();
    let directory = mount.mnt();
    let generation = Arc::new(AtomicU64::new(0));
    let (far_enough, is_far_enough) = mpsc::channel();
    let counter = Arc::clone(&generation);
    let writer = thread::spawn(move || {
        for number in 1.. {
            let written = || -> std::io::Result<()> {
                let mut file = File::create(directory.join("new"))?;
                file.write_all(&block(number))?;
                file.sync_all()?;
                fs::rename(directory.join("new"), directory.join("current"))?;
                File::open(&directory)?.sync_all()
            };
            if written().is_err() {
                return;
            }
            counter.store(number, Ordering::SeqCst);
            if number == 100 {
                far_enough.send(()).unwrap();
            }
        }
    });
    is_far_enough.recv_timeout(TIMEOUT).expect("the writer comes that far");
    mount.kill_daemon();
    writer.join().unwrap();
    let generation = generation.load(Ordering::SeqCst);
    let bytes = fs::read(mount.data().join("current")).unwrap();
    // The one acknowledged last, or the next that was on its way.
    assert!(
        bytes == block(generation) || bytes == block(generation + 1),
        "not generation {generation} or the next"
    );
}

#[test]
fn a_database_keeps_committed_transactions_over_a_kill() {
    needs_mount!();
    let mut mount = Mount::start();
    for journal in ["delete", "wal"] {
        if journal == "wal" {
            crate::real_mount::ending::detach(&mount);
            mount.start_daemon(&["--pool", "64M"]);
        }
        let mut command = mount.shell(&format!(
            "db=$MNT/{journal}.db
             sqlite3 $db 'PRAGMA journal_mode={journal}; CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB);' > /dev/null
             for i in $(seq 1 100000); do echo \"INSERT INTO t VALUES($i, randomblob(2000)); SELECT $i;\"; done |
             stdbuf -oL sqlite3 -bail -cmd 'PRAGMA synchronous=FULL' $db"
        ));
        let mut client =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut acknowledged = 0;
        let said = lines(client.stdout.take().unwrap());
        while acknowledged < 100 {
            let line = said.recv_timeout(TIMEOUT).expect("the client goes on");
            acknowledged = line.parse::<u64>().unwrap_or(acknowledged);
        }
        mount.kill_daemon();
        patiently(None, &mut client);
        acknowledged = said.iter().filter_map(|line| line.parse().ok()).last().unwrap_or(acknowledged);
        assert!(acknowledged >= 100);
        let result = mount.sh(&format!(
            "sqlite3 $DATA/{journal}.db 'PRAGMA integrity_check; SELECT count(*) >= {acknowledged} FROM t;'"
        ));
        assert_eq!(result.good(), "ok\n1", "{journal}");
    }
}

#[test]
fn sync_makes_everything_durable_that_was_written_before() {
    needs_mount!();
    let mut mount = Mount::start();
    mount
        .sh("for i in $(seq 100); do head -c 50000 /dev/urandom > $MNT/$i; done; cp -r $MNT $MNT/../expected")
        .good();
    mount.umemcg(&["sync", mount.mnt().to_str().unwrap()]).good();
    assert_eq!(mount.value("", "memory.stat", "total_dirty"), 0);
    assert_eq!(mount.value("", "memory.stat", "total_writeback"), 0);
    mount.kill_daemon();
    mount.sh("diff -r $DATA $DATA/../expected").good();
}

/// A small file system that fills up, as the backing directory.
struct SmallStore<'a> {
    path: &'a Path,
}

impl<'a> SmallStore<'a> {
    fn new(path: &'a Path, size: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={size}");
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(
            "tmpfs",
            path,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .unwrap();
        Self { path }
    }
}

impl Drop for SmallStore<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn umount_gives_up_after_its_timeout_and_lists_what_was_lost() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small");
    let _store = SmallStore::new(&path, "4M");
    let mut mount = Mount::start_with(&Options { data: Some(path.clone()), ..Options::default() });
    // Write-back happens later, since it is no long file: the writes are taken, the store has no
    // room for them.
    mount.sh("head -c 1M /dev/zero > $MNT/fits; sync $MNT/fits").good();
    let written = mount.sh("head -c 7M /dev/urandom > $MNT/too-large");
    let mountpoint = mount.mnt();
    let ended = mount.umemcg(&["umount", mountpoint.to_str().unwrap(), "--flush-timeout", "1s", "--json"]);
    if written.status.success() {
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        assert!(ended.stderr.contains("too-large"), "{ended:?}");
        let outcome: serde_json::Value = serde_json::from_str(ended.stdout.trim()).unwrap();
        assert_eq!(outcome["durable"], false);
        assert!(outcome["lost"][0]["bytes"].as_u64().unwrap() >= 3 << 20, "{outcome}");
        assert_eq!(mount.wait().status.code(), Some(3));
    } else {
        // The store refused immediately: nothing was accepted, so nothing is lost.
        assert!(ended.status.success(), "{written:?} {ended:?}");
        assert!(mount.wait().status.success());
    }
    assert_eq!(fs::metadata(path.join("fits")).unwrap().len(), 1 << 20);
}

#[test]
fn sync_on_a_full_store_names_what_is_not_durable() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small");
    let _store = SmallStore::new(&path, "16M");
    let mut mount = Mount::start_with(&Options { data: Some(path.clone()), ..Options::default() });
    let mountpoint = mount.mnt();
    let mountpoint = mountpoint.to_str().unwrap();
    fs::write(path.join("ballast"), vec![1; 12 << 20]).unwrap();
    let written = mount.sh("head -c 8M /dev/urandom | tee $MNT/../expected > $MNT/file");
    let ended = mount.umemcg(&["sync", mountpoint, "--flush-timeout", "1s"]);
    if written.status.success() {
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        assert!(ended.stderr.contains("file"), "{ended:?}");
        mount.sh("sync $MNT/file").bad("No space left");
        // Data that the store refused stays in the cache, readable and dirty, and is written again.
        mount.sh("cmp $MNT/file $MNT/../expected").good();
    } else {
        // The store refused while it was written: what had been accepted before may not fit either.
        written.bad("No space left");
        let names_it = ended.status.code() == Some(3) && ended.stderr.contains("file");
        assert!(ended.status.success() || names_it, "{ended:?}");
    }
    fs::remove_file(path.join("ballast")).unwrap();
    mount.umemcg(&["sync", mountpoint]).good();
    if written.status.success() {
        mount.sh("cmp $DATA/file $MNT/../expected").good();
    }
    mount.assert_alive();
    mount.umount();
}

#[test]
fn files_removed_soon_after_their_close_leave_no_byte_below() {
    needs_mount!();
    let mut mount = Mount::start();
    // No whole number of them fills a block: the janitor writes the pages of an almost empty one.
    mount.sh("for n in {1..40}; do head -c 260K /dev/urandom > $MNT/f$n; done").good();
    let below: Vec<File> =
        (1..=40).map(|n| File::open(mount.data().join(format!("f{n}"))).unwrap()).collect();
    // Something is written and made durable meanwhile, but none of those.
    mount.sh("head -c 4M /dev/urandom > $MNT/kept; sync $MNT/kept; rm $MNT/f*").good();
    // The kernel forgets a removed file in its own time; an unmount that comes first writes it.
    until("nothing is dirty", || mount.value(".", "memory.stat", "dirty") == 0);
    mount.umount();
    for (n, file) in below.iter().enumerate() {
        let found = file.metadata().unwrap();
        assert_eq!((found.nlink(), found.size(), found.blocks()), (0, 0, 0), "file {n}");
    }
    assert_eq!(fs::metadata(mount.data().join("kept")).unwrap().len(), 4 << 20);
}
