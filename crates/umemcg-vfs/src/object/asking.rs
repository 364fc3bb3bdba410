//! For which tenant a thread asks a store. A client that has requests wait, because the store
//! throttles, can have tenants take turns by it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use umemcg::Group;

use crate::host::descriptor_share::tenant;

thread_local! {
    static TENANT: Cell<usize> = const { Cell::new(0) };
}

/// Returns a number of the tenant for which this thread asks a store; 0 if that is not known.
pub fn asking_tenant() -> usize {
    TENANT.get()
}

/// Has this thread ask for a group's tenant until dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Asking {
    before: usize,
    /// It is of this thread.
    _here: PhantomData<*const ()>,
}

impl Asking {
    pub(super) fn of(group: &Arc<Group>) -> Self {
        let before = TENANT.replace(Arc::as_ptr(tenant(group)).addr());
        Self { before, _here: PhantomData }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        TENANT.set(self.before);
    }
}
