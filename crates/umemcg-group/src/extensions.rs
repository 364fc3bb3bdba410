//! What the layers above keep in a group: one slot of state for each of them, and bells to wake
//! their workers.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use umemcg_base::Bell;

/// Whose state: each layer above has one slot in every group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtensionSlot {
    /// Lists, shrinkers, watermarks.
    Reclaim,
    /// Dirty files and their limits.
    Cache,
    /// The engine's own.
    Engine,
    /// The control files'.
    Control,
    /// Time lost for want of memory.
    Stalls,
}

const NR_PART_SLOTS: usize = ExtensionSlot::Stalls as usize + 1;

/// State of the layers above, made when first asked for.
#[derive(Default)]
pub(crate) struct Extensions([OnceLock<Box<dyn Any + Send + Sync>>; NR_PART_SLOTS]);

impl Extensions {
    pub(crate) fn get_or_make<T: Any + Send + Sync>(
        &self,
        slot: ExtensionSlot,
        make: impl FnOnce() -> T,
    ) -> &T {
        let part = self.0[slot as usize].get_or_init(|| Box::new(make()));
        part.downcast_ref().expect("a slot always holds the same type")
    }

    pub(crate) fn get<T: Any + Send + Sync>(&self, slot: ExtensionSlot) -> Option<&T> {
        self.0[slot as usize]
            .get()
            .map(|part| part.downcast_ref().expect("a slot always holds the same type"))
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|part| part.get().is_some())).finish()
    }
}

/// The bells of a group. A thread that wants to be woken puts a bell here; a thread that has news
/// rings without knowing its listeners.
#[derive(Debug, Default)]
pub struct Bells {
    /// Usage crossed a mark: background reclaim should look.
    pub pressure: BellSlot,
    /// Dirty bytes crossed a threshold: the flusher should look.
    pub dirty: BellSlot,
}

/// A place for a bell.
#[derive(Debug, Default)]
pub struct BellSlot(ArcSwapOption<Bell>);

impl BellSlot {
    /// Hangs a bell, in place of the one before.
    pub fn set(&self, bell: Arc<Bell>) {
        self.0.store(Some(bell));
    }

    /// Takes the bell away.
    pub fn clear(&self) {
        self.0.store(None);
    }

    /// Returns the bell that hangs here.
    pub fn get(&self) -> Option<Arc<Bell>> {
        self.0.load_full()
    }

    /// Rings the bell if there is one.
    #[inline]
    pub fn ring(&self) {
        if let Some(bell) = &*self.0.load() {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_made_once_and_kept() {
        let parts = Extensions::default();
        assert!(parts.get::<u32>(ExtensionSlot::Cache).is_none());
        assert_eq!(*parts.get_or_make(ExtensionSlot::Cache, || 5u32), 5);
        assert_eq!(*parts.get_or_make(ExtensionSlot::Cache, || 6u32), 5);
        assert!(parts.get::<u32>(ExtensionSlot::Engine).is_none());
    }

    #[test]
    fn a_bell_rings_only_where_it_hangs() {
        let (bells, bell) = (Bells::default(), Arc::new(Bell::new()));
        bells.pressure.set(Arc::clone(&bell));
        bells.dirty.ring();
        assert!(!bell.take());
        bells.pressure.ring();
        assert!(bell.take());
        bells.pressure.clear();
        bells.pressure.ring();
        assert!(!bell.take());
    }
}
