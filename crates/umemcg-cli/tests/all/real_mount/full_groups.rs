//! Groups without room: programs in them work as on any file system, however many run at the same
//! time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Mount, Options, Stopped, needs_mount, until};

/// Some times as many as requests of a group run at once.
const NR_WRITERS: usize = 80;
/// The least charge for a request that waits.
const REQUEST_BYTES: u64 = 512;
const MIB: usize = 1 << 20;

/// Many threads of a group write at the same time, while the store is slow to answer; each write
/// has to take all of its data.
fn write_side_by_side(mount: &Mount, store: &Mount, dir: &Path) {
    let (tasks, data) = (mount.cg().join("full/tasks"), vec![7; MIB]);
    // Held until the store is slow, or until this thread fails.
    let (nr_open, gate) = (AtomicUsize::new(0), Mutex::new(()));
    let write = |nr: usize| {
        fs::write(&tasks, "0").unwrap();
        // A file for each: the kernel lets one write at a time extend a file.
        let file = File::create(dir.join(format!("f{nr}"))).unwrap();
        nr_open.fetch_add(1, Ordering::SeqCst);
        drop(gate.lock());
        let result = file.write_at(&data, 0);
        (!matches!(result, Ok(MIB))).then(|| format!("{nr}: {result:?}"))
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let (write, closed) = (&write, gate.lock());
        let threads: Vec<_> = (0..NR_WRITERS).map(|nr| scope.spawn(move || write(nr))).collect();
        let kept = || mount.value("full", "memory.stat", "slab_unreclaimable");
        until("all have opened a file", || nr_open.load(Ordering::SeqCst) == NR_WRITERS);
        let before = kept();
        let stopped = Stopped::new(store);
        drop(closed);
        until("half of the writes wait", || kept() >= before + NR_WRITERS as u64 / 2 * REQUEST_BYTES);
        drop(stopped);
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {NR_WRITERS} writes, such as {}", wrong.len(), wrong[0]);
}

#[test]
fn no_write_is_short_in_a_group_whose_limit_is_zero() {
    needs_mount!();
    let store = Mount::start();
    let mount = Mount::start_with(&Options { data: Some(store.mnt()), ..Options::default() });
    mount.group("full", "0");
    write_side_by_side(&mount, &store, &mount.mnt());
}

#[test]
fn no_write_is_short_in_a_group_full_of_files_in_memory() {
    needs_mount!();
    let store = Mount::start();
    let mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let (mnt, data) = (mount.mnt(), store.mnt());
    for add in [&["memory", "--tmpfs"][..], &["disk", "--dir", data.to_str().unwrap()]] {
        mount.umemcg(&[&["volume", "add"], add, &["--mount", mnt.to_str().unwrap()]].concat()).good();
    }
    mount.group("full", "8M");
    mount.sh_in("full", "not 'head -c 16M /dev/zero > $MNT/memory/f'").good();
    write_side_by_side(&mount, &store, &mnt.join("disk"));
}
