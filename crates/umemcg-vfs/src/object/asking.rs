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

/// Returns the number of a group's tenant.
pub(super) fn number_of_tenant(group: &Arc<Group>) -> usize {
    Arc::as_ptr(tenant(group)).addr()
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
        Self { before: TENANT.replace(number_of_tenant(group)), _here: PhantomData }
    }
}

impl Drop for Asking {
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
    fn a_hundred_groups_of_a_tenant_ask_as_one() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let number = |group: &Arc<Group>| {
            let _asking = Asking::of(group);
            asking_tenant()
        };
        assert!(hundred_below(&tree, &many).iter().all(|group| number(group) == number(&many)));
        assert_ne!(number(&many), number(&one));
        assert_eq!(asking_tenant(), 0);
    }
}
