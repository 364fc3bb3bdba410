//! The tenant behind the requests of a thread to a store. If the store throttles, a client can let
//! tenants take turns by it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use umemcg::Group;

use crate::host::descriptor_share::tenant;

thread_local! {
    static TENANT: Cell<usize> = const { Cell::new(0) };
}

/// Returns a number of the tenant behind the requests of this thread; 0 if unknown.
pub fn asking_tenant() -> usize {
    TENANT.get()
}

/// Makes the requests of this thread those of a group's tenant until dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Asking {
    before: usize,
    /// It belongs to this thread.
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
