//! A bound on the things held by openers of control files, with a part kept for root.
//!
//! Tenants, and the groups in them, have [shares](ShareByPath) of the rest, however many users they
//! have. In the root group, where processes of no tenant are, each user has a share of the group's.

use rustix::io::Errno;
use umemcg::Group;
use umemcg::internal::{GroupPath, ShareByPath};

use crate::permission::Credentials;

/// Distinguishes the number of a user from that of a group.
const OF_USER: u64 = 1 << 63;

/// The opener of a control file, as bounds count it: root, or another user's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(Option<GroupPath>);

impl Holder {
    pub(crate) fn new(opener: &Credentials, group: &Group) -> Self {
        let user = OF_USER | u64::from(opener.uid);
        let path = if group.is_root() { GroupPath::new(&[group.id(), user]) } else { GroupPath::of(group) };
        Self((opener.uid != 0).then_some(path))
    }
}

/// See the module text.
#[derive(Debug)]
pub struct HolderShare {
    /// (C)
    nr_max: u64,
    nr: u64,
    of_users: ShareByPath,
}

impl HolderShare {
    /// Creates a bound of `nr_max`, with `nr_of_root` of them reserved for root.
    pub fn new(nr_max: u64, nr_of_root: u64) -> Self {
        Self { nr_max, nr: 0, of_users: ShareByPath::new(nr_max.saturating_sub(nr_of_root)) }
    }

    /// Counts one more for a holder.
    ///
    /// # Errors
    /// `ENFILE` when there are too many, `EMFILE` when the holder has its share.
    pub fn take(&mut self, holder: &Holder) -> Result<(), Errno> {
        if self.nr >= self.nr_max {
            return Err(Errno::NFILE);
        }
        if let Some(path) = &holder.0
            && !self.of_users.take(path, 1)
        {
            return Err(Errno::MFILE);
        }
        self.nr += 1;
        Ok(())
    }

    /// Counts one less for a holder.
    pub fn give(&mut self, holder: &Holder) {
        self.nr -= 1;
        if let Some(path) = &holder.0 {
            self.of_users.give(path, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use umemcg::internal::GroupTree;
    use umemcg::internal::testing::hundred_below;

    use super::*;

    /// Takes one after another; returns the number taken.
    fn take_all(share: &mut HolderShare, group: &Group, uid: u32) -> usize {
        let holder = Holder::new(&Credentials::user(uid, uid), group);
        (0..).take_while(|_| share.take(&holder).is_ok()).count()
    }

    #[test]
    fn a_tenant_gains_nothing_by_fifteen_users() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let mut share = HolderShare::new(1024, 128);
        let of_many: usize = (1..=15).map(|uid| take_all(&mut share, &many, uid)).sum();
        assert_eq!((of_many, take_all(&mut share, &one, 1)), (448, 224));
        assert_eq!(take_all(&mut share, tree.root(), 0), 1024 - 448 - 224, "root takes the rest");
        let root = Holder::new(&Credentials::ROOT, &many);
        share.give(&root);
        assert_eq!((share.take(&root), share.take(&root)), (Ok(()), Err(Errno::NFILE)));
    }

    #[test]
    fn a_tenant_gains_nothing_by_a_hundred_groups() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let mut share = HolderShare::new(1024, 128);
        let of_many: usize =
            hundred_below(&tree, &many).iter().map(|group| take_all(&mut share, group, 1)).sum();
        assert_eq!((of_many, take_all(&mut share, &one, 1)), (447, 224));
    }

    #[test]
    fn users_of_the_root_group_leave_a_part_to_others_and_tenants() {
        let tree = GroupTree::new(1 << 30);
        let tenant = tree.create(tree.root(), "tenant".as_ref()).unwrap();
        let mut share = HolderShare::new(1024, 128);
        let taken = [1, 2].map(|uid| take_all(&mut share, tree.root(), uid));
        assert_eq!((taken, take_all(&mut share, &tenant, 1)), ([298, 100], 249));
    }
}
