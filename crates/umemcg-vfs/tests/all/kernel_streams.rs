//! Which files the kernel keeps pages of when a group streams, with a kernel that the test plays.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::common::page_kernel::{PAGE, World};
use crate::common::{ROOT, name};
use umemcg_vfs::{Create, KernelCaching, OFlags, VolumeFile};

const ROOM: u64 = 2 << 20;
/// Pages of a file.
const NR_PAGES: u64 = 32;
/// Files that have as many bytes as the group may have.
const NR_FILES_OF_ROOM: u64 = ROOM / (NR_PAGES * PAGE);

/// Opens a file, reads it all as the open says, and closes it. Returns how it was served.
fn use_once(world: &World, file: &Arc<dyn VolumeFile>) -> KernelCaching {
    let caching = file.kernel_caching(false);
    if caching == KernelCaching::Bypass {
        file.read(&world.group, 0, (NR_PAGES * PAGE) as usize).unwrap();
    } else {
        world.read(file, 0, NR_PAGES);
    }
    world.kernel.obey();
    caching
}

/// Does work while the kernel does at once what it is asked for: a read may wait for that.
fn promptly(world: &World, work: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        scope.spawn(move || {
            while is_over.recv_timeout(Duration::from_micros(100)) == Err(RecvTimeoutError::Timeout) {
                world.kernel.obey();
            }
        });
        work();
        drop(over);
    });
}

/// Reads new files with this prefix, each once; returns how many the kernel was to keep.
fn stream(world: &World, prefix: &str, nr: u64) -> usize {
    let read = (0..nr).map(|at| use_once(world, &world.open_to_read(&format!("{prefix}{at}"), NR_PAGES)));
    read.filter(|&caching| caching == KernelCaching::Keep).count()
}

/// Reads known files again; returns how many the kernel was to keep.
fn repeat(world: &World, prefix: &str, nr: u64) -> usize {
    let read = (0..nr).map(|at| use_once(world, &world.reopen_to_read(&format!("{prefix}{at}"))));
    read.filter(|&caching| caching == KernelCaching::Keep).count()
}

#[test]
fn a_stream_of_small_files_is_served_directly() {
    let world = World::new(ROOM);
    let nr_kept = stream(&world, "s", 10 * NR_FILES_OF_ROOM) as u64;
    assert!((1..=NR_FILES_OF_ROOM + 2).contains(&nr_kept), "{nr_kept}");
    assert_eq!(stream(&world, "t", 10), 0, "it goes on");
    assert_eq!(repeat(&world, "s", 10 * NR_FILES_OF_ROOM), 0, "what is read again is too far away");
}

#[test]
fn files_that_are_read_again_are_kept() {
    let world = World::new(ROOM);
    let nr = NR_FILES_OF_ROOM / 2;
    assert_eq!(stream(&world, "set", nr), nr as usize);
    for _ in 0..30 {
        assert_eq!(repeat(&world, "set", nr), nr as usize);
    }
    assert_eq!(stream(&world, "more", nr), nr as usize, "beside those that are new");
}

#[test]
fn a_stream_ends_when_files_are_read_again() {
    let world = World::new(ROOM);
    stream(&world, "s", 10 * NR_FILES_OF_ROOM);
    let nr = NR_FILES_OF_ROOM * 3 / 4;
    assert_eq!(stream(&world, "set", nr), 0);
    assert_eq!(repeat(&world, "set", nr), nr as usize);
    assert_eq!(stream(&world, "more", 2), 2);
}

#[test]
fn a_loop_that_does_not_fit_is_no_stream() {
    let world = World::new(ROOM);
    let nr = NR_FILES_OF_ROOM * 3 / 2;
    promptly(&world, || {
        stream(&world, "f", nr);
        (0..7).for_each(|_| _ = repeat(&world, "f", nr));
    });
    let nr_kept = repeat(&world, "f", nr);
    assert!(nr_kept > nr as usize * 3 / 4, "{nr_kept}");
}

#[test]
fn a_stream_leaves_a_file_that_is_used_to_the_kernel() {
    let world = World::new(ROOM);
    let hot = world.open_to_read("hot", NR_PAGES);
    assert_eq!(use_once(&world, &hot), KernelCaching::Keep);
    drop(hot);
    let mut nr_kept = 0;
    for at in 0..4 * NR_FILES_OF_ROOM {
        nr_kept += stream(&world, &format!("s{at}."), 2) as u64;
        // Not every time: a reused file counts as several that are not.
        if at % 6 == 0 {
            assert_eq!(use_once(&world, &world.reopen_to_read("hot")), KernelCaching::Keep);
        }
    }
    assert!(nr_kept < 3 * NR_FILES_OF_ROOM, "{nr_kept}");
}

#[test]
fn what_a_streaming_group_writes_is_kept() {
    let world = World::new(ROOM);
    stream(&world, "s", 3 * NR_FILES_OF_ROOM);
    let (_, new) = world.fixture.vfs.create(&world.caller(), ROOT, name("new"), 0o644, OFlags::RDWR).unwrap();
    assert_eq!(new.kernel_caching(true), KernelCaching::Keep);
}
