//! A rule puts the requests of one tenant into 150 groups, and the store of them all hangs: another
//! tenant of the mount works on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::queued::{nr_waiting, start};
use crate::harness::{Mount, Options, Stopped, needs_mount, until};

const NR_GROUPS: usize = 150;
const PAGE: usize = 4096;

/// Makes, looks at, reads and removes files.
const WORK_OF_B: &str = "
cd $MNT/fast
for n in $(seq 20); do
    echo $n >f$n
    stat f$n >/dev/null
    [ $(cat f$n) = $n ]
done
ls >/dev/null
rm f*";

#[test]
fn a_rule_with_many_groups_keeps_no_other_tenant_waiting() {
    needs_mount!();
    let inner = Mount::start();
    let make = "for n in $(seq 150); do mkdir -p $DATA/p/$n; truncate -s 4M $DATA/p/$n/f; done";
    inner.sh(make).good();
    let arguments = vec!["--rule", "path:/slow/p/*=/t/{1}"];
    let mut outer =
        Mount::start_with(&Options { arguments, volumes: true, pool: "64M", ..Options::default() });
    let add = |name: &str, dir: &str| {
        outer.umemcg(&["volume", "add", name, "--dir", dir, "--mount", outer.mnt().to_str().unwrap()]).good();
    };
    add("slow", inner.mnt().to_str().unwrap());
    add("fast", outer.data().to_str().unwrap());
    outer.group("b", "16m");
    let open = |nr: usize| Arc::new(File::open(outer.mnt().join(format!("slow/p/{nr}/f"))).unwrap());
    let files: Vec<_> = (1..=NR_GROUPS).map(open).collect();
    let stopped = Stopped::new(&inner);
    // Two in each group, of pages far apart.
    let threads: Vec<_> = (0..2 * NR_GROUPS)
        .map(|nr| {
            let (file, page) = (Arc::clone(&files[nr % NR_GROUPS]), nr / NR_GROUPS * 512);
            start(move || file.read_exact_at(&mut [1; PAGE], (page * PAGE) as u64).unwrap())
        })
        .collect();
    until("all wait", || nr_waiting() == threads.len());
    let worked = outer.sh_in("b", WORK_OF_B);
    let groups = fs::read_dir(outer.cg().join("t")).unwrap().flatten();
    let nr_groups = groups.filter(|entry| entry.file_type().unwrap().is_dir()).count();
    let nr_held = nr_waiting();
    drop(stopped);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    worked.good();
    assert_eq!((nr_groups, nr_held), (NR_GROUPS, 2 * NR_GROUPS));
    drop(files);
    outer.umount();
}
