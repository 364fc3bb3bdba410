//! Pins: readers' handles of objects, so that the held memory stays charged.
//!
//! 1. The first handle of an object creates a *pin*. The pin is kept beside the table, by the
//!    object's place in the lists, and charged to the same group. The object's mark records it.
//! 2. While there are handles, reclaim skips the object: evicting it would free nothing.
//! 3. When the object leaves the cache nevertheless (removed, replaced, expired), the pin leaves
//!    with it. If there are handles, the pin keeps the object's charge.
//! 4. The last handle releases that charge, after its value.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashMap;
use umemcg_base::LeafMutex;
use umemcg_group::{Charge, StatItem};
use umemcg_reclaim::{AccountedCharge, ListSlot};

use super::payer::Payer;

/// Tables of pins, so that threads seldom wait for each other.
const NR_TABLES: usize = 32;
/// Bytes of a pin: itself, and its place in a half full table.
const PIN_BYTES: u64 = (size_of::<Pin>() + 16 + 2 * size_of::<(u32, Arc<Pin>)>()) as u64;

/// The handles of one object.
#[derive(Debug)]
struct Pin {
    payer: Arc<Payer>,
    state: LeafMutex<PinState>,
    _charge: AccountedCharge,
}

#[derive(Debug, Default)]
struct PinState {
    nr_handles: u64,
    /// The charge of the object, after it has left the cache.
    left: Option<AccountedCharge>,
}

/// The pins of a cache's objects, by the number of an object's place in the lists.
#[derive(Debug)]
pub(super) struct Pins(Box<[PinTable]>);

type PinTable = LeafMutex<HashMap<ListSlot, Arc<Pin>>>;

impl Pins {
    pub(super) fn new() -> Self {
        Self((0..NR_TABLES).map(|_| LeafMutex::default()).collect())
    }

    fn table(&self, slot: ListSlot) -> &PinTable {
        &self.0[slot.into_raw() as usize % NR_TABLES]
    }

    /// Returns another handle of an object with a pin. The object's shard is locked.
    pub(super) fn hold(&self, slot: ListSlot) -> Option<Hold> {
        let pin = self.table(slot).lock().get(&slot).map(Arc::clone)?;
        Some(Hold::of(pin))
    }

    /// Creates the pin of an object, and its first handle. The object's shard is locked
    /// exclusively.
    pub(super) fn make(&self, slot: ListSlot, payer: &Arc<Payer>) -> Hold {
        let group = payer.owner().resolve();
        let _charge = AccountedCharge::forced(&group, PIN_BYTES, StatItem::SlabUnreclaimable);
        let pin = Arc::new(Pin { payer: Arc::clone(payer), state: LeafMutex::default(), _charge });
        let hold = Hold::of(Arc::clone(&pin));
        let before = self.table(slot).lock().insert(slot, pin);
        debug_assert!(before.is_none(), "one pin for each object");
        hold
    }

    /// Returns whether an object with a pin has handles, too.
    pub(super) fn is_held(&self, slot: ListSlot) -> bool {
        // Without the pin's own lock: no thread takes it under another leaf. No handle is created
        // while the shard is locked exclusively; a handle being dropped may still count.
        self.table(slot).lock().get(&slot).is_some_and(|pin| Arc::strong_count(pin) > 1)
    }

    /// Removes the pin of an object that has left the cache. Handles keep the object's charge;
    /// without handles it is returned.
    pub(super) fn leave(&self, slot: ListSlot, charge: Charge) -> Option<Charge> {
        let Some(pin) = self.table(slot).lock().remove(&slot) else { return Some(charge) };
        let bytes = charge.bytes();
        let charge = AccountedCharge::new(charge, StatItem::SlabUnreclaimable);
        let mut state = pin.state.lock();
        if state.nr_handles == 0 {
            drop(state);
            return Some(charge.into_charge());
        }
        state.left = Some(charge);
        pin.payer.note_pinned(bytes);
        None
    }
}

/// One handle of a pin.
#[derive(Debug)]
pub(super) struct Hold(Arc<Pin>);

impl Hold {
    fn of(pin: Arc<Pin>) -> Self {
        pin.state.lock().nr_handles += 1;
        Self(pin)
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.nr_handles -= 1;
        let left = if state.nr_handles == 0 { state.left.take() } else { None };
        drop(state);
        if let Some(left) = left {
            self.0.payer.note_unpinned(left.bytes());
        }
    }
}

/// A value charged to its group until its last handle is dropped, even if it has left the cache.
/// See [`ObjectCache::get_pinned`](super::ObjectCache::get_pinned).
///
/// A clone of the value itself (such as an [`Arc`]) is not tracked.
#[must_use = "the value is not pinned any more when this is dropped"]
#[derive(Clone)]
pub struct Pinned<V> {
    // Dropped in this order.
    value: V,
    hold: Hold,
}

impl<V> Pinned<V> {
    pub(super) fn new(value: V, hold: Hold) -> Self {
        Self { value, hold }
    }

    /// Returns whether the value has left the cache: its bytes, kept charged by the handle, are
    /// then among [`ObjectStats::pinned_bytes`](super::ObjectStats::pinned_bytes).
    pub fn has_left(&self) -> bool {
        self.hold.0.state.lock().left.is_some()
    }
}

impl<V> Deref for Pinned<V> {
    type Target = V;
    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V> AsRef<V> for Pinned<V> {
    fn as_ref(&self) -> &V {
        &self.value
    }
}

impl<V: fmt::Debug> fmt::Debug for Pinned<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
