//! fio writes and verifies with many jobs in several groups with small limits; what the mount shows
//! then is in the backing directory after the end.

use std::fs;
use std::process::{Command, Stdio};

use crate::crash::kills::{GROUPS, make_groups, number_from_environment};
use crate::harness::{Mount, Options, cannot_run, needs_mount};

/// MiB of each file in the ordinary tests.
const FILE_MIB: u64 = 4;
/// The options in which the jobs differ: what they write, how they sync.
const JOBS: [&str; 4] = [
    "--rw=randwrite --bsrange=4k-64k --fdatasync=16",
    "--rw=randrw --bsrange=512-32k --fsync=64",
    "--rw=write --bs=120k --sync=1",
    "--rw=randwrite --bs=4k --verify_interval=512",
];

/// The arguments of one fio: all jobs, two threads each, in `directory`.
fn jobs(directory: &str, mib: u64, seed: u64) -> String {
    let common = format!(
        "--directory={directory} --size={mib}m --ioengine=psync --thread --numjobs=2 --randseed={seed} \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal"
    );
    let jobs = JOBS.iter().zip(1..).map(|(job, nr)| format!("--name=job{nr} {job}"));
    format!("{common} {}", jobs.collect::<Vec<_>>().join(" "))
}

#[test]
fn fio_jobs_in_small_groups_find_what_they_wrote() {
    needs_mount!();
    if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
        return cannot_run("needs fio");
    }
    let mib = number_from_environment("UMEMCG_CRASH_FIO_MIB").unwrap_or(FILE_MIB);
    let mut mount = Mount::start_with(&Options { pool: "32M", ..Options::default() });
    make_groups(&mount);
    let mut script = String::new();
    for (group, ..) in GROUPS {
        fs::create_dir(mount.data().join(group)).unwrap();
        let seed = u64::from(group.as_bytes()[0]);
        let written = jobs(&format!("$MNT/{group}"), mib, seed);
        script += &format!("(echo $BASHPID > $CG/{group}/tasks; exec fio {written}) & all+=($!)\n");
    }
    mount
        .sh(&format!("{script}for one in ${{all[@]}}; do wait $one; done; cp -r $MNT $MNT/../expected"))
        .good();
    for (group, ..) in GROUPS {
        let (usage, limit) =
            (mount.number(group, "memory.max_usage_in_bytes"), mount.number(group, "memory.limit_in_bytes"));
        assert!(usage <= limit + crate::harness::SLACK_BYTES, "{group}: {usage} of {limit}");
    }
    mount.umount();
    mount.sh("diff -r $DATA $DATA/../expected; [ $(find $DATA -name 'job*' -size +1M | wc -l) = 24 ]").good();
}
