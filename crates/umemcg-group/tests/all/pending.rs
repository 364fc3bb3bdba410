//! Deltas that threads add up before they report them: sums are exact whenever nothing changes,
//! whichever thread reads, and whatever was removed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umemcg_group::{Group, GroupTree, NR_PENDING, PENDING_BYTES_MAX, StatItem};

const ITEMS: [StatItem; 3] = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
const PAGE: i64 = 4096;

/// One test at a time: a look may apply the changes of all threads, those of other trees, too.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tree_of(nr: usize) -> (Arc<GroupTree>, Vec<Arc<Group>>) {
    let tree = GroupTree::new(1 << 30);
    let groups = (0..nr).map(|n| tree.create(tree.root(), format!("g{n}").as_ref()).unwrap());
    let groups = groups.collect();
    (tree, groups)
}

#[test]
fn a_change_is_seen_by_every_reader_at_once() {
    let _turn = turn();
    let (tree, groups) = tree_of(1);
    let group = &groups[0];
    for nr in 1..=100 {
        group.owner().count(StatItem::FileDirty, PAGE);
        let other = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    (group.stat_local(StatItem::FileDirty), tree.root().stat_total(StatItem::FileDirty))
                })
                .join()
        });
        assert_eq!(other.unwrap(), (nr * PAGE, nr * PAGE));
    }
}

#[test]
fn what_is_not_told_is_bounded_and_a_glimpse_shows_it() {
    let _turn = turn();
    let (tree, groups) = tree_of(3 * NR_PENDING);
    let root = tree.root();
    let mut all = 0;
    for _ in 0..200 {
        for group in &groups {
            group.owner().count(StatItem::FileDirty, PAGE);
            all += PAGE;
            let told = root.stat_total_applied(StatItem::FileDirty);
            assert!(told <= all && all - told < (NR_PENDING as u64 * PENDING_BYTES_MAX) as i64);
            assert_eq!(root.unclean_bytes_about(1), all as u64);
        }
    }
    let one = &groups[0];
    one.owner().count(StatItem::FileDirty, -PAGE);
    assert_eq!(one.unclean_bytes_about(1), 199 * PAGE as u64);
    assert_eq!(one.stat_total(StatItem::FileDirty), 199 * PAGE);
    assert_eq!(one.stat_total_applied(StatItem::FileDirty), 199 * PAGE);
}

#[test]
fn pages_are_counted_late_and_read_exactly() {
    let _turn = turn();
    let (tree, groups) = tree_of(1);
    let items = [StatItem::InactiveFile, StatItem::PgPgIn, StatItem::CacheMiss];
    // The first change claims the slot and is applied at once.
    groups[0].owner().count(StatItem::PgPgOut, 1);
    for nr in 1..=100 {
        items.iter().for_each(|&item| groups[0].owner().count(item, 1));
        let applied = tree.root().stat_total_applied(StatItem::PgPgIn);
        assert!(nr - applied < PENDING_BYTES_MAX as i64 / PAGE, "{applied} of {nr}");
    }
    assert!(tree.root().stat_total_applied(StatItem::InactiveFile) < 100);
    assert!(items.iter().all(|&item| tree.root().stat_total(item) == 100));
    assert!(items.iter().all(|&item| groups[0].stat_local(item) == 100));
}

#[test]
fn looks_take_the_changes_of_idle_threads() {
    let _turn = turn();
    let (tree, groups) = tree_of(1);
    let (told, told_once) = (std::sync::mpsc::channel::<()>(), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let (end, ended) = told;
        let (group, told_once) = (&groups[0], &told_once);
        scope.spawn(move || {
            (0..3).for_each(|_| group.owner().count(StatItem::FileDirty, PAGE));
            told_once.wait();
            let _ = ended.recv();
        });
        told_once.wait();
        let applied = || tree.root().stat_total_applied(StatItem::FileDirty);
        assert!(applied() < 3 * PAGE, "the thread has changes pending");
        // Some looks later a sweep finds its set unchanged.
        let nr_looks = (0..10_000).take_while(|_| {
            assert_eq!(tree.root().unclean_bytes_about(1), 3 * PAGE as u64);
            applied() < 3 * PAGE
        });
        assert!(nr_looks.count() < 10_000, "every look visits the idle thread's set");
        drop(end);
    });
}

#[test]
fn what_is_pending_for_a_removed_group_is_its_parents() {
    let _turn = turn();
    let (tree, groups) = tree_of(1);
    let parent = &groups[0];
    let child = tree.create(parent, "child".as_ref()).unwrap();
    // What names the owner afterwards.
    let charge = child.try_charge(4096).unwrap();
    let owner = charge.owner();
    for _ in 0..5 {
        owner.count(StatItem::FileDirty, PAGE);
    }
    tree.remove(&child, |_, _| ()).unwrap();
    assert_eq!(parent.stat_local(StatItem::FileDirty), 5 * PAGE);
    for _ in 0..5 {
        owner.count(StatItem::FileDirty, -PAGE);
    }
    assert_eq!((parent.stat_local(StatItem::FileDirty), tree.root().stat_total(StatItem::FileDirty)), (0, 0));
    drop(child);
    drop(charge);
    // The next owner of the node begins at zero.
    let next = tree.create(parent, "next".as_ref()).unwrap();
    next.owner().count(StatItem::FileDirty, PAGE);
    assert_eq!((next.stat_local(StatItem::FileDirty), parent.stat_local(StatItem::FileDirty)), (PAGE, 0));
}

/// Threads move pages from state to state, for groups that are removed meanwhile, while others
/// read.
#[test]
fn threads_removals_and_readers_agree_in_the_end() {
    let _turn = turn();
    const NR_THREADS: usize = 4;
    const NR_GROUPS: usize = 24;
    let (tree, groups) = tree_of(NR_GROUPS);
    let root = tree.root();
    let charges: Vec<_> = groups.iter().map(|group| group.try_charge(4096).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..NR_THREADS {
            let charges = &charges;
            scope.spawn(move || {
                for round in 0..2_000usize {
                    let owner = charges[(round * (thread + 1)) % NR_GROUPS].owner();
                    let pages = PAGE * (1 + (round % 70) as i64);
                    owner.count(StatItem::FileDirty, pages);
                    owner.count(StatItem::FileWriteback, pages);
                    owner.count(StatItem::FileDirty, -pages);
                    owner.count(StatItem::FileUnstable, pages);
                    owner.count(StatItem::FileWriteback, -pages);
                    if round % 2 == 0 {
                        owner.count(StatItem::FileUnstable, -pages);
                    }
                }
            });
        }
        for group in groups.iter().take(NR_GROUPS / 2) {
            let _ = root.stat_total(StatItem::FileDirty);
            tree.remove(group, |_, _| ()).unwrap();
        }
    });
    let left: i64 = (0..2_000i64).filter(|round| round % 2 == 1).map(|round| PAGE * (1 + round % 70)).sum();
    let totals = ITEMS.map(|item| root.stat_total(item));
    assert_eq!(totals, [0, 0, left * NR_THREADS as i64]);
    let local = |item| groups[NR_GROUPS / 2..].iter().map(|group| group.stat_local(item)).sum::<i64>();
    assert_eq!(ITEMS.map(|item| root.stat_local(item) + local(item)), totals);
}
