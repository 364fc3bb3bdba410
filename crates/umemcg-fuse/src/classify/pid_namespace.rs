//! Translation of process ids between pid namespaces. A container writes and reads the ids of its
//! own namespace; on the host these ids belong to other processes.

use super::proc_files::{Status, pid_namespace, read_status, read_threads, walk_processes};

/// Returns the id in the daemon's namespace of the process with `id` in the namespace of `viewer`;
/// `None` if there is none or it cannot be determined. Walks `/proc` if `viewer` is in another
/// namespace than the daemon; processes in namespaces below it are not found.
pub fn from_viewer(viewer: u32, id: u32) -> Option<u32> {
    let status = read_status(viewer)?;
    if sees_as_we_do(&status) {
        return Some(id);
    }
    let namespace = pid_namespace(viewer)?;
    let inside: Vec<u32> =
        walk_processes().into_iter().filter(|&pid| pid_namespace(pid) == Some(namespace)).collect();
    let is_meant =
        |tid: &u32| read_status(*tid).is_some_and(|status| status.ids_of_thread.last() == Some(&id));
    // Most ids belong to processes, so threads are searched only if no process has the id.
    inside
        .iter()
        .copied()
        .find(is_meant)
        .or_else(|| inside.iter().flat_map(|&pid| read_threads(pid)).find(is_meant))
}

/// Returns the ids of these threads in the namespace of `viewer`; 0 for a thread invisible there.
pub fn for_viewer(viewer: u32, ids: Vec<u32>) -> Vec<u32> {
    let Some(status) = read_status(viewer).filter(|status| !sees_as_we_do(status)) else { return ids };
    let depth = status.ids_of_thread.len();
    let namespace = pid_namespace(viewer);
    let shown = |tid: u32| {
        let status = read_status(tid)?;
        let same =
            status.ids_of_thread.len() == depth && namespace.is_some() && pid_namespace(tid) == namespace;
        if same { status.ids_of_thread.last().copied() } else { None }
    };
    ids.into_iter().map(|tid| shown(tid).unwrap_or(0)).collect()
}

/// Returns whether the process has a single id: it is in the daemon's own pid namespace.
fn sees_as_we_do(status: &Status) -> bool {
    status.ids_of_thread.len() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::testing::Child;
    use std::process::Command;

    #[test]
    fn our_own_ids_are_what_they_are() {
        let pid = std::process::id();
        assert_eq!(from_viewer(pid, 4711), Some(4711));
        assert_eq!(for_viewer(pid, vec![1, 2]), [1, 2]);
        assert_eq!(from_viewer(0, 1), None, "a viewer that we cannot see");
    }

    #[test]
    fn an_id_from_a_container_names_the_containers_own_process() {
        let script = "echo $$; read go; sleep 1000 & echo $!; read end";
        let child = Child::start(Command::new("unshare").args([
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]));
        let first = child.read_line();
        if first.is_empty() {
            eprintln!("SKIPPED: cannot make a pid namespace; this needs root");
            return;
        }
        assert_eq!(first, "1", "the first process of its namespace");
        let inside = read_children(child.id());
        let [shell] = inside[..] else { panic!("{inside:?}") };
        assert_eq!(from_viewer(shell, 1), Some(shell));
        child.tell("go");
        let number = child.read_number();
        let sleeper = from_viewer(shell, number).unwrap();
        assert_ne!(sleeper, number);
        assert_eq!(read_children(shell), [sleeper]);
        assert_eq!(for_viewer(shell, vec![shell, sleeper, std::process::id()]), [1, number, 0]);
        assert_eq!(from_viewer(shell, 30_000), None);
        child.tell("end");
    }

    fn read_children(pid: u32) -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }
}
