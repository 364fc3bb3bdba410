//! The guarantees of the allocator, one claim at a time. `allocator_model.rs` holds the whole
//! against a model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use umemcg_arena::{Arena, BLOCK_BYTES, BLOCK_FRAMES, FrameFlags, FrameId};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn take(arena: &Arena, n: usize) -> Vec<FrameId> {
    let mut out = Vec::new();
    assert_eq!(arena.alloc(&mut out, n), n);
    out
}

fn message(panics: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn nothing_to_manage_is_refused() {
    for bytes in [0, 4095, u64::MAX, 16 << 40] {
        let error = Arena::new(bytes).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{bytes} bytes");
    }
}

#[test]
fn a_reservation_takes_no_memory() {
    // Miri's memory is real.
    let arena = Arena::new(if cfg!(miri) { BLOCK } else { 64 << 30 }).unwrap();
    assert_eq!((arena.resident_bytes(), arena.nr_allocated()), (0, 0));
    assert_eq!(arena.trim(0), 0);
}

#[test]
fn the_most_recently_freed_frame_comes_first() {
    let arena = Arena::new(BLOCK).unwrap();
    let frames = take(&arena, 10);
    arena.free(&[frames[3], frames[7], frames[1]]);
    for at in [1, 7, 3] {
        assert_eq!(take(&arena, 1), [frames[at]]);
    }
}

#[test]
fn frames_taken_together_come_in_falling_order() {
    let arena = Arena::new(BLOCK).unwrap();
    let frames = take(&arena, 10);
    assert!(frames.is_sorted_by(|a, b| a > b));
    arena.free(&[frames[3], frames[7], frames[1]]);
    // The two freed last, and then the third with a fresh one.
    assert_eq!(take(&arena, 2), [frames[1], frames[7]]);
    let rest = take(&arena, 2);
    assert!(rest[0] > rest[1] && rest[1] == frames[3]);
}

#[test]
fn the_fullest_block_comes_first() {
    let arena = Arena::new(3 * BLOCK).unwrap();
    let frames = take(&arena, 3 * BLOCK_FRAMES);
    let (a, rest) = frames.split_at(BLOCK_FRAMES);
    let (b, c) = rest.split_at(BLOCK_FRAMES);
    arena.free(&a[..20]);
    arena.free(&b[..10]);
    arena.free(&c[..15]);
    let got = take(&arena, 45);
    assert!(got[..10].iter().all(|frame| b.contains(frame)));
    assert!(got[10..25].iter().all(|frame| c.contains(frame)));
    assert!(got[25..].iter().all(|frame| a.contains(frame)));
}

#[test]
fn memory_that_is_backed_is_used_before_memory_that_is_not() {
    let arena = Arena::new(4 * BLOCK).unwrap();
    let frames = take(&arena, 2 * BLOCK_FRAMES);
    arena.free(&frames);
    take(&arena, 2 * BLOCK_FRAMES);
    assert_eq!(arena.resident_bytes(), 2 * BLOCK);
}

#[test]
fn trim_keeps_what_it_is_told_to_keep() {
    let arena = Arena::new(4 * BLOCK).unwrap();
    let frames = take(&arena, 4 * BLOCK_FRAMES);
    // One frame is enough to hold a block.
    arena.free(&frames[1..]);
    assert_eq!(arena.nr_idle_blocks(), 3);
    assert_eq!(arena.trim(2), 1);
    assert_eq!(arena.resident_bytes(), 3 * BLOCK);
    assert_eq!(arena.trim(2), 0);
    assert_eq!(arena.trim(0), 2);
    assert_eq!(arena.resident_bytes(), BLOCK);
}

#[test]
fn what_was_trimmed_reads_as_zero_and_can_be_had_again() {
    let arena = Arena::new(2 * BLOCK).unwrap();
    let frames = take(&arena, 2 * BLOCK_FRAMES);
    for &frame in &frames {
        arena.copy_in(frame, 100, b"left over");
    }
    arena.free(&frames);
    assert_eq!(arena.trim(0), 2);
    for frame in take(&arena, 2 * BLOCK_FRAMES) {
        let mut bytes = [1; 9];
        arena.copy_out(frame, 100, &mut bytes);
        assert_eq!(bytes, [0; 9]);
    }
}

#[test]
fn frames_come_without_marks() {
    let arena = Arena::new(BLOCK).unwrap();
    let frames = take(&arena, 1);
    arena.record(frames[0]).set(FrameFlags::DIRTY | FrameFlags::ON_LRU);
    arena.free(&frames);
    assert_eq!(take(&arena, 1), frames);
    assert_eq!(arena.record(frames[0]).flags(), FrameFlags::NONE);
}

#[test]
fn a_frame_is_freed_once() {
    let arena = Arena::new(BLOCK).unwrap();
    let frames = take(&arena, 2);
    arena.free(&frames[..1]);
    assert!(message(|| arena.free(&frames[..1])).contains("freed twice"));
    assert!(message(|| arena.free(&[frames[1], frames[1]])).contains("freed twice"));
    // Frames that were never handed out are free too.
    assert!(message(|| arena.free(&[FrameId::from_raw(BLOCK_FRAMES as u32 - 1)])).contains("freed twice"));
    assert!(message(|| arena.free(&[FrameId::from_raw(BLOCK_FRAMES as u32)])).contains("no entry"));
    // The refused calls broke nothing.
    assert_eq!(arena.nr_allocated(), 0);
    assert_eq!(take(&arena, BLOCK_FRAMES).len(), BLOCK_FRAMES);
}

#[test]
fn a_frame_that_can_be_pinned_is_not_freed() {
    let arena = Arena::new(BLOCK).unwrap();
    let frames = take(&arena, 1);
    let record = arena.record(frames[0]);
    record.unfreeze_to(0);
    assert!(message(|| arena.free(&frames)).contains("can be pinned"));
    assert!(record.try_pin());
    assert!(!record.freeze(), "pinned");
    assert!(record.freeze_from(1));
    arena.free(&frames);
    assert!(!record.try_pin(), "free");
    assert_eq!(record.nr_pins(), 0);
}

#[test]
fn sparse_blocks_are_offered_only_when_fuller_ones_have_room() {
    let arena = Arena::new(3 * BLOCK).unwrap();
    let mut frames = take(&arena, 3 * BLOCK_FRAMES);
    frames.sort_unstable();
    assert_eq!(arena.sparse_candidates(usize::MAX), [], "full");
    let (a, rest) = frames.split_at(BLOCK_FRAMES);
    arena.free(&a[5..]);
    assert_eq!(arena.sparse_candidates(usize::MAX), [], "nowhere to go");
    arena.free(&rest[..4]);
    assert_eq!(arena.sparse_candidates(usize::MAX), [], "not enough room");
    arena.free(&rest[4..5]);
    let sparse = |max| arena.sparse_candidates(max).iter().map(|sparse| sparse.frame).collect::<Vec<_>>();
    assert_eq!(sparse(usize::MAX), a[..5]);
    assert_eq!(sparse(2), a[..2]);
}
