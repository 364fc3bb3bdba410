//! Divides the process's descriptors among groups, and closes descriptors of a group with a used-up
//! share.
//!
//! The division needs no configuration. All handles together may hold three eighths of the
//! process's descriptor limit. Each level counts the descriptors of the group and everything below
//! it. A group may take another descriptor while the counts on its path to the root add up to less
//! than that bound. So a single tenant below the root gets half of the bound, and *n* greedy
//! tenants get one part of *n* + 1 each, leaving a part for the next tenant. A tenant gains nothing
//! by creating groups below its own.
//!
//! The share bounds descriptors, not open files. A file with a reopenable descriptor ([`Reopens`])
//! is in its tenant's ring. When the share is used up, the ring is scanned: files not used since
//! the last scan give their descriptors back. If there are none, files with dirty data are written
//! and closed. A new open fails only if no file can give anything back. Files already open may
//! exceed the bound by an eighth, so that they can continue.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use umemcg::Group;
use umemcg::files::StoreId;
use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};

use crate::tenant::tenant;

/// The most members of a ring looked at by one call.
const NR_LOOKS_MAX: usize = 64;
/// After this many looks, recently used members give back as well.
const NR_LOOKS_FOR_UNUSED: usize = 32;
/// The most files written to their store by one call.
const NR_WRITES_MAX: usize = 4;

/// The shares of all groups.
static SHARES: LazyLock<Shares> = LazyLock::new(|| Shares::new(nr_descriptors_max()));

/// Returns the most descriptors for handles of this process. The first open computes it from the
/// process's limit at that time.
fn nr_descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 8 * 3).unwrap_or(usize::MAX))
}

/// A holder of reopenable descriptors.
pub(crate) trait Reopens: fmt::Debug + Send + Sync {
    /// Closes the descriptors if they are neither used nor needed. Unless `is_hard`, only if they
    /// were not used since the last call. Does not wait for data to be written.
    fn give_back(&self, is_hard: bool);

    /// Writes dirty data to the store, if the holder's store is `store`, and closes the
    /// descriptors. Returns `false` if it did not try.
    fn write_and_give_back(&self, store: StoreId) -> bool;
}

/// The purpose of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For a new handle.
    Open,
    /// For an existing handle.
    Reopen,
}

/// One tenant's holders of reopenable descriptors, by serial number. A tenant is a group just below
/// the root.
#[derive(Debug, Default)]
struct Ring {
    members: BTreeMap<u64, Weak<dyn Reopens>>,
    /// Serial number of the member visited last.
    hand: u64,
}

impl Ring {
    fn next(&mut self) -> Option<Weak<dyn Reopens>> {
        let after = self.members.range((Bound::Excluded(self.hand), Bound::Unbounded)).next();
        let (&serial, member) = after.or_else(|| self.members.first_key_value())?;
        self.hand = serial;
        Some(Weak::clone(member))
    }
}

#[derive(Debug, Default)]
struct Table {
    /// By the address of the group: each holder of a share keeps its group alive, and so all groups
    /// above it.
    nr_held: HashMap<usize, usize>,
    /// By the address of the tenant.
    rings: HashMap<usize, Ring>,
    last_serial: u64,
}

impl Table {
    /// Counts `nr` more descriptors for a group and its ancestors, if its path stays within
    /// `nr_max`.
    fn take(&mut self, group: &Arc<Group>, nr: usize, nr_max: usize) -> bool {
        let fits = self.fits(group, nr, nr_max);
        if fits {
            path(group).for_each(|at| *self.nr_held.entry(address(at)).or_default() += nr);
        }
        fits
    }

    fn fits(&self, group: &Arc<Group>, nr: usize, nr_max: usize) -> bool {
        let of_path: usize = path(group).filter_map(|at| self.nr_held.get(&address(at))).sum();
        of_path.saturating_add(nr) <= nr_max
    }

    fn give(&mut self, group: &Arc<Group>, nr: usize) {
        for at in path(group).map(address) {
            if let Some(nr_held) = self.nr_held.get_mut(&at) {
                *nr_held -= nr;
                if *nr_held == 0 {
                    self.nr_held.remove(&at);
                }
            }
        }
    }

    fn leave_ring(&mut self, group: &Arc<Group>, serial: u64) -> Option<Weak<dyn Reopens>> {
        let tenant = address(tenant(group));
        let ring = self.rings.get_mut(&tenant)?;
        let left = ring.members.remove(&serial);
        if ring.members.is_empty() {
            self.rings.remove(&tenant);
        }
        left
    }
}

#[derive(Debug)]
struct Shares {
    /// (C)
    nr_max: usize,
    /// A leaf lock.
    table: LeafMutex<Table>,
    /// Signaled when descriptors have been given back.
    given: Condvar,
}

impl Shares {
    fn new(nr_max: usize) -> Self {
        Self { nr_max, table: LeafMutex::default(), given: Condvar::new(Rank::KernelRelease) }
    }

    /// Counts `nr` descriptors for a group, after making room in its tenant's ring.
    fn take(
        &self,
        group: &Arc<Group>,
        nr: usize,
        want: Purpose,
        store: Option<StoreId>,
    ) -> Result<(), Errno> {
        for nr_looks in 0..NR_LOOKS_MAX {
            match self.take_or_next(group, nr) {
                Ok(()) => return Ok(()),
                Err(Some(member)) => {
                    member.upgrade().inspect(|member| member.give_back(nr_looks >= NR_LOOKS_FOR_UNUSED));
                }
                Err(None) => break,
            }
        }
        let mut nr_writes = 0;
        for _ in 0..if store.is_some() { NR_LOOKS_MAX } else { 0 } {
            let Err(member) = self.take_or_next(group, nr) else { return Ok(()) };
            let (Some(member), true) = (member, nr_writes < NR_WRITES_MAX) else { break };
            let written =
                store.zip(member.upgrade()).map(|(store, member)| member.write_and_give_back(store));
            nr_writes += usize::from(written == Some(true));
        }
        let nr_max = match want {
            Purpose::Open => self.nr_max,
            Purpose::Reopen => self.nr_max.saturating_add(self.nr_max / 8),
        };
        if self.table.lock().take(group, nr, nr_max) { Ok(()) } else { Err(Errno::NFILE) }
    }

    /// Waits until `nr` descriptors fit, or until a deadline.
    fn wait_for_room(&self, group: &Arc<Group>, nr: usize, deadline: Instant) {
        assert_may_wait(Rank::KernelRelease, "a wait for descriptors");
        let mut table = self.table.lock();
        while !table.fits(group, nr, self.nr_max) && !self.given.wait_until(&mut table, deadline).timed_out()
        {
        }
    }

    /// Counts `nr` descriptors if there is room. Otherwise returns the next member to ask for some.
    fn take_or_next(&self, group: &Arc<Group>, nr: usize) -> Result<(), Option<Weak<dyn Reopens>>> {
        let mut table = self.table.lock();
        if table.take(group, nr, self.nr_max) {
            return Ok(());
        }
        Err(table.rings.get_mut(&address(tenant(group))).and_then(Ring::next))
    }
}

/// Returns a group and its ancestors.
fn path(group: &Arc<Group>) -> impl Iterator<Item = &Arc<Group>> {
    std::iter::successors(Some(group), |at| at.parent())
}

fn address(group: &Arc<Group>) -> usize {
    Arc::as_ptr(group).addr()
}

/// The counted descriptors of one file or directory; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct DescriptorShare {
    shares: &'static Shares,
    group: Arc<Group>,
    nr: usize,
    /// (A) Serial number in the tenant's ring, 0 for none. Relaxed: the table's lock orders it.
    serial: AtomicU64,
}

impl DescriptorShare {
    /// Counts `nr` descriptors for a group. If there is no room, closes others, after writing data
    /// to `store` if needed. May sleep for the write; no lock may be held.
    ///
    /// # Errors
    /// `ENFILE` if the share is used up by files unable to give descriptors back.
    pub(crate) fn take(
        group: &Arc<Group>,
        nr: usize,
        want: Purpose,
        store: Option<StoreId>,
    ) -> Result<Self, Errno> {
        Self::take_of(&SHARES, group, nr, want, store)
    }

    /// Waits until `nr` descriptors fit into a group's share, or until a deadline. No lock may be
    /// held.
    pub(crate) fn wait_for_room(group: &Arc<Group>, nr: usize, deadline: Instant) {
        SHARES.wait_for_room(group, nr, deadline);
    }

    fn take_of(
        shares: &'static Shares,
        group: &Arc<Group>,
        nr: usize,
        want: Purpose,
        store: Option<StoreId>,
    ) -> Result<Self, Errno> {
        if nr > 0 {
            shares.take(group, nr, want, store)?;
        }
        Ok(Self { shares, group: Arc::clone(group), nr, serial: AtomicU64::new(0) })
    }

    /// Puts `holder` into its tenant's ring: from now on it may be asked to give its descriptors
    /// back.
    pub(crate) fn offer(&self, holder: Weak<dyn Reopens>) {
        let mut table = self.shares.table.lock();
        table.last_serial += 1;
        let serial = table.last_serial;
        self.serial.store(serial, Ordering::Relaxed);
        table.rings.entry(address(tenant(&self.group))).or_default().members.insert(serial, holder);
    }

    /// Takes the holder out of the ring: its descriptors are needed from now on.
    pub(crate) fn withdraw(&self) {
        let mut table = self.shares.table.lock();
        let serial = self.serial.swap(0, Ordering::Relaxed);
        let holder = (serial > 0).then(|| table.leave_ring(&self.group, serial));
        drop(table);
        drop(holder);
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        if self.nr > 0 {
            self.withdraw();
            self.shares.table.lock().give(&self.group, self.nr);
            self.shares.given.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use umemcg::{Engine, EngineConfig};

    fn shares(nr_max: usize) -> &'static Shares {
        Box::leak(Box::new(Shares::new(nr_max)))
    }

    fn engine() -> Arc<Engine> {
        Engine::new(EngineConfig::new(16 << 20)).unwrap()
    }

    fn take_one(
        shares: &'static Shares,
        group: &Arc<Group>,
        want: Purpose,
    ) -> Result<DescriptorShare, Errno> {
        DescriptorShare::take_of(shares, group, 1, want, Some(StoreId(1)))
    }

    fn take_all(shares: &'static Shares, group: &Arc<Group>) -> Vec<DescriptorShare> {
        std::iter::from_fn(|| take_one(shares, group, Purpose::Open).ok()).collect()
    }

    #[test]
    fn greedy_groups_leave_a_part_for_the_next() {
        let (shares, engine) = (shares(120), engine());
        let groups: Vec<_> =
            ["a", "b", "c"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap()).into();
        let first = take_all(shares, &groups[0]);
        assert_eq!(first.len(), 60);
        let second = take_all(shares, &groups[1]);
        assert_eq!(second.len(), 30);
        assert_eq!(take_one(shares, &groups[0], Purpose::Open).unwrap_err(), Errno::NFILE);
        assert_eq!(take_all(shares, &groups[2]).len(), 15);
        drop((first, second));
        assert!(shares.table.lock().nr_held.is_empty());
    }

    #[test]
    fn groups_below_a_group_share_what_it_gets() {
        let (shares, engine) = (shares(120), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let mut taken = Vec::new();
        for n in 0..50 {
            let below = engine.create_group(&tenant, format!("{n}").as_ref()).unwrap();
            taken.extend(take_all(shares, &below));
        }
        taken.extend(take_all(shares, &tenant));
        assert_eq!(taken.len(), 60);
    }

    /// Holds one descriptor until it is asked for.
    #[derive(Debug)]
    struct Holder {
        share: LeafMutex<Option<DescriptorShare>>,
        is_dirty: bool,
    }

    impl Reopens for Holder {
        fn give_back(&self, _is_hard: bool) {
            if !self.is_dirty {
                let given = self.share.lock().take();
                drop(given);
            }
        }

        fn write_and_give_back(&self, store: StoreId) -> bool {
            let given = if store == StoreId(1) { self.share.lock().take() } else { None };
            given.is_some()
        }
    }

    fn hold(shares: &'static Shares, group: &Arc<Group>, is_dirty: bool) -> Result<Arc<Holder>, Errno> {
        let share = take_one(shares, group, Purpose::Open)?;
        let holder = Arc::new(Holder { share: LeafMutex::default(), is_dirty });
        share.offer(Arc::downgrade(&holder) as Weak<dyn Reopens>);
        *holder.share.lock() = Some(share);
        Ok(holder)
    }

    fn nr_held(holders: &[Arc<Holder>]) -> usize {
        holders.iter().filter(|holder| holder.share.lock().is_some()).count()
    }

    #[test]
    fn what_can_open_again_makes_room_within_its_tenant() {
        let (shares, engine) = (shares(120), engine());
        let [a, b] = ["a", "b"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let below = engine.create_group(&a, "below".as_ref()).unwrap();
        let of_b: Vec<_> = (0..10).map(|_| hold(shares, &b, false).unwrap()).collect();
        let mut of_a: Vec<_> = (0..500).map(|_| hold(shares, &a, false).unwrap()).collect();
        assert_eq!((nr_held(&of_b), nr_held(&of_a)), (10, 55));
        of_a.extend((0..500).map(|_| hold(shares, &below, false).unwrap()));
        assert_eq!(nr_held(&of_b), 10);
        assert!(nr_held(&of_a) <= 55);
        drop((of_a, of_b));
        let table = shares.table.lock();
        assert!(table.nr_held.is_empty() && table.rings.is_empty());
    }

    #[test]
    fn what_has_data_to_write_makes_room_when_nothing_else_does() {
        let (shares, engine) = (shares(120), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let holders: Vec<_> = (0..500).map(|n| hold(shares, &tenant, n % 7 > 0).unwrap()).collect();
        assert_eq!(nr_held(&holders), 60);
    }

    #[test]
    fn a_wait_for_room_ends_when_descriptors_are_given_back() {
        let (shares, engine) = (shares(20), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let mut held = take_all(shares, &tenant);
        let never = Instant::now() + Duration::from_secs(3600);
        let waiter = std::thread::spawn({
            let tenant = Arc::clone(&tenant);
            move || shares.wait_for_room(&tenant, 2, never)
        });
        held.truncate(8);
        waiter.join().unwrap();
        assert_eq!(take_all(shares, &tenant).len(), 2);
    }

    #[test]
    fn what_is_open_may_take_an_eighth_more() {
        let (shares, engine) = (shares(160), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let fixed = take_all(shares, &tenant);
        let more: Vec<_> = std::iter::from_fn(|| take_one(shares, &tenant, Purpose::Reopen).ok()).collect();
        assert_eq!((fixed.len(), more.len()), (80, 10));
    }
}
