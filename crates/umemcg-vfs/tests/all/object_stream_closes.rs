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
