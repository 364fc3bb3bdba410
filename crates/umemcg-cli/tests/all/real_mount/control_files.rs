//! The control tree as a cgroupfs, used with shells, cat, ls and find.

use crate::harness::{Mount, needs_mount, until};

/// One daemon for many small claims: starting one takes longer than making a group.
fn on_a_fresh_group(claim: impl FnOnce(&Mount, &str)) {
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/g").good();
    claim(&mount, "g");
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_new_group_has_all_its_files_and_no_limit() {
    needs_mount!();
    on_a_fresh_group(|mount, group| {
        let listing = mount.sh("ls $CG/g").good().to_owned();
        let names: Vec<&str> = listing.lines().collect();
        for name in [
            "cgroup.procs",
            "tasks",
            "cgroup.controllers",
            "cgroup.stat",
            "memory.limit_in_bytes",
            "memory.max",
            "memory.usage_in_bytes",
            "memory.current",
            "memory.max_usage_in_bytes",
            "memory.peak",
            "memory.failcnt",
            "memory.force_empty",
            "memory.stat",
            "memory.use_hierarchy",
            "memory.events",
        ] {
            assert!(names.contains(&name), "no {name} among {names:?}");
        }
        assert_eq!(mount.number(group, "memory.limit_in_bytes"), 9_223_372_036_854_771_712);
        assert_eq!(mount.sh("cat $CG/g/memory.max").good(), "max");
        assert_eq!(mount.sh("cat $CG/g/memory.use_hierarchy").good(), "1");
        assert_eq!(mount.number(group, "memory.failcnt"), 0);
        assert_eq!(mount.sh("cat $CG/g/tasks").good(), "");
        // Every readable file can be read with one tool that knows nothing of it, whether it reads
        // or has the kernel copy, and shows the size of a page.
        let readable = "cd $CG/g; find . -type f -perm -u+r";
        mount.sh(&format!("{readable} -exec cat {{}} +")).good();
        mount.sh(&format!("{readable} -exec busybox cat {{}} +")).good();
        mount.sh("[ \"$(busybox cat $CG/g/memory.max)\" = max ]").good();
        mount.sh("[ \"$(find $CG/g -type f -perm -u+r ! -size 4096c | wc -l)\" = 0 ]").good();
        mount.sh("ls -l $CG/g/memory.limit_in_bytes | grep '^-rw-r--r--'; ls -l $CG/g/memory.usage_in_bytes | grep '^-r--r--r--'").good();
        mount.sh("ls -ld $CG/g | grep '^drwxr-xr-x'").good();
    });
}

#[test]
fn a_touch_by_hand_changes_nothing() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        let before = mount.sh("stat -c '%X %Y %Z' $CG/g/memory.events").good().to_owned();
        mount.sh("touch -m $CG/g/memory.events").good();
        assert_eq!(mount.sh("stat -c '%X %Y %Z' $CG/g/memory.events").good(), before);
    });
}

#[test]
fn the_root_has_no_limit_to_write() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        mount.sh("echo 64m > $CG/memory.limit_in_bytes").bad("");
        mount.sh("[ ! -e $CG/memory.max ]").good();
        mount.sh("cat $CG/memory.usage_in_bytes $CG/memory.stat").good();
        assert!(mount.sh("cat $CG/cgroup.controllers").good().split(' ').any(|name| name == "memory"));
        assert_eq!(mount.value("", "cgroup.stat", "nr_descendants"), 1);
        assert_eq!(mount.value("", "cgroup.stat", "nr_dying_descendants"), 0);
    });
}

#[test]
fn limits_are_whole_pages_with_binary_suffixes() {
    needs_mount!();
    on_a_fresh_group(|mount, group| {
        for (text, bytes) in [
            ("64m", 64 << 20),
            ("64M", 64 << 20),
            ("1g", 1 << 30),
            ("16k", 16 << 10),
            ("4097", 4096),
            ("4095", 0),
            ("8192", 8192),
            ("' 1m '", 1 << 20),
            ("-1", 9_223_372_036_854_771_712u64),
        ] {
            mount.sh(&format!("echo {text} > $CG/g/memory.limit_in_bytes")).good();
            assert_eq!(mount.number(group, "memory.limit_in_bytes"), bytes, "{text}");
        }
        mount.sh("echo 32m > $CG/g/memory.max").good();
        assert_eq!(mount.number(group, "memory.limit_in_bytes"), 32 << 20);
        mount.sh("echo max > $CG/g/memory.max").good();
        assert_eq!(mount.sh("cat $CG/g/memory.max").good(), "max");
        // Without a newline, and in two writes of one open file.
        mount.sh("printf 5m > $CG/g/memory.max; exec 3> $CG/g/memory.max; echo 6m >&3; echo 7m >&3").good();
        assert_eq!(mount.number(group, "memory.max"), 7 << 20);
        mount.sh("echo 9m >> $CG/g/memory.max; echo 8m | tee $CG/g/memory.max").good();
        assert_eq!(mount.number(group, "memory.max"), 8 << 20);
    });
}

#[test]
fn counters_are_reset_by_any_write() {
    needs_mount!();
    on_a_fresh_group(|mount, group| {
        mount.sh("echo 2m > $CG/g/memory.limit_in_bytes").good();
        mount.sh_in(group, "head -c 16M /dev/zero > $MNT/file; sync $MNT/file").good();
        assert!(mount.number(group, "memory.failcnt") > 0);
        assert!(mount.value(group, "memory.events", "max") > 0);
        assert_eq!(mount.value(group, "memory.events", "oom_kill"), 0);
        mount.sh("echo 0 > $CG/g/memory.failcnt; echo 1 > $CG/g/memory.force_empty").good();
        assert_eq!(mount.number(group, "memory.failcnt"), 0);
        mount.sh("echo whatever > $CG/g/memory.max_usage_in_bytes").good();
        assert!(
            mount.number(group, "memory.max_usage_in_bytes")
                <= mount.number(group, "memory.usage_in_bytes") + 4096
        );
    });
}

#[test]
fn force_empty_leaves_nothing_that_can_go() {
    needs_mount!();
    on_a_fresh_group(|mount, group| {
        mount
            .sh_in(group, "head -c 8M /dev/urandom > $MNT/file; sync $MNT/file; cat $MNT/file > /dev/null")
            .good();
        // The janitor comes every two seconds, and may take pages that fill no block.
        assert!(mount.value(group, "memory.stat", "cache") >= 7 << 20);
        mount.sh("echo 0 > $CG/g/memory.force_empty").good();
        // Pages that the kernel keeps may be on their way out for longer than that waits.
        until("nothing is left", || mount.value(group, "memory.stat", "cache") == 0);
        mount.sh("cmp $MNT/file $DATA/file").good();
        mount.sh("cat $CG/g/memory.force_empty").bad("Invalid argument");
    });
}

#[test]
fn a_limit_reclaims_what_it_can_and_is_refused_below_that() {
    needs_mount!();
    on_a_fresh_group(|mount, group| {
        mount.sh_in(group, "head -c 32M /dev/urandom > $MNT/file; sync $MNT/file").good();
        mount.sh("echo 8m > $CG/g/memory.limit_in_bytes").good();
        assert!(mount.number(group, "memory.usage_in_bytes") <= 8 << 20);
        mount.sh("cmp $MNT/file $DATA/file").good();
    });
}

#[test]
fn directories_that_find_removes_leave_their_charge_above() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        mount.sh("mkdir -p $CG/g/a/b/c $CG/g/a/d $CG/g/e").good();
        mount.sh_in("g/a/b/c", "head -c 5M /dev/urandom > $MNT/file; sync $MNT/file").good();
        // No whole number of blocks. The janitor comes every two seconds, and takes pages that fill
        // none.
        let before = mount.value("g", "memory.stat", "total_cache");
        assert!(before >= 5 << 20);
        mount.sh("rmdir $CG/g/a").bad("busy");
        mount.sh("find $CG/g/a -depth -type d -delete; [ ! -e $CG/g/a ]").good();
        assert_eq!(mount.value("g", "memory.stat", "cache"), before, "the pages belong to the parent now");
        assert_eq!(mount.value("g", "cgroup.stat", "nr_descendants"), 1);
        assert_eq!(mount.value("g", "cgroup.stat", "nr_dying_descendants"), 0);
        mount.sh("cmp $MNT/file $DATA/file; find $CG/g -depth -type d -delete").good();
        mount.sh("mkdir $CG/g").good();
    });
}

#[test]
fn names_and_files_of_a_group_are_fixed() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        mount.sh("rm -f $CG/g/tasks").bad("not permitted");
        mount.sh("touch $CG/g/other").bad("denied");
        mount.sh("mkdir $CG/g").bad("exists");
        mount.sh("mkdir $CG/g/tasks").bad("exists");
        mount.sh("ln -s g $CG/link").bad("not permitted");
        // A group may be renamed beside itself, but not moved, nor onto another.
        mount
            .sh("mkdir $CG/h; mv -T $CG/g $CG/renamed; [ -e $CG/renamed/tasks ]; mv -T $CG/renamed $CG/g")
            .good();
        mount.sh("mv -T $CG/h $CG/g/h 2>/dev/null").bad("");
        mount.sh("mkdir $CG/g/x; mv $CG/g/x $CG/").bad("");
        mount.sh("cd $CG/g/x; rmdir ../x").good();
        mount.sh("rmdir $CG/h").good();
    });
}

#[test]
fn a_thousand_groups_come_and_go() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        let empty = mount.number("g", "memory.usage_in_bytes");
        mount
            .sh("for round in 1 2; do
                   mkdir $CG/g/{1..1000}
                   for i in {1..1000..50}; do
                     (echo $BASHPID > $CG/g/$i/tasks; head -c 100k /dev/zero > $MNT/$i)
                   done
                   [ $(ls -d $CG/g/*/ | wc -l) = 1000 ]
                   rm $MNT/*
                   rmdir $CG/g/{1..1000}
                 done")
            .good();
        assert_eq!(mount.value("g", "cgroup.stat", "nr_descendants"), 0);
        mount.sh("echo 0 > $CG/g/memory.force_empty").good();
        // The kernel forgets removed files when it gets round to it.
        let left = || mount.number("g", "memory.usage_in_bytes").saturating_sub(empty);
        until("no more than a little is left behind", || left() <= 64 << 10);
    });
}

#[test]
fn a_group_can_be_handed_to_a_user() {
    needs_mount!();
    let mut mount = Mount::start_with(&crate::harness::Options {
        arguments: vec!["--allow-other"],
        ..crate::harness::Options::default()
    });
    mount.sh("chmod 755 $MNT/..; mkdir $CG/theirs; chown -R 65534:65534 $CG/theirs; stat -c %u $CG/theirs/tasks | grep 65534").good();
    let as_user = "setpriv --reuid=65534 --regid=65534 --clear-groups bash -ec";
    mount.sh(&format!("{as_user} 'mkdir $CG/theirs/sub; echo 8m > $CG/theirs/sub/memory.max'")).good();
    assert_eq!(mount.number("theirs/sub", "memory.max"), 8 << 20);
    mount.sh(&format!("{as_user} 'mkdir $CG/mine'")).bad("denied");
    mount.sh(&format!("{as_user} 'echo 1m > $CG/memory.failcnt'")).bad("denied");
    mount.sh("find $CG/theirs -depth -type d -delete").good();
    mount.umount();
}

#[test]
fn each_style_shows_its_files_and_our_tools_work_with_it() {
    needs_mount!();
    for (style, has, lacks) in
        [("v1", "memory.limit_in_bytes", "memory.max"), ("v2", "memory.max", "memory.limit_in_bytes")]
    {
        let mut mount = Mount::start_with(&crate::harness::Options {
            arguments: vec!["--control-style", style],
            ..crate::harness::Options::default()
        });
        mount.sh(&format!("mkdir $CG/g; echo 8m > $CG/g/{has}; [ ! -e $CG/g/{lacks} ]")).good();
        mount.sh("cd $CG; ! ls . g | grep -e wmark -e ^vm -e dirty_ratio -e umemcg").good();
        mount.sh("echo $$ > $CG/g/cgroup.procs; head -c 4M /dev/urandom > $MNT/f; sync $MNT/f").good();
        let cg = mount.cg().display().to_string();
        let json = mount.umemcg(&[
            "top",
            "--once",
            "--interval",
            "50ms",
            "--json",
            "--sort",
            "name",
            "--control",
            &cg,
        ]);
        let json: serde_json::Value = serde_json::from_str(json.good()).unwrap();
        assert_eq!(json[1]["limit_bytes"], 8 << 20, "{json}");
        // The host's kernel may have reclaimed some of the 4 MiB by itself.
        for row in [&json[0], &json[1]] {
            assert!(row["usage_bytes"].as_u64().unwrap() >= 3 << 20, "{json}");
        }
        mount.umemcg(&["trim", "--control", &cg, "g"]).good();
        assert!(mount.value("g", "umemcg.stat", "total_cache") < 1 << 20);
        mount.sh("head -c 1M /dev/urandom > $MNT/f; sync $MNT/f").good();
        mount.umemcg(&["trim", "--control", &cg]).good();
        mount.umount();
    }
}

#[test]
fn a_group_is_killed_with_all_its_processes() {
    needs_mount!();
    on_a_fresh_group(|mount, _| {
        mount
            .sh("mkdir $CG/g/sub
                 (echo $BASHPID > $CG/g/cgroup.procs; exec sleep 1000) & one=$!
                 (echo $BASHPID > $CG/g/sub/cgroup.procs; sleep 1000 & sleep 1000; true) & two=$!
                 until [ $(cat $CG/g/cgroup.procs $CG/g/sub/cgroup.procs | wc -l) = 4 ]; do sleep 0.01; done
                 echo 1 > $CG/g/cgroup.kill
                 wait $one || [ $? = 137 ]; wait $two || [ $? = 137 ]
                 until rmdir $CG/g/sub; do sleep 0.01; done")
            .good();
    });
}
