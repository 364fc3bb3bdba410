//! The look of a directory to tools that know one version of Linux's memory cgroups.

use crate::support::{Fixture, MIB, fixture, fixture_of};
use umemcg_control::{ControlError, NodeId, Style};

/// The files of version 1 in Linux 6.18, but for those of events through eventfds, and for
/// `memory.kmem.slabinfo`'s neighbours that run programs.
const V1: &[&str] = &[
    "cgroup.clone_children",
    "cgroup.procs",
    "memory.failcnt",
    "memory.force_empty",
    "memory.kmem.failcnt",
    "memory.kmem.limit_in_bytes",
    "memory.kmem.max_usage_in_bytes",
    "memory.kmem.slabinfo",
    "memory.kmem.tcp.failcnt",
    "memory.kmem.tcp.limit_in_bytes",
    "memory.kmem.tcp.max_usage_in_bytes",
    "memory.kmem.tcp.usage_in_bytes",
    "memory.kmem.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.memsw.failcnt",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.max_usage_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.move_charge_at_immigrate",
    "memory.numa_stat",
    "memory.oom_control",
    "memory.soft_limit_in_bytes",
    "memory.stat",
    "memory.swappiness",
    "memory.usage_in_bytes",
    "memory.use_hierarchy",
    "notify_on_release",
    "tasks",
];

const V2: &[&str] = &[
    "cgroup.controllers",
    "cgroup.events",
    "cgroup.kill",
    "cgroup.procs",
    "cgroup.stat",
    "cgroup.subtree_control",
    "cgroup.threads",
    "cgroup.type",
    "memory.current",
    "memory.events",
    "memory.events.local",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.numa_stat",
    "memory.oom.group",
    "memory.peak",
    "memory.pressure",
    "memory.reclaim",
    "memory.stat",
    "memory.swap.current",
    "memory.swap.events",
    "memory.swap.high",
    "memory.swap.max",
    "memory.swap.peak",
];

const V2_ROOT: &[&str] = &[
    "cgroup.controllers",
    "cgroup.procs",
    "cgroup.stat",
    "cgroup.subtree_control",
    "cgroup.threads",
    "memory.numa_stat",
    "memory.pressure",
    "memory.reclaim",
    "memory.stat",
];

fn listed(f: &Fixture, node: NodeId) -> Vec<String> {
    let entries = f.tree.read_directory(node, 0, 1000).unwrap();
    let files = entries.into_iter().filter(|entry| !entry.is_directory);
    let mut names: Vec<_> = files.map(|entry| entry.name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_strict_style_lists_the_files_of_its_version_alone() {
    for (style, names, on_root) in [(Style::V1, V1, V1), (Style::V2, V2, V2_ROOT)] {
        let f = fixture_of(style);
        f.mkdir("a").unwrap();
        assert_eq!(listed(&f, f.node("a").unwrap()), names, "{style:?}");
        assert_eq!(listed(&f, NodeId::ROOT), on_root, "{style:?}");
        let other = if style == Style::V1 { "memory.max" } else { "memory.limit_in_bytes" };
        assert_eq!(f.read(&format!("a/{other}")), Err(ControlError::NotFound));
        assert_eq!(f.mkdir(&format!("a/{other}")), Err(ControlError::Exists), "no group may take the name");
        // What Linux has no name for works all the same.
        f.write("a/memory.wmark_ratio", "50").unwrap();
        assert!(f.read("a/umemcg.stat").unwrap().contains("cache_hit 0\n"));
        f.write("vm.drop_caches", "1").unwrap();
    }
    let f = fixture();
    let all = listed(&f, f.node("").unwrap());
    assert!(
        ["memory.wmark_ratio", "vm.drop_caches"].iter().all(|name| all.iter().any(|listed| listed == name))
    );
}

#[test]
fn the_stat_file_of_version_one_is_linuxs_line_by_line() {
    let f = fixture_of(Style::V1);
    f.mkdir("a").unwrap();
    f.write("a/memory.limit_in_bytes", "8m").unwrap();
    f.write("a/memory.memsw.limit_in_bytes", "8m").unwrap();
    let stat = f.read("a/memory.stat").unwrap();
    let names: Vec<&str> = stat.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let own = "cache rss rss_huge shmem mapped_file dirty writeback workingset_refault_anon workingset_refault_file swap swapcached \
        pgpgin pgpgout pgfault pgmajfault inactive_anon active_anon inactive_file active_file unevictable";
    let mut expected: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
    expected.extend(["hierarchical_memory_limit", "hierarchical_memsw_limit"].map(str::to_owned));
    expected.extend(own.split_whitespace().map(|name| format!("total_{name}")));
    assert_eq!(names, expected);
    assert!(stat.contains(&format!("hierarchical_memsw_limit {}\n", 8 * MIB)));
    let numa = f.read("a/memory.numa_stat").unwrap();
    assert!(
        numa.starts_with("total=0 N0=0\nfile=0 N0=0\n") && numa.contains("hierarchical_unevictable=0 N0=0\n")
    );
}

#[test]
fn files_without_effect_check_and_keep_what_linux_does() {
    let f = fixture();
    f.mkdir("a").unwrap();
    use ControlError::Invalid;
    for (name, text, result, content) in [
        ("memory.memsw.limit_in_bytes", "16m", Err(Invalid), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "16m", Ok(()), "16777216\n"),
        ("memory.memsw.limit_in_bytes", "16m", Ok(()), "16777216\n"),
        ("memory.memsw.usage_in_bytes", "1", Err(Invalid), "0\n"),
        ("memory.memsw.failcnt", "0", Ok(()), "0\n"),
        ("memory.memsw.max_usage_in_bytes", "0", Ok(()), "0\n"),
        ("memory.kmem.tcp.limit_in_bytes", "1g", Ok(()), "1073741824\n"),
        ("memory.kmem.tcp.limit_in_bytes", "x", Err(Invalid), "1073741824\n"),
        ("memory.kmem.tcp.limit_in_bytes", "-1", Ok(()), "9223372036854771712\n"),
        ("memory.kmem.tcp.max_usage_in_bytes", "x", Ok(()), "0\n"),
        ("memory.kmem.tcp.failcnt", "0", Ok(()), "0\n"),
        ("memory.kmem.tcp.usage_in_bytes", "0", Err(Invalid), "0\n"),
        ("memory.kmem.limit_in_bytes", "1g", Ok(()), "9223372036854771712\n"),
        ("memory.swappiness", "100", Ok(()), "100\n"),
        ("memory.swappiness", "201", Err(Invalid), "100\n"),
        ("memory.move_charge_at_immigrate", "0", Ok(()), "0\n"),
        ("memory.move_charge_at_immigrate", "1", Err(Invalid), "0\n"),
        ("notify_on_release", "2", Ok(()), "1\n"),
        ("notify_on_release", "-1", Err(Invalid), "1\n"),
        ("cgroup.clone_children", "1", Ok(()), "1\n"),
        ("memory.swap.max", "0", Ok(()), "0\n"),
        ("memory.swap.high", "max", Ok(()), "max\n"),
        ("memory.oom.group", "1", Ok(()), "1\n"),
        ("memory.oom.group", "2", Err(Invalid), "1\n"),
        ("cgroup.threads", "1", Err(ControlError::System(rustix::io::Errno::OPNOTSUPP)), ""),
    ] {
        let path = format!("a/{name}");
        assert_eq!(f.write(&path, text), result, "{name} < {text}");
        assert_eq!(f.read(&path).as_deref(), Ok(content), "{name} after {text}");
    }
    // Memory alone may not have more than memory and swap.
    assert_eq!(f.write("a/memory.limit_in_bytes", "17m"), Err(Invalid));
    assert_eq!(f.write("a/memory.limit_in_bytes", "16m"), Ok(()));
    assert_eq!(f.write("a/memory.memsw.limit_in_bytes", "15m"), Err(Invalid));
    f.mkdir("a/b").unwrap();
    let inherited = ["memory.swappiness", "notify_on_release", "cgroup.clone_children", "memory.oom.group"];
    let shown = inherited.map(|name| f.read(&format!("a/b/{name}")).unwrap());
    assert_eq!(shown, ["100\n", "1\n", "1\n", "0\n"]);
}

#[test]
fn a_group_keeps_its_name_in_version_two_alone() {
    for (style, renamed) in
        [(Style::V1, Ok(())), (Style::Both, Ok(())), (Style::V2, Err(ControlError::NotPermitted))]
    {
        let f = fixture_of(style);
        f.mkdir("a").unwrap();
        assert_eq!(f.rename("a", "b"), renamed, "{style:?}");
    }
}

#[test]
fn a_kill_reaches_the_subtree_and_nothing_else() {
    let f = fixture();
    f.mkdir("a").unwrap();
    f.mkdir("a/b").unwrap();
    f.processes.add_process(&[100]);
    f.processes.add_process(&[200, 201]);
    f.processes.add_process(&[300]);
    f.write("a/cgroup.procs", "100").unwrap();
    f.write("a/b/cgroup.procs", "200").unwrap();
    assert_eq!(f.write("a/cgroup.kill", "0"), Err(ControlError::Invalid));
    f.write("a/cgroup.kill", "1\n").unwrap();
    assert_eq!([f.read("a/tasks").unwrap(), f.read("a/b/tasks").unwrap()], ["", ""]);
    assert_eq!(f.read("cgroup.procs").unwrap(), "300\n");
}

#[test]
fn a_process_that_the_reader_cannot_see_is_shown_as_in_linux() {
    for (style, file, shown) in [
        (Style::V1, "cgroup.procs", ""),
        (Style::V1, "tasks", ""),
        (Style::V2, "cgroup.procs", "0\n"),
        (Style::V2, "cgroup.threads", "0\n"),
        (Style::Both, "tasks", ""),
    ] {
        let f = fixture_of(style);
        f.mkdir("a").unwrap();
        f.processes.add_process(&[100]);
        f.write("a/cgroup.procs", "100").unwrap();
        let open = f
            .open_as(&format!("a/{file}"), crate::support::READ, &umemcg_control::Credentials::ROOT)
            .unwrap();
        // In this reader's namespace every id is 1000 less.
        let text = f.tree.read(&open, 0, 100, &crate::support::request(9000)).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), shown, "{style:?} {file}");
    }
}
