//! Membership without the kernel's help, for daemons that may not create a cgroup hierarchy. A
//! process moved into a group belongs to it. Any other process belongs to the group of its nearest
//! known ancestor, otherwise to the group of its session's leader.
//!
//! The answer for a process is kept for as long as it lives, so that it stays in its group when its
//! parents die or are moved. A process cannot be followed if it left its session, and lost all its
//! parents, before the daemon looked: it belongs to the root. With the hierarchy
//! ([`mirror`](super::mirror)) there is no such gap.

use std::collections::HashMap;

use umemcg_base::LeafMutex;

use super::proc_files::{Identified, Identity, identify, read_status, read_threads, walk_processes};

/// The most generations of parents examined.
const DEPTH_MAX: usize = 64;
/// The number of known processes at which dead ones are first pruned.
const PRUNE_MIN: usize = 256;

/// The serial of the root.
const ROOT: u64 = 0;

/// A known process or thread, with its identity, which distinguishes it from a later one with the
/// same id.
#[derive(Debug, Clone)]
struct KnownThread {
    identity: Identity,
    serial: u64,
}

impl KnownThread {
    fn new(found: &Identified, serial: u64) -> Self {
        Self { identity: found.identity.clone(), serial }
    }

    fn is_still(&self, found: &Identified) -> bool {
        self.identity.is_still(&found.identity)
    }
}

/// The known facts about processes.
#[derive(Debug, Default)]
pub struct Ancestry {
    state: LeafMutex<KnownProcesses>,
}

/// The groups of processes, threads and sessions.
#[derive(Debug, Default)]
struct KnownProcesses {
    processes: HashMap<u32, KnownThread>,
    /// Threads in another group than their process.
    threads: HashMap<u32, KnownThread>,
    /// The group of each session's leader when last seen. The identity is the leader's.
    sessions: HashMap<u32, KnownThread>,
    nr_after_last_prune: usize,
}

impl Ancestry {
    /// Returns the serial of a thread's group, 0 for none; `None` if there is no such thread.
    pub fn serial_of(&self, tid: u32) -> Option<u64> {
        let mut state = self.state.lock();
        state.prune_sometimes();
        state.serial_of(tid)
    }

    /// Puts a process with all its threads, or one thread, into a group. Its present children stay
    /// in their groups. Returns `false` if no process or thread has that id.
    pub fn attach(&self, serial: u64, id: u32, whole_process: bool) -> bool {
        let mut state = self.state.lock();
        let moves_leader = whole_process || read_status(id).is_some_and(|status| status.tgid == id);
        if !moves_leader {
            let Some(found) = identify(id).filter(|found| !found.status.is_zombie) else { return false };
            state.threads.insert(id, KnownThread::new(&found, serial));
            return true;
        }
        // Descendants are first recorded in their present group: otherwise they would follow this
        // process to its new one.
        let processes: HashMap<u32, Identified> =
            walk_processes().into_iter().filter_map(|pid| Some((pid, identify(pid)?))).collect();
        let Some(found) = processes.get(&id).filter(|found| !found.status.is_zombie) else { return false };
        for (&pid, descendant) in
            processes.iter().filter(|&(&pid, _)| pid != id && descends(pid, id, &processes))
        {
            if let Some(serial) = state.serial_of_process(pid) {
                state.processes.insert(pid, KnownThread::new(descendant, serial));
            }
        }
        if !whole_process {
            let known = KnownThread::new(found, serial);
            if found.status.session == id {
                state.sessions.insert(id, known.clone());
            }
            state.threads.insert(id, known);
            return true;
        }
        state.learn(id, found, serial);
        let threads = read_threads(id);
        state.threads.retain(|tid, _| !threads.contains(tid));
        true
    }

    /// Returns the processes, or threads, of a group in ascending order. Walks `/proc`.
    pub fn list(&self, serial: u64, whole_processes: bool) -> Vec<u32> {
        let mut state = self.state.lock();
        state.prune();
        let mut ids = Vec::new();
        for pid in walk_processes() {
            if read_status(pid).is_none_or(|status| status.is_zombie) {
                continue;
            }
            let mut threads = read_threads(pid);
            threads.retain(|&tid| state.serial_of(tid) == Some(serial));
            match whole_processes {
                true if !threads.is_empty() => ids.push(pid),
                true => {}
                false => ids.append(&mut threads),
            }
        }
        ids.sort_unstable();
        ids
    }
}

impl KnownProcesses {
    fn serial_of(&mut self, tid: u32) -> Option<u64> {
        if let Some(known) = self.threads.get(&tid)
            && identify(tid).is_some_and(|found| known.is_still(&found))
        {
            return Some(known.serial);
        }
        self.serial_of_process(read_status(tid)?.tgid)
    }

    /// Walks up to the nearest known ancestor, and records the answer for every process on the way.
    fn serial_of_process(&mut self, pid: u32) -> Option<u64> {
        let mut way: Vec<(u32, Identified)> = Vec::new();
        let mut at = pid;
        let mut serial = None;
        // Orphans are reparented to the first process, and do not belong to its group.
        while way.len() < DEPTH_MAX && (at > 1 || at == pid) {
            let Some(found) = identify(at) else { break };
            // The kernel does not record the thread that forked a child: the child follows its
            // parent's first thread. The other threads of a process do not.
            if at != pid
                && let Some(known) = self.threads.get(&at).filter(|known| known.is_still(&found))
            {
                serial = Some(known.serial);
                break;
            }
            serial = self.processes.get(&at).filter(|known| known.is_still(&found)).map(|known| known.serial);
            let parent = found.status.ppid;
            way.push((at, found));
            if serial.is_some() {
                break;
            }
            at = parent;
        }
        if way.is_empty() && identify(pid).is_none() {
            return None;
        }
        let serial =
            serial.or_else(|| way.iter().find_map(|(_, found)| self.serial_of_session(found.status.session)));
        // No process is recorded in the root: an ancestor may still be put into a group, and a
        // recorded process would not follow it.
        let Some(serial) = serial else { return Some(ROOT) };
        for (pid, found) in &way {
            self.learn(*pid, found, serial);
        }
        Some(serial)
    }

    fn serial_of_session(&self, session: u32) -> Option<u64> {
        // All sessions with a leader outside the daemon's pid namespace have the same id here.
        if session == 0 {
            return None;
        }
        let known = self.sessions.get(&session)?;
        // While members live, the id is not given to a new process, so a living process with the id
        // is the leader.
        let leader_is_same = identify(session).is_none_or(|leader| known.is_still(&leader));
        leader_is_same.then_some(known.serial)
    }

    fn learn(&mut self, pid: u32, found: &Identified, serial: u64) {
        let known = KnownThread::new(found, serial);
        if found.status.session == pid {
            self.sessions.insert(pid, known.clone());
        }
        self.processes.insert(pid, known);
    }

    fn prune_sometimes(&mut self) {
        if self.processes.len() >= PRUNE_MIN.max(2 * self.nr_after_last_prune) {
            self.prune();
        }
    }

    /// Forgets dead processes, and empty sessions.
    fn prune(&mut self) {
        let is_same =
            |&id: &u32, known: &mut KnownThread| identify(id).is_some_and(|found| known.is_still(&found));
        self.processes.retain(is_same);
        self.threads.retain(is_same);
        if !self.sessions.is_empty() {
            let living: Vec<u32> =
                walk_processes().into_iter().filter_map(|pid| Some(read_status(pid)?.session)).collect();
            self.sessions.retain(|session, _| living.contains(session));
        }
        self.nr_after_last_prune = self.processes.len();
    }
}

/// Returns whether `ancestor` is above `pid`.
fn descends(pid: u32, ancestor: u32, processes: &HashMap<u32, Identified>) -> bool {
    let mut at = pid;
    for _ in 0..DEPTH_MAX {
        let Some(found) = processes.get(&at) else { return false };
        if found.status.ppid == ancestor {
            return true;
        }
        at = found.status.ppid;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::testing::{Child, own_tid};

    /// Numbers of processes begin again: a child's may be lower.
    fn sorted(mut members: [u32; 2]) -> [u32; 2] {
        members.sort_unstable();
        members
    }

    #[test]
    fn children_follow_and_a_reused_id_is_another_process() {
        let ancestry = Ancestry::default();
        let child = Child::shell("read go; sh -c 'echo $$; read end; :'; :");
        assert!(ancestry.attach(7, child.id(), true));
        child.tell("go");
        let grandchild = child.read_number();
        assert_eq!(ancestry.serial_of(grandchild), Some(7));
        assert_eq!(ancestry.list(7, true), sorted([child.id(), grandchild]));
        assert_eq!(ancestry.serial_of(std::process::id()), Some(0));
        let mut state = ancestry.state.lock();
        for pid in [child.id(), grandchild] {
            state.processes.get_mut(&pid).unwrap().identity = identify(1).unwrap().identity;
        }
        assert_eq!(state.serial_of(grandchild), Some(0), "others had these ids");
    }

    #[test]
    fn an_orphan_that_was_seen_stays() {
        let ancestry = Ancestry::default();
        let child = Child::shell("exec 3<&0; read go; (setsid sh -c 'echo $$; read end' <&3 &); read end");
        assert!(ancestry.attach(7, child.id(), true));
        child.tell("go");
        let orphan = child.read_number();
        // Its first parent is gone. A race decides whether it was seen in time; only the hierarchy
        // always wins.
        let seen = ancestry.serial_of(orphan);
        assert!(seen == Some(7) || seen == Some(0), "{seen:?}");
        assert!(ancestry.attach(8, orphan, true));
        assert_eq!(ancestry.serial_of(orphan), Some(8));
    }

    #[test]
    fn an_orphan_in_the_session_of_a_member_belongs_to_it() {
        let ancestry = Ancestry::default();
        let child = Child::shell(
            "exec 3<&0; setsid sh -c 'echo $$; read go; (sh -c \"echo \\$\\$; read end\" <&3 &); read end' <&3",
        );
        let leader = child.read_number();
        assert!(ancestry.attach(7, leader, true));
        child.tell("go");
        let orphan = child.read_number();
        assert_eq!(ancestry.serial_of(orphan), Some(7));
    }

    #[test]
    fn processes_with_session_leaders_outside_are_not_related() {
        let mut state = KnownProcesses::default();
        let (one, other) = (Child::shell("read go"), Child::shell("read go"));
        let outside = |child: &Child| {
            let mut found = identify(child.id()).unwrap();
            (found.status.session, found.status.ppid) = (0, 0);
            found
        };
        state.learn(one.id(), &outside(&one), 7);
        // As if their common id had been taken for a leader's.
        state.sessions.insert(0, state.processes[&one.id()].clone());
        assert_eq!(state.serial_of_session(outside(&other).status.session), None);
        let processes = HashMap::from([(one.id(), outside(&one)), (other.id(), outside(&other))]);
        assert!(!descends(other.id(), one.id(), &processes) && !descends(one.id(), other.id(), &processes));
    }

    #[test]
    fn children_from_before_a_move_stay_where_they_are() {
        let ancestry = Ancestry::default();
        // The early child must not read the input of its parent; it ends with its parent.
        let early = "sh -c 'echo $$; while kill -0 $PPID 2>/dev/null; do sleep 0.1; done' <&- &";
        let child = Child::shell(&format!("{early} read go; sh -c 'echo $$; read end'; :"));
        let early = child.read_number();
        assert!(ancestry.attach(7, child.id(), true));
        assert_eq!(ancestry.serial_of(early), Some(0));
        assert_eq!(ancestry.serial_of(child.id()), Some(7));
    }

    #[test]
    fn one_thread_can_be_elsewhere_until_its_process_is_moved() {
        let ancestry = Ancestry::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(ancestry.attach(5, own_tid(), false));
                assert_eq!(ancestry.serial_of(own_tid()), Some(5));
                assert_eq!(ancestry.list(5, false), [own_tid()]);
                assert_eq!(ancestry.list(5, true), [std::process::id()]);
                assert!(ancestry.attach(6, std::process::id(), true));
                assert_eq!(ancestry.serial_of(own_tid()), Some(6));
            });
        });
    }

    #[test]
    fn children_follow_the_first_thread_of_their_parent() {
        let ancestry = Ancestry::default();
        // The early child must not read the input of its parent; it ends with its parent.
        let early = "sh -c 'echo $$; while kill -0 $PPID 2>/dev/null; do sleep 0.1; done' <&- &";
        let child = Child::shell(&format!("{early} read go; sh -c 'echo $$; read end'; :"));
        let early = child.read_number();
        assert!(ancestry.attach(7, child.id(), false));
        child.tell("go");
        let late = child.read_number();
        assert_eq!(ancestry.serial_of(late), Some(7));
        assert_eq!(ancestry.serial_of(early), Some(0));
        assert_eq!(ancestry.list(7, true), sorted([child.id(), late]));
    }

    #[test]
    fn the_dead_are_not_members() {
        let ancestry = Ancestry::default();
        let mut child = Child::shell("read go");
        assert!(ancestry.attach(7, child.id(), true));
        child.tell("go");
        child.wait_until_zombie();
        assert_eq!(ancestry.list(7, true), Vec::<u32>::new());
        assert!(!ancestry.attach(7, child.id(), true));
        child.reap();
        assert_eq!(ancestry.serial_of(child.id()), None);
        assert!(!ancestry.attach(7, i32::MAX as u32, true));
    }
}
