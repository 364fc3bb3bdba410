//! Files that a process has mapped and closed: the kernel keeps them open, so their names, contents
//! and handles stay, at the cost of the process's group.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::harness::{Mount, TIMEOUT, lines, needs_mount, until};
use crate::real_mount::names::{PER_DIRECTORY, make_files};

const LIMIT_BYTES: usize = 1 << 20;
const NR_FILES: usize = 4 * PER_DIRECTORY;
/// The charge for an open file: its name, its content and the handle.
const FILE_BYTES: usize = 344 + 928 + 400;
/// Handles that a group may have beyond its limit; of names and contents together twice as many.
const NR_BEYOND_MAX: usize = 1024;

/// Maps files until one cannot be mapped; prints their number and the error, and keeps them mapped
/// until its input ends.
const MAP_ALL: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    (void)argc;
    int nr = 0, error = 0;
    char path[4096];
    while (!error) {
        snprintf(path, sizeof path, "%s/d%d/f%d", argv[1], nr / 1000, nr % 1000);
        int fd = open(path, O_RDONLY);
        if (fd < 0 || mmap(0, 1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED) error = errno;
        else nr++;
        if (fd >= 0) close(fd);
    }
    printf("%d %d\n", nr, error);
    fflush(stdout);
    while (read(0, path, 1) > 0) {}
    return 0;
}
"#;

/// A process that has mapped as many files as it could; ends when dropped.
struct Mapper {
    process: Child,
    nr_mapped: usize,
    errno: i32,
}

impl Mapper {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = lines(process.stdout.take().unwrap()).recv_timeout(TIMEOUT).unwrap();
        let (nr_mapped, errno) = said.split_once(' ').unwrap();
        Self { process, nr_mapped: nr_mapped.parse().unwrap(), errno: errno.parse().unwrap() }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[test]
fn files_that_a_full_group_maps_are_charged_and_bounded() {
    needs_mount!();
    let mut mount = Mount::start();
    make_files(&mount.data().join("tree"), NR_FILES);
    mount.group("mapper", &LIMIT_BYTES.to_string());
    mount.group("neighbour", "32M");
    fs::write(mount.outside().join("map.c"), MAP_ALL).unwrap();
    mount.sh("cd $MNT/..; gcc -O1 -o map map.c").good();
    let unreclaimable = || mount.value("", "memory.stat", "slab_unreclaimable");
    let before = unreclaimable();

    let mapper = Mapper::start(mount.shell("echo $$ > $CG/mapper/tasks; exec $MNT/../map $MNT/tree"));
    assert_eq!(mapper.errno, rustix::io::Errno::NOMEM.raw_os_error());
    let nr_max = LIMIT_BYTES / FILE_BYTES + 2 * NR_BEYOND_MAX;
    assert!((NR_BEYOND_MAX..=nr_max).contains(&mapper.nr_mapped), "{}", mapper.nr_mapped);
    // Once in 32 handles, and in 32 names and contents.
    let nr_in_vain = mount.value("mapper", "memory.events", "oom") as usize;
    assert!(nr_in_vain <= NR_BEYOND_MAX / 4, "reclaimed from {nr_in_vain} times in vain");

    mount.sh_in("neighbour", "cat $MNT/tree/d3/f? $MNT/tree/d0/f?").good();
    drop(mapper);
    until("all handles are given back", || unreclaimable() <= before + (64 << 10));
    mount.sh_in("mapper", "cat $MNT/tree/d3/f?").good();
    mount.umount();
}
