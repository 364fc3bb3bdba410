//! Contents of frames: what goes in comes out, at every offset and length, and nothing beside it
//! changes.

use umemcg_arena::{Arena, FrameId};
use umemcg_base::PAGE_SIZE;

fn frames(arena: &Arena, n: usize) -> Vec<FrameId> {
    let mut out = Vec::new();
    assert_eq!(arena.alloc(&mut out, n), n);
    out
}

/// Bytes that differ from their neighbours.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 167 + (at >> 8) * 31 + 1) as u8).collect()
}

fn contents(arena: &Arena, frame: FrameId) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE];
    arena.copy_out(frame, 0, &mut bytes);
    bytes
}

/// Offsets and lengths around every boundary that a copy loop may have.
fn ranges() -> Vec<(usize, usize)> {
    if cfg!(miri) {
        return vec![(0, 0), (1, 1), (3, 7), (8, 9), (4064, 32), (5, 127), (1, 300), (4095, 1)];
    }
    let mut ranges = Vec::new();
    for offset in (0..140).chain([2047, 2048, 4000, 4032, 4095, 4096]) {
        for len in (0..140).chain([255, 256, 257, 1000, 2048, 4031, 4095, 4096]) {
            if offset + len <= PAGE_SIZE {
                ranges.push((offset, len));
            }
        }
    }
    ranges
}

#[test]
fn fresh_frames_read_as_zero() {
    let nr_frames = if cfg!(miri) { 3 } else { 1024 };
    let arena = Arena::new(4 << 20).unwrap();
    for frame in frames(&arena, nr_frames) {
        assert!(contents(&arena, frame).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_copy_touches_its_range_and_nothing_else() {
    let arena = Arena::new(2 << 20).unwrap();
    let frames = frames(&arena, 3);
    let background = pattern(PAGE_SIZE, 5);
    for (offset, len) in ranges() {
        let skew = (offset * 7 + len) % 64;
        let source = pattern(skew + len, 91);
        let source = &source[skew..];
        for &frame in &frames {
            arena.copy_in(frame, 0, &background);
        }
        arena.copy_in(frames[1], offset, source);
        let mut expected = background.clone();
        expected[offset..offset + len].copy_from_slice(source);
        assert_eq!(contents(&arena, frames[1]), expected, "in at {offset}+{len}");

        let mut back = vec![0xee; skew + len + 64];
        arena.copy_out(frames[1], offset, &mut back[skew..skew + len]);
        assert_eq!(&back[skew..skew + len], source, "out at {offset}+{len}");
        assert!(back[..skew].iter().chain(&back[skew + len..]).all(|&byte| byte == 0xee));

        arena.zero(frames[1], offset, len);
        expected[offset..offset + len].fill(0);
        assert_eq!(contents(&arena, frames[1]), expected, "zero at {offset}+{len}");
        assert_eq!(contents(&arena, frames[0]), background);
        assert_eq!(contents(&arena, frames[2]), background);
    }
}

#[test]
fn a_frame_copies_whole_and_loads_by_words() {
    let arena = Arena::new(2 << 20).unwrap();
    let frames = frames(&arena, 2);
    let bytes = pattern(PAGE_SIZE, 3);
    arena.copy_in(frames[0], 0, &bytes);
    arena.copy_frame(frames[0], frames[1]);
    assert_eq!(contents(&arena, frames[1]), bytes);
    for offset in 0..=PAGE_SIZE - 8 {
        let word = u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap());
        assert_eq!(arena.load_u64(frames[1], offset), word);
    }
}

fn refuses(what: impl Fn(&Arena, FrameId) + std::panic::RefUnwindSafe) {
    let result = std::panic::catch_unwind(|| {
        let arena = Arena::new(2 << 20).unwrap();
        let frame = frames(&arena, 1)[0];
        what(&arena, frame);
    });
    assert!(result.is_err());
}

#[test]
fn nothing_reaches_beyond_a_frame() {
    refuses(|arena, frame| arena.copy_out(frame, 1, &mut [0; PAGE_SIZE]));
    refuses(|arena, frame| arena.copy_in(frame, PAGE_SIZE, &[0]));
    refuses(|arena, frame| arena.copy_in(frame, usize::MAX, &[0, 0]));
    refuses(|arena, frame| arena.zero(frame, 4000, 97));
    refuses(|arena, frame| assert_eq!(arena.load_u64(frame, PAGE_SIZE - 7), 0));
    refuses(|arena, frame| assert_eq!(arena.load_u64(frame, PAGE_SIZE), 0));
    refuses(|arena, frame| arena.copy_frame(frame, frame));
    refuses(|arena, _| arena.copy_out(FrameId::NONE, 0, &mut []));
    refuses(|arena, _| arena.copy_out(FrameId::from_raw(512), 0, &mut [0]));
    refuses(|arena, _| assert!(!arena.record(FrameId::from_raw(512)).is_frozen()));
}
