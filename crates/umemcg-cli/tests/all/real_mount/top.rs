//! `umemcg top` beside a daemon at work.

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Mount, PROGRAM, Stopped, needs_mount, patiently, until};

#[test]
fn top_shows_every_group_as_text_and_as_json_and_ends() {
    needs_mount!();
    let mut mount = Mount::start_with_own_pages();
    mount.sh("mkdir -p $CG/a/b && echo 8m > $CG/a/memory.max && echo 6m > $CG/a/memory.high").good();
    mount.sh("head -c 3000000 /dev/urandom > $MNT/f").good();
    mount.sh_in("a", "cat $MNT/f > /dev/null").good();
    let cg = mount.cg().display().to_string();
    let shown = mount.umemcg(&["top", "--once", "--interval", "50ms", "--sort", "name", "--control", &cg]);
    let text = shown.good().to_owned();
    let names: Vec<&str> = text.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["/", "/a", "/a/b"], "{text}");
    assert!(text.contains("8.0 MiB") && text.contains("6.0 MiB") && text.contains("stalled"), "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no control characters");

    let json = mount.umemcg(&["top", "--once", "--interval", "50ms", "--json", "--control", &cg]);
    let json: serde_json::Value = serde_json::from_str(json.good()).unwrap();
    let a = json.as_array().unwrap().iter().find(|row| row["group"] == "/a").unwrap();
    assert_eq!(a["limit_bytes"], 8 << 20);
    assert!(a["usage_bytes"].as_u64().unwrap() > 0, "{json}");

    // Twelve million bytes through eight: the reader reclaims for itself, and loses time.
    mount.sh("head -c 12000000 /dev/urandom > $MNT/g && sync $MNT/g && echo 1 > $CG/vm.drop_caches && echo max > $CG/a/memory.high").good();
    mount.sh_in("a", "cat $MNT/g > /dev/null").good();
    let stalled = mount.sh("sed -n 's/^some .*total=//p' $CG/a/memory.pressure").good().to_owned();
    assert!(stalled.parse::<u64>().unwrap() > 0, "{stalled}");
    assert_eq!(mount.sh("sed -n 's/^some .*total=//p' $CG/a/b/memory.pressure").good(), "0");

    // A file that is read again and fits: hits, and nothing but hits.
    mount.sh("head -c 1000000 /dev/urandom > $MNT/h && sync $MNT/h && mkdir $CG/h").good();
    let hits = || mount.value("h", "memory.stat", "cache_hit");
    mount.sh_in("h", "cat $MNT/h > /dev/null").good();
    let (before, missed) = (hits(), mount.value("h", "memory.stat", "cache_miss"));
    mount.sh_in("h", "for n in 1 2 3; do dd if=$MNT/h bs=4k of=/dev/null 2>&1; done").good();
    assert_eq!(hits() - before, 3 * 1_000_000u64.div_ceil(4096));
    assert_eq!(mount.value("h", "memory.stat", "cache_miss"), missed);
    assert!(mount.value("a", "memory.stat", "cache_miss") > 0);

    let nowhere = mount.outside().display().to_string();
    mount.umemcg(&["top", "--once", "--control", &nowhere]).bad("control tree");
    mount.assert_alive();
    mount.umount();
}

#[test]
fn trim_frees_idle_groups_and_spares_a_reader() {
    needs_mount!();
    let mut mount = Mount::start_with_own_pages();
    mount
        .sh("mkdir -p $CG/idle $CG/busy; for f in one two; do head -c 15000000 /dev/urandom > $MNT/$f; done")
        .good();
    mount.sh("head -c 4000000 /dev/urandom > $MNT/mine; sync $MNT/one $MNT/two $MNT/mine; echo 3 > $CG/vm.drop_caches").good();
    mount.sh_in("idle", "cat $MNT/one $MNT/two > /dev/null").good();
    let mut reader = mount
        .shell("echo $$ > $CG/busy/tasks; until [ -d $CG/enough ]; do cat $MNT/mine; done > /dev/null")
        .spawn()
        .unwrap();
    until("he has read it once", || mount.value("busy", "memory.stat", "cache_hit") > 2000);
    let (usage, resident) = (mount.number("idle", "memory.usage_in_bytes"), mount.daemon_memory("VmRSS"));
    assert!(usage >= 30_000_000, "{usage}");
    let cg = mount.cg().display().to_string();
    let missed = || mount.value("busy", "memory.stat", "cache_miss");
    let before = missed();
    // Far longer than the reader can be kept from its next read.
    let shown = mount.umemcg(&["trim", "--idle", "20s", "--control", &cg]);
    let text = shown.good().to_owned();
    // No wait is needed: the memory has been returned when the command ends.
    let (left, now) = (mount.number("idle", "memory.usage_in_bytes"), mount.daemon_memory("VmRSS"));
    let after = missed();
    mount.sh("mkdir $CG/enough").good();
    patiently(Some(mount.pid()), &mut reader);
    assert!(text.contains("/idle") && !text.contains("/busy"), "{text}");
    assert!(left < 1 << 20, "{left}");
    assert!(now + usage * 3 / 4 <= resident, "resident memory went from {resident} to {now}");
    assert_eq!(after, before, "the other group kept what it reads");

    let json = mount.umemcg(&["trim", "--json", "--control", &cg, "busy"]);
    let json: serde_json::Value = serde_json::from_str(json.good()).unwrap();
    assert_eq!(json[0]["group"], "/busy");
    mount.umemcg(&["trim", "--control", &cg, "missing"]).bad("no group /missing");
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_signal_ends_top_in_the_middle_of_a_sample() {
    needs_mount!();
    let mut mount = Mount::start();
    // A daemon that is stopped makes a sample take as long as possible.
    let stopped = Stopped::new(&mount);
    for signal in [Signal::TERM, Signal::INT] {
        let mut top = std::process::Command::new(PROGRAM)
            .args(["top", "--control"])
            .arg(mount.cg())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let tasks = format!("/proc/{}/task", top.id());
        let is_sampling = || {
            let names = std::fs::read_dir(&tasks).unwrap().flatten();
            names
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .any(|name| name == "umemcg-top\n")
        };
        until("it takes its first sample", is_sampling);
        kill_process(Pid::from_child(&top), signal).unwrap();
        let status = patiently(None, &mut top);
        assert!(status.success(), "{signal:?}: {status:?}");
    }
    drop(stopped);
    mount.umount();
}

#[test]
fn top_reads_groups_whose_path_is_longer_than_any_path() {
    needs_mount!();
    let mut mount = Mount::start();
    let script = "import os, sys
os.chdir(sys.argv[1])
for n in range(40):
    os.mkdir('n' * 200)
    os.chdir('n' * 200)";
    mount.sh(&format!("python3 -c \"{script}\" $CG; mkdir $CG/z")).good();
    let cg = mount.cg().display().to_string();
    let json =
        mount.umemcg(&["top", "--once", "--interval", "50ms", "--json", "--sort", "name", "--control", &cg]);
    let json: serde_json::Value = serde_json::from_str(json.good()).unwrap();
    let groups: Vec<_> = json.as_array().unwrap().iter().map(|row| row["group"].as_str().unwrap()).collect();
    let expected: Vec<_> = (0..=40)
        .map(|depth| if depth == 0 { "/".into() } else { format!("/{}", "n".repeat(200)).repeat(depth) })
        .chain(["/z".into()])
        .collect();
    assert_eq!(groups, expected);
    mount.umount();
}
