//! A tenant that makes the daemon keep as much state for it as possible: that state is charged to
//! the tenant or bounded, and other tenants are not affected.

use std::fs::{self, File, Permissions, ReadDir};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::fs::inotify::{CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, prlimit, setrlimit};

use crate::harness::{Mount, Options, needs_mount, until};
use crate::real_mount::names::{PER_DIRECTORY, make_files, nr_descriptors};

/// The daemon's limit of descriptors.
const NR_MAX: u64 = 4000;
/// Handles may hold three eighths of it, and one tenant half of that.
const NR_SHARED: usize = NR_MAX as usize / 8 * 3;
/// Descriptors that a daemon has for other reasons: devices, directories, logs, those of its
/// runtime.
const NR_OTHER_MAX: usize = 100;
/// The memory that the daemon may hold beside its charges: names that do not exist, buffers of
/// requests, its heap's unused pieces.
const UNCHARGED_BYTES_MAX: u64 = 12 << 20;

/// The limit of a tenant that pins names.
const NAMES_LIMIT_BYTES: u64 = 1 << 20;
/// The cost of a name.
const NAME_BYTES: u64 = 344;
/// Names that a group may have beyond its limit.
const NR_NAMES_BEYOND_MAX: u64 = 2048;
/// The root's charge for groups, lists and threads beside the names, at most.
const BOOKKEEPING_BYTES_MAX: u64 = 2 << 20;
/// The user id of `nobody`, which every system has.
const NOBODY: u32 = 65534;

/// Puts the calling thread into a group.
fn join(mount: &Mount, group: &str) {
    fs::write(mount.cg().join(group).join("tasks"), "0").unwrap();
}

/// Looks up names that do not exist, and creates and removes others.
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
    // By now the heap has reached its working size.
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
    mount.sh("$UMEMCG sync $MNT").good();
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

/// Pins of names that are not open.
#[derive(Default)]
struct Pins {
    descriptors: Vec<OwnedFd>,
    watches: Option<OwnedFd>,
    working: Vec<Child>,
}

impl Pins {
    /// Pins the files of a tree in a given way until the kernel refuses, or no file is left.
    fn pin_all(&mut self, files: &[PathBuf]) -> io::Result<()> {
        let watches = inotify::init(CreateFlags::CLOEXEC)?;
        for file in &files[..200] {
            inotify::add_watch(&watches, file, WatchFlags::ATTRIB)?;
        }
        self.watches = Some(watches);
        for of_directory in files.chunks(PER_DIRECTORY) {
            let directory = of_directory[0].parent().unwrap();
            let mut sleep = Command::new("sleep");
            sleep.arg("600").current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
            self.working.push(sleep.spawn()?);
        }
        for file in files {
            self.descriptors.push(rustix::fs::open(file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
        }
        Ok(())
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for child in &mut self.working {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

/// A mount with a tree of `nr` files in which an ordinary user may create more.
fn mount_for_users(nr: usize) -> (Mount, Vec<PathBuf>) {
    let mount = Mount::start_with(&Options { arguments: vec!["--allow-other"], ..Options::default() });
    make_files(&mount.data().join("tree"), nr);
    fs::create_dir(mount.data().join("open")).unwrap();
    let modes = [(mount.data().join("open"), 0o777), (mount.data().parent().unwrap().to_owned(), 0o755)];
    modes
        .into_iter()
        .for_each(|(path, mode)| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap());
    let tree = mount.mnt().join("tree");
    let files =
        (0..nr).map(|n| tree.join(format!("d{}/f{}", n / PER_DIRECTORY, n % PER_DIRECTORY))).collect();
    (mount, files)
}

#[test]
fn names_that_a_tenant_pins_are_charged_and_bounded() {
    needs_mount!();
    const NR: usize = 12_000;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (mut mount, files) = mount_for_users(NR);
    mount.group("hostile", &NAMES_LIMIT_BYTES.to_string());
    mount.group("neighbour", "32M");
    let charged = || mount.named_bytes("");
    let (before, charged_before) = (mount.daemon_memory("VmRSS"), charged());

    let (mut pins, new) = (Pins::default(), mount.mnt().join("open/new"));
    let tasks = mount.cg().join("hostile/tasks");
    let refused = thread::scope(|scope| {
        let hostile = scope.spawn(|| {
            fs::write(&tasks, "0").unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
            [pins.pin_all(&files), File::create(&new).map(drop), fs::create_dir(new.with_extension("d"))]
        });
        hostile.join().unwrap()
    });
    let nr = pins.descriptors.len() as u64;
    let (more, held) = (charged() - charged_before, mount.daemon_memory("VmRSS").saturating_sub(before));
    eprintln!("{nr} names pinned, {more} bytes charged to all, {held} more resident: {refused:?}");
    for refused in refused {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
    }
    assert!(!mount.data().join("open/new").exists());
    assert!(nr >= NAMES_LIMIT_BYTES / 2 / NAME_BYTES);
    let most = NAMES_LIMIT_BYTES + NR_NAMES_BEYOND_MAX * NAME_BYTES + BOOKKEEPING_BYTES_MAX;
    assert!(more <= most, "{more} bytes");
    assert!(held <= more * 5 / 4 + UNCHARGED_BYTES_MAX, "{held} resident, {more} charged");

    join(&mount, "neighbour");
    fs::write(&new, "x").unwrap();
    assert!(files[files.len() - 1000..].iter().all(|file| fs::metadata(file).is_ok()));
    join(&mount, "hostile");
    // Names that are known already cost nothing more.
    assert!(files[..1000].iter().all(|file| fs::metadata(file).is_ok()));
    drop(pins);
    until("names are found again", || fs::metadata(&files[NR - 2000]).is_ok());
    assert!(files.iter().all(|file| fs::metadata(file).is_ok()));
    join(&mount, "");
    mount.umount();
}

#[test]
fn a_group_that_gets_room_pays_for_names_that_it_pins() {
    needs_mount!();
    const NR: usize = 4_000;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let mut mount = Mount::start();
    make_files(&mount.data().join("tree"), NR + PER_DIRECTORY);
    let file = |n: usize| mount.mnt().join(format!("tree/d{}/f{}", n / PER_DIRECTORY, n % PER_DIRECTORY));
    let names_of = |group: &str| mount.value(group, "memory.stat", "slab_reclaimable");
    let before = names_of("");
    mount.group("pinner", &NAMES_LIMIT_BYTES.to_string());
    let above = || names_of("").saturating_sub(before + names_of("pinner"));

    join(&mount, "pinner");
    let pin = |n| rustix::fs::open(file(n), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let pins: Vec<_> = (0..NR).map(pin).collect();
    assert!(above() > 500 * NAME_BYTES, "{} bytes", above());
    mount.sh("echo 32M > $CG/pinner/memory.limit_in_bytes").good();
    fs::metadata(file(NR)).unwrap();
    assert_eq!(above(), 0);
    join(&mount, "");
    mount.sh("rmdir $CG/pinner").good();
    assert!(names_of("") >= before + NR as u64 * NAME_BYTES, "{} bytes", names_of(""));

    drop(pins);
    // Those that reclaim asked for while they were pinned are asked for again after some seconds.
    until("the names are forgotten", || {
        fs::write(mount.cg().join("vm.drop_caches"), "2").unwrap();
        names_of("") <= before + (64 << 10)
    });
    mount.umount();
}
