//! The texts that each control file shows and accepts.

use crate::support::{Fixture, MIB, READ, fixture, request};
use proptest::prelude::*;
use umemcg::{EventKind, StatItem};
use umemcg_control::{
    ControlError, ControlTree, Credentials, DirEntry, FIRST_COOKIE, KEPT_BYTES, NodeId, OpenFile, Request,
    Scope,
};

use ControlError::{
    Again, Busy, Exists, Gone, Interrupted, Invalid, NameTooLong, NoSuchProcess, NotFound, TooLong,
};

fn with_group() -> Fixture {
    let f = fixture();
    f.mkdir("a").unwrap();
    f
}

#[test]
fn a_fresh_group_shows_these_contents() {
    let f = with_group();
    for (name, content) in [
        ("cgroup.procs", ""),
        ("tasks", ""),
        ("cgroup.controllers", "memory\n"),
        ("cgroup.subtree_control", "memory\n"),
        ("cgroup.type", "domain\n"),
        ("cgroup.events", "populated 0\nfrozen 0\n"),
        ("cgroup.stat", "nr_descendants 0\nnr_dying_descendants 0\n"),
        ("memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory.max", "max\n"),
        ("memory.usage_in_bytes", "0\n"),
        ("memory.current", "0\n"),
        ("memory.max_usage_in_bytes", "0\n"),
        ("memory.peak", "0\n"),
        ("memory.failcnt", "0\n"),
        ("memory.use_hierarchy", "1\n"),
        ("memory.high", "max\n"),
        ("memory.low_wmark_distance", "0\n"),
        ("memory.high_wmark_distance", "0\n"),
        ("memory.reclaim_wmarks", "low_wmark 9223372036854771712\nhigh_wmark 9223372036854771712\n"),
        ("memory.kswapd_pid", "memcg_null 0\n"),
        ("memory.kswapd_dedicated", "0\n"),
        ("memory.wmark_ratio", "0\n"),
        ("memory.wmark_scale_factor", "50\n"),
        ("memory.kmem.usage_in_bytes", "0\n"),
        ("memory.kmem.max_usage_in_bytes", "0\n"),
        ("memory.kmem.limit_in_bytes", "9223372036854771712\n"),
        ("memory.kmem.failcnt", "0\n"),
        ("memory.kmem.slabinfo", "# name <objects> <reclaimable> <bytes>\nunreclaimable 0 0 0\n"),
        ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"),
        ("memory.events.local", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"),
    ] {
        assert_eq!(f.read(&format!("a/{name}")).as_deref(), Ok(content), "{name}");
    }
    for name in ["memory.force_empty", "memory.reclaim"] {
        assert_eq!(f.read(&format!("a/{name}")), Err(Invalid), "{name} has nothing to show");
    }
    assert!(f.read("a/memory.stat").unwrap().starts_with("cache 0\nrss 0\n"));
}

#[test]
fn each_write_is_accepted_or_refused_without_a_change() {
    let cases: &[(&str, &str, Result<(), ControlError>, &str)] = &[
        ("memory.limit_in_bytes", "64m\n", Ok(()), "67108864\n"),
        ("memory.limit_in_bytes", "4097", Ok(()), "4096\n"),
        ("memory.limit_in_bytes", "0", Ok(()), "0\n"),
        ("memory.limit_in_bytes", "-1", Ok(()), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "010000", Ok(()), "4096\n"),
        ("memory.limit_in_bytes", "0x4000", Ok(()), "16384\n"),
        ("memory.limit_in_bytes", "08", Err(Invalid), "9223372036854771712\n"),
        ("memory.wmark_ratio", "010", Ok(()), "8\n"),
        ("memory.wmark_ratio", "08", Err(Invalid), "0\n"),
        ("memory.limit_in_bytes", "max", Err(Invalid), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "-2", Err(Invalid), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "1.0", Err(Invalid), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "1xx", Err(Invalid), "9223372036854771712\n"),
        ("memory.limit_in_bytes", "99999999999999999999", Err(Invalid), "9223372036854771712\n"),
        ("memory.max", "1g", Ok(()), "1073741824\n"),
        ("memory.max", "max\n", Ok(()), "max\n"),
        ("memory.max", "-1", Err(Invalid), "max\n"),
        ("memory.max", "", Err(Invalid), "max\n"),
        ("memory.failcnt", "anything", Ok(()), "0\n"),
        ("memory.max_usage_in_bytes", "x", Ok(()), "0\n"),
        ("memory.peak", "x", Ok(()), "0\n"),
        ("memory.use_hierarchy", "1\n", Ok(()), "1\n"),
        ("memory.use_hierarchy", "0\n", Err(Invalid), "1\n"),
        ("memory.use_hierarchy", "x", Err(Invalid), "1\n"),
        ("cgroup.subtree_control", "+memory\n", Ok(()), "memory\n"),
        ("cgroup.subtree_control", "-memory", Err(Busy), "memory\n"),
        ("cgroup.subtree_control", "-memory +memory", Ok(()), "memory\n"),
        ("cgroup.subtree_control", "+cpu", Err(Invalid), "memory\n"),
        ("cgroup.subtree_control", "memory", Err(Invalid), "memory\n"),
        ("cgroup.procs", "x", Err(Invalid), ""),
        ("cgroup.procs", "-1", Err(Invalid), ""),
        ("cgroup.procs", "4711", Err(NoSuchProcess), ""),
        ("tasks", "1.5", Err(Invalid), ""),
        ("tasks", "4711", Err(NoSuchProcess), ""),
        ("memory.stat", "1", Err(Invalid), ""),
        ("memory.usage_in_bytes", "1", Err(Invalid), "0\n"),
        ("cgroup.controllers", "+memory", Err(Invalid), "memory\n"),
    ];
    for &(name, text, result, content) in cases {
        let f = with_group();
        let path = format!("a/{name}");
        assert_eq!(f.write(&path, text), result, "{name} < {text:?}");
        if name != "memory.stat" {
            assert_eq!(f.read(&path).as_deref(), Ok(content), "{name} after {text:?}");
        }
    }
}

#[test]
fn force_empty_takes_any_text_and_reclaim_a_size() {
    let f = with_group();
    for text in ["1", "0", "1.0", "1xx", "xx"] {
        assert_eq!(f.write("a/memory.force_empty", text), Ok(()), "{text}");
    }
    assert_eq!(f.write("a/memory.reclaim", "0"), Ok(()));
    assert_eq!(f.write("a/memory.reclaim", "1m"), Err(Again), "an empty group has nothing to give");
    assert_eq!(f.write("a/memory.reclaim", "lots"), Err(Invalid));
}

#[test]
fn a_long_write_is_refused_whole() {
    let f = with_group();
    for len in [4097, 1 << 20] {
        let mut text = b"4096".to_vec();
        text.resize(len, b' ');
        assert_eq!(f.write("a/memory.max", text), Err(TooLong), "{len}");
    }
    let mut text = b"4096".to_vec();
    text.resize(4096, b'\0');
    assert_eq!(f.write("a/memory.max", text), Ok(()));
    assert_eq!(f.read("a/memory.max").as_deref(), Ok("4096\n"));
}

#[test]
fn both_generations_show_the_same_limit() {
    let f = with_group();
    f.write("a/memory.limit_in_bytes", "8m").unwrap();
    assert_eq!(f.read("a/memory.max").as_deref(), Ok("8388608\n"));
    f.write("a/memory.max", "max").unwrap();
    assert_eq!(f.read("a/memory.limit_in_bytes").as_deref(), Ok("9223372036854771712\n"));
}

#[test]
fn v1_shrinks_below_usage_are_busy_and_v2_ones_take_effect() {
    let f = with_group();
    f.write("a/memory.max", "16m").unwrap();
    let held = f.group("a").try_charge(8 * MIB).unwrap();
    assert_eq!(f.write("a/memory.limit_in_bytes", "4m"), Err(Busy));
    assert_eq!(f.read("a/memory.max").as_deref(), Ok("16777216\n"), "the old limit stays");
    assert_eq!(f.write("a/memory.max", "4m"), Ok(()));
    assert_eq!(f.read("a/memory.limit_in_bytes").as_deref(), Ok("4194304\n"));
    assert!(f.group("a").try_charge(MIB).is_err());
    assert_ne!(f.read("a/memory.failcnt").as_deref(), Ok("0\n"));
    f.write("a/memory.failcnt", "0").unwrap();
    assert_eq!(f.read("a/memory.failcnt").as_deref(), Ok("0\n"));
    drop(held);
}

#[test]
fn an_interrupted_v1_write_says_so_and_a_v2_one_has_succeeded() {
    let f = with_group();
    let held = f.group("a").try_charge(8 * MIB).unwrap();
    let write = |path: &str, nonblocking, cancelled: &dyn Fn() -> bool| {
        let file = f.open_as(path, crate::support::WRITE, &Credentials::ROOT).unwrap();
        f.tree.write(&file, b"4m", &Request { tid: 1, nonblocking, cancelled, accepted: &|| () })
    };
    assert_eq!(write("a/memory.limit_in_bytes", false, &|| true), Err(Interrupted));
    assert_eq!(f.read("a/memory.max").as_deref(), Ok("max\n"));
    assert_eq!(write("a/memory.max", false, &|| true), Ok(()));
    assert_eq!(write("a/memory.max", true, &|| false), Ok(()));
    assert_eq!(f.read("a/memory.max").as_deref(), Ok("4194304\n"));
    drop(held);
}

#[test]
fn the_root_shows_the_pool_and_refuses_limits() {
    let f = fixture();
    assert_eq!(f.read("memory.limit_in_bytes"), Ok(format!("{}\n", 64 * MIB)));
    for text in ["1g", "-1", "0"] {
        assert_eq!(f.write("memory.limit_in_bytes", text), Err(Invalid), "{text}");
    }
    assert_eq!(f.write("memory.force_empty", "1"), Err(Invalid));
    for row in ControlTree::rows() {
        let expected = if row.scope == Scope::NotRoot { Err(NotFound) } else { Ok(()) };
        assert_eq!(f.node(row.name).map(drop), expected, "{}", row.name);
    }
}

#[test]
fn a_peak_reset_through_one_file_is_its_own_business() {
    let f = with_group();
    let a = f.group("a");
    drop(a.try_charge(50 * MIB).unwrap());
    let (one, other) = (
        f.open_as("a/memory.peak", READ, &Credentials::ROOT),
        f.open_as("a/memory.peak", READ, &Credentials::ROOT),
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    f.tree.write(&one, b"reset\n", &request(1)).unwrap();
    let mib = |text: String| text.trim().parse::<u64>().unwrap() / MIB;
    assert!(mib(f.read_open(&one).unwrap()) <= 1);
    assert_eq!(mib(f.read_open(&other).unwrap()), 50);
    drop(one);
    assert_eq!(mib(f.read("a/memory.peak").unwrap()), 50);
    assert_eq!(mib(f.read("a/memory.max_usage_in_bytes").unwrap()), 50);
    f.write("a/memory.max_usage_in_bytes", "0").unwrap();
    assert!(mib(f.read("a/memory.max_usage_in_bytes").unwrap()) <= 1);
    assert_eq!(mib(f.read("a/memory.peak").unwrap()), 50);
}

#[test]
fn events_count_below_and_locally() {
    let f = with_group();
    f.mkdir("a/b").unwrap();
    f.group("a/b").event(EventKind::Max);
    let line = |path: &str| f.read(path).unwrap().lines().nth(2).unwrap().to_owned();
    assert_eq!(line("a/memory.events"), "max 1");
    assert_eq!(line("a/memory.events.local"), "max 0");
    assert_eq!(line("a/b/memory.events.local"), "max 1");
}

#[test]
fn one_sequence_of_reads_sees_one_content() {
    let f = with_group();
    let file = f.open_as("a/memory.usage_in_bytes", READ, &Credentials::ROOT).unwrap();
    let read =
        |offset, len| String::from_utf8(f.tree.read(&file, offset, len, &request(1)).unwrap()).unwrap();
    assert_eq!(read(0, 1), "0");
    let held = f.group("a").try_charge(MIB).unwrap();
    assert_eq!(read(1, 100), "\n", "still the content that the first read began");
    assert_eq!(read(2, 100), "");
    assert!(read(0, 100).len() > 2, "a read from the start looks again");
    drop(held);
    assert_eq!(read(1, 100), "\n", "and so does one that goes on nowhere");
    assert_eq!(read(u64::MAX, 100), "");
}

#[test]
fn a_half_read_text_is_charged_and_a_long_one_needs_room() {
    let f = with_group();
    f.processes.add_process(&(1..3000).collect::<Vec<u32>>());
    let (group, tasks) = (f.group("a"), f.node("tasks").unwrap());
    let charged = || group.stat_local(StatItem::SlabUnreclaimable).max(0).cast_unsigned();
    let open = |node| f.tree.open_for(node, READ, Credentials::ROOT, Some(&group)).unwrap();
    let read = |file: &OpenFile, offset| f.tree.read(file, offset, 10, &request(1)).unwrap();
    let whole = f.read("tasks").unwrap();
    let file = open(tasks);
    assert_eq!((read(&file, 0).as_slice(), charged()), (&b"1\n2\n3\n4\n5\n"[..], whole.len() as u64));
    drop(file);
    assert_eq!(charged(), 0);
    group.store_max(0);
    let (long, short) = (open(tasks), open(f.node("memory.stat").unwrap()));
    let text: Vec<u8> =
        (0..).step_by(10).map(|at| read(&long, at)).take_while(|piece| !piece.is_empty()).flatten().collect();
    assert_eq!(String::from_utf8(text).unwrap(), whole, "piece by piece all the same");
    read(&long, 0);
    assert_eq!(charged(), 0, "nothing of it is kept");
    read(&short, 0);
    assert!(charged() > 0 && charged() <= KEPT_BYTES, "{}", charged());
}

#[test]
fn a_listing_has_every_entry_once_while_groups_are_removed() {
    let f = fixture();
    for name in ["x", "y", "z"] {
        f.mkdir(name).unwrap();
    }
    let all = f.tree.read_directory(NodeId::ROOT, FIRST_COOKIE, 1000).unwrap();
    let nr_files = ControlTree::rows().iter().filter(|row| row.is_in(true)).count();
    assert_eq!(all.len(), nr_files + 3);
    assert!(all.windows(2).all(|pair| pair[0].cookie < pair[1].cookie));
    for entry in &all {
        let attr = f.tree.lookup(NodeId::ROOT, &entry.name).unwrap();
        assert_eq!((attr.node, attr.is_directory), (entry.node, entry.is_directory), "{:?}", entry.name);
    }
    let mut in_pieces: Vec<DirEntry> = Vec::new();
    loop {
        let after = in_pieces.last().map_or(FIRST_COOKIE, |entry| entry.cookie);
        let piece = f.tree.read_directory(NodeId::ROOT, after, 4).unwrap();
        if piece.is_empty() {
            break;
        }
        in_pieces.extend(piece);
    }
    assert_eq!(in_pieces, all);
    let x = &all[nr_files];
    f.rmdir("x").unwrap();
    let rest = f.tree.read_directory(NodeId::ROOT, x.cookie, 1000).unwrap();
    assert_eq!(rest.iter().map(|entry| entry.name.to_str().unwrap()).collect::<Vec<_>>(), ["y", "z"]);
}

#[test]
fn a_directory_counts_its_subdirectories_as_links() {
    let f = fixture();
    assert_eq!(f.tree.attr(NodeId::ROOT).unwrap().nlink, 2);
    f.mkdir("a").unwrap();
    f.mkdir("a/b").unwrap();
    assert_eq!(f.tree.attr(f.node("a").unwrap()).unwrap().nlink, 3);
    assert_eq!(f.tree.attr(f.node("a/tasks").unwrap()).unwrap().nlink, 1);
    assert_eq!(f.read("cgroup.stat").as_deref(), Ok("nr_descendants 2\nnr_dying_descendants 0\n"));
    assert_eq!(f.tree.parent(f.node("a/b").unwrap()), f.node("a"));
    assert_eq!(f.tree.parent(NodeId::ROOT), Ok(NodeId::ROOT));
}

#[test]
fn names_of_groups_are_bytes_with_few_exceptions() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let f = fixture();
    let mkdir = |name: &[u8]| {
        f.tree.mkdir(NodeId::ROOT, OsStr::from_bytes(name), 0o755, &Credentials::ROOT).map(drop)
    };
    for name in [&b"a b"[..], b"\xff\xfe", b"-x", b"\t", "ä".as_bytes(), &[b'n'; 255]] {
        assert_eq!(mkdir(name), Ok(()), "{name:?}");
        assert_eq!(mkdir(name), Err(Exists));
        assert_eq!(f.tree.rmdir(NodeId::ROOT, OsStr::from_bytes(name), &Credentials::ROOT), Ok(()));
    }
    assert_eq!(mkdir(b"new\nline"), Err(Invalid));
    assert_eq!(mkdir(&[b'n'; 256]), Err(NameTooLong));
    assert_eq!(mkdir(b"tasks"), Err(Exists));
    assert_eq!(mkdir(b"memory.max"), Err(Exists), "although the root has no such file");
}

#[test]
fn removal_needs_an_empty_group_and_ends_its_open_files() {
    let f = with_group();
    f.mkdir("a/b").unwrap();
    f.processes.add_process(&[100]);
    assert_eq!(f.rmdir("a"), Err(Busy));
    f.write("a/b/cgroup.procs", "100").unwrap();
    assert_eq!(f.rmdir("a/b"), Err(Busy));
    f.write("cgroup.procs", "100").unwrap();
    let held = f.group("a/b").try_charge(MIB).unwrap();
    let file = f.open_as("a/b/memory.max", READ, &Credentials::ROOT).unwrap();
    let begun = f.open_as("a/b/memory.max", READ, &Credentials::ROOT).unwrap();
    assert_eq!(f.tree.read(&begun, 0, 1, &request(1)), Ok(b"m".to_vec()));
    let node = f.node("a/b").unwrap();
    assert_eq!(f.rmdir("a/b"), Ok(()), "memory does not keep a group");
    assert_eq!(f.read_open(&file), Err(Gone));
    assert_eq!(f.tree.read(&begun, 1, 9, &request(1)), Ok(b"ax\n".to_vec()), "what was begun is ended");
    assert_eq!(f.tree.read(&begun, 4, 9, &request(1)), Err(Gone));
    assert_eq!(f.tree.attr(node).map(drop), Err(NotFound));
    assert_eq!(f.rmdir("a/b"), Err(NotFound));
    assert_eq!(f.rmdir("a/tasks"), Err(ControlError::NotDirectory));
    assert_eq!(f.rmdir("a"), Ok(()));
    drop(held);
}

#[test]
fn a_group_is_renamed_within_its_parent_only() {
    let f = with_group();
    f.mkdir("b").unwrap();
    f.mkdir("a/x").unwrap();
    let node = f.node("a").unwrap();
    assert_eq!(f.rename("a", "b"), Err(Exists));
    assert_eq!(f.rename("a", "tasks"), Err(Exists));
    assert_eq!(f.rename("a/x", "x"), Err(ControlError::OtherParent));
    assert_eq!(f.rename("a/tasks", "a/jobs"), Err(ControlError::NotDirectory));
    assert_eq!(f.rename("a", "new\nline"), Err(Invalid));
    assert_eq!(f.rename("a", &"n".repeat(256)), Err(NameTooLong));
    assert_eq!(f.rename("a", "c"), Ok(()));
    assert_eq!((f.node("a"), f.node("c")), (Err(NotFound), Ok(node)));
    assert_eq!(f.node("c/x").map(drop), Ok(()));
}

#[test]
fn nodes_of_many_dead_groups_are_forgotten() {
    let f = fixture();
    for _ in 0..1000 {
        f.mkdir("a").unwrap();
        f.rmdir("a").unwrap();
    }
    assert!(format!("{:?}", f.tree).matches("(Weak)").count() < 200);
}

proptest! {
    #[test]
    fn no_text_breaks_a_file(text in proptest::collection::vec(any::<u8>(), 0..40), at in 0..ControlTree::rows().len()) {
        let f = with_group();
        let name = ControlTree::rows()[at].name;
        let _ = f.write(&format!("a/{name}"), &text);
        let _ = f.read(&format!("a/{name}"));
    }

    #[test]
    fn a_limit_reads_back_as_the_whole_pages_of_what_was_written(bytes in 0u64..1 << 50) {
        let f = with_group();
        f.write("a/memory.max", bytes.to_string()).unwrap();
        prop_assert_eq!(f.read("a/memory.limit_in_bytes").unwrap(), format!("{}\n", bytes / 4096 * 4096));
    }
}

#[test]
fn caches_are_dropped_through_the_root_and_figures_add_up() {
    let f = with_group();
    let group = f.engine.tree().lookup("/a".as_ref()).unwrap();
    let shrinker = crate::support::objects::Objects::register(&f.engine);
    for _ in 0..30 {
        shrinker.insert(&group);
    }
    let table = f.read("a/memory.kmem.slabinfo").unwrap();
    let mut lines = table.lines().skip(1).map(|line| line.split(' ').collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["objects", "30", "30", "30000"]);
    let bytes = |table: &str| -> u64 {
        table.lines().skip(1).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let usage = f.read("a/memory.kmem.usage_in_bytes").unwrap();
    assert_eq!(usage.trim().parse::<u64>().unwrap(), bytes(&table));
    let stat = f.read("a/memory.stat").unwrap();
    assert!(stat.contains("slab_reclaimable 30000\n"), "{stat}");
    assert_eq!(f.write("a/vm.drop_caches", "2"), Err(NotFound), "only the root has it");
    for (text, result) in [("0", Err(Invalid)), ("4", Err(Invalid)), ("x", Err(Invalid)), ("1", Ok(()))] {
        assert_eq!(f.write("vm.drop_caches", text), result, "{text}");
    }
    assert_eq!(shrinker.len(), 30, "pages only");
    f.write("vm.drop_caches", "2\n").unwrap();
    assert_eq!(shrinker.len(), 0);
    let peak = f.read("a/memory.kmem.max_usage_in_bytes").unwrap();
    assert_eq!(peak, usage);
    f.write("a/memory.kmem.max_usage_in_bytes", "0").unwrap();
    f.write("vm.drop_caches", "3").unwrap();
    assert_eq!(f.read("a/memory.kmem.usage_in_bytes").as_deref(), Ok("0\n"));
}

#[test]
fn the_mails_steps_for_the_marks_print_what_the_mail_prints() {
    let f = with_group();
    f.write("a/memory.limit_in_bytes", "500m").unwrap();
    let marks = || f.read("a/memory.reclaim_wmarks").unwrap();
    assert_eq!(marks(), "low_wmark 524288000\nhigh_wmark 524288000\n");
    f.write("a/memory.high_wmark_distance", "50m\n").unwrap();
    f.write("a/memory.low_wmark_distance", "40m\n").unwrap();
    assert_eq!(marks(), "low_wmark 482344960\nhigh_wmark 471859200\n");
    for (file, text) in [
        ("memory.high_wmark_distance", "40m"),
        ("memory.high_wmark_distance", "500m"),
        ("memory.low_wmark_distance", "50m"),
        ("memory.low_wmark_distance", "-1"),
        ("memory.low_wmark_distance", "x"),
        ("memory.wmark_ratio", "101"),
        ("memory.wmark_scale_factor", "0"),
        ("memory.kswapd_dedicated", "2"),
        ("memory.high", "-1"),
    ] {
        assert_eq!(f.write(&format!("a/{file}"), text), Err(Invalid), "{file} {text}");
    }
    assert_eq!(marks(), "low_wmark 482344960\nhigh_wmark 471859200\n");
    assert_eq!(
        f.read("a/memory.wmark_high").unwrap(),
        "482344960\n",
        "the vendors count from the other side"
    );
    f.write("a/memory.kswapd_dedicated", "1").unwrap();
    let (name, tid) = (format!("memcg_{} ", f.group("a").id()), f.read("a/memory.kswapd_pid").unwrap());
    assert!(tid.starts_with(&name) && tid.trim().len() > name.len(), "{tid}");
    // The root has marks, too: the pool's own.
    f.write("memory.high_wmark_distance", "4m").unwrap();
    f.write("memory.low_wmark_distance", "2m").unwrap();
    assert_eq!(f.read("memory.reclaim_wmarks").unwrap(), "low_wmark 65011712\nhigh_wmark 62914560\n");
}
