//! Many threads at once: no frame has two holders, a pinned page is the page that it says, copies
//! mix but never invent.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

use umemcg_arena::{Arena, BLOCK_BYTES, FrameId, ZeroTable};
use umemcg_base::{Batches, PAGE_SIZE};

const NR_THREADS: u64 = 4;
/// Rounds of each thread.
const NR_ROUNDS: usize = if cfg!(miri) { 4 } else { 3000 };

/// A sequence of numbers that is the same in every run.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_frame_has_one_holder_while_blocks_come_and_go() {
    let arena = Arena::new(3 * BLOCK_BYTES as u64).unwrap();
    let holders: Arc<Vec<AtomicU32>> = Arc::new((0..arena.nr_frames()).map(|_| AtomicU32::new(0)).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let trimmer = thread::spawn({
        let (arena, stop) = (Arc::clone(&arena), Arc::clone(&stop));
        move || {
            // To Miri a block is many words.
            let mut turns = 0..if cfg!(miri) { 2 } else { usize::MAX };
            while !stop.load(Relaxed) && turns.next().is_some() {
                arena.trim(0);
                arena.prepare(1);
                arena.sparse_candidates(64);
            }
        }
    });
    let workers: Vec<_> = (1..=NR_THREADS)
        .map(|me| {
            let (arena, holders) = (Arc::clone(&arena), Arc::clone(&holders));
            thread::spawn(move || {
                let mut sequence = Sequence(me);
                let mut mine: Vec<FrameId> = Vec::new();
                // Together the threads want no more than there is, so none may ever be refused.
                let most = if cfg!(miri) { 30 } else { arena.nr_frames() as u64 / NR_THREADS };
                for _ in 0..NR_ROUNDS {
                    let n = sequence.below(most - mine.len() as u64 + 1) as usize;
                    let start = mine.len();
                    assert_eq!(arena.alloc(&mut mine, n), n, "refused while frames are free");
                    for &frame in &mine[start..] {
                        assert_eq!(
                            holders[frame.index()].swap(me as u32, Relaxed),
                            0,
                            "{frame:?} has two holders"
                        );
                        arena.copy_in(frame, 8 * me as usize, &me.to_ne_bytes());
                    }
                    let keep = sequence.below(mine.len() as u64 + 1) as usize;
                    for &frame in &mine[keep..] {
                        assert_eq!(arena.load_u64(frame, 8 * me as usize), me, "{frame:?} lost its contents");
                        assert_eq!(holders[frame.index()].swap(0, Relaxed), me as u32);
                    }
                    arena.free(&mine[keep..]);
                    mine.truncate(keep);
                }
                for frame in &mine {
                    holders[frame.index()].store(0, Relaxed);
                }
                arena.free(&mine);
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    stop.store(true, Relaxed);
    trimmer.join().unwrap();
    arena.trim(0);
    assert_eq!((arena.nr_allocated(), arena.resident_bytes()), (0, 0));
}

/// Threads take and give single frames, through their batches, of an arena in which as many are
/// free as they may have at the same time.
#[test]
fn a_frame_in_anothers_batch_is_not_out_of_reach() {
    const NR_EACH: usize = 8;
    let nr_batched = Batches::<FrameId>::new().capacity();
    let arena = Arena::new((64 * nr_batched * PAGE_SIZE) as u64).unwrap();
    let mut rest = Vec::new();
    let nr_rest = arena.nr_frames() - NR_THREADS as usize * NR_EACH;
    assert_eq!(arena.alloc(&mut rest, nr_rest), nr_rest);
    thread::scope(|scope| {
        for me in 1..=NR_THREADS {
            let arena = &arena;
            scope.spawn(move || {
                let (mut sequence, mut mine) = (Sequence(me), Vec::new());
                for _ in 0..10 * NR_ROUNDS {
                    let wanted = sequence.below((NR_EACH - mine.len()) as u64 + 1) as usize;
                    assert_eq!(arena.alloc(&mut mine, wanted), wanted, "refused while frames are free");
                    let kept = sequence.below(mine.len() as u64 + 1) as usize;
                    arena.free(&mine.split_off(kept));
                }
                arena.free(&mine);
            });
        }
    });
    assert_eq!(arena.nr_allocated(), nr_rest, "what is in a batch is free");
    let mut all = Vec::new();
    assert_eq!(arena.alloc(&mut all, 1000), NR_THREADS as usize * NR_EACH);
    arena.free(&all);
    arena.free(&rest);
    arena.trim(0);
    assert_eq!((arena.nr_allocated(), arena.resident_bytes()), (0, 0));
}

#[test]
fn a_pinned_page_keeps_its_identity_and_contents() {
    // More frames than readers, so that readers that lose the processor with a pin do not stop the
    // evictor.
    const NR_FRAMES: u64 = 16;
    const NR_PAGES: u64 = 8;
    let arena = Arena::new(BLOCK_BYTES as u64).unwrap();
    let mut frames = Vec::new();
    arena.alloc(&mut frames, NR_FRAMES as usize);
    let become_page = |frame: FrameId, page: u64| {
        arena.record(frame).index.store(page, Relaxed);
        arena.copy_in(frame, 0, &[page as u8; PAGE_SIZE]);
        arena.record(frame).unfreeze_to(0);
    };
    frames.iter().for_each(|&frame| become_page(frame, 0));
    let nr_reading = AtomicU32::new(NR_THREADS as u32);
    let nr_seen = AtomicU32::new(0);
    let mut nr_evicted = 0;
    thread::scope(|scope| {
        for me in 0..NR_THREADS {
            let (arena, frames, nr_reading, nr_seen) = (&arena, &frames, &nr_reading, &nr_seen);
            scope.spawn(move || {
                let mut sequence = Sequence(me);
                let mut bytes = [0; PAGE_SIZE];
                for _ in 0..NR_ROUNDS * 10 {
                    let frame = frames[sequence.below(NR_FRAMES) as usize];
                    let page = sequence.below(NR_PAGES);
                    let record = arena.record(frame);
                    if record.try_pin() {
                        if record.index.load(Relaxed) == page {
                            arena.copy_out(frame, 0, &mut bytes);
                            assert!(
                                bytes.iter().all(|&byte| byte == page as u8),
                                "{frame:?} is not page {page}"
                            );
                            nr_seen.fetch_add(1, Relaxed);
                        }
                        record.unpin();
                    }
                }
                nr_reading.fetch_sub(1, Relaxed);
            });
        }
        let mut sequence = Sequence(99);
        while nr_reading.load(Relaxed) > 0 || nr_evicted == 0 {
            let frame = frames[sequence.below(NR_FRAMES) as usize];
            if arena.record(frame).freeze() {
                become_page(frame, sequence.below(NR_PAGES));
                nr_evicted += 1;
            }
        }
    });
    assert!(nr_seen.into_inner() > 0);
    for &frame in &frames {
        assert!(arena.record(frame).freeze(), "a pin is left");
    }
    arena.free(&frames);
}

#[test]
fn racing_copies_mix_bytes_and_invent_none() {
    let arena = Arena::new(BLOCK_BYTES as u64).unwrap();
    let mut frames = Vec::new();
    arena.alloc(&mut frames, 2);
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for value in [0x11, 0x77] {
            let (arena, frames, start) = (&arena, &frames, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..NR_ROUNDS / 2 {
                    arena.copy_in(frames[0], 0, &[value; PAGE_SIZE]);
                    arena.copy_in(frames[0], 1001, &[value; 77]);
                    arena.copy_frame(frames[0], frames[1]);
                    arena.zero(frames[0], 3, 2000);
                }
            });
        }
        for &frame in &frames {
            let (arena, start) = (&arena, &start);
            scope.spawn(move || {
                start.wait();
                let mut bytes = [0; PAGE_SIZE];
                for _ in 0..NR_ROUNDS / 2 {
                    arena.copy_out(frame, 0, &mut bytes);
                    assert!(bytes.iter().all(|byte| [0, 0x11, 0x77].contains(byte)));
                    let word = arena.load_u64(frame, 4088);
                    assert!(word.to_ne_bytes().iter().all(|byte| [0, 0x11, 0x77].contains(byte)));
                }
            });
        }
    });
}

#[test]
fn words_are_read_while_they_are_discarded() {
    let table = ZeroTable::new(4096).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for at in (0..4096).step_by(97) {
                    table.get(at).store(5, Relaxed);
                    assert!([0, 5].contains(&table.get(at).load(Relaxed)));
                }
            }
        });
        for _ in 0..NR_ROUNDS {
            table.discard(100..4000);
        }
        stop.store(true, Relaxed);
    });
    table.discard(0..4096);
    assert!((0..4096).all(|at| table.get(at).load(Relaxed) == 0));
}
