//! Permissions: mode bits, delegation with chown, and the rule about moving processes.

use crate::support::{Fixture, READ, WRITE, fixture, request};
use umemcg_control::{Access, ControlError, Credentials, SetAttr};

use ControlError::{Denied, NotPermitted};

const USER: u32 = 1000;

fn user() -> Credentials {
    Credentials::user(USER, USER)
}

fn chown(f: &Fixture, path: &str, uid: u32) {
    let set = SetAttr { uid: Some(uid), gid: Some(uid), mode: None };
    f.tree.set_attr(f.node(path).unwrap(), set, &Credentials::ROOT).unwrap();
}

/// Group `a` is the user's: the directory and the files that are given with a delegated subtree.
fn delegated() -> Fixture {
    let f = fixture();
    f.mkdir("a").unwrap();
    f.mkdir("other").unwrap();
    for path in ["a", "a/cgroup.procs", "a/tasks"] {
        chown(&f, path, USER);
    }
    f
}

#[test]
fn others_read_and_only_the_owner_writes() {
    let f = fixture();
    f.mkdir("a").unwrap();
    assert!(f.open_as("a/memory.max", READ, &user()).is_ok());
    for access in [WRITE, Access { read: true, write: true }] {
        assert_eq!(f.open_as("a/memory.max", access, &user()).map(drop), Err(Denied));
    }
    assert_eq!(f.open_as("a/memory.reclaim", READ, &user()).map(drop), Err(Denied));
    assert_eq!(f.open_as("a/memory.stat", WRITE, &user()).map(drop), Err(Denied));
    assert_eq!(f.mkdir_as("a/b", &user()), Err(Denied));
    assert_eq!(f.rmdir_as("a", &user()), Err(Denied));
    assert_eq!(f.open_as("a", READ, &user()).map(drop), Err(ControlError::IsDirectory));
}

#[test]
fn the_owner_of_a_delegated_directory_makes_and_owns_groups() {
    let f = delegated();
    assert_eq!(f.mkdir_as("a/b", &user()), Ok(()));
    for path in ["a/b", "a/b/memory.max", "a/b/tasks"] {
        let attr = f.tree.attr(f.node(path).unwrap()).unwrap();
        assert_eq!((attr.uid, attr.gid), (USER, USER), "{path}");
    }
    assert_eq!(f.write_as("a/b/memory.max", "1m", &user(), 1), Ok(()));
    assert_eq!(
        f.write_as("a/memory.max", "1m", &user(), 1),
        Err(Denied),
        "the limit of the whole was not given away"
    );
    assert_eq!(f.rmdir_as("a/b", &user()), Ok(()));
}

#[test]
fn processes_move_within_a_delegated_subtree_only() {
    let f = delegated();
    f.processes.add_process(&[100]);
    f.mkdir_as("a/b", &user()).unwrap();
    f.mkdir_as("a/c", &user()).unwrap();
    for file in ["cgroup.procs", "tasks"] {
        let put = |group: &str, pid: &str| f.write_as(&format!("{group}{file}"), pid, &user(), 100);
        assert_eq!(put("a/b/", "100"), Err(Denied), "in from the root");
        f.write("a/cgroup.procs", "100").unwrap();
        assert_eq!(put("a/b/", "100"), Ok(()));
        assert_eq!(put("a/c/", "0"), Ok(()), "0 is the writer");
        assert_eq!(put("a/", "100"), Ok(()));
        assert_eq!(put("other/", "100"), Err(Denied));
        assert_eq!(put("", "100"), Err(Denied), "out to the root");
        f.write("cgroup.procs", "100").unwrap();
    }
    f.write("other/cgroup.procs", "100").unwrap();
    assert_eq!(f.write_as("a/cgroup.procs", "100", &user(), 100), Err(Denied), "in from a neighbour");
    assert_eq!(f.read("other/cgroup.procs").as_deref(), Ok("100\n"));
}

#[test]
fn the_opener_counts_and_not_the_writer() {
    let f = delegated();
    f.processes.add_process(&[100]);
    let opened_by_user = f.open_as("a/cgroup.procs", WRITE, &user()).unwrap();
    // Written by a process of root's: the descriptor is worth no more for it.
    assert_eq!(f.tree.write(&opened_by_user, b"100", &request(1)), Err(Denied));
    let opened_by_root = f.open_as("a/cgroup.procs", WRITE, &Credentials::ROOT).unwrap();
    assert_eq!(f.tree.write(&opened_by_root, b"0", &request(100)), Ok(()));
}

#[test]
fn supplementary_groups_count() {
    let f = fixture();
    f.mkdir("a").unwrap();
    let set = SetAttr { gid: Some(50), mode: Some(0o664), uid: None };
    f.tree.set_attr(f.node("a/memory.max").unwrap(), set, &Credentials::ROOT).unwrap();
    let member = Credentials { uid: USER, gid: USER, supplementary: vec![4, 50] };
    assert_eq!(f.write_as("a/memory.max", "1m", &member, 1), Ok(()));
    assert_eq!(f.write_as("a/memory.max", "1m", &user(), 1), Err(Denied));
}

#[test]
fn only_root_gives_away_and_only_the_owner_changes_modes() {
    let f = delegated();
    let node = f.node("a").unwrap();
    let try_set = |set: SetAttr, caller: &Credentials| f.tree.set_attr(node, set, caller).map(drop);
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let gid = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
    let uid = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    let stranger = Credentials::user(2000, 2000);
    let member = Credentials { uid: USER, gid: USER, supplementary: vec![50] };
    for (set, caller, expected) in [
        (mode, user(), Ok(())),
        (mode, stranger.clone(), Err(NotPermitted)),
        (gid(USER), user(), Ok(())),
        (gid(50), user(), Err(NotPermitted)),
        (gid(50), member, Ok(())),
        (uid(USER), user(), Ok(())),
        (uid(2000), user(), Err(NotPermitted)),
        (gid(2000), stranger, Err(NotPermitted)),
        (SetAttr::default(), user(), Ok(())),
        (uid(2000), Credentials::ROOT, Ok(())),
    ] {
        assert_eq!(try_set(set, &caller), expected, "{set:?} by {}", caller.uid);
    }
    let attr = f.tree.attr(node).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (2000, 50, 0o700));
}

#[test]
fn ids_are_those_of_the_viewers_namespace() {
    let f = fixture();
    f.mkdir("a").unwrap();
    f.processes.add_process(&[1100, 1101]);
    let viewer = 9000;
    assert_eq!(f.write_as("a/cgroup.procs", "100", &Credentials::ROOT, viewer), Ok(()));
    assert_eq!(f.read("a/cgroup.procs").as_deref(), Ok("1100\n"));
    assert_eq!(f.read("a/tasks").as_deref(), Ok("1100\n1101\n"));
    let file = f.open_as("a/tasks", READ, &Credentials::ROOT).unwrap();
    assert_eq!(f.tree.read(&file, 0, 99, &request(viewer)).unwrap(), b"100\n101\n");
}

#[test]
fn a_thread_id_moves_its_process_or_itself() {
    let f = fixture();
    f.mkdir("a").unwrap();
    f.processes.add_process(&[10, 11, 12]);
    f.write("a/tasks", "11").unwrap();
    assert_eq!(f.read("a/tasks").as_deref(), Ok("11\n"));
    assert_eq!(f.read("tasks").as_deref(), Ok("10\n12\n"));
    f.write("a/cgroup.procs", "12").unwrap();
    assert_eq!(f.read("a/tasks").as_deref(), Ok("10\n11\n12\n"));
    assert_eq!(f.read("a/cgroup.events").as_deref(), Ok("populated 1\nfrozen 0\n"));
    f.mkdir("b").unwrap();
    f.write_as("b/tasks", "0", &Credentials::ROOT, 11).unwrap();
    assert_eq!(f.read("b/tasks").as_deref(), Ok("11\n"));
    assert_eq!(f.write_as("b/tasks", "0", &Credentials::ROOT, 0), Err(ControlError::NoSuchProcess));
}
