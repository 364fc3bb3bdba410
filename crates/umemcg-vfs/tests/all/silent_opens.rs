//! Files that processes open without a request: what those that have lost their names cost, when a
//! tenant has used up its descriptors.

use std::sync::{Arc, Mutex, mpsc};

use crate::common::{Fixture, ROOT, errno, name};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use umemcg::DropCaches;
use umemcg_vfs::{
    Attributes, Caller, Create, IdleInode, KernelCache, Lookup, Names, NodeId, OFlags, Open, Volume,
    VolumeFile, XattrFlags, Xattrs,
};

/// The process's limit of descriptors; the tests have a thread each.
const NR_MAX: u64 = 1000;
/// More than a tenant may have.
const NR_TOO_MANY: usize = NR_MAX as usize;

/// A kernel above a mount whose files are opened without a request.
#[derive(Debug, Default)]
struct Kernel {
    asked: Mutex<Vec<NodeId>>,
}

impl KernelCache for Kernel {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, idle: Vec<IdleInode>) -> bool {
        self.asked.lock().unwrap().extend(idle.iter().map(|idle| idle.node));
        true
    }
    fn is_exclusive(&self) -> bool {
        true
    }
    fn opens_silently(&self) -> bool {
        true
    }
}

/// A volume below such a kernel, and a tenant of it.
fn fixture() -> (Fixture, Caller) {
    let (v, tenant, _) = with_kernel();
    (v, tenant)
}

fn with_kernel() -> (Fixture, Caller, Arc<Kernel>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(NR_MAX), maximum }).unwrap();
    let v = Fixture::new();
    let kernel: Arc<Kernel> = Arc::default();
    v.vfs.set_kernel(Arc::<Kernel>::clone(&kernel));
    let group = v.engine.create_group(v.engine.root(), name("tenant")).unwrap();
    let tenant = Caller { group, ..v.root.clone() };
    (v, tenant, kernel)
}

/// Makes a file that only the kernel refers to.
fn make(v: &Fixture, tenant: &Caller, path: &str) -> NodeId {
    v.vfs.create(tenant, ROOT, name(path), 0o644, OFlags::RDWR).unwrap().0.node
}

/// Removes files of the tenant until its descriptors are used up.
fn use_up(v: &Fixture, tenant: &Caller) -> Vec<NodeId> {
    let made: Vec<_> = (0..NR_TOO_MANY).map(|n| make(v, tenant, &format!("used {n}"))).collect();
    let remove = |n| v.vfs.unlink(tenant, ROOT, name(&format!("used {n}"))).ok().map(|_| made[n]);
    (0..NR_TOO_MANY).map_while(remove).collect()
}

/// Waits until a thread of this process waits for something, or has ended.
fn until_asleep(thread: Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let is_awake = |stat: String| !stat.rsplit(')').next().is_some_and(|state| state.starts_with(" S"));
    while std::fs::read_to_string(&path).is_ok_and(is_awake) {
        std::thread::yield_now();
    }
}

fn write(file: &Arc<dyn VolumeFile>, tenant: &Caller, text: &[u8]) {
    assert_eq!(file.write(&tenant.group, 0, text, false).unwrap(), text.len());
}

#[test]
fn removed_files_cost_their_tenant_descriptors_until_forgotten() {
    let (v, tenant) = fixture();
    make(&v, &v.root, "of another");
    let removed = use_up(&v, &tenant);
    assert!(removed.len() < NR_TOO_MANY / 2, "{}", removed.len());
    assert_eq!(errno(v.vfs.unlink(&tenant, ROOT, name(&format!("used {}", removed.len())))), Errno::NFILE);
    // Another tenant has a share of its own.
    v.vfs.unlink(&v.root, ROOT, name("of another")).unwrap();
    removed.iter().for_each(|&node| v.vfs.forget(node, 1));
    make(&v, &tenant, "f");
    v.vfs.unlink(&tenant, ROOT, name("f")).unwrap();
}

#[test]
fn a_removal_waits_for_the_kernel_to_forget_others() {
    let (v, tenant) = fixture();
    let removed = use_up(&v, &tenant);
    let remove = |n: usize| v.vfs.unlink(&tenant, ROOT, name(&format!("used {}", removed.len() + n)));
    let waits = |n: usize| {
        let outcome = std::thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let remover = scope.spawn(move || {
                begins.send(rustix::thread::gettid()).unwrap();
                remove(n)
            });
            until_asleep(begun.recv().unwrap());
            v.vfs.forget(removed[n], 1);
            remover.join().unwrap()
        });
        // It waits for a second, in which this thread may not run. Then the room that there is now
        // is used up.
        outcome.is_ok() || {
            remove(n).unwrap();
            false
        }
    };
    assert!((0..20).any(waits));
}

#[test]
fn what_is_open_already_is_served_when_descriptors_are_used_up() {
    let (v, tenant) = fixture();
    let named = make(&v, &tenant, "named");
    let removed = use_up(&v, &tenant);
    let file = v.vfs.reopen(&tenant, named, OFlags::RDWR).unwrap();
    write(&file, &tenant, b"text");
    file.fsync(false).unwrap();
    let orphan = v.vfs.reopen(&tenant, removed[0], OFlags::RDWR).unwrap();
    write(&orphan, &tenant, b"text");
    assert_eq!(orphan.read(&tenant.group, 0, 4).unwrap().to_vec(), b"text");
}

#[test]
fn files_made_without_a_name_cost_descriptors_and_stay() {
    let (v, tenant) = fixture();
    let made = (0..NR_TOO_MANY).map_while(|_| {
        let (entry, file) = v.vfs.tmpfile(&tenant, ROOT, 0o644, OFlags::RDWR).ok()?;
        write(&file, &tenant, b"text");
        file.fsync(false).unwrap();
        Some(entry.node)
    });
    let made: Vec<_> = made.collect();
    assert!((10..NR_TOO_MANY / 2).contains(&made.len()), "{}", made.len());
    for &node in &made {
        let file = v.vfs.reopen(&tenant, node, OFlags::RDONLY).unwrap();
        assert_eq!(file.read(&tenant.group, 0, 4).unwrap().to_vec(), b"text");
    }
    // One that gets a name gives its descriptor back.
    v.vfs.link(&tenant, made[0], ROOT, name("named")).unwrap();
    v.vfs.tmpfile(&tenant, ROOT, 0o644, OFlags::RDWR).unwrap();
}

#[test]
fn exchanged_files_cost_no_descriptor() {
    let (v, tenant) = fixture();
    let [one, other] = ["one", "other"].map(|path| make(&v, &tenant, path));
    use_up(&v, &tenant);
    v.vfs.rename(&tenant, ROOT, name("one"), ROOT, name("other"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!([v.walk("other").unwrap().node, v.walk("one").unwrap().node], [one, other]);
}

#[test]
fn a_name_is_asked_for_although_its_file_is_kept_open_here() {
    let (v, tenant, kernel) = with_kernel();
    let (entry, _kept) = v.vfs.create(&tenant, ROOT, name("f"), 0o644, OFlags::RDWR).unwrap();
    // It was used; the second look finds it idle.
    for _ in 0..2 {
        v.engine.drop_caches(DropCaches::Both);
    }
    assert_eq!(*kernel.asked.lock().unwrap(), [entry.node]);
}

#[test]
fn a_new_file_has_no_capabilities_until_they_are_set() {
    let (v, tenant) = fixture();
    let node = make(&v, &tenant, "f");
    let capabilities = name("security.capability");
    assert!(v.vfs.is_known_absent(node, capabilities) && !v.vfs.is_known_absent(node, name("user.any")));
    let value = [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let set = v.vfs.setxattr(&v.root, node, capabilities, &value, XattrFlags::empty(), false);
    // With or without success: it may be there.
    assert!(!v.vfs.is_known_absent(node, capabilities));
    let file = v.vfs.reopen(&tenant, node, OFlags::RDWR).unwrap();
    write(&file, &tenant, b"text");
    assert_eq!(errno(v.vfs.getxattr(node, capabilities)), Errno::NODATA, "{set:?}");
    assert!(v.vfs.is_known_absent(node, capabilities));
}

#[test]
fn attributes_of_a_directory_in_use_need_no_sleep() {
    let (v, tenant) = fixture();
    let dir = v.mkdir(ROOT, "d").node;
    v.vfs.create(&tenant, dir, name("f"), 0o644, OFlags::RDWR).unwrap();
    // Only local file systems promise it.
    if let Some(attr) = v.vfs.try_getattr(dir) {
        assert_eq!(attr, v.vfs.getattr(dir).unwrap());
    }
    assert_eq!(v.vfs.try_getattr(make(&v, &tenant, "f")), None);
}
