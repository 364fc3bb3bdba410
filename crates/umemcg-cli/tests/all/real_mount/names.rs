//! Names that the kernel has in its cache cost the daemon memory that it counts, and the host next
//! to nothing: no descriptor each, and so no dentry or inode that the host could not let go of.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Mount, Options, Stopped, cannot_run, needs_mount};
use crate::real_mount::user::start_as_ordinary_user_with;

/// Files in one directory.
pub const PER_DIRECTORY: usize = 1_000;
/// The default of `VolumeConfig::max_idle_descriptors`.
const NR_IDLE_MAX: usize = 1_024;
/// Descriptors that a daemon has for other reasons: devices, directories, logs, those of its
/// runtime.
const NR_OTHER_MAX: usize = 100;

/// Makes this many empty files, a thousand in each directory.
pub fn make_files(data: &Path, nr: usize) {
    for directory in 0..nr.div_ceil(PER_DIRECTORY) {
        let directory = data.join(format!("d{directory}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..PER_DIRECTORY {
            drop(File::create(directory.join(format!("f{file}"))).unwrap());
        }
    }
}

/// Asks for the attributes of every file; returns how many there are.
fn walk(mount: &Mount) -> usize {
    mount.sh("find $MNT -type f -links 1 | wc -l").good().parse().unwrap()
}

/// Descriptors of the daemon. None of them may watch an inode: that pins what it watches without a
/// descriptor each. A watch of a file system pins none.
pub fn nr_descriptors(mount: &Mount) -> usize {
    let process = format!("/proc/{}", mount.pid().as_raw_nonzero());
    let fds = fs::read_dir(format!("{process}/fd")).unwrap();
    fds.map(Result::unwrap)
        .inspect(|fd| {
            let info = Path::new(&process).join("fdinfo").join(fd.file_name());
            // It may have been closed meanwhile.
            let info = fs::read_to_string(info).unwrap_or_default();
            let watches_inode =
                |line: &str| line.starts_with("inotify wd:") || line.starts_with("fanotify ino:");
            assert!(!info.lines().any(watches_inode), "{}: {info}", fd.path().display());
        })
        .count()
}

/// Objects that the kernel has of a kind, or none where it does not tell.
fn nr_objects(kind: &str) -> Option<usize> {
    let slabs = fs::read_to_string("/proc/slabinfo").ok()?;
    let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(kind))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Has the kernel forget all names and inodes that are not pinned.
fn drop_unpinned() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// The daemon keeps within its bound of descriptors with this many names known, and each opened
/// once.
fn few_descriptors(mount: &Mount, nr: usize) {
    assert_eq!(walk(mount), nr);
    // A look at the attributes may need no descriptor of its own; opening does.
    mount.sh("find $MNT -type f -print0 | xargs -0 head -qc1").good();
    let after = nr_descriptors(mount);
    assert!(after <= NR_IDLE_MAX + NR_OTHER_MAX, "{after} descriptors after {nr} names");
    let (memory, usage) = (mount.daemon_memory("VmRSS") >> 20, mount.sh("cat $CG/memory.usage_in_bytes"));
    let usage = usage.good().parse::<u64>().unwrap() >> 20;
    eprintln!("{nr} names: {after} descriptors, {memory} MiB resident, {usage} MiB charged");
    assert!(usage > 0, "names are charged");
}

#[test]
fn twenty_thousand_names_cost_a_bounded_number_of_descriptors() {
    needs_mount!();
    let nr = 20 * PER_DIRECTORY;
    let mount = Mount::start();
    make_files(mount.data(), nr);
    few_descriptors(&mount, nr);
}

#[test]
fn for_an_ordinary_user_as_well() {
    needs_mount!();
    let nr = 20 * PER_DIRECTORY;
    let Some(mount) = start_as_ordinary_user_with(Options::default()) else { return };
    make_files(mount.data(), nr);
    few_descriptors(&mount, nr);
}

#[test]
#[ignore = "takes minutes, and empties the caches of the host: make test-names"]
fn half_a_million_names_pin_no_more_of_the_host_than_the_bound() {
    needs_mount!();
    if nr_objects("dentry").is_none() {
        return cannot_run("the kernel does not say what it has in its caches (/proc/slabinfo)");
    }
    const NR: usize = 500 * PER_DIRECTORY;
    /// The entries that other programs may bring into the caches while we look.
    const NOISE: usize = NR / 10;
    let host = tempfile::Builder::new().prefix("umemcg-names-").tempdir().unwrap();
    make_files(host.path(), NR);
    rustix::fs::sync();
    // The files are root's; every user may look at them.
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for user in [false, true] {
        let options = Options { pool: "2G", data: Some(host.path().to_owned()), ..Options::default() };
        let mount =
            if user { start_as_ordinary_user_with(options) } else { Some(Mount::start_with(&options)) };
        let Some(mount) = mount else { continue };
        drop_unpinned();
        let kinds = ["dentry", "ext4_inode_cache", "xfs_inode", "btrfs_inode"];
        let before = kinds.map(nr_objects);
        few_descriptors(&mount, NR);
        let cached = nr_objects("fuse_inode").unwrap_or(NR);
        assert!(cached >= NR, "the kernel has only {cached} of the mount's inodes in its cache");
        // Asleep, the daemon cannot be told which names the kernel forgets, so it keeps what it
        // has.
        let stopped = Stopped::new(&mount);
        // An access time that is still to be written pins its inode, too, for half a minute.
        rustix::fs::syncfs(File::open(host.path()).unwrap()).unwrap();
        drop_unpinned();
        let after = kinds.map(nr_objects);
        drop(stopped);
        for (kind, (before, after)) in kinds.iter().zip(before.into_iter().zip(after)) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            eprintln!("{kind}: {before} before, {after} with {NR} names known to the daemon");
            assert!(after < before + NOISE, "{kind}: {} more are pinned", after - before);
        }
        assert_eq!(walk(&mount), NR, "all are there again");
    }
}

#[test]
fn an_exclusive_mount_answers_without_its_daemon() {
    needs_mount!();
    let arguments = vec!["--exclusive"];
    let mount = Mount::start_with(&Options { arguments, ..Options::default() });
    mount.sh("mkdir $DATA/d; echo text > $DATA/d/f").good();
    let look = "stat $MNT/d/f; test ! -e $MNT/d/missing";
    // Again if another test has had the host drop its caches meanwhile.
    let answers = (0..10).any(|_| {
        mount.sh(look).good();
        // Longer than names and attributes are believed otherwise.
        std::thread::sleep(Duration::from_millis(1500));
        let _stopped = Stopped::new(&mount);
        mount.sh(&format!("timeout 20 bash -ec '{look}'")).status.success()
    });
    assert!(answers, "each look has asked the daemon");
}

#[test]
fn an_exclusive_mount_sees_what_is_done_through_it() {
    needs_mount!();
    for whose in ["own", "kernel"] {
        let arguments = vec!["--exclusive", "--page-cache", whose];
        let mount = Mount::start_with(&Options { arguments, ..Options::default() });
        // After each step names and attributes are those of the directory.
        let same = "same() { $UMEMCG sync $MNT > /dev/null; for root in $MNT $DATA; do \
                    (cd $root; find . -printf '%p %y %m %n %U %s %T@ %l\\n' | sort); done | sort | uniq -u >&2; \
                    test -z \"$( (cd $MNT; find . -printf '%p %y %m %n %U %s %T@\\n'; \
                    cd $DATA; find . -printf '%p %y %m %n %U %s %T@\\n') | sort | uniq -u)\"; }; cd $MNT; ";
        let steps = "mkdir d; same; echo one > d/f; same; test ! -e g; ln d/f g; same; chmod 600 g; same; \
                     chown 7 d/f; same; touch -d 2001-02-03 g; same; echo two >> d/f; same; mv d/f d/h; same; \
                     test ! -e d/f; mv g d/f; same; truncate -s 9999 d/h; same; rm d/f; same; \
                     ln -s h d/l; same; mkfifo d/p; same; cp d/h e; same; mv e d/h; same; rm -r d; same; \
                     test ! -e d/h";
        mount.sh(&format!("{same}{steps}")).good();
    }
}
