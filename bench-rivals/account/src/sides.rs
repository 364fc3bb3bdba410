//! Our side, behind the same four functions as the pools.

use std::ffi::OsStr;
use std::sync::Arc;

use umemcg::{Account, Engine, EngineConfig, Group, Refusal};

/// The pool: larger than all memory ever taken.
pub const POOL_BYTES: u64 = 4 << 30;
/// Tenants refused in turns.
const NR_TENANTS: usize = 1024;
/// Bytes that each of them holds.
const HELD_BYTES: u64 = 64 << 10;

/// One of the pools.
pub trait Side: Sync {
    /// The state of one thread.
    type Holder;

    fn holder(&self) -> Self::Holder;
    fn grow(&self, holder: &Self::Holder, bytes: usize) -> bool;
    fn shrink(&self, holder: &Self::Holder, bytes: usize);
    /// Requests more than there is. `at` selects the tenant whose turn it is.
    fn is_refused(&self, holder: &Self::Holder, at: usize) -> bool;
}

fn engine() -> Arc<Engine> {
    Engine::new(EngineConfig::new(POOL_BYTES)).expect("an engine")
}

fn child(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, OsStr::new(name)).expect("a group")
}

/// Returns a group `depth` levels below the root.
fn deep(engine: &Engine, depth: usize) -> Arc<Group> {
    (0..depth)
        .fold(Arc::clone(engine.root()), |parent, level| child(engine, &parent, &format!("level{level}")))
}

/// Ours: accounts of a query's group, four levels below the root.
pub struct Umemcg {
    engine: Arc<Engine>,
    group: Arc<Group>,
}

impl Umemcg {
    pub fn new() -> Self {
        let engine = engine();
        let group = deep(&engine, 4);
        Self { engine, group }
    }

    /// Returns the bytes still charged.
    pub fn left_bytes(&self) -> u64 {
        self.group.drain_stocks();
        self.group.usage_bytes()
    }
}

impl Side for Umemcg {
    type Holder = Account;

    fn holder(&self) -> Account {
        self.engine.account(&self.group)
    }

    #[inline]
    fn grow(&self, holder: &Account, bytes: usize) -> bool {
        holder.try_grow(bytes as u64).is_ok()
    }

    #[inline]
    fn shrink(&self, holder: &Account, bytes: usize) {
        holder.shrink(bytes as u64);
    }

    fn is_refused(&self, holder: &Account, _at: usize) -> bool {
        holder.try_grow(POOL_BYTES).is_err()
    }
}

/// Ours: tenants four levels below the root, all of them full.
pub struct Tenants {
    accounts: Vec<Account>,
    full: Vec<Arc<Group>>,
}

impl Tenants {
    fn new() -> (Arc<Engine>, Arc<Group>, Vec<Account>) {
        let engine = engine();
        let parent = deep(&engine, 3);
        let accounts = (0..NR_TENANTS).map(|at| {
            let account = engine.account(&child(&engine, &parent, &format!("tenant{at}")));
            account.try_grow(HELD_BYTES).expect("there is room");
            account
        });
        let accounts = accounts.collect();
        (engine, parent, accounts)
    }

    /// Each is at its own limit.
    pub fn full_by_itself() -> Self {
        let (engine, _, accounts) = Self::new();
        accounts.iter().for_each(|account| engine.set_max(account.group(), HELD_BYTES + 4096));
        let full = accounts.iter().map(|account| Arc::clone(account.group())).collect();
        Self { accounts, full }
    }

    /// The group above them is at its limit.
    pub fn full_by_parent() -> Self {
        let (engine, parent, accounts) = Self::new();
        parent.drain_stocks();
        engine.set_max(&parent, parent.usage_bytes() + 4096);
        Self { accounts, full: vec![parent; NR_TENANTS] }
    }
}

impl Side for Tenants {
    type Holder = ();

    fn holder(&self) {}

    fn grow(&self, _holder: &(), _bytes: usize) -> bool {
        unreachable!("they are full")
    }

    fn shrink(&self, _holder: &(), _bytes: usize) {
        unreachable!("they are full")
    }

    #[inline]
    fn is_refused(&self, _holder: &(), at: usize) -> bool {
        let at = at % NR_TENANTS;
        // The request does not fit now, and would if the other tenants gave memory back.
        match self.accounts[at].try_grow(2 * 4096) {
            Err(Refusal::NotNow { group, .. }) => Arc::ptr_eq(&group, &self.full[at]),
            _ => false,
        }
    }
}
