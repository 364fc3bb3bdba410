//! One bit for each shrinker with possible objects of a group.
//!
//! A shrinker's id determines its bit. Bits lie in units. A unit is appended when the first of its
//! shrinkers gets an object of the group, so registering a shrinker touches no group. Bits of a
//! missing unit read as zero. Units never move, and live as long as their group.
//!
//! - *Set* after the object can be counted, unconditionally: no fence is needed.
//! - *Clear* when a count found no objects at all, then count again, and set the bit again if the
//!   answer changed. Of an adder and a clearer, the later to write the word sees all earlier stores
//!   of the other (`kernel-semantics` §4.3).
//! - *Close* when the group is removed: one bit of every unit, and a last unit, mark the removal. A
//!   later attempt to set a bit fails and goes to the parent; closing returns all bits set earlier.

use std::sync::atomic::AtomicU64 as Hint;
use std::sync::{Arc, OnceLock};

use umemcg_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::contract::Count;

/// Shrinkers of one unit; the bit after them is `CLOSED`. Few in models, since each atomic makes a
/// model slower.
pub const UNIT_IDS: u32 = if cfg!(loom) { 2 } else { 63 };
const CLOSED: u64 = 1 << UNIT_IDS;
/// Base of the unit at the end of a removed group's chain.
const END: u32 = u32::MAX;

/// Pages freed before shrinkers without freeable objects are asked again.
pub const QUIET_PAGES: u64 = 1024;

/// The group has been removed; use its parent instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// The bits of [`UNIT_IDS`] shrinkers, and the work owed by each.
#[doc(alias = "shrinker_info_unit")]
#[derive(Debug)]
pub struct Unit {
    /// The id of the shrinker of bit 0.
    base: u32,
    bits: AtomicU64,
    /// Objects due but not scanned, see [`super::pressure`]. (A)
    deferred: [AtomicU32; UNIT_IDS as usize],
    next: OnceLock<Arc<Unit>>,
}

impl Unit {
    fn new(base: u32) -> Arc<Self> {
        Arc::new(Self {
            base,
            bits: AtomicU64::new(0),
            deferred: std::array::from_fn(|_| AtomicU32::new(0)),
            next: OnceLock::new(),
        })
    }

    /// Returns the bytes of a unit.
    pub const fn bytes() -> u64 {
        size_of::<Self>() as u64 + 16
    }

    /// Returns the id of the shrinker of bit 0.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Returns the set bits.
    pub fn bits(&self) -> u64 {
        self.bits.load(Ordering::Relaxed) & !CLOSED
    }

    /// Sets a bit. The object must be countable already.
    ///
    /// # Errors
    /// [`Closed`]: the bit was set in a closed unit, without effect.
    #[doc(alias = "set_shrinker_bit")]
    pub fn set(&self, bit: u32) -> Result<(), Closed> {
        // Release: pairs with the Acquire in `clear_if_empty` and `close`.
        let before = self.bits.fetch_or(1 << bit, Ordering::Release);
        if before & CLOSED == 0 { Ok(()) } else { Err(Closed) }
    }

    /// Clears a bit, after a count of no objects at all, and counts again. Returns the second
    /// count; unless it is [`Count::Empty`], the bit is set again. `ASK_AGAIN` is off only in the
    /// model showing why it is needed.
    pub fn clear_if_empty<const ASK_AGAIN: bool>(&self, bit: u32, count: impl FnOnce() -> Count) -> Count {
        // Acquire: pairs with the Release in `set`. The count below sees any object whose bit this
        // clears.
        self.bits.fetch_and(!(1 << bit), Ordering::Acquire);
        if !ASK_AGAIN {
            return Count::Empty;
        }
        let again = count();
        if again != Count::Empty {
            // If closed meanwhile, the closing thread moves the objects.
            let _ = self.set(bit);
        }
        again
    }

    fn close(&self) -> u64 {
        // Acquire: pairs with the Release in `set`.
        self.bits.fetch_or(CLOSED, Ordering::Acquire) & !CLOSED
    }

    /// Takes the objects owed by a shrinker.
    pub fn take_deferred(&self, bit: u32) -> u64 {
        let owed = &self.deferred[bit as usize];
        // Nearly always zero, and a load is cheap.
        if owed.load(Ordering::Relaxed) == 0 { 0 } else { u64::from(owed.swap(0, Ordering::Relaxed)) }
    }

    /// Adds to the objects owed by a shrinker.
    pub fn add_deferred(&self, bit: u32, nr: u64) {
        let add = u32::try_from(nr).unwrap_or(u32::MAX);
        let owed = &self.deferred[bit as usize];
        if owed.fetch_add(add, Ordering::Relaxed).checked_add(add).is_none() {
            owed.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

/// The units of one group.
#[doc(alias = "shrinker_info")]
#[derive(Debug, Default)]
pub struct ShrinkerBits {
    first: OnceLock<Arc<Unit>>,
    /// The group's [age](crate::GroupReclaim::age) up to which no shrinker need be asked. (A)
    /// Relaxed: a hint, with no part in the protocol and so in no model.
    quiet_until: Hint,
}

/// The unit of a shrinker, and its bit there.
#[derive(Debug, Clone)]
pub struct BitPlace {
    /// The unit.
    pub unit: Arc<Unit>,
    /// The bit.
    pub bit: u32,
}

impl ShrinkerBits {
    /// Bits of a new group: none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns every unit.
    pub fn units(&self) -> impl Iterator<Item = &Arc<Unit>> {
        std::iter::successors(self.first.get(), |unit| unit.next.get()).take_while(|unit| unit.base != END)
    }

    /// Returns whether a visit at this age of the group need not ask the shrinkers, because all
    /// have recently reported nothing freeable.
    #[inline]
    pub fn is_quiet(&self, age: u64) -> bool {
        age < self.quiet_until.load(Ordering::Relaxed)
    }

    /// Notes whether all shrinkers reported nothing freeable just now.
    pub fn note_quiet(&self, is_quiet: bool, age: u64) {
        let until = if is_quiet { age.saturating_add(QUIET_PAGES) } else { 0 };
        if self.quiet_until.load(Ordering::Relaxed) != until {
            self.quiet_until.store(until, Ordering::Relaxed);
        }
    }

    /// Returns whether no bit is set.
    pub fn are_clear(&self) -> bool {
        self.units().all(|unit| unit.bits() == 0)
    }

    /// Returns the place of a shrinker's bit, if it was ever needed.
    pub fn find(&self, id: u32) -> Option<BitPlace> {
        let unit = self.units().find(|unit| unit.base == base_of(id))?;
        Some(BitPlace { unit: Arc::clone(unit), bit: id % UNIT_IDS })
    }

    /// Returns the place of a shrinker's bit; if its unit is missing, appends it and calls
    /// `appended`.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn find_or_append(&self, id: u32, appended: impl FnOnce()) -> Result<BitPlace, Closed> {
        self.locate::<true>(id, appended)
    }

    /// Does the work of [`find_or_append`](Self::find_or_append); `RETRY` is off only in the model
    /// showing why it is needed.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn locate<const RETRY: bool>(&self, id: u32, appended: impl FnOnce()) -> Result<BitPlace, Closed> {
        let base = base_of(id);
        let mut link = &self.first;
        let mut made = false;
        loop {
            // If two threads append here at the same time, the second finds the unit of the first
            // and continues after it.
            let unit = link.get_or_init(|| {
                made = true;
                Unit::new(base)
            });
            if made {
                appended();
                return Ok(BitPlace { unit: Arc::clone(unit), bit: id % UNIT_IDS });
            }
            if unit.base == base || !RETRY {
                return Ok(BitPlace { unit: Arc::clone(unit), bit: id % UNIT_IDS });
            }
            if unit.base == END {
                return Err(Closed);
            }
            link = &unit.next;
        }
    }

    /// Sets a shrinker's bit, appending its unit if need be.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn set(&self, id: u32, appended: impl FnOnce()) -> Result<(), Closed> {
        let place = self.find_or_append(id, appended)?;
        place.unit.set(place.bit)
    }

    /// Ends the map of a removed group. Calls `moved` for every shrinker with its bit set or
    /// objects owed, with the number owed, to be noted in the parent.
    pub fn close(&self, mut moved: impl FnMut(u32, bool, u64)) {
        let mut link = &self.first;
        loop {
            let unit = link.get_or_init(|| Unit::new(END));
            let bits = unit.close();
            if unit.base == END {
                return;
            }
            for bit in 0..UNIT_IDS {
                let (set, owed) = (bits >> bit & 1 == 1, unit.take_deferred(bit));
                if set || owed > 0 {
                    moved(unit.base + bit, set, owed);
                }
            }
            link = &unit.next;
        }
    }
}

fn base_of(id: u32) -> u32 {
    id - id % UNIT_IDS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn units_appear_with_their_first_bit() {
        let bits = ShrinkerBits::new();
        assert!(bits.are_clear());
        assert!(bits.find(70).is_none());
        let mut appended = 0;
        for id in [70, 3, 71, 1_000_000] {
            bits.set(id, || appended += 1).unwrap();
        }
        assert_eq!(appended, 3);
        let set: Vec<u32> = bits
            .units()
            .flat_map(|unit| (0..UNIT_IDS).filter(|b| unit.bits() >> b & 1 == 1).map(|b| unit.base() + b))
            .collect();
        assert_eq!(set, [70, 71, 3, 1_000_000]);
    }

    #[test]
    fn a_cleared_bit_comes_back_when_the_second_count_finds_any() {
        let bits = ShrinkerBits::new();
        bits.set(5, || ()).unwrap();
        let place = bits.find(5).unwrap();
        assert_eq!(place.unit.clear_if_empty::<true>(5, || Count::Objects(1)), Count::Objects(1));
        assert!(!bits.are_clear());
        assert_eq!(place.unit.clear_if_empty::<true>(5, || Count::Empty), Count::Empty);
        assert!(bits.are_clear());
    }

    #[test]
    fn closing_hands_over_bits_and_debts_and_refuses_later_ones() {
        let bits = ShrinkerBits::new();
        bits.set(5, || ()).unwrap();
        bits.set(64, || ()).unwrap();
        bits.find(64).unwrap().unit.add_deferred(64 % UNIT_IDS, 9);
        bits.find(5).unwrap().unit.add_deferred(6, 7);
        let mut moved = Vec::new();
        bits.close(|id, set, owed| moved.push((id, set, owed)));
        assert_eq!(moved, [(5, true, 0), (6, false, 7), (64, true, 9)]);
        assert_eq!(bits.set(5, || ()), Err(Closed));
        assert_eq!(bits.set(500, || ()), Err(Closed));
    }

    #[test]
    fn debts_do_not_wrap() {
        let unit = Unit::new(0);
        unit.add_deferred(1, u64::MAX);
        unit.add_deferred(1, 5);
        assert_eq!(unit.take_deferred(1), u64::from(u32::MAX));
        assert_eq!(unit.take_deferred(1), 0);
    }
}
