//! A control tree over a small engine, with processes that are numbers in a table.

#![allow(dead_code)]

pub mod objects;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use umemcg::{Engine, EngineConfig, Group};
use umemcg_control::{
    Access, ControlError, ControlTree, Credentials, Membership, MembershipError, NodeId, OpenFile, Request,
    Style,
};

pub const MIB: u64 = 1 << 20;

/// A thread's process, and its group if it is not the root.
type Thread = (u32, Option<Arc<Group>>);

/// Threads by id, each with its process and its group; what is not in a group is in the root.
#[derive(Debug, Default)]
pub struct Table {
    threads: Mutex<BTreeMap<u32, Thread>>,
    root: Mutex<Option<Arc<Group>>>,
    closed: Mutex<Vec<u64>>,
}

impl Table {
    /// Adds a process with the given threads, the first of which names it.
    pub fn add_process(&self, threads: &[u32]) {
        for &tid in threads {
            self.threads.lock().unwrap().insert(tid, (threads[0], None));
        }
    }

    fn in_group(&self, group: &Arc<Group>) -> Vec<(u32, u32)> {
        let is_in = |of: &Option<Arc<Group>>| match of {
            Some(of) => Arc::ptr_eq(of, group),
            None => group.is_root(),
        };
        let threads = self.threads.lock().unwrap();
        threads.iter().filter(|(_, (_, of))| is_in(of)).map(|(&tid, &(pid, _))| (tid, pid)).collect()
    }

    fn move_all(&self, group: &Arc<Group>, which: impl Fn(u32, u32) -> bool) -> Result<(), MembershipError> {
        if self.closed.lock().unwrap().contains(&group.id()) {
            return Err(MembershipError::Gone);
        }
        let mut found = false;
        for (&tid, (pid, of)) in self.threads.lock().unwrap().iter_mut() {
            if which(tid, *pid) {
                found = true;
                *of = Some(Arc::clone(group));
            }
        }
        if found { Ok(()) } else { Err(MembershipError::NoSuchProcess) }
    }
}

impl Membership for Table {
    fn processes(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        let mut ids: Vec<u32> = self.in_group(group).into_iter().map(|(_, pid)| pid).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
    fn threads(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(self.in_group(group).into_iter().map(|(tid, _)| tid).collect())
    }
    fn attach_process(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        self.move_all(group, |_, of| of == pid)
    }
    fn attach_thread(&self, group: &Arc<Group>, tid: u32) -> Result<(), MembershipError> {
        self.move_all(group, |thread, _| thread == tid)
    }
    fn explicit_group(&self, tid: u32) -> Result<Arc<Group>, MembershipError> {
        let threads = self.threads.lock().unwrap();
        let (_, of) = threads.get(&tid).ok_or(MembershipError::NoSuchProcess)?;
        Ok(of.clone().unwrap_or_else(|| self.root.lock().unwrap().clone().unwrap()))
    }
    fn kill(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        if self.in_group(group).iter().any(|&(_, of)| of == pid) {
            self.threads.lock().unwrap().retain(|_, (of, _)| *of != pid);
        }
        Ok(())
    }
    fn is_populated(&self, group: &Arc<Group>) -> bool {
        !self.in_group(group).is_empty()
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
    /// Viewers from 9000 on live in a namespace where every id is 1000 less.
    fn id_from_viewer(&self, viewer: u32, id: u32) -> Result<u32, MembershipError> {
        Ok(if viewer >= 9000 { id + 1000 } else { id })
    }
    fn ids_for_viewer(&self, viewer: u32, ids: Vec<u32>) -> Vec<u32> {
        if viewer >= 9000 { ids.into_iter().map(|id| id.saturating_sub(1000)).collect() } else { ids }
    }
    fn process_of(&self, tid: u32) -> Result<u32, MembershipError> {
        let threads = self.threads.lock().unwrap();
        threads.get(&tid).map(|&(pid, _)| pid).ok_or(MembershipError::NoSuchProcess)
    }
}

/// A tree and what is behind it.
pub struct Fixture {
    pub engine: Arc<Engine>,
    pub processes: Arc<Table>,
    pub tree: ControlTree,
}

pub fn fixture() -> Fixture {
    fixture_of(Style::Both)
}

pub fn fixture_of(style: Style) -> Fixture {
    let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
    let processes = Arc::new(Table::default());
    *processes.root.lock().unwrap() = Some(Arc::clone(engine.root()));
    let tree = ControlTree::new(Arc::clone(&engine), Arc::clone(&processes) as Arc<dyn Membership>)
        .with_style(style);
    Fixture { engine, processes, tree }
}

pub const READ: Access = Access { read: true, write: false };
pub const WRITE: Access = Access { read: false, write: true };

impl Fixture {
    /// The node at a path such as `a/b/memory.max`; the empty path is the root.
    pub fn node(&self, path: &str) -> Result<NodeId, ControlError> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(NodeId::ROOT, |at, name| Ok(self.tree.lookup(at, OsStr::new(name))?.node))
    }

    fn split<'a>(&self, path: &'a str) -> (NodeId, &'a OsStr) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.node(parent).unwrap(), OsStr::new(name))
    }

    pub fn mkdir_as(&self, path: &str, caller: &Credentials) -> Result<(), ControlError> {
        let (parent, name) = self.split(path);
        self.tree.mkdir(parent, name, 0o755, caller).map(drop)
    }
    pub fn mkdir(&self, path: &str) -> Result<(), ControlError> {
        self.mkdir_as(path, &Credentials::ROOT)
    }
    pub fn rmdir_as(&self, path: &str, caller: &Credentials) -> Result<(), ControlError> {
        let (parent, name) = self.split(path);
        self.tree.rmdir(parent, name, caller)
    }
    pub fn rmdir(&self, path: &str) -> Result<(), ControlError> {
        self.rmdir_as(path, &Credentials::ROOT)
    }
    pub fn rename(&self, path: &str, to: &str) -> Result<(), ControlError> {
        let ((parent, name), (new_parent, new_name)) = (self.split(path), self.split(to));
        self.tree.rename(parent, name, new_parent, new_name, &Credentials::ROOT)
    }
    pub fn group(&self, path: &str) -> Arc<Group> {
        self.engine.tree().lookup(format!("/{path}").as_ref()).unwrap()
    }

    pub fn open_as(
        &self,
        path: &str,
        access: Access,
        caller: &Credentials,
    ) -> Result<OpenFile, ControlError> {
        self.tree.open(self.node(path)?, access, caller.clone())
    }

    pub fn read_open(&self, file: &OpenFile) -> Result<String, ControlError> {
        let mut text = Vec::new();
        // Small pieces, as a reader with a small buffer takes them.
        loop {
            let piece = self.tree.read(file, text.len() as u64, 7, &request(1))?;
            if piece.is_empty() {
                return Ok(String::from_utf8(text).unwrap());
            }
            text.extend(piece);
        }
    }
    pub fn read(&self, path: &str) -> Result<String, ControlError> {
        self.read_open(&self.open_as(path, READ, &Credentials::ROOT)?)
    }
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<(), ControlError> {
        self.write_as(path, text, &Credentials::ROOT, 1)
    }
    pub fn write_as(
        &self,
        path: &str,
        text: impl AsRef<[u8]>,
        caller: &Credentials,
        tid: u32,
    ) -> Result<(), ControlError> {
        let file = self.open_as(path, WRITE, caller)?;
        self.tree.write(&file, text.as_ref(), &request(tid))
    }
}

pub fn request(tid: u32) -> Request<'static> {
    Request { tid, nonblocking: false, cancelled: &|| false, accepted: &|| () }
}
