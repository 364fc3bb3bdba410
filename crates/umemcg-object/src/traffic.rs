//! What the volumes of one store share, a store being a bucket of a server: how fast it may be
//! asked.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use umemcg_base::LeafMutex;

use crate::pace::Pace;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) pace: Pace,
}

impl Traffic {
    /// Returns that of a store, which the first volume makes and the last one drops.
    pub(crate) fn of_store(name: &str) -> Arc<Self> {
        static STORES: LeafMutex<Option<HashMap<String, Weak<Traffic>>>> = LeafMutex::new(None);
        let mut stores = STORES.lock();
        let stores = stores.get_or_insert_default();
        if let Some(known) = stores.get(name).and_then(Weak::upgrade) {
            return known;
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let new = Arc::<Self>::default();
        stores.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_a_store_share_its_traffic() {
        let one = Traffic::of_store("http://a s3://x");
        assert!(Arc::ptr_eq(&one, &Traffic::of_store("http://a s3://x")));
        assert!(!Arc::ptr_eq(&one, &Traffic::of_store("http://a s3://y")));
        let gone = Arc::downgrade(&one);
        drop(one);
        assert!(gone.upgrade().is_none(), "none is kept for volumes that are gone");
        let _ = Traffic::of_store("http://a s3://x");
    }
}
