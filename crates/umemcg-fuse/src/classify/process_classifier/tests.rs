//! Claims about real processes, under both kinds of tracking where they hold for both.

use super::*;
use crate::classify::testing::{self, Child, own_tid, wait_until};
use std::path::Path;
use umemcg::EngineConfig;

fn engine() -> Arc<Engine> {
    Engine::new(EngineConfig::new(64 << 20)).unwrap()
}

fn classifier(tracker: Tracker, rules: &[&str]) -> ProcessClassifier {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    ProcessClassifier::with_tracker(engine(), rules, tracker).unwrap()
}

fn ancestry(rules: &[&str]) -> ProcessClassifier {
    classifier(Tracker::Ancestry(Ancestry::default()), rules)
}

/// Returns a classifier of each kind available here.
fn each(rules: &[&str]) -> Vec<ProcessClassifier> {
    let mirror = testing::mirror_or_skip().map(|mirror| classifier(Tracker::Mirror(mirror), rules));
    mirror.into_iter().chain([ancestry(rules)]).collect()
}

impl ProcessClassifier {
    fn make(&self, name: &str) -> Arc<Group> {
        self.engine.create_group(self.engine.root(), name.as_ref()).unwrap()
    }

    fn path_of(&self, tid: u32) -> PathBuf {
        self.classify(tid, 0, 0).path()
    }

    /// Returns the paying group of a request about one object.
    fn classify_at(&self, tid: u32, uid: u32, gid: u32, path: &dyn Fn() -> Option<PathBuf>) -> Arc<Group> {
        match self.payer(&Requester { tid, uid, gid, queued_after_ns: 0, opener: None, path }) {
            Payer::Group(group) => group,
            Payer::Unmade { names, above } => self.make_group(&names, &above),
        }
    }
}

/// Set for the run in a pid namespace of its own.
const INSIDE: &str = "UMEMCG_TEST_INSIDE";

#[test]
fn all_of_this_holds_in_a_container_with_an_outside_session() {
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(proc_files::read_status(std::process::id()).unwrap().session, 0);
        let ancestry = Ancestry::default();
        assert!(ancestry.attach(7, 1, true));
        assert_eq!(ancestry.serial_of(1), Some(7), "its first process can be a member, too");
        return;
    }
    let unshare = |script: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
        command.env(INSIDE, "1");
        command
    };
    if !unshare("exit 0").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot make a pid namespace; this needs root");
        return;
    }
    // The shell stays, as the first process, which has to reap orphans.
    let mut inside = unshare("\"$0\" classify:: --test-threads=2; exit $?");
    let output = inside.arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!said.contains("running 0 tests"), "{said}");
}

#[test]
fn a_process_and_its_later_children_are_where_it_was_put() {
    for classifier in each(&[]) {
        let a = classifier.make("a");
        let child = Child::shell("read go; sh -c 'echo $$; read end; :'; :");
        assert_eq!(classifier.path_of(child.id()), Path::new("/"));
        classifier.attach_process(&a, child.id()).unwrap();
        assert_eq!(classifier.path_of(child.id()), Path::new("/a"), "{:?}", classifier.tracking());
        child.tell("go");
        let grandchild = child.read_number();
        assert_eq!(classifier.path_of(grandchild), Path::new("/a"));
        // In the order of the ids, not necessarily of the births.
        let mut members = [child.id(), grandchild];
        members.sort_unstable();
        assert_eq!(classifier.processes(&a).unwrap(), members);
        assert_eq!(classifier.threads(&a).unwrap(), members);
        assert_eq!(classifier.path_of(std::process::id()), Path::new("/"));
        assert!(Arc::ptr_eq(&classifier.explicit_group(grandchild).unwrap(), &a));
    }
}

#[test]
fn a_double_fork_in_a_new_session_stays_in_the_hierarchy() {
    let Some(mirror) = testing::mirror_or_skip() else { return };
    let classifier = classifier(Tracker::Mirror(mirror), &[]);
    let a = classifier.make("a");
    let child = Child::shell("exec 3<&0; read go; (setsid sh -c 'echo $$; read end' <&3 &); exit 0");
    classifier.attach_process(&a, child.id()).unwrap();
    child.tell("go");
    let daemon = child.read_number();
    wait_until(|| proc_files::read_status(child.id()).is_none_or(|status| status.is_zombie));
    assert_eq!(classifier.path_of(daemon), Path::new("/a"));
    assert_eq!(classifier.close(&a), Err(MembershipError::Populated));
    child.tell("end");
    wait_until(|| classifier.close(&a).is_ok());
}

#[test]
fn a_move_is_seen_at_once_although_the_place_was_remembered() {
    for classifier in each(&[]) {
        let (a, b) = (classifier.make("a"), classifier.make("b"));
        let child = Child::shell("read go");
        for (group, path) in [(&a, "/a"), (&b, "/b"), (classifier.engine.root(), "/"), (&a, "/a")] {
            classifier.attach_process(group, child.id()).unwrap();
            assert_eq!(classifier.path_of(child.id()), Path::new(path));
            let known = classifier.known(child.id(), 0).unwrap();
            assert_eq!(known.payer.group_for_now().path(), Path::new(path));
        }
    }
}

#[test]
fn one_thread_can_be_elsewhere() {
    for classifier in each(&[]) {
        let a = classifier.make("a");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                classifier.attach_thread(&a, own_tid()).unwrap();
                assert_eq!(classifier.path_of(own_tid()), Path::new("/a"));
                assert_eq!(classifier.path_of(std::process::id()), Path::new("/"));
                assert_eq!(classifier.process_of(own_tid()), Ok(std::process::id()));
                assert_eq!(classifier.threads(&a).unwrap(), [own_tid()]);
                classifier.attach_thread(classifier.engine.root(), own_tid()).unwrap();
            });
        });
        wait_until(|| classifier.close(&a).is_ok());
    }
}

#[test]
fn a_missing_process_or_group_is_named() {
    for classifier in each(&[]) {
        let a = classifier.make("a");
        let nobody = i32::MAX as u32;
        assert_eq!(classifier.attach_process(&a, nobody), Err(MembershipError::NoSuchProcess));
        assert_eq!(classifier.attach_thread(&a, nobody), Err(MembershipError::NoSuchProcess));
        assert_eq!(classifier.explicit_group(nobody).map(drop), Err(MembershipError::NoSuchProcess));
        assert_eq!(classifier.process_of(nobody), Err(MembershipError::NoSuchProcess));
        assert_eq!(classifier.path_of(nobody), Path::new("/"));
        classifier.engine.remove_group(&a).unwrap();
        let child = Child::shell("read go");
        assert_eq!(classifier.attach_process(&a, child.id()), Err(MembershipError::Gone));
    }
}

#[test]
fn a_group_with_processes_stays_open_and_a_closed_one_empty() {
    for classifier in each(&[]) {
        let a = classifier.make("a");
        let mut child = Child::shell("read go");
        classifier.attach_process(&a, child.id()).unwrap();
        assert!(classifier.is_populated(&a));
        assert_eq!(classifier.close(&a), Err(MembershipError::Populated));
        child.tell("go");
        child.wait_until_zombie();
        wait_until(|| classifier.close(&a).is_ok());
        assert!(!classifier.is_populated(&a), "a zombie is no member");
        let other = Child::shell("read go");
        assert_eq!(classifier.attach_process(&a, other.id()), Err(MembershipError::Gone));
        classifier.reopen(&a);
        assert_eq!(classifier.attach_process(&a, other.id()), Ok(()));
        child.reap();
    }
}

#[test]
fn rules_place_other_processes_and_make_the_groups() {
    let classifier = ancestry(&["uid:1000=/users/{0}", "uid:*=/all"]);
    assert_eq!(classifier.classify(std::process::id(), 1000, 1000).path(), Path::new("/users/1000"));
    assert_eq!(classifier.classify(std::process::id(), 1001, 1001).path(), Path::new("/all"));
    // The same thread can change its user.
    assert_eq!(classifier.classify(std::process::id(), 1000, 1000).path(), Path::new("/users/1000"));
    assert!(classifier.engine.tree().lookup(Path::new("/users")).is_some());
}

#[test]
fn new_rules_hold_for_threads_that_are_known() {
    let classifier = Arc::new(ancestry(&[]));
    let set = |rules: &[&str]| {
        classifier.set_rules(rules.iter().map(|rule| rule.parse().unwrap()).collect()).unwrap();
    };
    let me = std::process::id();
    let path = || Some(PathBuf::from("/p/x"));
    let found = || classifier.classify_at(me, 0, 0, &path).path();
    assert_eq!(found(), Path::new("/"));
    set(&["uid:7=/seven", "path:/p/*=/p/{1}", "uid:*=/all"]);
    assert_eq!(found(), Path::new("/p/x"));
    // Fewer rules than the thread's rank in the list before.
    set(&["uid:*=/other"]);
    assert_eq!(found(), Path::new("/other"));
    set(&[]);
    assert_eq!(found(), Path::new("/"));
}

#[test]
fn a_rule_by_user_is_refused_where_users_are_unknown() {
    let classifier = Arc::new(ancestry(&["path:/p/*=/p/{1}"]));
    assert!(!classifier.goes_by_user());
    classifier.lose_users();
    let refused = classifier.set_rules(vec!["uid:*=/all".parse().unwrap()]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "{refused}");
    classifier.set_rules(vec!["path:/q/*=/q/{1}".parse().unwrap()]).unwrap();

    let by_user = ancestry(&["uid:*=/all"]);
    assert!(by_user.goes_by_user());
    assert_eq!(by_user.classify(std::process::id(), UNKNOWN_ID, UNKNOWN_ID).path(), Path::new("/"));
}

#[test]
fn a_place_by_hand_wins_over_rules_until_a_move_to_the_root() {
    for classifier in each(&["uid:*=/users/{0}", "path:/p/*=/p/{1}"]) {
        let a = classifier.make("a");
        let child = Child::shell("read go");
        let path = || Some(PathBuf::from("/p/x"));
        assert_eq!(classifier.path_of(child.id()), Path::new("/users/0"));
        classifier.attach_process(&a, child.id()).unwrap();
        assert_eq!(classifier.path_of(child.id()), Path::new("/a"));
        assert_eq!(classifier.classify_at(child.id(), 0, 0, &path).path(), Path::new("/a"));
        classifier.attach_process(classifier.engine.root(), child.id()).unwrap();
        assert_eq!(classifier.path_of(child.id()), Path::new("/users/0"));
    }
}

#[test]
fn the_first_matching_rule_wins_whatever_it_looks_at() {
    let me = std::process::id();
    let at = |classifier: &ProcessClassifier, uid, path: &'static str| {
        classifier
            .classify_at(me, uid, uid, &|| Some(PathBuf::from(path)))
            .path()
            .to_str()
            .unwrap()
            .to_owned()
    };
    let path_first = ancestry(&["path:/projects/*=/p/{1}", "uid:1000=/u"]);
    assert_eq!(at(&path_first, 1000, "/projects/red/main.c"), "/p/red");
    assert_eq!(at(&path_first, 1000, "/elsewhere"), "/u");
    assert_eq!(at(&path_first, 7, "/projects/red/main.c"), "/p/red");
    assert_eq!(at(&path_first, 7, "/elsewhere"), "/");
    let user_first = ancestry(&["uid:1000=/u", "path:/projects/*=/p/{1}"]);
    assert_eq!(at(&user_first, 1000, "/projects/red/main.c"), "/u");
    assert_eq!(at(&user_first, 7, "/projects/red/main.c"), "/p/red");
}

#[test]
fn a_path_is_asked_for_only_if_it_matters() {
    let me = std::process::id();
    let request = std::cell::Cell::new(0);
    let path = || {
        request.set(request.get() + 1);
        None
    };
    for (rules, nr_asked) in [(&["uid:*=/u"][..], 0), (&["uid:*=/u", "path:/x=/x"], 0), (&["path:/x=/x"], 1)]
    {
        request.set(0);
        let classifier = ancestry(rules);
        classifier.classify_at(me, 0, 0, &path);
        assert_eq!(request.get(), nr_asked, "{rules:?}");
    }
}

#[test]
fn the_cgroup_rule_looks_at_the_requesters_cgroup_in_the_kernel() {
    let me = std::process::id();
    let cgroups = proc_files::read_cgroups(me).unwrap();
    let classifier = ancestry(&["cgroup:/=/all{0}"]);
    assert_eq!(classifier.path_of(me), Path::new("/all"), "every path starts with nothing");
    // A rule must not match a hierarchy of ours.
    let classifier = ancestry(&["cgroup:/17=/wrong", "cgroup:/kubepods/*=/pods/{1}"]);
    let text = [b"5:name=umemcg.1.0.ab:/17\n4:memory:/kubepods/pod7/ctr\n", &cgroups[..]].concat();
    let (payer, _) = classifier.place_by_rules(0, &text);
    assert!(matches!(payer, Payer::Unmade { names, .. } if names == ["pods", "pod7"]));
}

#[test]
fn a_rule_that_cannot_make_its_group_uses_the_one_above() {
    let classifier = ancestry(&["uid:*=/full/{0}"]);
    let full = classifier.make("full");
    full.store_max(0);
    assert_eq!(classifier.path_of(std::process::id()), Path::new("/full"));
    full.store_max(u64::MAX);
    classifier.threads.begin_generation();
    assert_eq!(classifier.path_of(std::process::id()), Path::new("/full/0"));
}

#[test]
fn a_removed_group_is_neither_answered_nor_kept() {
    for classifier in each(&["uid:*=/users/{0}"]) {
        let group = classifier.classify(std::process::id(), 5, 5);
        let users = Arc::clone(group.parent().unwrap());
        classifier.engine.remove_group(&group).unwrap();
        let weak = Arc::downgrade(&group);
        drop(group);
        assert!(weak.upgrade().is_none(), "remembering a thread does not keep its group");
        assert_eq!(classifier.classify(std::process::id(), 5, 5).path(), Path::new("/users/5"), "made anew");
        assert_eq!(users.nr_children(), 1);
    }
}

#[test]
fn no_process_is_the_roots() {
    for classifier in each(&["uid:*=/users/{0}"]) {
        assert_eq!(classifier.classify(0, 1000, 1000).path(), Path::new("/"));
        assert!(classifier.known(0, 1000).is_none());
    }
}

#[test]
fn a_process_with_the_id_of_a_dead_member_is_not_a_member() {
    for classifier in each(&[]) {
        let a = classifier.make("a");
        let mut child = Child::shell("read go");
        classifier.attach_process(&a, child.id()).unwrap();
        assert_eq!(classifier.path_of(child.id()), Path::new("/a"));
        child.tell("go");
        child.reap();
        wait_until(|| classifier.known(child.id(), 0).is_none());
        let Some(reborn) = testing::process_with_id(child.id()) else { continue };
        assert_eq!(reborn.id(), child.id());
        assert_eq!(classifier.path_of(reborn.id()), Path::new("/"), "{:?}", classifier.tracking());
    }
}

#[test]
fn requests_and_moves_do_not_disturb_each_other() {
    for classifier in each(&[]) {
        let (a, b) = (classifier.make("a"), classifier.make("b"));
        let child = Child::shell("read go");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let path = classifier.path_of(child.id());
                        assert!(["/", "/a", "/b"].contains(&path.to_str().unwrap()), "{path:?}");
                    }
                });
            }
            for n in 0..20 {
                let (group, path) = if n % 2 == 0 { (&a, "/a") } else { (&b, "/b") };
                classifier.attach_process(group, child.id()).unwrap();
                assert_eq!(
                    classifier.path_of(child.id()),
                    Path::new(path),
                    "after a move every process sees it"
                );
            }
        });
    }
}

/// Returns the paying group of a request through a file opened by `opener`.
fn payer_through(
    classifier: &ProcessClassifier,
    tid: u32,
    opener: &Arc<Group>,
    queued_after_ns: u64,
) -> PathBuf {
    let requester = Requester { tid, uid: 0, gid: 0, queued_after_ns, opener: Some(opener), path: &|| None };
    classifier.payer(&requester).group_for_now().path()
}

#[test]
fn for_a_thread_that_has_ended_the_opener_pays() {
    for classifier in each(&["uid:7=/seven"]) {
        let opener = classifier.make("opener");
        let mut child = Child::shell("read go");
        let id = child.id();
        assert_eq!(
            payer_through(&classifier, id, &opener, u64::MAX - 1),
            Path::new("/"),
            "it lives, in no group"
        );
        child.tell("go");
        child.wait_until_zombie();
        wait_until(|| classifier.known(id, 0).is_none());
        assert_eq!(
            payer_through(&classifier, id, &opener, u64::MAX - 1),
            Path::new("/opener"),
            "{:?}",
            classifier.tracking()
        );
        child.reap();
        assert_eq!(payer_through(&classifier, id, &opener, u64::MAX - 1), Path::new("/opener"));
        assert_eq!(payer_through(&classifier, 0, &opener, 0), Path::new("/opener"));
    }
}

#[test]
fn a_thread_younger_than_its_request_does_not_pay_for_it() {
    for classifier in each(&[]) {
        let (opener, stranger) = (classifier.make("opener"), classifier.make("stranger"));
        let before = since_boot_ns();
        let child = Child::shell("read go");
        classifier.attach_process(&stranger, child.id()).unwrap();
        // Found out, remembered, and found out again.
        for _ in 0..2 {
            assert_eq!(payer_through(&classifier, child.id(), &opener, before), Path::new("/opener"));
            assert_eq!(
                payer_through(&classifier, child.id(), &opener, since_boot_ns() + 20_000_000),
                Path::new("/stranger")
            );
        }
        assert_eq!(
            payer_through(&classifier, child.id(), &stranger, before),
            Path::new("/stranger"),
            "its own file"
        );
    }
}

#[test]
fn a_new_thread_below_the_openers_group_pays_itself() {
    for classifier in each(&[]) {
        let (tenant, root) = (classifier.make("tenant"), Arc::clone(classifier.engine.root()));
        let before = since_boot_ns();
        let child = Child::shell("read go");
        classifier.attach_process(&tenant, child.id()).unwrap();
        assert_eq!(payer_through(&classifier, child.id(), &root, before), Path::new("/tenant"));
        let part = classifier.engine.create_group(&tenant, "part".as_ref()).unwrap();
        assert_eq!(payer_through(&classifier, child.id(), &part, before), Path::new("/tenant/part"));
    }
}

#[test]
fn for_an_ended_thread_with_a_file_of_the_root_its_user_pays() {
    for classifier in each(&["uid:7=/seven", "cgroup:/kubepods/*=/pods/{1}", "uid:9=/nine"]) {
        let (seven, other) = (classifier.make("seven"), classifier.make("other"));
        let root = Arc::clone(classifier.engine.root());
        classifier.make("nine");
        let ended = i32::MAX as u32;
        let payer = |uid, opener| {
            let requester = Requester {
                tid: ended,
                uid,
                gid: 0,
                queued_after_ns: 0,
                opener: Some(opener),
                path: &|| None,
            };
            Arc::clone(classifier.payer(&requester).group_for_now())
        };
        assert!(Arc::ptr_eq(&payer(7, &root), &seven));
        assert!(payer(8, &root).is_root(), "no rule knows the user");
        assert!(payer(9, &root).is_root(), "a tenant's cgroup, which decides before, is not known");
        assert!(Arc::ptr_eq(&payer(7, &other), &other), "another tenant's file");
        classifier.add_pod("1", "/other").unwrap();
        assert!(payer(7, &root).is_root(), "it may have been of the pod");
    }
}

#[test]
fn for_a_thread_of_the_kernel_the_opener_pays() {
    const KTHREADD: u32 = 2;
    if !proc_files::read_status(KTHREADD).is_some_and(|status| status.is_of_kernel) {
        eprintln!("SKIPPED: the threads of the kernel are not visible here");
        return;
    }
    for classifier in each(&["uid:*=/users/{0}"]) {
        let opener = classifier.make("opener");
        // Found out, and remembered if a rule's group exists.
        for _ in 0..2 {
            let payer = payer_through(&classifier, KTHREADD, &opener, u64::MAX - 1);
            assert_eq!(payer, Path::new("/opener"));
            assert_eq!(classifier.path_of(KTHREADD), Path::new("/users/0"), "without a file");
        }
    }
}
