//! The cost of the relaxed copy against a plain one, from random frames of a touched arena of 256
//! MiB, in one run.
//!
//! `cargo test --release -p umemcg-arena --lib -- --ignored --nocapture copy_cost`

use std::hint::black_box;
use std::time::Instant;

use umemcg_base::PAGE_SIZE;

use crate::{Arena, FrameId};

const BYTES: usize = 256 << 20;
const NR_FRAMES: usize = BYTES / PAGE_SIZE;
/// Copies in one turn, and turns of each kind.
const NR_COPIES: usize = 20_000;
const NR_TURNS: usize = 101;
/// Highest cost of reading a whole page, as a multiple of the plain copy.
const RATIO_MAX: f64 = 1.15;

/// A random walk (xorshift) over the frames. It continues from turn to turn, so that no turn
/// profits from frames left in the caches by the turn before.
struct Walk(u64);

impl Walk {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % NR_FRAMES as u64) as usize
    }

    /// Returns the nanoseconds of one copy.
    fn time(&mut self, mut copy: impl FnMut(FrameId)) -> f64 {
        let start = Instant::now();
        for _ in 0..NR_COPIES {
            copy(FrameId::from_raw(self.next() as u32));
        }
        start.elapsed().as_secs_f64() * 1e9 / NR_COPIES as f64
    }

    /// Runs both kinds of copy in turns, and returns their medians and the median of their ratio.
    fn compare(
        &mut self,
        mut relaxed: impl FnMut(FrameId),
        mut plain: impl FnMut(FrameId),
    ) -> (f64, f64, f64) {
        let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..NR_TURNS {
            // The first one finds the caches as the other left them, so they take turns at being
            // first.
            let (x, y);
            if turn % 2 == 0 {
                x = self.time(&mut relaxed);
                y = self.time(&mut plain);
            } else {
                y = self.time(&mut plain);
                x = self.time(&mut relaxed);
            }
            a.push(x);
            b.push(y);
            ratios.push(x / y);
        }
        (median(a), median(b), median(ratios))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement, for release builds on a quiet machine"]
fn copy_cost_is_that_of_a_plain_copy() {
    let arena = Arena::new(BYTES as u64).unwrap();
    let mut frames = Vec::new();
    assert_eq!(arena.alloc(&mut frames, NR_FRAMES), NR_FRAMES);
    let page: Vec<u8> = (0..PAGE_SIZE).map(|at| at as u8).collect();
    for &frame in &frames {
        arena.copy_in(frame, 0, &page);
    }

    let mut walk = Walk(88_172_645_463_325_252);
    let mut buffer = vec![0u8; 2 * PAGE_SIZE + 64];
    let start = buffer.as_ptr().align_offset(PAGE_SIZE);
    let mut whole_page = 0.0f64;
    for (len, skew) in [(4096, 0), (4096, 16), (4096, 3), (2048, 0), (512, 0), (128, 0), (64, 0), (16, 0)] {
        let at = buffer[start + skew..].as_mut_ptr();
        let (relaxed, plain, ratio) = walk.compare(
            |frame| {
                // SAFETY: `len` bytes of the buffer, borrowed for this call only.
                arena.copy_out(frame, 0, unsafe { std::slice::from_raw_parts_mut(at, len) });
                black_box(at);
            },
            |frame| {
                let page = arena.address(frame, 0, len);
                // SAFETY: `len` bytes of a frame that no thread writes, and of the buffer.
                unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), at, len) };
                black_box(at);
            },
        );
        let (relaxed_in, plain_in, ratio_in) = walk.compare(
            |frame| {
                // SAFETY: `len` bytes of the buffer, borrowed for this call only.
                arena.copy_in(frame, 0, unsafe { std::slice::from_raw_parts(at, len) });
            },
            |frame| {
                let page = arena.address(frame, 0, len);
                // SAFETY: `len` bytes of the buffer, and of a frame that no other thread touches.
                unsafe { std::ptr::copy_nonoverlapping(at, page.as_ptr(), len) };
                black_box(page);
            },
        );
        println!(
            "{len:4} B at {skew:2}: out {relaxed:5.1} ns, plain {plain:5.1} ns, ratio {ratio:.2}; \
             in {relaxed_in:5.1} ns, plain {plain_in:5.1} ns, ratio {ratio_in:.2}"
        );
        if len == PAGE_SIZE {
            whole_page = whole_page.max(ratio);
        }
    }
    assert!(whole_page <= RATIO_MAX, "reading a page costs {whole_page:.2} times a plain copy");
}
