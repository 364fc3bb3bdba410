//! How fast each source answers: all volumes of one bucket have one [pace](ReadPace).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use umemcg_base::LeafMutex;

use crate::read_pace::ReadPace;
use crate::store::StoreId;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct ReadPaces(LeafMutex<BTreeMap<StoreId, Weak<ReadPace>>>);

impl ReadPaces {
    /// Returns the pace of a source, known as long as a file of it is.
    pub(crate) fn of(&self, source: StoreId) -> Arc<ReadPace> {
        let mut paces = self.0.lock();
        if let Some(pace) = paces.get(&source).and_then(Weak::upgrade) {
            return pace;
        }
        if paces.len().is_power_of_two() {
            paces.retain(|_, pace| pace.strong_count() > 0);
        }
        let pace = Arc::default();
        paces.insert(source, Arc::downgrade(&pace));
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_source_share_its_pace() {
        let paces = ReadPaces::default();
        let one = paces.of(StoreId(1));
        assert!(Arc::ptr_eq(&one, &paces.of(StoreId(1))) && !Arc::ptr_eq(&one, &paces.of(StoreId(2))));
        drop(one);
        (3..100).for_each(|nr| drop(paces.of(StoreId(nr))));
        assert!(paces.0.lock().len() < 4);
    }
}
