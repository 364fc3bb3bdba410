//! The steps of the mail per-memcg-background-reclaim with only the paths substituted, smaller: 32
//! MiB for its 500, marks of 8 and 6 MiB for its 50 and 40, a file of 128 MiB for its 20 GiB.

use std::fs;

use crate::harness::{Mount, Options, PROGRAM, needs_mount, until};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 32 * MIB;
const FILE_PAGES: u64 = 128 * MIB / 4096;

/// The rows of the mail's two tables.
const MAILS_ROWS: [&str; 9] = [
    "pgpgin",
    "pgpgout",
    "kswapd_steal",
    "pg_pgsteal",
    "kswapd_pgscan",
    "pg_scan",
    "pgrefill",
    "pgoutrun",
    "allocstall",
];

/// Steps 1 and 2: the group, and its marks if it is to have any.
fn make_group(mount: &Mount, with_marks: bool) {
    mount.sh("mkdir $CG/A; echo 32m > $CG/A/memory.limit_in_bytes").good();
    let shown = mount.sh("cd $CG/A
         cat memory.low_wmark_distance
         cat memory.high_wmark_distance
         cat memory.reclaim_wmarks");
    assert_eq!(shown.good(), format!("0\n0\nlow_wmark {LIMIT}\nhigh_wmark {LIMIT}"));
    if with_marks {
        let shown = mount.sh("cd $CG/A
             echo 8m > memory.high_wmark_distance
             echo 6m > memory.low_wmark_distance
             cat memory.reclaim_wmarks");
        let (low, high) = (LIMIT - 6 * MIB, LIMIT - 8 * MIB);
        assert_eq!(shown.good(), format!("low_wmark {low}\nhigh_wmark {high}"));
    }
}

/// Step 4: the group goes, and everything that is cached.
fn clean_up(mount: &Mount) {
    // `tasks` of the root: the shell that was in the group has ended, so that no process is left to
    // move.
    mount
        .sh("echo $$ > $CG/tasks
             echo 1 > $CG/A/memory.force_empty
             rmdir $CG/A
             echo 3 > $CG/vm.drop_caches")
        .good();
}

fn row(mount: &Mount, name: &str) -> u64 {
    mount.value("A", "memory.stat", name)
}

#[test]
fn a_dedicated_worker_is_a_thread_with_the_mails_name() {
    needs_mount!();
    let mut mount = Mount::start();
    make_group(&mount, true);
    assert_eq!(mount.sh("cat $CG/A/memory.kswapd_pid").good(), "memcg_null 0");
    mount.sh("echo 1 > $CG/A/memory.kswapd_dedicated").good();
    let shown = mount.sh("cat $CG/A/memory.kswapd_pid");
    let (name, tid) = shown.good().split_once(' ').unwrap();
    assert!(name.strip_prefix("memcg_").is_some_and(|id| id.parse::<u64>().is_ok()), "{name}");
    let task = format!("/proc/{}/task/{tid}", mount.pid().as_raw_nonzero());
    assert_eq!(fs::read_to_string(format!("{task}/comm")).unwrap().trim(), name);
    // What works for the group is this thread, and none of the pool's.
    mount.sh_in("A", "head -c 64M /dev/zero > $MNT/f; cat $MNT/f > /dev/null").good();
    assert!(row(&mount, "kswapd_steal") > 0);
    clean_up(&mount);
    assert!(!fs::exists(&task).unwrap(), "the thread goes with the group");
    mount.umount();
}

#[test]
fn the_mails_steps_with_and_without_marks() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { pool: "128M", ..Options::default() });
    for with_marks in [false, true] {
        // Step 3: dirty the pages by creating a file.
        make_group(&mount, with_marks);
        mount.sh_in("A", "dd if=/dev/zero of=$MNT/tf0 bs=64k count=2048").good();
        for name in MAILS_ROWS {
            // Workers may still be at it between two reads of the file.
            until(name, || row(&mount, name) == row(&mount, &format!("total_{name}")));
        }
        assert!(row(&mount, "pgpgin") >= FILE_PAGES);
        let stolen = (row(&mount, "kswapd_steal"), row(&mount, "pg_pgsteal"));
        assert!(stolen.0 + stolen.1 >= FILE_PAGES - LIMIT / 4096, "{stolen:?}");
        assert_eq!(stolen.0 > 0, with_marks, "{stolen:?}");
        assert_eq!(row(&mount, "pgoutrun") > 0, with_marks);
        clean_up(&mount);

        // Step 5: the same group again reads the file. The workers are to keep up with `cat`, on
        // whatever processor time the machine has for them: so one run of many is enough to show
        // that nothing was left for `cat` to do.
        if with_marks {
            assert!((0..40).any(|_| read_the_file(&mount, true) == 0), "`cat` had to reclaim");
        } else {
            assert!((0..6).all(|_| read_the_file(&mount, false) > 0), "only `cat` can have reclaimed");
        }
    }
    mount.umount();
}

/// Step 5, and step 4 after it. Returns how often `cat` had to reclaim.
fn read_the_file(mount: &Mount, with_marks: bool) -> u64 {
    make_group(mount, with_marks);
    mount.sh_in("A", "cat $MNT/tf0 > /dev/zero").good();
    assert!(row(mount, "pgpgin") >= FILE_PAGES);
    let (by_worker, by_cat) = (row(mount, "kswapd_steal"), row(mount, "pg_pgsteal"));
    assert!(by_worker + by_cat >= FILE_PAGES - LIMIT / 4096);
    let stalls = row(mount, "allocstall");
    if with_marks {
        assert!(row(mount, "kswapd_pgscan") >= by_worker);
        assert!(stalls > 0 || (by_cat == 0 && row(mount, "pg_scan") == 0), "{by_cat} pages without a stall");
        until("the workers come below the high mark", || {
            mount.number("A", "memory.usage_in_bytes") < LIMIT - 6 * MIB
        });
    } else {
        assert_eq!((by_worker, row(mount, "kswapd_pgscan"), row(mount, "pgoutrun")), (0, 0, 0));
    }
    clean_up(mount);
    stalls
}

#[test]
fn the_demo_of_background_reclaim_passes_its_own_checks() {
    needs_mount!();
    // As with the steps above: the workers may have had too little processor time to keep up with
    // `cat`.
    let ran = (0..3).map(|_| {
        let arguments = ["demo", "--background", "--scale", "0.05", "--json"];
        std::process::Command::new(PROGRAM).args(arguments).output().unwrap()
    });
    let shown = |output: &std::process::Output| {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str::<serde_json::Value>(&printed).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let mut last = None;
    let is_good = ran.inspect(|output| last = Some(shown(output))).any(|output| output.status.success());
    assert!(is_good, "{}", last.unwrap());
    assert_eq!(last.unwrap()["checks"].as_array().unwrap().len(), 5);
}
