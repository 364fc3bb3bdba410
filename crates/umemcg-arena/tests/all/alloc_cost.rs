//! The cost of taking frames, of giving them back, and of giving back blocks.
//!
//! `cargo test --release -p umemcg-arena --test all -- --ignored alloc_cost --nocapture`
#![cfg(not(any(loom, miri)))]

use std::sync::Barrier;
use std::time::Instant;

use umemcg_arena::{Arena, BLOCK_FRAMES, FrameId};

const BYTES: u64 = 1 << 30;
/// Frames that each thread takes and gives in all.
const NR_FRAMES: usize = 1 << 20;

/// Puts frames in an order that looks like an LRU list's.
fn shuffle(frames: &mut [FrameId], mut seed: u64) {
    for at in (1..frames.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        frames.swap(at, (seed >> 33) as usize % (at + 1));
    }
}

/// Nanoseconds per frame, alloc and free together. A thread holds `held` frames, and replaces
/// `batch` of them at a time, the oldest first.
fn churn(arena: &Arena, nr_threads: u64, held: usize, batch: usize) -> f64 {
    let start = Barrier::new(nr_threads as usize);
    let churn_one = |me: u64| {
        let mut frames = Vec::new();
        assert_eq!(arena.alloc(&mut frames, held), held);
        shuffle(&mut frames, me);
        let mut ring = std::collections::VecDeque::from(frames);
        let mut moving = Vec::with_capacity(batch);
        start.wait();
        let began = Instant::now();
        for _ in 0..NR_FRAMES / batch {
            moving.extend(ring.drain(..batch));
            arena.free(&moving);
            moving.clear();
            assert_eq!(arena.alloc(&mut moving, batch), batch);
            ring.extend(moving.drain(..));
        }
        let nanoseconds = began.elapsed().as_secs_f64() * 1e9 / NR_FRAMES as f64;
        arena.free(ring.make_contiguous());
        nanoseconds
    };
    let all: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..nr_threads).map(|me| scope.spawn(move || churn_one(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
#[ignore = "a measurement, for release builds on a quiet machine"]
fn alloc_cost() {
    let arena = Arena::new(BYTES).unwrap();
    let held = arena.nr_frames() / 4;
    for nr_threads in [1, 2] {
        for batch in [1, 8, 32, 256] {
            let once = churn(&arena, nr_threads, held, batch);
            println!(
                "{nr_threads} threads, batches of {batch:3}: {once:6.1} ns per frame for alloc and free"
            );
        }
    }
    let mut frames = Vec::new();
    arena.trim(0);
    arena.alloc(&mut frames, arena.nr_frames());
    let began = Instant::now();
    for &frame in &frames {
        arena.zero(frame, 0, 1);
    }
    let touched = began.elapsed();
    arena.free(&frames);
    let began = Instant::now();
    let nr_blocks = arena.trim(0);
    let per_block = |time: std::time::Duration| time.as_secs_f64() * 1e6 / nr_blocks as f64;
    println!(
        "{:.1} µs to touch a block, {:.1} µs to give it back",
        per_block(touched),
        per_block(began.elapsed())
    );
    assert_eq!(nr_blocks, arena.nr_frames() / BLOCK_FRAMES);
}
