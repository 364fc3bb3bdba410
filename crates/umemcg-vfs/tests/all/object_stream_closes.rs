//! The closes of files written as streams, by the process that opened one and by others.

use crate::common::memory_bucket::PART_BYTES;
use crate::common::object_world::{World, pattern};
use umemcg_vfs::OFlags;

const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE);
const PART: usize = PART_BYTES as usize;
/// Two parts and a bit.
const LONG: usize = 2 * PART + 4711;

fn world() -> World {
    World::streamed(128 << 20)
}

#[test]
fn a_child_that_closes_does_not_end_what_goes_on() {
    let w = world();
    let file = w.create_with("a", NEW).unwrap();
    let bytes = pattern(LONG, 1);
    w.write(&file, 0, &bytes[..PART + 1]).unwrap();
    // No thread has this number.
    file.flush_of(0).unwrap();
    w.write(&file, PART as u64 + 1, &bytes[PART + 1..]).unwrap();
    file.flush_of(0).unwrap();
    assert_eq!(w.stored("a"), None);
    file.flush_of(1).unwrap();
    assert!(w.stored("a").unwrap() == bytes);
    // Without that it ends with the last descriptor.
    let file = w.create_with("b", NEW).unwrap();
    w.write(&file, 0, &bytes).unwrap();
    file.flush_of(0).unwrap();
    w.release(file);
    assert!(w.stored("b").unwrap() == bytes);
}

#[test]
fn no_close_ends_a_file_of_an_unknown_process_but_the_last() {
    let w = world();
    // In a pid namespace that the daemon does not see, each process has the number 0.
    let unknown = w.of_thread(0);
    let file = unknown.create_with("a", NEW).unwrap();
    let bytes = pattern(LONG, 1);
    for (at, piece) in [(0, &bytes[..PART + 1]), (PART + 1, &bytes[PART + 1..])] {
        unknown.write(&file, at as u64, piece).unwrap();
        file.flush_of(0).unwrap();
    }
    assert_eq!(w.stored("a"), None);
    unknown.release(file);
    assert!(w.stored("a").unwrap() == bytes);
    // A file of one part is stored by each close, and goes on.
    let file = unknown.create_with("b", NEW).unwrap();
    for (at, piece) in [(0, &bytes[..4711]), (4711, &bytes[4711..PART])] {
        unknown.write(&file, at as u64, piece).unwrap();
        file.flush_of(0).unwrap();
        assert!(w.stored("b").unwrap() == bytes[..at + piece.len()]);
    }
}

#[test]
fn the_name_of_a_thread_does_not_hide_its_process() {
    // A name of more than 15 bytes is cut, even within a character.
    std::fs::write("/proc/thread-self/comm", b"\xc3").unwrap();
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let first = world();
    let w = first.of_thread(thread);
    let file = w.create_with("a", NEW).unwrap();
    let bytes = pattern(LONG, 1);
    w.write(&file, 0, &bytes).unwrap();
    file.flush_of(thread).unwrap();
    assert!(w.stored("a").unwrap() == bytes);
    w.release(file);
}
