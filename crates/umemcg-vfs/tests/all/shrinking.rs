//! Names and inodes are forgotten: oldest first, never those in use, and the request that needed
//! the room finds it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::fake_kernel::FakeKernel;
use crate::common::{Fixture, ROOT, name};
use umemcg::{DropCaches, EventKind, Group, StatItem};
use umemcg_vfs::{
    Attributes, Caller, Create, HANDLE_BYTES, Lookup, Names, NodeId, OFlags, Open, RenameFlags, Volume,
};

/// Room for some 1,500 names; reclaim takes 380 at a time.
const LIMIT: u64 = 512 << 10;

fn tenant(v: &Fixture, n: &str, limit: u64) -> Caller {
    let group = v.engine.create_group(v.engine.root(), OsStr::new(n)).unwrap();
    v.engine.set_max(&group, limit);
    Caller { group, ..v.root.clone() }
}

fn fill(v: &Fixture, dir: &str, nr: usize) -> Vec<String> {
    std::fs::create_dir_all(v.host(dir)).unwrap();
    let names: Vec<_> = (0..nr).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|n| std::fs::write(v.host(&format!("{dir}/{n}")), "").unwrap());
    names
}

fn bytes_of(v: &Fixture, group: &Arc<Group>, shrinker: &str) -> u64 {
    let table = v.engine.reclaimer().slab_usage(group);
    table.iter().filter(|line| line.name == shrinker).map(|line| line.usage.bytes).sum()
}

/// Everything that was known is forgotten, and nothing is left of it.
fn ends_with_nothing(v: &Fixture, kernel: &FakeKernel) {
    kernel.forget_all();
    v.engine.drop_caches(DropCaches::Both);
    assert_eq!(v.vfs.nr_inodes(), 1);
    // A flusher may still hold files that it has written, with what is left of their index.
    let nr_left = || v.engine.reclaimer().nr_list_slots();
    let deadline = Instant::now() + Duration::from_secs(30);
    while nr_left() > 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(nr_left(), 0);
    assert_eq!(v.engine.root().stat_total(StatItem::SlabReclaimable), 0);
}

#[test]
fn a_full_group_loses_its_oldest_names_and_a_neighbour_none() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let (ann, bob) = (tenant(&v, "ann", LIMIT), tenant(&v, "bob", LIMIT));
    let bobs: Vec<_> = fill(&v, "bob", 100);
    let bobs_dir = kernel.lookup(&bob, ROOT, "bob").node;
    let bobs: Vec<NodeId> = bobs.iter().map(|n| kernel.lookup(&bob, bobs_dir, n).node).collect();
    let names = fill(&v, "ann", 4000);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "ann").node);
    let nodes: Vec<NodeId> = names
        .iter()
        .map(|n| {
            let node = kernel.lookup(&ann, dir, n).node;
            assert!(ann.group.usage_bytes() <= LIMIT);
            node
        })
        .collect();
    assert!(bobs.iter().all(|&node| kernel.knows(node)));
    let nr_known = nodes.iter().filter(|&&node| kernel.knows(node)).count();
    assert!((400..=1524).contains(&nr_known), "{nr_known} fit");
    assert!(nodes[nodes.len() - nr_known..].iter().all(|&node| kernel.knows(node)), "the youngest stay");
    assert!(!kernel.asked().contains(&dir), "a directory stays while names in it are known");
    assert_eq!(ann.group.event_count(EventKind::Oom), 0);
    ends_with_nothing(&v, &kernel);
}

#[test]
fn directories_go_after_what_is_in_them() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", LIMIT);
    let mut parents = HashMap::new();
    for d in 0..300 {
        let dir = format!("d{d}");
        let names = fill(&v, &dir, 20);
        let node = kernel.uses(kernel.lookup(&ann, ROOT, &dir).node);
        for n in &names {
            parents.insert(kernel.lookup(&ann, node, n).node, node);
        }
        kernel.no_longer_uses(node);
    }
    let mut gone = HashSet::new();
    let mut nr_directories = 0;
    for idle in kernel.asked.lock().unwrap().iter() {
        let in_it = || parents.iter().filter(|(_, parent)| **parent == idle.node).map(|(file, _)| file);
        assert!(in_it().all(|file| gone.contains(file)), "{idle:?}");
        nr_directories += usize::from(idle.is_directory);
        gone.insert(idle.node);
    }
    assert!(nr_directories > 100, "{nr_directories} of 300 directories");
    assert!(kernel.asked.lock().unwrap().iter().all(|idle| idle.names.is_empty()), "no names are wanted");
    ends_with_nothing(&v, &kernel);
}

#[test]
fn names_in_use_stay_and_are_not_asked_for_repeatedly() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", LIMIT);
    let names = fill(&v, "d", 4000);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    // Open for us; in use by a way that only the kernel sees.
    let open: Vec<_> = names[..10]
        .iter()
        .map(|n| v.vfs.open(&ann, kernel.lookup(&ann, dir, n).node, OFlags::RDONLY).unwrap())
        .collect();
    let used: Vec<NodeId> = names[10..40].iter().map(|n| kernel.lookup(&ann, dir, n).node).collect();
    used.iter().for_each(|&node| _ = kernel.uses(node));
    for n in &names[40..] {
        kernel.lookup(&ann, dir, n);
        assert!(ann.group.usage_bytes() <= LIMIT);
    }
    for file in &open {
        assert!(kernel.knows(file.node()) && !kernel.asked().contains(&file.node()));
        assert!(v.vfs.getattr(file.node()).is_ok());
    }
    for node in &used {
        assert!(v.vfs.getattr(*node).is_ok());
    }
    let nr_refused = kernel.asked().iter().filter(|node| used.contains(node)).count();
    assert!(nr_refused <= 30 * 10, "{nr_refused} times for 30 inodes, at most once a second each");
    drop(open);
    ends_with_nothing(&v, &kernel);
}

#[test]
fn names_that_the_kernel_keeps_are_not_scanned_each_time() {
    const NR: usize = 1000;
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", LIMIT);
    let names = fill(&v, "d", NR);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    let nodes: Vec<NodeId> = names.iter().map(|n| kernel.uses(kernel.lookup(&ann, dir, n).node)).collect();
    let usage = || {
        let table = v.engine.reclaimer().slab_usage(&ann.group);
        table.into_iter().find(|line| line.name == "dentry").unwrap().usage
    };
    assert_eq!((usage().objects, usage().reclaimable), (1 + NR as u64, 1 + NR as u64));
    let reclaims = |what: &str, condition: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}: {:?}", usage());
            let _ = v.engine.reclaim(&ann.group, 64 << 10);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Known names keep their directory in use.
    reclaims("all were asked for in vain", &|| usage().reclaimable <= 1);
    assert_eq!(usage().objects, 1 + NR as u64);
    kernel.lookup(&ann, dir, &names[0]);
    assert!(usage().reclaimable >= 2, "it was used: {:?}", usage());
    nodes.iter().for_each(|&node| kernel.no_longer_uses(node));
    reclaims("all go when they may", &|| !nodes.iter().any(|&node| kernel.knows(node)));
    ends_with_nothing(&v, &kernel);
}

#[test]
fn a_name_that_is_looked_up_again_stays_longer() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", LIMIT);
    let names = fill(&v, "d", 1400);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    let nodes: Vec<NodeId> = names.iter().map(|n| kernel.lookup(&ann, dir, n).node).collect();
    let again: Vec<NodeId> = names[..20].iter().map(|n| kernel.lookup(&ann, dir, n).node).collect();
    assert_eq!(again, nodes[..20]);
    assert!(v.engine.reclaim(&ann.group, 4096).is_ok());
    let asked = kernel.asked();
    assert!(!asked.is_empty() && !again.iter().any(|node| asked.contains(node)), "{asked:?}");
    ends_with_nothing(&v, &kernel);
}

#[test]
fn a_listing_without_room_names_what_it_cannot_remember() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", LIMIT);
    fill(&v, "d", 2000);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    let handle = v.vfs.opendir(&v.root, dir).unwrap();
    let (mut nr_listed, mut nr_known) = (0, 0);
    handle
        .readdirplus(&ann, 0, &mut |entry| {
            nr_listed += 1;
            if let Some(found) = entry.entry {
                kernel.has(found);
                nr_known += 1;
            }
            true
        })
        .unwrap();
    assert_eq!(nr_listed, 2002);
    assert!((1000..=1524).contains(&nr_known), "{nr_known}");
    assert!(kernel.asked().is_empty(), "no other name has to go for it");
    drop(handle);
    ends_with_nothing(&v, &kernel);
}

#[test]
fn an_older_kernel_is_told_names_of_files_not_directories() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, true);
    let ann = tenant(&v, "ann", LIMIT);
    let names = fill(&v, "d", 2000);
    std::fs::hard_link(v.host("d/f0"), v.host("d/again")).unwrap();
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    let linked = kernel.lookup(&ann, dir, "again").node;
    names.iter().for_each(|n| _ = kernel.lookup(&ann, dir, n));
    let empty: Vec<_> = (0..50)
        .map(|d| {
            std::fs::create_dir(v.host(&format!("e{d}"))).unwrap();
            kernel.lookup(&ann, ROOT, &format!("e{d}")).node
        })
        .collect();
    names.iter().for_each(|n| _ = kernel.lookup(&ann, dir, n));
    let asked = kernel.asked.lock().unwrap();
    let of_linked = asked.iter().find(|idle| idle.node == linked).expect("old enough to go");
    let mut of_linked: Vec<_> = of_linked.names.clone();
    of_linked.sort();
    assert_eq!(of_linked, [(dir, b"again"[..].into()), (dir, b"f0"[..].into())]);
    assert!(asked.iter().all(|idle| !idle.is_directory && !idle.names.is_empty()));
    drop(asked);
    assert!(empty.iter().all(|&node| kernel.knows(node)));
    ends_with_nothing(&v, &kernel);
}

#[test]
fn no_open_waits_for_an_older_kernel_to_forget() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, true);
    let ann = tenant(&v, "ann", LIMIT);
    let names = fill(&v, "ann", 2000);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "ann").node);
    let nr_known = names.iter().take_while(|n| {
        kernel.uses(kernel.lookup(&ann, dir, n).node);
        ann.group.usage_bytes() + HANDLE_BYTES <= LIMIT
    });
    assert!((1000..1600).contains(&nr_known.count()));
    let nr_tries = || ann.group.event_count(EventKind::Max);
    let before = nr_tries();
    let handles: Vec<_> = (0..40).map(|_| v.vfs.opendir(&ann, dir).unwrap()).collect();
    // What was asked for counts as freed, so a charge that goes on while something is freed would
    // try again and again until the kernel has done it, or is asked again a second later.
    assert!((1..20).contains(&(nr_tries() - before)), "{} tries", nr_tries() - before);
    drop(handles);
    ends_with_nothing(&v, &kernel);
}

#[test]
fn an_inode_kept_for_its_content_goes_when_the_content_has_gone() {
    let v = Fixture::with(|config| config.max_kept_files = 1000);
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", 8 << 20);
    let names = fill(&v, "d", 200);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    for n in &names {
        std::fs::write(v.host(&format!("d/{n}")), "content").unwrap();
        let node = kernel.lookup(&ann, dir, n).node;
        let file = v.vfs.open(&ann, node, OFlags::RDONLY).unwrap();
        assert_eq!(file.read(&ann.group, 0, 7).unwrap().to_vec(), b"content");
    }
    kernel.forget_all();
    assert_eq!(v.vfs.nr_inodes(), 202, "all are kept for their content, and the directory for them");
    assert_eq!(bytes_of(&v, &ann.group, "dentry"), 0);
    assert!(bytes_of(&v, &ann.group, "inode") > 0);
    v.engine.drop_caches(DropCaches::Objects);
    assert_eq!(v.vfs.nr_inodes(), 202, "they have pages still");
    v.engine.drop_caches(DropCaches::Pages);
    v.engine.drop_caches(DropCaches::Objects);
    assert_eq!(v.vfs.nr_inodes(), 1);
    ends_with_nothing(&v, &kernel);
}

/// Files with this content and names longer than an inode's own charge covers, opened once through
/// the mount; their nodes.
fn opened(v: &Fixture, kernel: &FakeKernel, caller: &Caller, nr: usize, flags: OFlags) -> Vec<NodeId> {
    let mut names = fill(v, "d", 0);
    names.extend((0..nr).map(|n| format!("a-name-that-is-longer-than-forty-bytes-{n}")));
    let dir = kernel.uses(kernel.lookup(caller, ROOT, "d").node);
    let open = |n: &String| {
        std::fs::write(v.host(&format!("d/{n}")), "content").unwrap();
        let node = kernel.lookup(caller, dir, n).node;
        let file = v.vfs.open(caller, node, flags).unwrap();
        if flags == OFlags::RDONLY {
            assert_eq!(file.read(&caller.group, 0, 7).unwrap().to_vec(), b"content");
        } else {
            file.write(&caller.group, 0, b"CONTENT", false).unwrap();
        }
        node
    };
    names.iter().map(open).collect()
}

#[test]
fn pages_stay_before_names_and_content_goes_before_names() {
    let v = Fixture::with(|config| config.max_kept_files = 1000);
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", u64::MAX);
    let nodes = opened(&v, &kernel, &ann, 200, OFlags::RDONLY);
    v.engine.drop_caches(DropCaches::Objects);
    assert!(kernel.asked().is_empty(), "none would go");
    v.engine.drop_caches(DropCaches::Pages);
    let contents = || ann.group.stat_local(StatItem::SlabContents) as u64 / umemcg::internal::CONTENT_BYTES;
    assert_eq!(contents(), 200);
    v.engine.reclaim(&ann.group, 4096).unwrap();
    assert!(contents() < 200 && kernel.asked().is_empty(), "{} contents", contents());
    for &node in &nodes {
        let file = v.vfs.open(&ann, node, OFlags::RDONLY).unwrap();
        assert_eq!(file.read(&ann.group, 0, 7).unwrap().to_vec(), b"content");
    }
    v.engine.drop_caches(DropCaches::Both);
    assert!(nodes.iter().all(|node| kernel.asked().contains(node)));
    assert_eq!((contents(), v.vfs.nr_inodes()), (0, 2), "the directory is in use");
    ends_with_nothing(&v, &kernel);
}

#[test]
fn a_small_group_opens_files_that_another_looked_up() {
    let v = Fixture::with(|config| config.max_kept_files = 1000);
    let kernel = FakeKernel::above(&v, false);
    let (ann, bob) = (tenant(&v, "ann", LIMIT), tenant(&v, "bob", u64::MAX));
    // More than the content of fits in the group and beyond.
    let mut names = fill(&v, "d", 3_000);
    std::fs::rename(v.host("d/f0"), v.host(&format!("d/{}", "long".repeat(20)))).unwrap();
    names[0] = "long".repeat(20);
    let dir = kernel.uses(kernel.lookup(&bob, ROOT, "d").node);
    let nodes: Vec<_> = names.iter().map(|n| kernel.lookup(&bob, dir, n).node).collect();
    let (names_of_bob, before) = (|| bytes_of(&v, &bob.group, "dentry"), usage_of_names(&bob.group));
    let one = names_of_bob() / 3_001;
    drop(v.vfs.open(&ann, nodes[0], OFlags::RDONLY).unwrap());
    assert_eq!(before - usage_of_names(&bob.group), one + umemcg::internal::NAME_BYTES, "its long name, too");
    for &node in &nodes[1..] {
        drop(v.vfs.open(&ann, node, OFlags::RDONLY).unwrap());
    }
    assert!(ann.group.usage_bytes() <= LIMIT);
    assert_eq!(names_of_bob(), one, "the directory");
    ends_with_nothing(&v, &kernel);
}

fn usage_of_names(group: &Arc<Group>) -> u64 {
    group.stat_total(StatItem::SlabReclaimable) as u64
}

#[test]
fn what_is_promised_is_what_goes() {
    let v = Fixture::with(|config| config.max_kept_files = 1000);
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", u64::MAX);
    // Whose times only we know, so that its content stays with it.
    let nodes = opened(&v, &kernel, &ann, 300, OFlags::RDWR);
    v.vfs.syncfs().unwrap();
    v.engine.drop_caches(DropCaches::Pages);
    let bytes = || ann.group.stat_local(StatItem::SlabReclaimable) as u64;
    let (before, reason) = (bytes(), umemcg::internal::Reason::Proactive);
    // Leaves of shadows are a part of it.
    let progress = v.engine.reclaimer().reclaim(&ann.group, 100, reason);
    let nr_gone = nodes.iter().filter(|&&node| !kernel.knows(node)).count() as u64;
    assert!((32..300).contains(&nr_gone), "{nr_gone} of 300 for 100 pages");
    // Of some the host happens to tell the times, too, so that their content went by itself.
    let by_itself = before - bytes() - progress.releasing_bytes;
    assert!(
        by_itself.is_multiple_of(umemcg::internal::CONTENT_BYTES) && by_itself < before / 4,
        "{by_itself} beyond the promise"
    );
    assert!(progress.slab_bytes >= progress.releasing_bytes, "kept");
    assert!(
        progress.releasing_bytes > nr_gone * (umemcg::internal::CONTENT_BYTES + umemcg::internal::NAME_BYTES)
    );
    ends_with_nothing(&v, &kernel);
}

#[test]
fn the_object_table_shows_names_also_after_a_removal() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let ann = tenant(&v, "ann", u64::MAX);
    let names = fill(&v, "d", 100);
    let dir = kernel.uses(kernel.lookup(&ann, ROOT, "d").node);
    names.iter().for_each(|n| _ = kernel.lookup(&ann, dir, n));
    let charged = ann.group.stat_total(StatItem::SlabReclaimable) as u64;
    assert_eq!(bytes_of(&v, &ann.group, "dentry"), charged);
    v.engine.remove_group(&ann.group).unwrap();
    kernel.no_longer_uses(dir);
    assert_eq!(bytes_of(&v, v.engine.root(), "dentry"), charged);
    v.engine.drop_caches(DropCaches::Objects);
    assert_eq!((v.vfs.nr_inodes(), kernel.asked().len()), (1, 101), "each was asked for once");
    ends_with_nothing(&v, &kernel);
}

#[test]
fn a_volume_that_goes_takes_its_names_off_the_lists() {
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let names = fill(&v, "d", 100);
    let dir = kernel.lookup(&v.root, ROOT, "d").node;
    names.iter().for_each(|n| _ = kernel.lookup(&v.root, dir, n));
    let Fixture { engine, vfs, dir: _directory, .. } = v;
    let before = engine.reclaimer().nr_shrinkers();
    assert!(engine.reclaimer().nr_list_slots() > 100);
    drop(vfs);
    assert_eq!((engine.reclaimer().nr_list_slots(), engine.reclaimer().nr_shrinkers()), (0, before - 2));
    engine.drop_caches(DropCaches::Objects);
    assert_eq!(engine.root().stat_total(StatItem::SlabReclaimable), 0);
}

/// The kernel keeps some of them in use meanwhile, limits fall below what it keeps, and groups go
/// with it.
#[test]
fn names_come_go_and_move_while_others_are_let_go_of() {
    const NR_ROUNDS: usize = 400;
    let v = Fixture::new();
    let kernel = FakeKernel::above(&v, false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| {
            while !stop.load(Relaxed) {
                v.engine.reclaimer().drop_slab_unless(v.engine.root(), &|| stop.load(Relaxed));
            }
        });
        let working: Vec<_> = (0..3)
            .map(|thread| {
                let (v, kernel) = (&v, &kernel);
                scope.spawn(move || {
                    let mut caller = tenant(v, &format!("t{thread}"), LIMIT);
                    let mut pinned = Vec::new();
                    for round in 0..NR_ROUNDS {
                        let (one, other) = (format!("a{thread}-{round}"), format!("b{thread}-{round}"));
                        let made = v.vfs.mkdir(&caller, ROOT, name(&one), 0o755).unwrap();
                        let (entry, file) = v
                            .vfs
                            .create(&caller, made.node, name("f"), 0o644, OFlags::RDWR)
                            .expect("the directory was looked up and not given back");
                        file.write(&caller.group, 0, b"x", false).unwrap();
                        kernel.has(entry);
                        v.vfs
                            .rename(&v.root, ROOT, name(&one), ROOT, name(&other), RenameFlags::empty())
                            .unwrap();
                        let again = kernel.has(v.vfs.lookup(&caller, ROOT, name(&other)).unwrap());
                        assert_eq!(again.node, made.node, "the directory is in use, so it is the same");
                        if round % 3 == 0 {
                            pinned.push(kernel.uses(made.node));
                        }
                        kernel.has(made);
                        drop(file);
                        if round % 2 == 0 {
                            // Anything may have been forgotten by now, and the kernel may give back
                            // immediately what it is told it has.
                            let dir = v.vfs.lookup(&caller, ROOT, name(&other)).unwrap();
                            v.vfs.unlink(&v.root, dir.node, name("f")).unwrap();
                            kernel.has(dir);
                            v.vfs.rmdir(&v.root, ROOT, name(&other)).unwrap();
                        }
                        match round % 100 {
                            60 => v.engine.set_max(&caller.group, LIMIT / 64),
                            65 => v.engine.set_max(&caller.group, LIMIT),
                            99 => {
                                v.engine.remove_group(&caller.group).unwrap();
                                caller = tenant(v, &format!("t{thread}-{round}"), LIMIT);
                                pinned.drain(..).for_each(|node| kernel.no_longer_uses(node));
                            }
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = working.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Relaxed);
        reclaiming.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    assert_eq!(v.ls(ROOT).len(), 3 * NR_ROUNDS / 2);
    v.vfs.syncfs().unwrap();
    ends_with_nothing(&v, &kernel);
}
