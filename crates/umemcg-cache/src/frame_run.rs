//! Frame runs: most pages of an index leaf lie side by side in the arena, so a reader can guess a
//! page's frame without fetching the leaf.
//!
//! Read-ahead fills a leaf's pages from adjacent free frames, so page `n` is mostly in frame
//! `base + n`. A leaf counts its pages in agreement with such a base; while half of them agree, the
//! parent's entry for the leaf shows the base. The leaves of a 1 GiB file do not fit in the
//! processor's near caches, but their parents' entries do. The result is a guess: its user checks
//! the frame's identity, as after any lookup without the lock, and reads the leaf after a wrong
//! guess. docs/design/pages.md has its gain.
//!
//! The right identity is sufficient: at any time at most one unfrozen frame carries the identity of
//! a page. Except for a moment under the index lock, it is the page's frame in the index.

use umemcg_arena::FrameId;

/// Least number of agreeing pages in a leaf before the others are guessed: half of them.
const AGREED_MIN: u32 = 32;
/// The base without frames: adding a slot does not carry it past the last number.
pub(crate) const NO_BASE: u32 = u32::MAX - 127;

/// The run of a leaf. All zero: nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameRun {
    /// The frame where slot 0 would be; may be before the first one, wrapping.
    base: u32,
    nr_agreed: u32,
}

impl FrameRun {
    pub(crate) fn decode(word: u64) -> Self {
        Self { base: word as u32, nr_agreed: (word >> 32) as u32 }
    }

    pub(crate) fn encode(self) -> u64 {
        u64::from(self.nr_agreed) << 32 | u64::from(self.base)
    }

    /// Returns the run after the page of a slot changed from frame `old` to frame `new`.
    pub(crate) fn after(mut self, slot: u64, old: Option<FrameId>, new: Option<FrameId>) -> Self {
        let agrees = |run: Self, frame| run.nr_agreed > 0 && frame == guess(run.base, slot);
        if old.is_some_and(|old| agrees(self, old)) {
            self.nr_agreed -= 1;
        }
        match new {
            Some(new) if agrees(self, new) => self.nr_agreed += 1,
            // One page makes no run: the next one may start its own.
            Some(new) if self.nr_agreed <= 1 => {
                self = Self { base: new.raw().wrapping_sub(slot as u32), nr_agreed: 1 };
            }
            _ => {}
        }
        self
    }

    /// Returns the base shown in the parent's entry for the leaf.
    pub(crate) fn shown_base(self) -> u32 {
        if self.nr_agreed >= AGREED_MIN { self.base } else { NO_BASE }
    }
}

/// Returns the probable frame of the page of a slot. It may not even exist.
#[inline]
pub(crate) fn guess(base: u32, slot: u64) -> FrameId {
    FrameId::from_raw(base.wrapping_add(slot as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(raw: u64) -> Option<FrameId> {
        Some(FrameId::from_raw(raw as u32))
    }

    #[test]
    fn half_a_leaf_side_by_side_lets_the_rest_be_guessed() {
        let mut run = FrameRun::decode(0);
        for slot in 0..32 {
            assert_eq!(run.shown_base(), NO_BASE);
            run = run.after(slot, None, frame(1000 + slot));
        }
        assert_eq!(guess(run.shown_base(), 40), FrameId::from_raw(1040));
        assert_eq!(FrameRun::decode(run.encode()), run);
        // A page elsewhere changes nothing; the departure of an agreeing page does.
        run = run.after(50, None, frame(7)).after(50, frame(7), None);
        assert_eq!(run.shown_base(), 1000);
        run = run.after(3, frame(1003), None);
        assert_eq!(run.shown_base(), NO_BASE);
        assert_eq!(run.after(3, None, frame(1003)).shown_base(), 1000);
    }

    #[test]
    fn a_run_may_start_before_the_first_frame_and_move() {
        let mut run = FrameRun::decode(0);
        for slot in 20..64 {
            run = run.after(slot, None, frame(slot - 20));
        }
        assert_eq!(guess(run.shown_base(), 63), FrameId::from_raw(43));
        for slot in 20..64 {
            run = run.after(slot, frame(slot - 20), None);
        }
        assert_eq!(run.shown_base(), NO_BASE);
        for slot in 20..64 {
            run = run.after(slot, None, frame(500 + slot));
        }
        assert_eq!(guess(run.shown_base(), 63), FrameId::from_raw(563));
        for slot in 20..64 {
            run = run.after(slot, frame(500 + slot), None);
        }
        assert_eq!(run.shown_base(), NO_BASE);
    }
}
