//! Every structure of the daemon that a tenant can make grow: what it takes of resident memory is
//! charged, or has a bound that `docs/semantics/what-no-group-pays-for.md` lists.

use std::any::Any;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags, inotify};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::harness::{Mount, Options, needs_mount};

/// The group of the tenant.
pub const GROUP: &str = "tenant";
/// Files of each kind that a tenant uses: enough that one of them without a charge is seen.
const NR: usize = 4_000;
/// What the daemon may keep beside the charges of a step: what
/// `docs/semantics/what-no-group-pays-for.md` lists as bounded, a request's buffers, unused pieces
/// of the heap.
const UNCHARGED_BYTES_MAX: u64 = 4 << 20;
/// The same for each thread that it has started meanwhile: its stack, and its pieces of the heap.
const THREAD_BYTES_MAX: u64 = 128 << 10;

/// What a tenant holds on to.
pub type Held = Box<dyn Any>;

/// A structure, and how a tenant makes it grow.
pub struct Growth<T> {
    pub what: &'static str,
    /// Charged for it at least, so that a step that reaches nothing is seen.
    pub charged_min: u64,
    pub grow: fn(&T) -> Held,
}

const GROWTHS: &[Growth<Tenant>] = &[
    // Half of them are known already.
    Growth { what: "names and inodes", charged_min: NR as u64 / 2 * 256, grow: names },
    Growth { what: "names that do not exist", charged_min: 0, grow: absent_names },
    Growth { what: "long names and further names", charged_min: NR as u64 * 256, grow: long_names },
    Growth { what: "open files", charged_min: 1024 * 256, grow: open_files },
    Growth { what: "open directories", charged_min: 1000 * 256, grow: open_directories },
    Growth { what: "directories under watch", charged_min: 0, grow: watches },
    Growth { what: "pages, one for each node of an index", charged_min: 1000 * 4096, grow: sparse_pages },
    Growth { what: "files that were written and removed", charged_min: 100 * 256, grow: removed_files },
    Growth { what: "files without a name", charged_min: 100 * 256, grow: nameless_files },
    Growth { what: "extended attributes of a directory", charged_min: 0, grow: host_attributes },
    Growth { what: "files on tmpfs", charged_min: NR as u64 * 256, grow: tmpfs_files },
    Growth { what: "directories on tmpfs", charged_min: 1000 * 256, grow: tmpfs_directories },
    Growth { what: "links on tmpfs", charged_min: NR as u64 * 1024, grow: tmpfs_links },
    Growth { what: "attributes on tmpfs", charged_min: 1000 * 4096, grow: tmpfs_attributes },
    Growth { what: "groups", charged_min: 1000 * 1024, grow: groups },
    Growth { what: "groups of a rule", charged_min: 500 * 1024, grow: rule_groups },
    Growth { what: "attributes of groups", charged_min: 1000 * 8192, grow: control_attributes },
    Growth { what: "triggers of pressure", charged_min: 0, grow: triggers },
    Growth { what: "control files read in part", charged_min: 1000 * 1024, grow: control_files },
    Growth { what: "control files that are polled", charged_min: 0, grow: polled_files },
    Growth { what: "pages that were evicted", charged_min: 3 << 20, grow: evicted_pages },
    Growth { what: "threads in a group, that ask", charged_min: 0, grow: threads },
];

/// The mount as a tenant sees it, with a directory of the host and a tmpfs as volumes.
struct Tenant {
    host: PathBuf,
    tmpfs: PathBuf,
    group: PathBuf,
}

impl Tenant {
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        (0..NR).map(|nr| self.host.join(format!("f{nr}")))
    }
}

fn names(tenant: &Tenant) -> Held {
    tenant.files().for_each(|file| assert!(fs::metadata(file).is_ok()));
    Box::new(())
}

/// Each takes 400 bytes while the daemon remembers it: these would be more than what is allowed.
fn absent_names(tenant: &Tenant) -> Held {
    (0..4 * NR).for_each(|nr| assert!(fs::metadata(tenant.host.join(format!("absent{nr}"))).is_err()));
    Box::new(())
}

fn long_names(tenant: &Tenant) -> Held {
    for nr in 0..NR {
        let name = |which: &str| tenant.host.join(format!("{which}{nr}{}", "n".repeat(200)));
        drop(File::create(name("one")).unwrap());
        fs::hard_link(name("one"), name("other")).unwrap();
    }
    Box::new(())
}

/// As many as it gets.
fn open_files(tenant: &Tenant) -> Held {
    let files: Vec<File> = tenant.files().map_while(|file| File::open(file).ok()).collect();
    files.iter().for_each(|file| assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1));
    Box::new(files)
}

fn open_directories(tenant: &Tenant) -> Held {
    let listings = (0..1_000).map_while(|_| {
        let mut listing = fs::read_dir(&tenant.host).ok()?;
        listing.next().unwrap().unwrap();
        Some(listing)
    });
    Box::new(listings.collect::<Vec<_>>())
}

fn watches(tenant: &Tenant) -> Held {
    let watch = inotify::init(CreateFlags::CLOEXEC).unwrap();
    for file in tenant.files() {
        inotify::add_watch(&watch, file, WatchFlags::MODIFY).unwrap();
    }
    Box::new(watch)
}

fn sparse_pages(tenant: &Tenant) -> Held {
    let file = File::create(tenant.host.join("sparse")).unwrap();
    (0..NR as u64).for_each(|nr| file.write_all_at(b"x", nr << 24).unwrap());
    Box::new(file)
}

fn removed_files(tenant: &Tenant) -> Held {
    let make = |nr| {
        let path = tenant.host.join(format!("removed{nr}"));
        let file = File::create(&path).ok()?;
        file.write_all_at(b"x", 0).unwrap();
        fs::remove_file(path).ok()?;
        Some(file)
    };
    Box::new((0..500).map_while(make).collect::<Vec<_>>())
}

fn nameless_files(tenant: &Tenant) -> Held {
    let make = |_| {
        rustix::fs::openat(CWD, &tenant.host, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).ok()
    };
    Box::new((0..500).map_while(make).collect::<Vec<OwnedFd>>())
}

fn host_attributes(tenant: &Tenant) -> Held {
    for file in tenant.files().take(500) {
        rustix::fs::setxattr(&file, "user.one", &[7; 1024], XattrFlags::empty()).unwrap();
        assert_eq!(rustix::fs::getxattr(&file, "user.one", &mut [0; 1024][..]).unwrap(), 1024);
    }
    Box::new(())
}

fn tmpfs_files(tenant: &Tenant) -> Held {
    (0..NR).for_each(|nr| drop(File::create(tenant.tmpfs.join(format!("f{nr}"))).unwrap()));
    Box::new(())
}

fn tmpfs_directories(tenant: &Tenant) -> Held {
    let mut path = tenant.tmpfs.clone();
    for nr in 0..NR {
        // A new tree now and then: a path has a longest length.
        path = if nr % 500 == 0 { tenant.tmpfs.join(format!("d{nr}")) } else { path.join("d") };
        fs::create_dir(&path).unwrap();
    }
    Box::new(())
}

fn tmpfs_links(tenant: &Tenant) -> Held {
    let target = CString::new(vec![b'o'; 1_000]).unwrap();
    for nr in 0..NR {
        rustix::fs::symlinkat(&*target, CWD, tenant.tmpfs.join(format!("s{nr}"))).unwrap();
        let (file, name) = (tenant.tmpfs.join("f0"), tenant.tmpfs.join(format!("{}{nr}", "l".repeat(200))));
        rustix::fs::linkat(CWD, file, CWD, name, AtFlags::empty()).unwrap();
    }
    Box::new(())
}

fn tmpfs_attributes(tenant: &Tenant) -> Held {
    for nr in 0..NR {
        let file = tenant.tmpfs.join(format!("f{nr}"));
        rustix::fs::setxattr(&file, "user.one", &[7; 4096], XattrFlags::empty()).unwrap();
    }
    Box::new(())
}

fn groups(tenant: &Tenant) -> Held {
    (0..NR / 2).for_each(|nr| fs::create_dir(tenant.group.join(format!("g{nr}"))).unwrap());
    Box::new(())
}

fn join(group: &Path) {
    fs::write(group.join("tasks"), "0").unwrap();
}

/// In the root group, where rules decide.
fn rule_groups(tenant: &Tenant) -> Held {
    join(tenant.group.parent().unwrap());
    for nr in 0..600 {
        let directory = tenant.host.join(format!("p/{nr}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("f"), "x").unwrap();
    }
    join(&tenant.group);
    Box::new(())
}

fn control_attributes(tenant: &Tenant) -> Held {
    for nr in 0..1_000 {
        let group = tenant.group.join(format!("g{nr}"));
        rustix::fs::setxattr(&group, "user.one", &[7; 8192], XattrFlags::empty()).unwrap();
    }
    Box::new(())
}

fn triggers(tenant: &Tenant) -> Held {
    let make = |nr| {
        let path = tenant.group.join(format!("g{nr}/memory.pressure"));
        let mut file = File::options().read(true).write(true).open(path).ok()?;
        file.write_all(b"some 150000 1000000").unwrap();
        Some(file)
    };
    Box::new((0..1_000).map_while(make).collect::<Vec<_>>())
}

fn control_files(tenant: &Tenant) -> Held {
    let open = |nr| {
        let mut file = File::open(tenant.group.join(format!("g{nr}/memory.stat"))).ok()?;
        file.read_exact(&mut [0]).unwrap();
        Some(file)
    };
    Box::new((0..NR / 2).map_while(open).collect::<Vec<_>>())
}

fn polled_files(tenant: &Tenant) -> Held {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let open = |nr| {
        let mut file = File::open(tenant.group.join(format!("g{nr}/memory.events"))).ok()?;
        file.read_to_string(&mut String::new()).unwrap();
        let mut polled = [PollFd::new(&file, PollFlags::PRI)];
        assert_eq!(poll(&mut polled, Some(&Timespec::default())).unwrap(), 0);
        epoll::add(&poller, &file, epoll::EventData::new_u64(nr as u64), epoll::EventFlags::PRI).unwrap();
        Some(file)
    };
    let files: Vec<_> = (0..NR / 2).map_while(open).collect();
    Box::new((files, poller))
}

/// Of a file far larger than the room, in nodes of their own.
fn evicted_pages(tenant: &Tenant) -> Held {
    let small = tenant.group.join("small");
    fs::create_dir(&small).unwrap();
    fs::write(small.join("memory.limit_in_bytes"), "8M").unwrap();
    fs::write(tenant.host.join("evicted"), "").unwrap();
    let file = File::options().read(true).write(true).open(tenant.host.join("evicted")).unwrap();
    let nr_pages = 3 * NR as u64;
    file.set_len(nr_pages << 18).unwrap();
    join(&small);
    (0..nr_pages).for_each(|nr| file.read_exact_at(&mut [1], nr << 18).unwrap());
    join(&tenant.group);
    Box::new(file)
}

/// They ask, and wait until the end.
fn threads(tenant: &Tenant) -> Held {
    let (nr, nr_right) = (1_000, Arc::new(AtomicUsize::new(0)));
    let (barrier, file) = (Arc::new(Barrier::new(nr + 1)), tenant.host.join("f0"));
    for group in 0..nr {
        let (barrier, nr_right, file) = (Arc::clone(&barrier), Arc::clone(&nr_right), file.clone());
        let tasks = tenant.group.join(format!("g{group}/tasks"));
        let ask = move || {
            let is_right = fs::write(tasks, "0").is_ok() && fs::read(file).is_ok();
            nr_right.fetch_add(is_right.into(), Ordering::Relaxed);
            barrier.wait();
            barrier.wait();
        };
        thread::Builder::new().stack_size(64 << 10).spawn(ask).unwrap();
    }
    barrier.wait();
    assert_eq!(nr_right.load(Ordering::Relaxed), nr);
    Box::new(EndOfThreads(barrier))
}

/// Lets the threads end.
struct EndOfThreads(Arc<Barrier>);

impl Drop for EndOfThreads {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Gives the test and the daemon descriptors for all of it.
pub fn raise_descriptor_limits(mount: &Mount) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let current = Some(maximum.map_or(20_000, |maximum| maximum.min(20_000)));
    prlimit(Some(mount.pid()), Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Has a tenant, whose group is [`GROUP`], make each structure grow. Panics if one takes more of
/// resident memory than its charge, what is bounded, and the threads that it has started.
#[track_caller]
pub fn check<T>(mount: &Mount, tenant: &T, growths: &[Growth<T>]) {
    join(&mount.cg().join(GROUP));
    let tasks = format!("/proc/{}/task", mount.pid().as_raw_nonzero());
    let nr_threads = || fs::read_dir(&tasks).unwrap().count() as u64;
    let seen = || (mount.daemon_memory("VmRSS"), mount.named_bytes(""), nr_threads());
    let mut all_held = Vec::new();
    let mut wrong = Vec::new();
    for growth in growths {
        let before = seen();
        all_held.push((growth.grow)(tenant));
        let after = seen();
        let (resident, charged) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        let nr_started = after.2.saturating_sub(before.2);
        let line =
            format!("{}: {resident} bytes resident, {charged} charged, {nr_started} threads", growth.what);
        eprintln!("{line}");
        let most = charged * 5 / 4 + UNCHARGED_BYTES_MAX + nr_started * THREAD_BYTES_MAX;
        if resident > most || charged < growth.charged_min {
            wrong.push(line);
        }
    }
    join(&mount.cg());
    drop(all_held);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_a_tenant_makes_grow_is_charged_or_bounded() {
    needs_mount!();
    let arguments = vec!["--rule", "path:/host/p/*=/tenant/r/{1}"];
    let mount = Mount::start_with(&Options { volumes: true, pool: "512M", arguments, ..Options::default() });
    raise_descriptor_limits(&mount);
    let script =
        "$UMEMCG volume add host --dir $DATA --mount $MNT; $UMEMCG volume add tmpfs --tmpfs --mount $MNT";
    mount.sh(script).good();
    for nr in 0..NR {
        fs::write(mount.data().join(format!("f{nr}")), "x").unwrap();
    }
    mount.group(GROUP, "-1");
    let tenant = Tenant {
        host: mount.mnt().join("host"),
        tmpfs: mount.mnt().join("tmpfs"),
        group: mount.cg().join(GROUP),
    };
    // The heap, the threads and the pool of pages have reached their working sizes.
    mount.sh("seq -f $MNT/host/f%.0f 2000 | xargs -P 8 -n 25 cat > $MNT/host/warm; rm $MNT/host/warm").good();
    check(&mount, &tenant, GROWTHS);
}
