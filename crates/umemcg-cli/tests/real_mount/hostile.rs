//! A tenant that has as much kept for it as it can: what the daemon holds is charged to the tenant
//! or has a bound, and others go on.

use std::fs::{self, File, ReadDir};
use std::io::{self, Read};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::harness::{Mount, Options, needs_mount, until};
use crate::names::nr_descriptors;

/// The daemon's limit of descriptors.
const NR_MAX: u64 = 4000;
/// Handles may hold three eighths of it, and one tenant half of that.
const NR_SHARED: usize = NR_MAX as usize / 8 * 3;
/// Descriptors that a daemon has for other reasons: devices, directories, logs, those of its
/// runtime.
const NR_OTHER_MAX: usize = 100;
/// What the daemon may hold beside what it charges: names that do not exist, buffers of requests,
/// its heap's unused pieces.
const UNCHARGED_BYTES_MAX: u64 = 12 << 20;

/// Puts the calling thread into a group.
fn join(mount: &Mount, group: &str) {
    fs::write(mount.cg().join(group).join("tasks"), "0").unwrap();
}

/// Names that never are, and names that come and go.
fn ask_for_absent_names(dir: &Path) {
    for n in 0..3000 {
        assert!(fs::metadata(dir.join(format!("absent-{n}"))).is_err());
    }
    for _ in 0..1000 {
        let path = dir.join("journal");
        drop(File::create(&path).unwrap());
        fs::remove_file(&path).unwrap();
    }
}

/// Directories in the middle of a listing.
fn list_partly(dir: &Path, nr: usize) -> Vec<ReadDir> {
    (0..nr)
        .map(|_| {
            let mut listing = fs::read_dir(dir).unwrap();
            assert!(listing.next().is_some());
            listing
        })
        .collect()
}

/// Opens files of a directory.
fn open_all(dir: &Path, nr: usize) -> Vec<File> {
    (0..nr).map(|n| File::open(dir.join(format!("f{n}"))).unwrap()).collect()
}

/// Removes files until one cannot be removed.
fn remove_all(dir: &Path, nr: usize) -> io::Result<()> {
    (0..nr).try_for_each(|n| fs::remove_file(dir.join(format!("f{n}"))))
}

#[test]
fn what_a_hostile_tenant_has_kept_is_charged_or_bounded() {
    needs_mount!();
    let mut mount = Mount::start();
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(mount.pid()), Resource::Nofile, Rlimit { current: Some(NR_MAX), maximum }).unwrap();
    mount.group("hostile", "32M");
    mount.group("neighbour", "32M");
    let dir = mount.data().join("d");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(mount.data().join("e")).unwrap();
    for n in 0..2 * NR_SHARED {
        fs::write(dir.join(format!("f{n}")), "x").unwrap();
    }
    for n in 0..100 {
        fs::write(mount.data().join(format!("e/f{n}")), "x").unwrap();
    }
    let dir = mount.mnt().join("d");
    // The heap has its working size.
    drop((list_partly(&dir, 100), open_all(&dir, 100)));
    let before = mount.daemon_memory("VmRSS");
    let unreclaimable = || mount.value("hostile", "memory.stat", "slab_unreclaimable");
    let charged = || mount.number("hostile", "memory.usage_in_bytes");

    join(&mount, "hostile");
    ask_for_absent_names(&dir);
    let listings = list_partly(&dir, 3000);
    assert!(nr_descriptors(&mount) < NR_OTHER_MAX + NR_MAX as usize / 8);
    assert!(unreclaimable() >= 3000 * 400);
    let mut files = open_all(&dir, 2 * NR_SHARED);
    // Open beside each other, and read from first to last.
    for file in &mut files {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }
    let nr_other_max = NR_MAX as usize / 4 + NR_OTHER_MAX;
    assert!(nr_descriptors(&mount) <= NR_SHARED / 2 + nr_other_max);
    // Without a name none can be given back.
    let removed = remove_all(&dir, files.len());
    assert_eq!(removed.unwrap_err().raw_os_error(), Some(Errno::NFILE.raw_os_error()));
    assert!(nr_descriptors(&mount) <= NR_SHARED + nr_other_max);
    let held = mount.daemon_memory("VmRSS").saturating_sub(before);
    assert!(held <= charged() * 5 / 4 + UNCHARGED_BYTES_MAX, "{held} resident, {} charged", charged());

    join(&mount, "neighbour");
    let mut others = open_all(&mount.mnt().join("e"), 100);
    assert_eq!(list_partly(&dir, 100).len(), 100);
    let mut text = String::new();
    others[7].read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    join(&mount, "");
    drop((listings, files, others));
    until("all handles are given back", || unreclaimable() < 64 << 10);
    mount.sh("timeout 60 $UMEMCG sync $MNT").good();
    mount.umount();
}

#[test]
fn a_tenant_makes_groups_by_a_rule_up_to_the_bound() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("umemcg.toml");
    fs::write(&config, "rules = [\"path:/p/*=/t/{1}\"]\nrule_groups_max = 64\n").unwrap();
    let arguments = vec!["--config", config.to_str().unwrap()];
    let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
    mount.sh("mkdir $MNT/p; for n in $(seq 200); do mkdir $MNT/p/$n; echo x > $MNT/p/$n/f; done").good();
    let nr = fs::read_dir(mount.cg().join("t"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir());
    // Those below /t and /t itself, each level counted.
    let nr = nr.count();
    assert!((30..=32).contains(&nr), "{nr}");
    mount.umount();
}
