//! Resident memory follows use: not by our own count but by the kernel's. One test, because it
//! reads the whole process.
#![cfg(not(any(loom, miri)))]

use umemcg_arena::{Arena, BLOCK_BYTES, BLOCK_FRAMES, ZeroTable};

const NR_BLOCKS: usize = 32;
/// Bytes that the rest of the process may take or give meanwhile.
const NOISE: i64 = 4 << 20;

/// Resident bytes of this process.
fn resident() -> i64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 1024
}

fn about(bytes: i64, expected: usize, what: &str) {
    assert!((bytes - expected as i64).abs() <= NOISE, "{what}: {bytes} bytes, not about {expected}");
}

#[test]
fn resident_memory_follows_use() {
    let before = resident();
    let arena = Arena::new(1 << 30).unwrap();
    about(resident() - before, 0, "reserved");

    assert_eq!(arena.prepare(4), 4);
    about(resident() - before, 4 * BLOCK_BYTES, "prepared");
    assert_eq!((arena.prepare(4), arena.trim(0)), (0, 4));
    about(resident() - before, 0, "trimmed");

    let mut frames = Vec::new();
    arena.alloc(&mut frames, NR_BLOCKS * BLOCK_FRAMES);
    for &frame in &frames {
        arena.copy_in(frame, 1234, &[1]);
    }
    about(resident() - before, NR_BLOCKS * BLOCK_BYTES, "touched");
    assert_eq!(arena.resident_bytes(), (NR_BLOCKS * BLOCK_BYTES) as u64);

    // Every block but the last keeps a frame: nothing can go.
    let (kept, freed): (Vec<_>, Vec<_>) = frames
        .iter()
        .partition(|frame| frame.index() % BLOCK_FRAMES == 7 && frame.index() < 31 * BLOCK_FRAMES);
    arena.free(&freed);
    assert_eq!(arena.trim(0), 1);
    about(resident() - before, (NR_BLOCKS - 1) * BLOCK_BYTES, "sparse");

    // Until the frames that hold the blocks move together, which needs a frame for each of them.
    let candidates: Vec<_> = arena.sparse_candidates(usize::MAX).iter().map(|sparse| sparse.frame).collect();
    let mut new = Vec::new();
    arena.alloc(&mut new, candidates.len());
    for (&from, &to) in candidates.iter().zip(&new) {
        arena.copy_frame(from, to);
    }
    arena.free(&candidates);
    assert_eq!(arena.trim(0), NR_BLOCKS - 2);
    about(resident() - before, BLOCK_BYTES, "compacted");
    for &frame in &new {
        let mut byte = [0];
        arena.copy_out(frame, 1234, &mut byte);
        assert_eq!(byte, [1]);
    }
    let rest: Vec<_> = kept.into_iter().filter(|frame| !candidates.contains(frame)).chain(new).collect();
    arena.free(&rest);
    assert_eq!(arena.nr_allocated(), 0);

    let table = ZeroTable::new(1 << 24).unwrap();
    for at in (0..1 << 24).step_by(512) {
        table.get(at).store(1, std::sync::atomic::Ordering::Relaxed);
    }
    about(resident() - before, BLOCK_BYTES + (128 << 20), "a table with a word in each page");
    table.discard(0..1 << 24);
    about(resident() - before, BLOCK_BYTES, "a table that was discarded");
}
