//! The group of a process.
//!
//! A move by hand (`cgroup.procs`, `tasks`) puts a process and its later descendants into a group.
//! Any other process is in the group of the first matching [`Rule`], else in the root. A move into
//! the root undoes the move by hand, so rules decide again. The rules for pods of Kubernetes, added
//! while a mount is served, come before all others.
//!
//! A request is charged to its thread's group as long as the thread can be identified. If the
//! thread has ended, or has been known for so short that an earlier one with its id may have made
//! the request, the group that opened the file pays ([`Classifier::payer`]). That must not be a way
//! out of a limit: a thread below the opener's group pays from its first request on, and for an
//! ended thread with a file of the root the rules by user decide.
//!
//! The [`Tracker`] follows descendants: the kernel does it in a private hierarchy, if one can be
//! mounted ([`mirror`]); otherwise parents and sessions are examined
//! ([`ancestry`](super::ancestry)). Answers are kept in a [`ThreadCache`], so a repeated query
//! costs next to nothing.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use umemcg::{CreateError, Engine, Group};
use umemcg_base::{LeafRwLock, Rank, RankedMutex};
use umemcg_control::{Membership, MembershipError};

use super::ancestry::Ancestry;
use super::mirror::{self, Mirror};
use super::pod_rules::{AddPodError, PodRules};
use super::rule_groups::{self, RULE_GROUPS_MAX, RuleGroupError, RuleGroups};
use super::rules::{Rule, RuleKind};
use super::thread_cache::{Life, ThreadCache};
use super::{Classifier, Payer, Requester, pid_namespace, proc_files};
use crate::wire::UNKNOWN_ID;

/// Returns how membership is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracking {
    /// By a hierarchy of the kernel: exact.
    Hierarchy,
    /// By parents and sessions. A process is not followed if it leaves its session and loses its
    /// parents before its first use of the mount.
    Ancestry,
}

/// The store of memberships. It identifies groups by serial; 0 is the root.
#[derive(Debug)]
enum Tracker {
    Mirror(Mirror),
    Ancestry(Ancestry),
}

/// Finds the group of a process.
#[derive(Debug)]
pub struct ProcessClassifier {
    engine: Arc<Engine>,
    tracker: Tracker,
    /// Replaced as a whole; a new list is followed by a new generation of `threads`.
    rules: ArcSwap<Vec<Rule>>,
    /// Spares each request the list. A hint: the list itself decides.
    has_path_rules: AtomicBool,
    /// (A) Requests name their users. Relaxed: cleared before the first request.
    has_users: AtomicBool,
    rule_groups: RuleGroups,
    /// A thread removes idle groups.
    tends_rule_groups: AtomicBool,
    pods: PodRules,
    threads: ThreadCache<Placement>,
    /// Groups with processes moved in by hand, by serial.
    members: LeafRwLock<HashMap<u64, Weak<Group>>>,
    /// Groups being removed, which accept no more members. Locked while a process is moved and
    /// while a group is closed.
    closed: RankedMutex<Vec<Weak<Group>>>,
}

/// A thread's group, without path rules.
#[derive(Debug, Clone)]
struct Placement {
    /// Weak: a cached thread does not keep its group alive.
    group: Weak<Group>,
    /// Rules before this one did not match; [`BY_HAND`] comes before all of them.
    rank: usize,
    /// The thread has had its id at least since this time, in nanoseconds since boot; [`u64::MAX`]
    /// if its end would not be noticed, and for a thread of the kernel, which works for others.
    since_ns: u64,
}

/// A thread's group, without path rules, and the time since when the thread is known.
#[derive(Debug)]
struct FoundPlacement {
    payer: Payer,
    rank: usize,
    since_ns: u64,
}

/// The rank of a move by hand.
const BY_HAND: usize = 0;
/// The rank of the first rule.
const FIRST_RULE: usize = 1;
/// The most times a rule's group may vanish during its lookup.
const CREATE_TRIES_MAX: usize = 8;

fn has_path_rules(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.kind() == RuleKind::Path)
}

fn has_user_rules(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.kind() == RuleKind::Uid)
}

impl ProcessClassifier {
    /// Creates a classifier with no members. The kernel keeps the membership if it can.
    ///
    /// # Errors
    /// When no descriptor or thread is available.
    pub fn new(engine: Arc<Engine>, rules: Vec<Rule>) -> io::Result<Self> {
        let tracker = match Mirror::mount() {
            Ok(mirror) => Tracker::Mirror(mirror),
            Err(error) => {
                tracing::info!(%error, "no process hierarchy: processes are followed by parents and sessions");
                Tracker::Ancestry(Ancestry::default())
            }
        };
        Self::with_tracker(engine, rules, tracker)
    }

    fn with_tracker(engine: Arc<Engine>, rules: Vec<Rule>, tracker: Tracker) -> io::Result<Self> {
        Ok(Self {
            engine,
            tracker,
            has_path_rules: has_path_rules(&rules).into(),
            has_users: true.into(),
            rules: ArcSwap::from_pointee(rules),
            rule_groups: RuleGroups::new(RULE_GROUPS_MAX),
            tends_rule_groups: false.into(),
            pods: PodRules::default(),
            threads: ThreadCache::new()?,
            members: LeafRwLock::default(),
            closed: RankedMutex::new(Rank::Membership, Vec::new()),
        })
    }

    /// Sets the bound on groups created by rules, instead of [`RULE_GROUPS_MAX`].
    #[must_use]
    pub fn with_rule_groups_max(mut self, nr_max: usize) -> Self {
        self.rule_groups = RuleGroups::new(nr_max);
        self
    }

    /// Replaces the rules. The next request of each thread is charged by the new ones. Groups
    /// created by the old ones stay until they are idle.
    ///
    /// # Errors
    /// When the system refuses a thread, or for a rule by user where requests name no user; then
    /// nothing has changed.
    pub fn set_rules(self: &Arc<Self>, rules: Vec<Rule>) -> io::Result<()> {
        if has_user_rules(&rules) && !self.has_users.load(Ordering::Relaxed) {
            const WHY: &str = "this mount began without a `uid:` rule and cannot get one: end it, and \
                 mount again";
            return Err(io::Error::new(io::ErrorKind::Unsupported, WHY));
        }
        if !rules.is_empty() {
            self.start_tending()?;
        }
        self.has_path_rules.store(has_path_rules(&rules), Ordering::Relaxed);
        self.rules.store(Arc::new(rules));
        self.threads.begin_generation();
        Ok(())
    }

    /// Starts a thread to remove empty and idle groups created by rules, until the classifier is
    /// dropped. Without rules it is started when some are set.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn tend_rule_groups(self: &Arc<Self>) -> io::Result<()> {
        if self.rules.load().is_empty() { Ok(()) } else { self.start_tending() }
    }

    fn start_tending(self: &Arc<Self>) -> io::Result<()> {
        if self.tends_rule_groups.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let classifier = Arc::downgrade(self);
        let started = umemcg_base::clock::spawn_detached("umemcg-rules", move || {
            while let Some(classifier) = classifier.upgrade() {
                classifier.rule_groups.sweep(&classifier.engine, &|group| classifier.remove_idle(group));
                drop(classifier);
                std::thread::sleep(rule_groups::TICK);
            }
        });
        started.inspect_err(|_| self.tends_rule_groups.store(false, Ordering::Relaxed))
    }

    /// Removes a group created by a rule, unless a process was moved there.
    fn remove_idle(&self, group: &Arc<Group>) {
        if self.is_populated(group) || self.close(group).is_err() {
            return;
        }
        match self.engine.remove_group(group) {
            Ok(()) => {
                tracing::info!(group = %group.path().display(), "an idle group that a rule made is removed")
            }
            Err(_) => self.reopen(group),
        }
    }

    /// Returns how membership is kept.
    pub fn tracking(&self) -> Tracking {
        match self.tracker {
            Tracker::Mirror(_) => Tracking::Hierarchy,
            Tracker::Ancestry(_) => Tracking::Ancestry,
        }
    }

    /// Returns the cached placement of a thread, if it is valid and its group lives.
    #[inline]
    fn known(&self, tid: u32, uid: u32) -> Option<FoundPlacement> {
        let Placement { group, rank, since_ns } = self.threads.get(tid, uid)?;
        let group = group.upgrade().filter(|group| !group.is_dead())?;
        Some(FoundPlacement { payer: Payer::Group(group), rank, since_ns })
    }

    /// Asks the kernel for the group of a thread. Takes some ten microseconds and does not sleep.
    /// Returns `None` if there is no such thread, or if it is ending.
    #[cold]
    fn find_out(&self, tid: u32, uid: u32) -> Option<FoundPlacement> {
        let ticket = self.threads.ticket(tid);
        let known_since_ns =
            || self.threads.earlier(tid).map_or_else(since_boot_ns, |earlier| earlier.since_ns);
        let mut since_ns = if ticket.is_watched() { known_since_ns() } else { u64::MAX };
        let cgroups = proc_files::read_cgroups(tid);
        let by_hand = self.serial_of(tid, cgroups.as_deref().unwrap_or_default());
        let by_hand = by_hand.and_then(|serial| self.member_group(serial));
        if by_hand.is_none() {
            // Read afterwards: an ending thread is shown in no group.
            let status = proc_files::read_status(tid);
            if ticket.has_ended() || status.as_ref().is_some_and(|status| status.is_ending) {
                return None;
            }
            if status.is_some_and(|status| status.is_of_kernel) {
                since_ns = u64::MAX;
            }
        }
        let (payer, rank) = match by_hand {
            Some(group) => (Payer::Group(group), BY_HAND),
            None => self.place_by_rules(uid, &cgroups.unwrap_or_default()),
        };
        if let Payer::Group(group) = &payer {
            // A placement by hand changes only by a move. The properties examined by rules may
            // change without notice.
            let has_rules = !self.rules.load().is_empty() || !self.pods.is_empty();
            let life = if rank == BY_HAND || !has_rules { Life::Thread } else { Life::Short };
            self.threads.put(ticket, uid, Placement { group: Arc::downgrade(group), rank, since_ns }, life);
        }
        Some(FoundPlacement { payer, rank, since_ns })
    }

    /// Returns a placement in the root, after all rules.
    fn in_root(&self) -> FoundPlacement {
        let payer = Payer::Group(Arc::clone(self.engine.root()));
        FoundPlacement { payer, rank: FIRST_RULE + self.rules.load().len(), since_ns: 0 }
    }

    /// Returns the rank of the first rule that goes by a thread's cgroup. Those of pods come before
    /// all others.
    fn first_rule_by_cgroup(&self) -> Option<usize> {
        if !self.pods.is_empty() {
            return Some(FIRST_RULE);
        }
        let number = self.rules.load().iter().position(|rule| rule.kind() == RuleKind::Cgroup);
        number.map(|number| FIRST_RULE + number)
    }

    /// Returns the group chosen by the path rules before the matched one.
    fn place_by_path(&self, rank: usize, path: &dyn Fn() -> Option<PathBuf>) -> Option<Payer> {
        if !self.has_path_rules.load(Ordering::Relaxed) || rank == BY_HAND {
            return None;
        }
        let rules = self.rules.load();
        // The rank may come from a longer list, just replaced.
        let before = &rules[..rules.len().min(rank - FIRST_RULE)];
        let mut path_rules = before.iter().filter(|rule| rule.kind() == RuleKind::Path).peekable();
        let path = path_rules.peek().and_then(|_| path())?;
        let path = path.as_os_str().as_bytes();
        path_rules.find_map(|rule| rule.place(path)).map(|names| self.find(names))
    }

    /// Returns the serial of the group of a thread moved by hand; `None` if it was not moved, or is
    /// gone.
    fn serial_of(&self, tid: u32, cgroups: &[u8]) -> Option<u64> {
        let serial = match &self.tracker {
            Tracker::Mirror(mirror) => mirror.serial_in(cgroups),
            Tracker::Ancestry(ancestry) => ancestry.serial_of(tid)?,
        };
        (serial != 0).then_some(serial)
    }

    fn member_group(&self, serial: u64) -> Option<Arc<Group>> {
        self.members.read().get(&serial)?.upgrade().filter(|group| !group.is_dead())
    }

    fn place_by_rules(&self, uid: u32, cgroups: &[u8]) -> (Payer, usize) {
        if let Some(group) = self.pods.place(cgroups, &self.engine) {
            return (Payer::Group(group), FIRST_RULE);
        }
        for (number, rule) in self.rules.load().iter().enumerate() {
            let names = match rule.kind() {
                RuleKind::Path => None,
                RuleKind::Uid if uid == UNKNOWN_ID => None,
                RuleKind::Uid => rule.place(uid.to_string().as_bytes()),
                RuleKind::Cgroup => proc_files::cgroup_lines(cgroups)
                    .filter(|(controllers, _)| !mirror::is_ours(controllers))
                    .find_map(|(_, path)| rule.place(path)),
            };
            if let Some(names) = names {
                return (self.find(names), FIRST_RULE + number);
            }
        }
        let in_root = self.in_root();
        (in_root.payer, in_root.rank)
    }

    /// Returns the group at these names, or its deepest existing ancestor.
    fn find(&self, names: Vec<OsString>) -> Payer {
        let mut above = Arc::clone(self.engine.root());
        for name in &names {
            match above.child(name) {
                Some(child) => above = child,
                None => return Payer::Unmade { names, above },
            }
        }
        Payer::Group(above)
    }

    /// Returns the group at these names; creates missing ones. If one cannot be created, returns
    /// the group above it.
    fn find_or_create(&self, names: &[OsString]) -> Arc<Group> {
        let mut at = Arc::clone(self.engine.root());
        let mut nr_tries = 0;
        let mut depth = 0;
        while let Some(name) = names.get(depth) {
            if let Some(child) = at.child(name) {
                at = child;
                depth += 1;
                continue;
            }
            match self.rule_groups.make(&self.engine, &at, name) {
                Ok(child) => {
                    tracing::info!(group = %child.path().display(), "a rule has made a group");
                    at = child;
                    depth += 1;
                }
                Err(RuleGroupError::TooMany) => break,
                Err(RuleGroupError::Refused(CreateError::Exists | CreateError::ParentGone))
                    if nr_tries < CREATE_TRIES_MAX =>
                {
                    // Another thread created it first, or removed an ancestor: start again from the
                    // top.
                    nr_tries += 1;
                    at = Arc::clone(self.engine.root());
                    depth = 0;
                }
                Err(RuleGroupError::Refused(error)) => {
                    tracing::warn!(%error, above = %at.path().display(), ?name, "a rule cannot make its group");
                    break;
                }
            }
        }
        at
    }

    /// Returns the id of a group where membership is kept.
    fn serial(&self, group: &Group) -> u64 {
        if group.is_root() { 0 } else { group.id() }
    }

    fn list(&self, group: &Group, whole_processes: bool) -> Vec<u32> {
        let serial = self.serial(group);
        if serial != 0 && !self.members.read().contains_key(&serial) {
            return Vec::new();
        }
        match &self.tracker {
            Tracker::Mirror(mirror) => mirror.list(serial, whole_processes),
            Tracker::Ancestry(ancestry) => ancestry.list(serial, whole_processes),
        }
    }

    fn attach(&self, group: &Arc<Group>, id: u32, whole_process: bool) -> Result<(), MembershipError> {
        let closed = self.closed.lock_second();
        if group.is_dead() || closed.iter().any(|closed| std::ptr::eq(closed.as_ptr(), Arc::as_ptr(group))) {
            return Err(MembershipError::Gone);
        }
        let serial = self.serial(group);
        if serial != 0 {
            // Before the move: a lookup that finds the process in the group must find the group,
            // too.
            self.members.write().insert(serial, Arc::downgrade(group));
        }
        let moved = match &self.tracker {
            Tracker::Mirror(mirror) => {
                mirror.attach(serial, id, whole_process).map_err(|errno| match errno {
                    Errno::SRCH => MembershipError::NoSuchProcess,
                    Errno::NODEV | Errno::NOENT => MembershipError::Gone,
                    errno => MembershipError::System(errno),
                })
            }
            Tracker::Ancestry(ancestry) if ancestry.attach(serial, id, whole_process) => Ok(()),
            Tracker::Ancestry(_) => Err(MembershipError::NoSuchProcess),
        };
        self.threads.begin_generation();
        moved
    }
}

impl Classifier for ProcessClassifier {
    fn classify(&self, tid: u32, uid: u32, gid: u32) -> Arc<Group> {
        let requester = Requester { tid, uid, gid, queued_after_ns: 0, opener: None, path: &|| None };
        match self.payer(&requester) {
            Payer::Group(group) => group,
            Payer::Unmade { names, above } => self.make_group(&names, &above),
        }
    }

    /// Returns the thread's group, if the present thread with the id must have made the request, or
    /// if it is below the opener's group; else the opener's. The root is no tenant: for an ended
    /// thread with a file opened by the root, the user in the request decides. Without an opener
    /// the requesting thread waits for the answer, so it lives and has the id.
    fn payer(&self, requester: &Requester<'_>) -> Payer {
        let Requester { tid, uid, queued_after_ns, opener, path, .. } = *requester;
        // Some requests name their user all the same; a thread's answer is kept with the user.
        let uid = if self.has_users.load(Ordering::Relaxed) { uid } else { UNKNOWN_ID };
        let found = match (tid, opener) {
            (0, Some(opener)) => return Payer::Group(Arc::clone(opener)),
            (0, None) => self.in_root(),
            _ => match (self.known(tid, uid).or_else(|| self.find_out(tid, uid)), opener) {
                (Some(found), _) => found,
                (None, Some(opener)) if !opener.is_root() => return Payer::Group(Arc::clone(opener)),
                (None, opener) => {
                    let (mut payer, mut rank) = self.place_by_rules(uid, &[]);
                    // A process placed by its cgroup may run as any user, also as another tenant's.
                    if let (Some(opener), Some(first)) = (opener, self.first_rule_by_cgroup())
                        && first <= rank
                    {
                        (payer, rank) = (Payer::Group(Arc::clone(opener)), first);
                    }
                    FoundPlacement { payer, rank, since_ns: 0 }
                }
            },
        };
        let payer = self.place_by_path(found.rank, path).unwrap_or(found.payer);
        match (&payer, opener) {
            (_, None) => payer,
            (Payer::Group(group), Some(opener)) if Arc::ptr_eq(group, opener) => payer,
            _ if found.since_ns <= queued_after_ns => payer,
            // Else a tenant could use a descriptor from above, with a new thread for each request,
            // to be charged above its limit.
            (_, Some(opener)) if payer.group_for_now().is_descendant_of(opener) => payer,
            (_, Some(opener)) => Payer::Group(Arc::clone(opener)),
        }
    }

    fn make_group(&self, names: &[OsString], _above: &Arc<Group>) -> Arc<Group> {
        self.find_or_create(names)
    }

    fn goes_by_user(&self) -> bool {
        has_user_rules(&self.rules.load())
    }

    fn lose_users(&self) {
        self.has_users.store(false, Ordering::Relaxed);
    }

    fn add_pod(&self, uid: &str, group: &str) -> Result<(), AddPodError> {
        self.pods.add(uid, group).inspect(|()| self.threads.begin_generation())
    }

    fn remove_pod(&self, uid: &str) {
        self.pods.remove(uid);
        self.threads.begin_generation();
    }
}

impl Membership for ProcessClassifier {
    fn processes(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(self.list(group, true))
    }

    fn threads(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(self.list(group, false))
    }

    fn attach_process(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        self.attach(group, pid, true)
    }

    fn attach_thread(&self, group: &Arc<Group>, tid: u32) -> Result<(), MembershipError> {
        self.attach(group, tid, false)
    }

    fn explicit_group(&self, tid: u32) -> Result<Arc<Group>, MembershipError> {
        let cgroups = proc_files::read_cgroups(tid).ok_or(MembershipError::NoSuchProcess)?;
        let group = self.serial_of(tid, &cgroups).and_then(|serial| self.member_group(serial));
        Ok(group.unwrap_or_else(|| Arc::clone(self.engine.root())))
    }

    fn kill(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(id) = id.filter(|_| pid != std::process::id()) else { return Ok(()) };
        let process = match pidfd_open(id, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(()),
            Err(errno) => return Err(MembershipError::System(errno)),
        };
        // Another process may have the id by now; the pidfd holds on to this one.
        if !self.list(group, true).contains(&pid) {
            return Ok(());
        }
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(MembershipError::System(errno)),
        }
    }

    fn is_populated(&self, group: &Arc<Group>) -> bool {
        !self.list(group, false).is_empty()
    }

    fn close(&self, group: &Arc<Group>) -> Result<(), MembershipError> {
        let mut closed = self.closed.lock_second();
        let serial = self.serial(group);
        if self.members.read().contains_key(&serial) {
            match &self.tracker {
                Tracker::Mirror(mirror) => mirror.remove(serial).map_err(|errno| match errno {
                    Errno::BUSY => MembershipError::Populated,
                    errno => MembershipError::System(errno),
                })?,
                Tracker::Ancestry(ancestry) if !ancestry.list(serial, false).is_empty() => {
                    return Err(MembershipError::Populated);
                }
                Tracker::Ancestry(_) => {}
            }
            self.members.write().remove(&serial);
        }
        // Removed groups need no entry: they are dead.
        closed.retain(|closed| closed.upgrade().is_some_and(|group| !group.is_dead()));
        closed.push(Arc::downgrade(group));
        Ok(())
    }

    fn reopen(&self, group: &Arc<Group>) {
        self.closed.lock_second().retain(|closed| !std::ptr::eq(closed.as_ptr(), Arc::as_ptr(group)));
    }

    fn id_from_viewer(&self, viewer: u32, id: u32) -> Result<u32, MembershipError> {
        pid_namespace::from_viewer(viewer, id).ok_or(MembershipError::NoSuchProcess)
    }

    fn ids_for_viewer(&self, viewer: u32, ids: Vec<u32>) -> Vec<u32> {
        pid_namespace::for_viewer(viewer, ids)
    }

    fn process_of(&self, tid: u32) -> Result<u32, MembershipError> {
        proc_files::read_status(tid).map(|status| status.tgid).ok_or(MembershipError::NoSuchProcess)
    }
}

/// Returns the time since boot in nanoseconds, on the kernel's clock for the start of threads.
pub fn since_boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
