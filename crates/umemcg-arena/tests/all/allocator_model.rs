//! The allocator against a model that is plain enough to be its specification, over random
//! operations.
#![cfg(not(any(loom, miri)))]

use std::collections::BTreeSet;

use proptest::prelude::*;
use umemcg_arena::{Arena, BLOCK_BYTES, BLOCK_FRAMES, FrameId};
use umemcg_base::PAGE_SIZE_U64;

/// A block as the specification sees it.
struct ModelBlock {
    first: u32,
    nr_frames: u32,
    /// Free frames, the next one to hand out last: those that were freed, the most recent last,
    /// above those that were not used since the block got memory, the lowest last.
    free: Vec<u32>,
    backed: bool,
    /// The time at which it was last taken from, given to, released, or prepared.
    touched: u64,
}

impl ModelBlock {
    fn is_whole(&self) -> bool {
        self.free.len() == self.nr_frames as usize
    }

    fn is_idle(&self) -> bool {
        self.backed && self.is_whole()
    }

    fn forget(&mut self) {
        self.backed = false;
        self.free = (self.first..self.first + self.nr_frames).rev().collect();
    }
}

struct Model {
    blocks: Vec<ModelBlock>,
    now: u64,
}

impl Model {
    fn new(nr_frames: u32) -> Self {
        let block_frames = BLOCK_FRAMES as u32;
        let nr_blocks = nr_frames.div_ceil(block_frames);
        let mut blocks = Vec::new();
        for block in 0..nr_blocks {
            let first = block * block_frames;
            let nr_frames = block_frames.min(nr_frames - first);
            // Lower blocks first: as if they had been released later.
            let touched = u64::from(nr_blocks - block);
            let mut block = ModelBlock { first, nr_frames, free: Vec::new(), backed: false, touched };
            block.forget();
            blocks.push(block);
        }
        Self { blocks, now: u64::from(nr_blocks) }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The fullest block that has a free frame; idle ones after partial ones; unbacked ones last;
    /// among equals the one touched last.
    fn choose(&mut self) -> Option<&mut ModelBlock> {
        self.blocks.iter_mut().filter(|block| !block.free.is_empty()).min_by_key(|block| {
            let whole = block.is_whole();
            let nr_free = if whole { 0 } else { block.free.len() };
            (!block.backed, whole, nr_free, std::cmp::Reverse(block.touched))
        })
    }

    fn alloc(&mut self, n: usize) -> Vec<u32> {
        let mut out = Vec::new();
        while out.len() < n {
            let now = self.tick();
            let Some(block) = self.choose() else { break };
            block.backed = true;
            block.touched = now;
            let nr = (n - out.len()).min(block.free.len());
            let start = out.len();
            out.extend(block.free.drain(block.free.len() - nr..));
            out[start..].sort_unstable_by(|a, b| b.cmp(a));
        }
        out
    }

    fn free(&mut self, frames: &[FrameId]) {
        for frame in frames {
            let (frame, now) = (frame.raw(), self.tick());
            let mut blocks = self.blocks.iter_mut();
            let block =
                blocks.find(|block| (block.first..block.first + block.nr_frames).contains(&frame)).unwrap();
            block.free.push(frame);
            block.touched = now;
        }
    }

    fn trim(&mut self, keep: usize) -> usize {
        let mut nr_released = 0;
        while self.nr_idle() > keep {
            let now = self.tick();
            let idle = self.blocks.iter_mut().filter(|block| block.is_idle());
            let oldest = idle.min_by_key(|block| block.touched).unwrap();
            oldest.forget();
            oldest.touched = now;
            nr_released += 1;
        }
        nr_released
    }

    fn prepare(&mut self, enough: usize) -> usize {
        let mut nr_prepared = 0;
        while self.nr_idle() < enough {
            let now = self.tick();
            let unbacked = self.blocks.iter_mut().filter(|block| !block.backed);
            let Some(block) = unbacked.max_by_key(|block| block.touched) else { break };
            block.backed = true;
            block.touched = now;
            nr_prepared += 1;
        }
        nr_prepared
    }

    fn nr_idle(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_idle()).count()
    }

    fn nr_backed(&self) -> usize {
        self.blocks.iter().filter(|block| block.backed).count()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Alloc { n: usize },
    Free { seed: u64, n: usize },
    Trim { keep: usize },
    Prepare { enough: usize },
    Migrate { max: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..900usize).prop_map(|n| Op::Alloc { n }),
        3 => (any::<u64>(), 0..900usize).prop_map(|(seed, n)| Op::Free { seed, n }),
        1 => (0..3usize).prop_map(|keep| Op::Trim { keep }),
        1 => (0..3usize).prop_map(|enough| Op::Prepare { enough }),
        1 => prop_oneof![0..600usize, Just(usize::MAX)].prop_map(|max| Op::Migrate { max }),
    ];
    prop::collection::vec(op, 1..60)
}

/// The arena, the model, and the frames in use.
struct Pair {
    arena: std::sync::Arc<Arena>,
    model: Model,
    used: Vec<FrameId>,
}

impl Pair {
    fn alloc(&mut self, n: usize) -> Vec<FrameId> {
        let before = self.used.clone();
        let mut out = before.clone();
        let nr_got = self.arena.alloc(&mut out, n);
        assert_eq!(out[..before.len()], before);
        let got = out.split_off(before.len());
        assert_eq!(nr_got, got.len());
        let expected: Vec<FrameId> = self.model.alloc(n).into_iter().map(FrameId::from_raw).collect();
        let difference = got.iter().zip(&expected).find(|(got, expected)| got != expected);
        assert_eq!((difference, got.len()), (None, expected.len()));
        assert_eq!(nr_got, n.min(self.arena.nr_frames() - before.len()), "a free frame was refused");
        for &frame in &got {
            let record = self.arena.record(frame);
            assert!(record.is_frozen() && record.flags().bits() == 0);
            record.set(umemcg_arena::FrameFlags::DIRTY);
        }
        self.used.extend(&got);
        got
    }

    fn free(&mut self, frames: &[FrameId]) {
        self.arena.free(frames);
        self.model.free(frames);
        let gone: BTreeSet<FrameId> = frames.iter().copied().collect();
        self.used.retain(|frame| !gone.contains(frame));
    }

    /// Acts as a compactor: takes as many frames as there are candidates, and frees the candidates.
    fn migrate(&mut self, max: usize) {
        let candidates: Vec<FrameId> =
            self.arena.sparse_candidates(max).iter().map(|sparse| sparse.frame).collect();
        assert!(candidates.len() <= max);
        let distinct: BTreeSet<FrameId> = candidates.iter().copied().collect();
        assert_eq!(distinct.len(), candidates.len());
        assert!(distinct.iter().all(|frame| self.used.contains(frame)));
        let whole = |model: &Model| model.blocks.iter().filter(|block| block.is_whole()).count();
        let before = whole(&self.model);
        let blocks: BTreeSet<u32> = distinct.iter().map(|frame| frame.raw() / BLOCK_FRAMES as u32).collect();
        for frame in self.alloc(candidates.len()) {
            assert!(!blocks.contains(&(frame.raw() / BLOCK_FRAMES as u32)), "moved into a sparse block");
        }
        self.free(&candidates);
        if max == usize::MAX {
            assert_eq!(whole(&self.model), before + blocks.len(), "the move emptied no block");
        }
    }

    fn check(&self) {
        assert_eq!(self.arena.nr_allocated(), self.used.len());
        assert_eq!(self.arena.resident_bytes(), (self.model.nr_backed() * BLOCK_BYTES) as u64);
        assert_eq!(self.arena.nr_idle_blocks(), self.model.nr_idle());
    }
}

fn check(nr_frames: u32, ops: Vec<Op>) {
    // Half a page too much: capacities are rounded down.
    let arena = Arena::new(u64::from(nr_frames) * PAGE_SIZE_U64 + 2048).unwrap();
    assert_eq!(arena.nr_frames(), nr_frames as usize);
    let mut pair = Pair { arena, model: Model::new(nr_frames), used: Vec::new() };
    for op in ops {
        match op {
            Op::Alloc { n } => {
                pair.alloc(n);
            }
            Op::Free { mut seed, n } => {
                let mut chosen = Vec::new();
                for _ in 0..n.min(pair.used.len()) {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (seed >> 33) as usize % pair.used.len();
                    chosen.push(pair.used.swap_remove(at));
                }
                pair.free(&chosen);
            }
            Op::Trim { keep } => assert_eq!(pair.arena.trim(keep), pair.model.trim(keep)),
            Op::Prepare { enough } => assert_eq!(pair.arena.prepare(enough), pair.model.prepare(enough)),
            Op::Migrate { max } => pair.migrate(max),
        }
        pair.check();
    }
    let rest = pair.used.clone();
    pair.free(&rest);
    pair.check();
    assert_eq!(pair.arena.nr_allocated(), 0);
    pair.arena.trim(0);
    assert_eq!(pair.arena.resident_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_arena_does_what_the_model_does(
        nr_frames in prop_oneof![1..600u32, 1024..3000u32],
        ops in ops(),
    ) {
        check(nr_frames, ops);
    }
}

#[test]
fn every_capacity_hands_out_every_frame_once() {
    for nr_frames in [1, 2, 511, 512, 513, 1024, 1300] {
        check(
            nr_frames,
            vec![
                Op::Alloc { n: 5000 },
                Op::Alloc { n: 1 },
                Op::Free { seed: 7, n: 300 },
                Op::Trim { keep: 0 },
                Op::Migrate { max: usize::MAX },
                Op::Alloc { n: 5000 },
            ],
        );
    }
}
