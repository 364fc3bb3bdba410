//! The tenant on whose behalf the current thread sends requests to a store. If the store throttles,
//! its client can let tenants take turns.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use umemcg::Group;

use crate::tenant::tenant;

thread_local! {
    static TENANT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of the tenant on whose behalf this thread sends requests; 0 if unknown.
pub fn current_tenant() -> usize {
    TENANT.get()
}

/// Returns the number of a group's tenant.
pub(crate) fn tenant_number(group: &Arc<Group>) -> usize {
    Arc::as_ptr(tenant(group)).addr()
}

/// Sends the requests of this thread on behalf of a group's tenant until dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct TenantScope {
    before: usize,
    /// It belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl TenantScope {
    pub(crate) fn of(group: &Arc<Group>) -> Self {
        Self::of_number(tenant_number(group))
    }

    /// As [`of`](Self::of), for the tenant of this number.
    pub(crate) fn of_number(tenant: usize) -> Self {
        Self { before: TENANT.replace(tenant), _here: PhantomData }
    }
}

impl Drop for TenantScope {
    fn drop(&mut self) {
        TENANT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use umemcg::internal::GroupTree;
    use umemcg::internal::testing::hundred_below;

    use super::*;

    #[test]
    fn groups_below_a_tenant_send_requests_as_one() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let number = |group: &Arc<Group>| {
            let _scope = TenantScope::of(group);
            current_tenant()
        };
        assert!(hundred_below(&tree, &many).iter().all(|group| number(group) == number(&many)));
        assert_ne!(number(&many), number(&one));
        assert_eq!(current_tenant(), 0);
    }
}
