//! A change of a file whose caller is killed before the answer: the daemon makes it all the same,
//! and the kernel, which was not told, must not keep what was there before.

use std::os::unix::fs::FileExt;

use crate::harness::{Mount, Options, Stopped, needs_mount, patiently, until, waits_in};

const LEN: usize = 256 << 10;

/// Runs a change in a process that is killed while the store hangs, lets the store go on, and
/// returns what the mount and the store have then. The file was full of ones, known to the kernel.
fn after_a_kill(change: &str) -> (Vec<u8>, Vec<u8>) {
    let inner = Mount::start();
    let arguments = vec!["--page-cache", "kernel"];
    let mut outer = Mount::start_with(&Options { data: Some(inner.mnt()), arguments, ..Options::default() });
    std::fs::write(outer.mnt().join("f"), vec![1; LEN]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(outer.mnt().join("f")).unwrap();
    file.sync_all().unwrap();
    let read = || {
        let mut bytes = vec![0; LEN];
        let nr = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(nr);
        bytes
    };
    assert_eq!(read(), vec![1; LEN]);
    let go = outer.outside().join("go");
    let script =
        format!("exec 3<>$MNT/f; echo; until [ -e {} ]; do sleep 0.02; done; {change}", go.display());
    let mut command = outer.shell(&script);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let is_open = std::io::Read::read(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
    assert_eq!(is_open, 1);
    let stopped = Stopped::new(&inner);
    std::fs::write(&go, "").unwrap();
    // The daemon waits, too: the program's open, which the daemon answers by itself, is no change.
    let daemon = outer.pid().as_raw_nonzero().get().cast_unsigned();
    let waits = || [child.id(), daemon].into_iter().all(|id| waits_in(id, "request_wait_answer"));
    until("the change waits for the store", waits);
    child.kill().unwrap();
    patiently(Some(outer.pid()), &mut child);
    drop(stopped);
    let stored = || std::fs::read(outer.data().join("f")).unwrap();
    until("the store has made the change", || stored() != vec![1; LEN]);
    let mut kernels = read();
    // Not all at once: a look may see one part dropped and another not yet.
    until("the kernel has dropped what was there", || {
        kernels = read();
        kernels == stored()
    });
    drop(file);
    let stored = stored();
    outer.umount();
    (kernels, stored)
}

#[test]
fn a_hole_whose_caller_was_killed_is_one_in_the_kernel_too() {
    needs_mount!();
    let (kernels, stored) = after_a_kill("exec fallocate -p -o 4096 -l 131072 /proc/self/fd/3");
    assert!(kernels == stored, "the mount still has what has become a hole");
}
