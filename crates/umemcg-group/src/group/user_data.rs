//! An embedder's own value, carried by a group.

use std::any::Any;
use std::sync::Arc;

use umemcg_base::LeafRwLock;

use super::Group;
use crate::extensions::ExtensionSlot;

/// Any value shareable between threads.
pub type UserData = Arc<dyn Any + Send + Sync>;

type Slot = LeafRwLock<Option<UserData>>;

impl Group {
    /// Returns the group's user data, if it has any of this type.
    pub fn user_data<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let slot: &Slot = self.extension_if_present(ExtensionSlot::User)?;
        let data = slot.read().clone()?;
        data.downcast().ok()
    }

    /// Sets the group's user data, or removes it; returns the previous data. The data is dropped
    /// with the group at the latest, by the thread dropping the last handle of the group, possibly
    /// under a lock of this library: its destructor must not charge, reclaim or wait.
    pub fn set_user_data(&self, data: Option<UserData>) -> Option<UserData> {
        let slot: &Slot = self.extension(ExtensionSlot::User, Slot::default);
        std::mem::replace(&mut *slot.write(), data)
    }
}
