//! The statistics files. Every number is read at the time of the request; none is estimated, and a
//! quantity not counted here has no line. Linux's lines with a constant zero are kept, for programs
//! that add them up.
//!
//! `memory.stat` has three parts: the v1 names with the group's own numbers, the same names under
//! `total_` for the whole subtree, and the v2 names missing from v1, always for the subtree. Each
//! name appears once: a name in both generations has its v1 meaning. In a strict style the file has
//! the lines of that version of Linux.

use std::fmt::Write;
use std::sync::Arc;

use umemcg::internal::{apply_pending, collect_hits};
use umemcg::{Engine, EventKind, Group, StatItem};
use umemcg_base::PAGE_SIZE_U64;

use crate::context::FileContext;
use crate::group_control::GroupControl;
use crate::numbers::show_limit_v1;
use crate::row::ReadResult;
use crate::style::Style;

use StatItem::*;

/// A line: a name and its summands. An empty sum is a true zero.
type Line = (&'static str, &'static [StatItem]);

/// File and swap-backed pages.
const CACHE: &[StatItem] = &[InactiveFile, ActiveFile, InactiveAnon, ActiveAnon, Unevictable, FileKernel];

/// v1 names, shown for the group itself and under `total_`.
const V1_LINES: &[Line] = &[
    ("cache", CACHE),
    ("rss", &[Reserved]),
    ("rss_huge", &[]),
    ("shmem", &[Shmem]),
    ("dirty", &[FileDirty]),
    ("writeback", &[FileWriteback]),
    ("nfs_unstable", &[FileUnstable]),
    ("workingset_refault_file", &[WorkingsetRefault]),
    ("cache_hit", &[CacheHit]),
    ("cache_miss", &[CacheMiss]),
    ("pgpgin", &[PgPgIn]),
    ("pgpgout", &[PgPgOut]),
    ("kswapd_steal", &[PgStealKswapd]),
    ("pg_pgsteal", &[PgStealDirect]),
    ("kswapd_pgscan", &[PgScanKswapd]),
    ("pg_scan", &[PgScanDirect]),
    ("pgrefill", &[PgRefill]),
    ("pgoutrun", &[KswapdRun]),
    ("allocstall", &[AllocStall]),
    ("inactive_anon", &[InactiveAnon]),
    ("active_anon", &[ActiveAnon]),
    ("inactive_file", &[InactiveFile]),
    ("active_file", &[ActiveFile]),
    ("unevictable", &[Unevictable, Reserved]),
];

/// v2 names missing from v1, shown for the subtree.
const V2_LINES: &[Line] = &[
    ("anon", &[Reserved]),
    ("file", CACHE),
    ("kernel", &[SlabReclaimable, SlabUnreclaimable, IndexNodes, GroupState]),
    ("percpu", &[GroupState]),
    ("file_kernel", &[FileKernel]),
    ("file_dirty", &[FileDirty]),
    ("file_writeback", &[FileWriteback]),
    ("file_unstable", &[FileUnstable]),
    ("slab_reclaimable", &[SlabReclaimable]),
    ("slab_unreclaimable", &[SlabUnreclaimable]),
    ("slab", &[SlabReclaimable, SlabUnreclaimable]),
    ("index_nodes", &[IndexNodes]),
    ("shadow_nodes", &[ShadowNodes]),
    ("workingset_activate_file", &[WorkingsetActivate]),
    ("workingset_restore_file", &[WorkingsetRestore]),
    ("pgscan", &[PgScanDirect, PgScanKswapd, PgScanProactive]),
    ("pgsteal", &[PgStealDirect, PgStealKswapd, PgStealProactive]),
    ("pgscan_kswapd", &[PgScanKswapd]),
    ("pgscan_direct", &[PgScanDirect]),
    ("pgscan_proactive", &[PgScanProactive]),
    ("pgsteal_kswapd", &[PgStealKswapd]),
    ("pgsteal_direct", &[PgStealDirect]),
    ("pgsteal_proactive", &[PgStealProactive]),
    ("pgactivate", &[PgActivate]),
    ("pgdeactivate", &[PgDeactivate]),
    ("uncached_io", &[UncachedIo]),
];

/// The lines of version 2 of Linux, in its order, without our own. Index nodes count as slab.
const V2_STRICT_LINES: &[Line] = &[
    ("anon", &[Reserved]),
    ("file", CACHE),
    ("kernel", &[SlabReclaimable, SlabUnreclaimable, IndexNodes, GroupState]),
    ("kernel_stack", &[]),
    ("pagetables", &[]),
    ("sec_pagetables", &[]),
    ("percpu", &[GroupState]),
    ("sock", &[]),
    ("vmalloc", &[]),
    ("shmem", &[Shmem]),
    ("file_mapped", &[]),
    ("file_dirty", &[FileDirty]),
    ("file_writeback", &[FileWriteback]),
    ("swapcached", &[]),
    ("anon_thp", &[]),
    ("file_thp", &[]),
    ("shmem_thp", &[]),
    ("inactive_anon", &[InactiveAnon]),
    ("active_anon", &[ActiveAnon]),
    ("inactive_file", &[InactiveFile, FileKernel]),
    ("active_file", &[ActiveFile]),
    ("unevictable", &[Unevictable, Reserved]),
    ("slab_reclaimable", &[SlabReclaimable, IndexNodes]),
    ("slab_unreclaimable", &[SlabUnreclaimable]),
    ("slab", &[SlabReclaimable, SlabUnreclaimable, IndexNodes]),
    ("workingset_refault_anon", &[]),
    ("workingset_refault_file", &[WorkingsetRefault]),
    ("workingset_activate_anon", &[]),
    ("workingset_activate_file", &[WorkingsetActivate]),
    ("workingset_restore_anon", &[]),
    ("workingset_restore_file", &[WorkingsetRestore]),
    ("workingset_nodereclaim", &[]),
    ("pswpin", &[]),
    ("pswpout", &[]),
    ("pgscan", &[PgScanDirect, PgScanKswapd, PgScanProactive]),
    ("pgsteal", &[PgStealDirect, PgStealKswapd, PgStealProactive]),
    ("pgscan_kswapd", &[PgScanKswapd]),
    ("pgscan_direct", &[PgScanDirect]),
    ("pgscan_khugepaged", &[]),
    ("pgscan_proactive", &[PgScanProactive]),
    ("pgsteal_kswapd", &[PgStealKswapd]),
    ("pgsteal_direct", &[PgStealDirect]),
    ("pgsteal_khugepaged", &[]),
    ("pgsteal_proactive", &[PgStealProactive]),
    ("pgfault", &[]),
    ("pgmajfault", &[]),
    ("pgrefill", &[PgRefill]),
    ("pgactivate", &[PgActivate]),
    ("pgdeactivate", &[PgDeactivate]),
    ("pglazyfree", &[]),
    ("pglazyfreed", &[]),
];

/// The lines of version 1, for the group itself and under `total_`.
const V1_STRICT_LINES: &[Line] = &[
    ("cache", CACHE),
    ("rss", &[Reserved]),
    ("rss_huge", &[]),
    ("shmem", &[Shmem]),
    ("mapped_file", &[]),
    ("dirty", &[FileDirty]),
    ("writeback", &[FileWriteback]),
    ("workingset_refault_anon", &[]),
    ("workingset_refault_file", &[WorkingsetRefault]),
    ("swap", &[]),
    ("swapcached", &[]),
    ("pgpgin", &[PgPgIn]),
    ("pgpgout", &[PgPgOut]),
    ("pgfault", &[]),
    ("pgmajfault", &[]),
    ("inactive_anon", &[InactiveAnon]),
    ("active_anon", &[ActiveAnon]),
    ("inactive_file", &[InactiveFile, FileKernel]),
    ("active_file", &[ActiveFile]),
    ("unevictable", &[Unevictable, Reserved]),
];

/// Shows `memory.stat`.
pub(crate) fn show_memory_stat(context: &FileContext<'_>) -> ReadResult {
    match context.state.style() {
        Style::Both => show_all(context),
        Style::V1 => Ok(memory_stat_v1(context)),
        Style::V2 => Ok(memory_stat_v2(context.group)),
    }
}

/// Shows `umemcg.stat`.
pub(crate) fn show_all(context: &FileContext<'_>) -> ReadResult {
    Ok(memory_stat(context.group) + &protection(context.engine(), context.group))
}

fn memory_stat_v1(context: &FileContext<'_>) -> String {
    apply_pending();
    let group = context.group;
    let memsw = |group: &Group| GroupControl::if_present(group).map(|part| part.inert.memsw_limit());
    let hierarchical_memsw = group.ancestors().filter_map(memsw).min().unwrap_or(u64::MAX);
    let mut text = lines(V1_STRICT_LINES, "", |item| group.stat_local_applied(item));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "hierarchical_memory_limit {}", hierarchical_limit(group));
    let _ = writeln!(text, "hierarchical_memsw_limit {}", show_limit_v1(hierarchical_memsw));
    text + &lines(V1_STRICT_LINES, "total_", |item| group.stat_total_applied(item))
}

fn memory_stat_v2(group: &Group) -> String {
    apply_pending();
    lines(V2_STRICT_LINES, "", |item| group.stat_total_applied(item))
}

fn lines(lines: &[Line], prefix: &str, read: impl Fn(StatItem) -> i64) -> String {
    lines.iter().map(|&(name, items)| format!("{prefix}{name} {}\n", sum(items, &read))).collect()
}

/// Shows `memory.numa_stat`: all memory counts for node 0.
pub(crate) fn show_numa_stat(context: &FileContext<'_>) -> ReadResult {
    apply_pending();
    let group = context.group;
    if context.state.style() != Style::V1 {
        let is_of_nodes = |name: &str| !matches!(name, "kernel" | "percpu" | "sock" | "vmalloc" | "slab");
        let gauges = V2_STRICT_LINES.iter().take_while(|line| line.0 != "workingset_refault_anon");
        let lines = gauges.filter(|line| is_of_nodes(line.0));
        return Ok(lines
            .map(|&(name, items)| {
                format!("{name} N0={}\n", sum(items, |item| group.stat_total_applied(item)))
            })
            .collect());
    }
    let kinds: [(&str, &[StatItem]); 4] = [
        ("total", &[InactiveFile, ActiveFile, InactiveAnon, ActiveAnon, Unevictable, FileKernel, Reserved]),
        ("file", &[InactiveFile, ActiveFile, FileKernel]),
        ("anon", &[InactiveAnon, ActiveAnon]),
        ("unevictable", &[Unevictable, Reserved]),
    ];
    let of = |prefix: &str, read: &dyn Fn(StatItem) -> i64| -> String {
        let line = |&(name, items): &(&str, &[StatItem])| {
            let pages = sum(items, read) / PAGE_SIZE_U64;
            format!("{prefix}{name}={pages} N0={pages}\n")
        };
        kinds.iter().map(line).collect()
    };
    Ok(of("", &|item| group.stat_local_applied(item))
        + &of("hierarchical_", &|item| group.stat_total_applied(item)))
}

/// Returns the lines about protection as reclaim of the whole pool sees it: how much of the group
/// is protected now, and the claims of the group and its children.
fn protection(engine: &Engine, group: &Arc<Group>) -> String {
    let effective = engine.effective_protection(engine.root(), group);
    let (claimed, below) = (group.claimed_bytes(), group.claimed_below_bytes());
    let lines = [
        ("min_effective", effective.min),
        ("low_effective", effective.low),
        ("min_claimed", claimed.min),
        ("low_claimed", claimed.low),
        ("min_claimed_below", below.min),
        ("low_claimed_below", below.low),
    ];
    lines.iter().map(|&(name, bytes)| format!("{name} {}\n", show_limit_v1(bytes))).collect()
}

pub(crate) fn memory_stat(group: &Group) -> String {
    collect_hits();
    // Apply pending updates once for all lines.
    apply_pending();
    let mut text = String::with_capacity(2048);
    let mut line = |prefix: &str, name: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{prefix}{name} {value}");
    };
    for &(name, items) in V1_LINES {
        line("", name, sum(items, |item| group.stat_local_applied(item)));
    }
    line("", "hierarchical_memory_limit", hierarchical_limit(group));
    line("", "soft_limit_excess", group.excess_bytes());
    for &(name, items) in V1_LINES {
        line("total_", name, sum(items, |item| group.stat_total_applied(item)));
    }
    for &(name, items) in V2_LINES {
        line("", name, sum(items, |item| group.stat_total_applied(item)));
    }
    text
}

/// Returns the sum of some items. A number may dip below zero for a moment while a group below is
/// being removed.
fn sum(items: &[StatItem], read: impl Fn(StatItem) -> i64) -> u64 {
    items.iter().map(|&item| read(item)).sum::<i64>().max(0) as u64
}

/// Returns the lowest limit of the group and its ancestors.
fn hierarchical_limit(group: &Group) -> u64 {
    let lowest = group.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX);
    show_limit_v1(lowest / PAGE_SIZE_U64 * PAGE_SIZE_U64)
}

const EVENTS: [(&str, EventKind); 6] = [
    ("low", EventKind::Low),
    ("high", EventKind::High),
    ("max", EventKind::Max),
    ("oom", EventKind::Oom),
    ("oom_kill", EventKind::OomKill),
    ("oom_group_kill", EventKind::OomGroupKill),
];

/// Shows `memory.events`.
pub(crate) fn show_events(context: &FileContext<'_>) -> ReadResult {
    Ok(events(|kind| context.group.event_count(kind)))
}

/// Shows `memory.events.local`.
pub(crate) fn show_events_local(context: &FileContext<'_>) -> ReadResult {
    Ok(events(|kind| context.group.event_count_local(kind)))
}

fn events(count: impl Fn(EventKind) -> u64) -> String {
    EVENTS.iter().map(|&(name, kind)| format!("{name} {}\n", count(kind))).collect()
}

/// Shows `cgroup.stat`.
pub(crate) fn show_group_stat(context: &FileContext<'_>) -> ReadResult {
    let mut nr_descendants = 0u64;
    let mut at = Group::next_in_subtree(context.group, Some(context.group));
    while let Some(group) = at {
        nr_descendants += 1;
        at = Group::next_in_subtree(context.group, Some(&group));
    }
    Ok(format!("nr_descendants {nr_descendants}\nnr_dying_descendants 0\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use umemcg::internal::GroupTree;

    const MIB: i64 = 1 << 20;

    fn parsed(text: &str) -> HashMap<&str, u64> {
        let mut map = HashMap::new();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').unwrap();
            assert!(map.insert(name, value.parse().unwrap()).is_none(), "{name} stands twice");
        }
        map
    }

    #[test]
    fn own_numbers_and_totals_are_told_apart() {
        let tree = GroupTree::new(1 << 30);
        let a = tree.create(tree.root(), "a".as_ref()).unwrap();
        let b = tree.create(&a, "b".as_ref()).unwrap();
        a.stat_add(InactiveFile, 3 * MIB);
        b.stat_add(ActiveFile, 5 * MIB);
        b.stat_add(FileDirty, 2 * MIB);
        b.stat_add(PgScanDirect, 7);
        b.stat_add(PgScanKswapd, 4);
        let text = memory_stat(&a);
        let stat = parsed(&text);
        let mib = |name: &str| stat[name] / MIB as u64;
        assert_eq!((mib("cache"), mib("total_cache"), mib("file")), (3, 8, 8));
        assert_eq!((mib("inactive_file"), mib("total_inactive_file")), (3, 3));
        assert_eq!((mib("dirty"), mib("total_dirty"), mib("file_dirty")), (0, 2, 2));
        assert_eq!((stat["pgscan"], stat["pgscan_direct"], stat["pgscan_kswapd"]), (11, 7, 4));
        assert_eq!((stat["rss"], stat["total_rss"]), (0, 0));
    }

    #[test]
    fn whatever_is_charged_stands_in_one_of_three_lines() {
        let of = |name: &str| V2_LINES.iter().find(|line| line.0 == name).unwrap().1;
        let mut named = [of("anon"), of("file"), of("kernel")].concat();
        let mut charged = StatItem::CHARGED.to_vec();
        named.sort_unstable();
        charged.sort_unstable();
        assert_eq!(named, charged, "no byte without a line, and none in two of them");
        let metadata: Vec<_> = StatItem::ALL.iter().copied().filter(|item| item.is_metadata()).collect();
        let mut kernel = of("kernel").to_vec();
        kernel.sort_unstable();
        assert_eq!(kernel, metadata);
        // Every summand of `kernel` is also in a line of its own.
        let parts =
            [of("slab_reclaimable"), of("slab_unreclaimable"), of("index_nodes"), of("percpu")].concat();
        assert!(kernel.iter().all(|item| parts.contains(item)));
    }

    #[test]
    fn a_strict_v2_file_adds_up_with_linuxs_names_alone() {
        let tree = GroupTree::new(1 << 30);
        let a = tree.create(tree.root(), "a".as_ref()).unwrap();
        let b = tree.create(&a, "b".as_ref()).unwrap();
        b.stat_add(InactiveFile, 5 * MIB);
        b.stat_add(IndexNodes, MIB);
        b.stat_add(SlabReclaimable, 2 * MIB);
        let text = memory_stat_v2(&a);
        // Like parsers of version 2: the first line with the word.
        let find =
            |word: &str| text[text.find(word).unwrap() + word.len()..].split('\n').next().unwrap().to_owned();
        assert_eq!([find("file "), find("inactive_file ")], [(5 * MIB).to_string(), (5 * MIB).to_string()]);
        let stat = parsed(&text);
        assert_eq!(stat["kernel"], stat["slab"] + stat["percpu"]);
        assert_eq!(stat["slab"], stat["slab_reclaimable"] + stat["slab_unreclaimable"]);
        assert_eq!(stat["anon"] + stat["file"] + stat["kernel"], a.named_bytes());
        assert_eq!(text.find("total_"), None);
    }

    #[test]
    fn v1_names_come_first_in_their_order_then_totals_then_v2() {
        let tree = GroupTree::new(1 << 30);
        let text = memory_stat(tree.root());
        let names: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        let at = |name: &str| names.iter().position(|&n| n == name).unwrap();
        let order = [
            "cache",
            "rss",
            "dirty",
            "writeback",
            "pgpgin",
            "pgpgout",
            "inactive_file",
            "active_file",
            "hierarchical_memory_limit",
            "total_cache",
            "total_unevictable",
            "anon",
            "file",
            "pgscan",
        ];
        assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{names:?}");
    }

    #[test]
    fn the_hierarchical_limit_is_the_lowest_above() {
        let tree = GroupTree::new(1 << 30);
        let a = tree.create(tree.root(), "a".as_ref()).unwrap();
        let b = tree.create(&a, "b".as_ref()).unwrap();
        let limit = |group: &Group| parsed(&memory_stat(group))["hierarchical_memory_limit"];
        assert_eq!(limit(&b), 1 << 30, "the pool bounds every group");
        a.store_max(8 << 20);
        b.store_max(16 << 20);
        assert_eq!((limit(&a), limit(&b)), (8 << 20, 8 << 20));
    }

    #[test]
    fn protection_is_shown_as_the_pool_sees_it() {
        let engine = Engine::new(umemcg::EngineConfig::default()).unwrap();
        let a = engine.create_group(engine.root(), "a".as_ref()).unwrap();
        let b = engine.create_group(&a, "b".as_ref()).unwrap();
        engine.set_min(&a, 8 * MIB as u64);
        engine.set_low(&b, u64::MAX);
        let _held = engine.charge(&b, 4 * MIB as u64).unwrap();
        let usage = b.usage_bytes();
        let of = |group: &Arc<Group>| protection(&engine, group);
        assert!(of(&a).starts_with(&format!("min_effective {}\nlow_effective 0\nmin_claimed ", 8 * MIB)));
        assert!(of(&a).contains(&format!("low_claimed_below {usage}\n")));
        let shown = parsed(&of(&b))
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect::<HashMap<_, _>>();
        assert_eq!(
            (shown["low_effective"], shown["low_claimed"]),
            (0, usage),
            "its parent has no low to give"
        );
        assert!(shown["min_effective"] >= usage && shown["min_claimed"] == 0, "but unclaimed min");
    }

    #[test]
    fn events_have_the_kernels_order() {
        let tree = GroupTree::new(1 << 30);
        tree.root().event(EventKind::Max);
        assert_eq!(
            events(|kind| tree.root().event_count(kind)),
            "low 0\nhigh 0\nmax 1\noom 0\noom_kill 0\noom_group_kill 0\n"
        );
    }
}
