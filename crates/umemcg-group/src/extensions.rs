//! State kept in a group by the layers above: one slot for each layer, and the wake signals of
//! their workers.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use umemcg_base::WakeSignal;

/// The layer of a slot. Each layer above has one slot in every group.
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
    /// Time lost for lack of memory.
    Stalls,
    /// The embedder's own.
    User,
}

const NR_EXTENSION_SLOTS: usize = ExtensionSlot::User as usize + 1;

/// State of the layers above, created on first use.
#[derive(Default)]
pub(crate) struct Extensions([OnceLock<Box<dyn Any + Send + Sync>>; NR_EXTENSION_SLOTS]);

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

/// The wake signals of a group. A layer above puts its signal here; the thread causing an event
/// raises it without knowing its listeners.
#[derive(Debug, Default)]
pub struct WakeSignals {
    /// Usage crossed a mark: background reclaim should check the group.
    pub pressure: WakeSignalSlot,
    /// Dirty bytes crossed a threshold: the flusher should check the group.
    pub dirty: WakeSignalSlot,
}

/// A slot for a wake signal.
#[derive(Debug, Default)]
pub struct WakeSignalSlot(ArcSwapOption<WakeSignal>);

impl WakeSignalSlot {
    /// Attaches a wake signal, in place of the one before.
    pub fn set(&self, wake_signal: Arc<WakeSignal>) {
        self.0.store(Some(wake_signal));
    }

    /// Removes the wake signal.
    pub fn clear(&self) {
        self.0.store(None);
    }

    /// Returns the wake signal, if there is one.
    pub fn get(&self) -> Option<Arc<WakeSignal>> {
        self.0.load_full()
    }

    /// Raises the wake signal if there is one.
    #[inline]
    pub fn raise(&self) {
        if let Some(wake_signal) = &*self.0.load() {
            wake_signal.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_made_once_and_kept() {
        let extensions = Extensions::default();
        assert!(extensions.get::<u32>(ExtensionSlot::Cache).is_none());
        assert_eq!(*extensions.get_or_make(ExtensionSlot::Cache, || 5u32), 5);
        assert_eq!(*extensions.get_or_make(ExtensionSlot::Cache, || 6u32), 5);
        assert!(extensions.get::<u32>(ExtensionSlot::Engine).is_none());
    }

    #[test]
    fn a_signal_is_raised_only_where_it_is_attached() {
        let (signals, wake_signal) = (WakeSignals::default(), Arc::new(WakeSignal::new()));
        signals.pressure.set(Arc::clone(&wake_signal));
        signals.dirty.raise();
        assert!(!wake_signal.take());
        signals.pressure.raise();
        assert!(wake_signal.take());
        signals.pressure.clear();
        signals.pressure.raise();
        assert!(!wake_signal.take());
    }
}
