//! Names and inodes are paid for.

use std::ffi::OsStr;
use std::sync::Arc;

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg::internal::{CONTENT_BYTES, NAME_BYTES};
use umemcg::{Group, StatItem};
use umemcg_vfs::{Attributes, Caller, Create, Lookup, Names, NodeId, OFlags, Open, RenameFlags};

fn usage(group: &Arc<Group>) -> u64 {
    group.drain_stocks();
    group.usage_bytes()
}

fn tenant(v: &Fixture, n: &str) -> Caller {
    let group = v.engine.create_group(v.engine.root(), OsStr::new(n)).unwrap();
    Caller { group, ..v.root.clone() }
}

fn fill(v: &Fixture, nr: usize) -> Vec<String> {
    let names: Vec<_> = (0..nr).map(|n| format!("f{n}")).collect();
    for n in &names {
        std::fs::write(v.host(n), "").unwrap();
    }
    names
}

#[test]
fn names_are_charged_to_the_first_asker_until_forgotten() {
    let v = Fixture::new();
    let (ann, bob) = (tenant(&v, "ann"), tenant(&v, "bob"));
    let names = fill(&v, 500);
    // A group's first name makes its list, which stays for a while.
    v.vfs.forget(v.vfs.lookup(&ann, ROOT, name(&names[0])).unwrap().node, 1);
    let before = (usage(&ann.group), usage(&bob.group));
    let mut nodes: Vec<NodeId> = Vec::new();
    for n in &names {
        nodes.push(v.vfs.lookup(&ann, ROOT, name(n)).unwrap().node);
        v.vfs.lookup(&bob, ROOT, name(n)).unwrap();
    }
    let cost = usage(&ann.group) - before.0;
    assert!((500 * 200..500 * 1000).contains(&cost), "{cost} bytes for 500 names");
    assert_eq!(usage(&bob.group), before.1);
    assert_eq!(ann.group.stat_total(StatItem::SlabReclaimable) as u64, cost);
    for node in nodes {
        v.vfs.forget(node, 2);
    }
    assert_eq!((usage(&ann.group), usage(&bob.group)), before);
    assert_eq!(v.engine.root().stat_total(StatItem::SlabReclaimable), 0);
}

#[test]
fn the_table_of_objects_adds_up_to_what_is_charged() {
    let v = Fixture::new();
    let ann = tenant(&v, "ann");
    for n in 0..20 {
        std::fs::write(v.host(&format!("{n}-{}", "long".repeat(15))), "x").unwrap();
        std::fs::write(v.host(&format!("short{n}")), "x").unwrap();
    }
    let adds_up = |when: &str| {
        let table = v.engine.reclaimer().slab_usage(&ann.group);
        let of = |item| ann.group.stat_local(item) as u64;
        let shrinkers: u64 = table.iter().map(|line| line.usage.bytes).sum();
        let with_inodes = of(StatItem::SlabNames) + of(StatItem::SlabContents);
        let charged = of(StatItem::SlabReclaimable) + of(StatItem::ShadowNodes);
        assert_eq!(shrinkers + with_inodes, charged, "{when}: {table:?}");
        with_inodes
    };
    assert_eq!(adds_up("nothing yet"), 0);
    let mut files = Vec::new();
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(v.host("")).unwrap() {
        let node = v.vfs.lookup(&ann, ROOT, &entry.unwrap().file_name()).unwrap().node;
        files.push(v.vfs.open(&ann, node, OFlags::RDONLY).unwrap());
        nodes.push(node);
    }
    assert_eq!(adds_up("all open"), 20 * NAME_BYTES + 40 * CONTENT_BYTES);
    v.vfs.link(&ann, nodes[0], ROOT, name("again")).unwrap();
    assert_eq!(adds_up("one with a further name"), 21 * NAME_BYTES + 40 * CONTENT_BYTES);
    drop(files);
    for (at, node) in nodes.into_iter().enumerate() {
        v.vfs.forget(node, if at == 0 { 2 } else { 1 });
    }
    adds_up("forgotten");
    v.engine.drop_caches(umemcg::DropCaches::Both);
    assert_eq!(adds_up("dropped"), 0);
}

#[test]
fn long_names_and_further_ones_cost_more_as_long_as_they_last() {
    let v = Fixture::new();
    let ann = tenant(&v, "ann");
    let (long, longer) = ("n".repeat(200), "m".repeat(255));
    std::fs::write(v.host("short"), "").unwrap();
    std::fs::write(v.host(&long), "").unwrap();
    let names = || ann.group.stat_total(StatItem::SlabReclaimable) as u64;
    let one = v.vfs.lookup(&ann, ROOT, name("short")).unwrap().node;
    let short_cost = names();
    let two = v.vfs.lookup(&ann, ROOT, name(&long)).unwrap().node;
    let long_cost = names() - short_cost;
    assert!(long_cost > short_cost + 200, "{long_cost} bytes for a long name, {short_cost} for a short one");
    // A further name of the same inode.
    v.vfs.link(&ann, one, ROOT, name("again")).unwrap();
    assert_eq!(names(), short_cost + 2 * long_cost - short_cost);
    v.vfs.unlink(&v.root, ROOT, name("again")).unwrap();
    assert_eq!(names(), short_cost + long_cost);
    // Renamed: a long name stays one, a short one becomes one.
    v.vfs.rename(&v.root, ROOT, name(&long), ROOT, name(&longer), RenameFlags::empty()).unwrap();
    assert_eq!(names(), short_cost + long_cost);
    v.vfs.rename(&v.root, ROOT, name("short"), ROOT, name(&long), RenameFlags::empty()).unwrap();
    assert_eq!(names(), 2 * long_cost);
    v.vfs.forget(one, 2);
    v.vfs.forget(two, 1);
    assert_eq!(names(), 0);
}

#[test]
fn an_opened_file_costs_more_and_its_charge_goes_to_the_parent() {
    let v = Fixture::new();
    let ann = tenant(&v, "ann");
    fill(&v, 1);
    let node = v.vfs.lookup(&ann, ROOT, name("f0")).unwrap().node;
    let closed = usage(&ann.group);
    drop(v.vfs.open(&ann, node, OFlags::RDONLY).unwrap());
    assert!(usage(&ann.group) > closed);
    v.engine.remove_group(&ann.group).unwrap();
    assert!(v.engine.root().stat_total(StatItem::SlabReclaimable) > 0);
    v.vfs.forget(node, 1);
    assert_eq!(v.engine.root().stat_total(StatItem::SlabReclaimable), 0);
}

#[test]
fn a_group_full_of_names_uses_its_parent_within_all_limits() {
    let v = Fixture::new();
    let ann = tenant(&v, "ann");
    v.engine.set_max(&ann.group, 64 << 10);
    let names = fill(&v, 1000);
    let root_before = usage(v.engine.root());
    for n in &names {
        v.vfs.lookup(&ann, ROOT, name(n)).unwrap();
    }
    assert!(usage(&ann.group) <= 64 << 10);
    assert!(usage(v.engine.root()) - root_before >= 1000 * 200);
}

#[test]
fn a_pool_full_of_names_refuses_the_next_and_recovers() {
    let v = Fixture::new();
    let names = fill(&v, 300);
    let mut nodes = Vec::new();
    let room = usage(v.engine.root()) + (50 << 10);
    v.engine.set_max(v.engine.root(), room);
    if v.engine.root().max_bytes() != room {
        // The root's limit is the pool's; fill it instead.
        let all = v.engine.root().max_bytes() - usage(v.engine.root()) - (50 << 10);
        let rest = v.engine.charge(v.engine.root(), all).unwrap();
        refuse(&v, &names, &mut nodes);
        drop(rest);
    } else {
        refuse(&v, &names, &mut nodes);
    }
    for node in nodes {
        v.vfs.forget(node, 1);
    }
    assert!(v.vfs.lookup(&v.root, ROOT, name("f299")).is_ok());
}

fn refuse(v: &Fixture, names: &[String], nodes: &mut Vec<NodeId>) {
    let refused = names.iter().find_map(|n| match v.vfs.lookup(&v.root, ROOT, name(n)) {
        Ok(entry) => {
            nodes.push(entry.node);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(refused.expect("there are more names than room").errno(), Errno::NOMEM);
    let node = nodes[0];
    assert!(v.vfs.getattr(node).is_ok(), "what is known stays usable");
    assert_eq!(errno(v.vfs.create(&v.root, ROOT, name("new"), 0o644, OFlags::RDWR)), Errno::NOMEM);
    assert_eq!(errno(v.vfs.mkdir(&v.root, ROOT, name("new"), 0o755)), Errno::NOMEM);
    assert!(!v.host("new").exists(), "nothing is left of what failed");
}
