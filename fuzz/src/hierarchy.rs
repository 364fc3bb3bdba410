//! A tree of groups with its control files, and processes as numbers in a table. The end of an
//! input checks that every charged byte has been given back.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use umemcg::{Charge, DropCaches, Engine, EngineConfig, Group, ObjectCache, StatItem};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_control::{ControlTree, Credentials, Membership, MembershipError, NodeId, Style};

/// Size of the pool.
const POOL_BYTES: u64 = 8 << 20;
/// The bytes used by an empty pool: nothing, or its page of zeros.
const KEPT_BYTES: [u64; 2] = [0, PAGE_SIZE_U64];
/// Most checks, a millisecond apart, for the end of the background workers' work.
const NR_LOOKS_MAX: usize = 10_000;
/// The threads there are, each with its process.
const THREADS: [(u32, u32); 4] = [(100, 100), (101, 100), (200, 200), (300, 300)];

/// Threads by id, each with its process and its group; none is the root.
#[derive(Debug)]
pub struct Processes {
    threads: Mutex<BTreeMap<u32, (u32, Arc<Group>)>>,
    closed: Mutex<Vec<u64>>,
}

impl Processes {
    fn new(root: &Arc<Group>) -> Self {
        let threads = THREADS.into_iter().map(|(tid, pid)| (tid, (pid, Arc::clone(root)))).collect();
        Self { threads: Mutex::new(threads), closed: Mutex::default() }
    }

    fn ids(&self, group: &Arc<Group>, id: impl Fn(u32, u32) -> u32) -> Vec<u32> {
        let threads = self.threads.lock().unwrap();
        let inside = threads.iter().filter(|(_, (_, of))| Arc::ptr_eq(of, group));
        let mut ids: Vec<u32> = inside.map(|(&tid, &(pid, _))| id(tid, pid)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn attach(&self, group: &Arc<Group>, which: impl Fn(u32, u32) -> bool) -> Result<(), MembershipError> {
        if self.closed.lock().unwrap().contains(&group.id()) {
            return Err(MembershipError::Gone);
        }
        let mut threads = self.threads.lock().unwrap();
        let moved = threads.iter_mut().filter(|(tid, (pid, _))| which(**tid, *pid));
        match moved.map(|(_, thread)| thread.1 = Arc::clone(group)).count() {
            0 => Err(MembershipError::NoSuchProcess),
            _ => Ok(()),
        }
    }
}

impl Membership for Processes {
    fn processes(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(self.ids(group, |_, pid| pid))
    }
    fn threads(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(self.ids(group, |tid, _| tid))
    }
    fn attach_process(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        self.attach(group, |_, of| of == pid)
    }
    fn attach_thread(&self, group: &Arc<Group>, tid: u32) -> Result<(), MembershipError> {
        self.attach(group, |thread, _| thread == tid)
    }
    fn explicit_group(&self, tid: u32) -> Result<Arc<Group>, MembershipError> {
        let threads = self.threads.lock().unwrap();
        threads.get(&tid).map(|(_, group)| Arc::clone(group)).ok_or(MembershipError::NoSuchProcess)
    }
    fn kill(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        self.threads.lock().unwrap().retain(|_, (of, at)| *of != pid || !Arc::ptr_eq(at, group));
        Ok(())
    }
    fn is_populated(&self, group: &Arc<Group>) -> bool {
        !self.ids(group, |tid, _| tid).is_empty()
    }
    fn close(&self, group: &Arc<Group>) -> Result<(), MembershipError> {
        if self.is_populated(group) {
            return Err(MembershipError::Populated);
        }
        self.closed.lock().unwrap().push(group.id());
        Ok(())
    }
    fn reopen(&self, group: &Arc<Group>) {
        self.closed.lock().unwrap().retain(|&id| id != group.id());
    }
    fn id_from_viewer(&self, _viewer: u32, id: u32) -> Result<u32, MembershipError> {
        Ok(id)
    }
    fn ids_for_viewer(&self, _viewer: u32, ids: Vec<u32>) -> Vec<u32> {
        ids
    }
    fn process_of(&self, tid: u32) -> Result<u32, MembershipError> {
        self.threads.lock().unwrap().get(&tid).map(|&(pid, _)| pid).ok_or(MembershipError::NoSuchProcess)
    }
}

/// Groups, control files, processes, and charges.
pub struct Hierarchy {
    pub engine: Arc<Engine>,
    pub tree: Arc<ControlTree>,
    pub processes: Arc<Processes>,
    /// Gives way to reclaim.
    pub objects: ObjectCache<u64, u64>,
    /// Charges outside reclaim and without a name in the statistics, each with its requested group.
    charges: Vec<(Arc<Group>, Charge)>,
}

impl Hierarchy {
    pub fn new(style: Style) -> Self {
        let config = EngineConfig::new(POOL_BYTES).nr_kswapd(1);
        let engine = Engine::new(config).unwrap();
        let processes = Arc::new(Processes::new(engine.root()));
        let membership = Arc::clone(&processes) as Arc<dyn Membership>;
        let tree = Arc::new(ControlTree::new(Arc::clone(&engine), membership).with_style(style));
        let objects = ObjectCache::builder(&engine, "objects").weigher(|_: &u64, &bytes: &u64| bytes).build();
        Self { engine, tree, processes, objects, charges: Vec::new() }
    }

    /// Charges this much to a group until it is given back; returns whether there was room.
    pub fn charge(&mut self, group: &Arc<Group>, bytes: u64) -> bool {
        let charge = self.engine.charge(group, bytes);
        charge.map(|charge| self.charges.push((Arc::clone(group), charge))).is_ok()
    }

    /// Gives one of the charges back.
    pub fn uncharge(&mut self, at: usize) {
        if !self.charges.is_empty() {
            drop(self.charges.swap_remove(at % self.charges.len()));
        }
    }

    /// Checks that the usage of each group equals the charges to it and to the groups below it.
    /// Waits for background workers, which change usage now and then.
    pub fn check(&self) {
        let mut groups = vec![Arc::clone(self.engine.root())];
        while let Some(group) = groups.pop() {
            // The charges of a removed group are its parent's.
            let inside = self.charges.iter().filter(|(of, _)| living(of).is_descendant_of(&group));
            let charged: u64 = inside.map(|(_, charge)| charge.bytes()).sum();
            let accounts = || {
                group.drain_stocks();
                let named: i64 = StatItem::CHARGED.iter().map(|&item| group.stat_total(item)).sum();
                (group.usage_bytes() as i64, named + charged as i64)
            };
            // One look decides: a worker may go on after it.
            let (mut used, mut expected) = (0, 0);
            wait_until(|| {
                (used, expected) = accounts();
                used == expected
            });
            assert_eq!(used, expected, "usage of {:?}: {:?}", group.path(), named(&group));
            groups.extend(group.children());
        }
    }

    /// Checks the accounts, removes everything, and checks that nothing is left.
    pub fn finish(mut self) {
        self.check();
        self.charges.clear();
        self.objects.clear();
        self.processes.threads.lock().unwrap().clear();
        remove_xattrs(&self.tree);
        drop((self.objects, self.tree));
        let root = self.engine.root();
        remove_below(&self.engine, root);
        let is_empty = || {
            self.engine.drop_caches(DropCaches::Both);
            root.drain_stocks();
            KEPT_BYTES.contains(&root.usage_bytes())
        };
        wait_until(is_empty);
        assert!(KEPT_BYTES.contains(&root.usage_bytes()), "what is left: {:?}", named(root));
    }
}

/// Waits for background workers, with a bound. Counts checks, not time: time goes on while the
/// process is stopped.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..NR_LOOKS_MAX {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn living(group: &Arc<Group>) -> Arc<Group> {
    let mut at = group;
    while at.is_dead() {
        at = at.parent().unwrap();
    }
    Arc::clone(at)
}

/// Attributes of the root and its files would stay with it.
fn remove_xattrs(tree: &ControlTree) {
    let files = tree.read_directory(NodeId::ROOT, 0, usize::MAX).unwrap();
    for node in files.iter().map(|entry| entry.node).chain([NodeId::ROOT]) {
        let names = tree.xattr_names(node, &Credentials::ROOT).unwrap();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            tree.remove_xattr(node, OsStr::from_bytes(name), &Credentials::ROOT).unwrap();
        }
    }
}

fn remove_below(engine: &Engine, group: &Arc<Group>) {
    for child in group.children() {
        remove_below(engine, &child);
        engine.remove_group(&child).unwrap();
    }
}

fn named(group: &Group) -> Vec<(StatItem, i64)> {
    let items = StatItem::CHARGED.iter().map(|&item| (item, group.stat_total(item)));
    items.filter(|&(_, bytes)| bytes != 0).collect()
}

/// Returns the group of a path of names; the empty path is the root.
pub fn find(engine: &Engine, path: &[u8]) -> Option<Arc<Group>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    names.map(OsStr::from_bytes).try_fold(Arc::clone(engine.root()), |at, name| at.child(name))
}
