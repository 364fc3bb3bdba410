//! The steps of the mail per-memcg-background-reclaim with only the paths substituted, smaller: 32
//! MiB for its 500, marks of 8 and 6 MiB for its 50 and 40, a file of 128 MiB for its 20 GiB.

use std::fs;

use crate::harness::{Mount, Options, needs_mount, until};

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

/// Waits until what had to go for a whole file is counted: a worker counts a batch of pages after
/// it has freed them.
fn until_counted(mount: &Mount) {
    until("the pages that had to go are counted", || {
        row(mount, "kswapd_steal") + row(mount, "pg_pgsteal") >= FILE_PAGES - LIMIT / 4096
    });
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
    until("the worker reclaims", || row(&mount, "kswapd_steal") > 0);
    clean_up(&mount);
    until("the thread has gone with the group", || !fs::exists(&task).unwrap());
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
        if with_marks {
            until("the workers reclaim", || row(&mount, "kswapd_steal") > 0);
        }
        for name in MAILS_ROWS {
            // Workers may still be at it between two reads of the file.
            until(name, || row(&mount, name) == row(&mount, &format!("total_{name}")));
        }
        assert!(row(&mount, "pgpgin") >= FILE_PAGES);
        until_counted(&mount);
        let stolen = (row(&mount, "kswapd_steal"), row(&mount, "pg_pgsteal"));
        assert_eq!(stolen.0 > 0, with_marks, "{stolen:?}");
        assert_eq!(row(&mount, "pgoutrun") > 0, with_marks);
        clean_up(&mount);

        // Step 5: the same group again reads the file.
        assert_eq!(read_the_file(&mount, with_marks) == 0, with_marks, "who had to reclaim");
    }
    mount.umount();
}

/// Reads the file as `cat` does, but continues only when the workers have brought the group below
/// its low mark: they keep up on whatever processor time the machine has for them. Each piece fits
/// between the mark and the limit.
const READ_AND_WAIT: &str = "
exec 3< $MNT/tf0
for ((n = 0; n < 64; n++)); do
    head -c 2M <&3 > /dev/zero
    until [ $(cat $CG/A/memory.usage_in_bytes) -lt $((26 << 20)) ]; do sleep 0.01; done
done";

/// Step 5, and step 4 after it. Returns how often the reader had to reclaim.
fn read_the_file(mount: &Mount, with_marks: bool) -> u64 {
    make_group(mount, with_marks);
    mount.sh_in("A", if with_marks { READ_AND_WAIT } else { "cat $MNT/tf0 > /dev/zero" }).good();
    assert!(row(mount, "pgpgin") >= FILE_PAGES);
    until_counted(mount);
    let (by_worker, by_reader) = (row(mount, "kswapd_steal"), row(mount, "pg_pgsteal"));
    let stalls = row(mount, "allocstall");
    if with_marks {
        assert!(row(mount, "kswapd_pgscan") >= by_worker);
        assert_eq!((by_reader, row(mount, "pg_scan")), (0, 0), "{stalls} stalls");
    } else {
        assert_eq!((by_worker, row(mount, "kswapd_pgscan"), row(mount, "pgoutrun")), (0, 0, 0));
    }
    clean_up(mount);
    stalls
}
