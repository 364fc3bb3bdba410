//! Pages of objects that the kernel keeps: what is charged, good and given back, with a kernel that
//! the test plays.

use std::sync::{Arc, Mutex};

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno, pattern};
use crate::common::page_kernel::{Kernel, PAGE, kept};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{
    Attributes, FallocateFlags, KernelCaching, Lookup, NodeId, OFlags, Open, SetAttr, Volume, VolumeFile,
};

/// A volume that can be written to, below a kernel that keeps pages.
struct Ground {
    world: World,
    kernel: Arc<Kernel>,
}

impl Ground {
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        let kernel = Arc::<Kernel>::default();
        world.volume.set_kernel(Arc::<Kernel>::clone(&kernel));
        Self { world, kernel }
    }

    /// Creates one with an object of this many pages.
    fn with_object(nr_pages: u64) -> Self {
        let ground = Self::new();
        ground.put(nr_pages, 1);
        ground
    }

    /// Has another program store an object.
    fn put(&self, nr_pages: u64, seed: u8) {
        self.world.bucket.put("f", pattern((nr_pages * PAGE) as usize, seed));
    }

    /// Looks the object up, as the kernel does that keeps the inode.
    fn node(&self) -> NodeId {
        self.world.find("f").unwrap().node
    }

    fn open(&self, node: NodeId, flags: OFlags) -> Arc<dyn VolumeFile> {
        self.world.volume.open(&self.world.me, node, flags).unwrap()
    }

    /// Reads as the kernel does to fill its cache.
    fn read(&self, file: &Arc<dyn VolumeFile>, first: u64, nr: u64) {
        let io = file.begin_kernel_io(first * PAGE, nr * PAGE, false, self.world.group()).unwrap();
        drop(file.read(self.world.group(), first * PAGE, (nr * PAGE) as usize).unwrap());
        drop(io);
    }

    fn write(&self, file: &Arc<dyn VolumeFile>, first: u64, bytes: &[u8]) {
        self.world.write(file, first * PAGE, bytes).unwrap();
    }

    /// Pages that the kernel has at the group's cost.
    fn kept(&self) -> u64 {
        kept(self.world.group())
    }

    /// Has the group give back 4 MiB.
    fn reclaim(&self) {
        self.world.engine.reclaim(self.world.group(), 4 << 20).ok();
    }

    /// What is charged to the group has a name.
    fn check_named(&self) {
        let group = self.world.group();
        group.drain_stocks();
        assert_eq!(group.named_bytes(), group.usage_bytes());
    }
}

#[test]
fn what_was_read_of_an_object_is_charged_once() {
    let ground = Ground::with_object(300);
    let file = ground.open(ground.node(), OFlags::RDONLY);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    (0..300).step_by(50).for_each(|first| ground.read(&file, first, 50));
    assert_eq!((ground.kept(), file.content().nr_cached_pages()), (300, 0), "one copy");
    ground.check_named();
    drop(file);
    ground.reclaim();
    assert!(ground.kernel.idle.lock().unwrap().is_empty(), "pages go before names");
    while !ground.kernel.obey().is_empty() {}
    assert_eq!(ground.kept(), 0);
    ground.reclaim();
    assert_eq!(ground.kernel.idle.lock().unwrap().len(), 1);
    ground.check_named();
}

#[test]
fn a_window_ends_where_the_kernel_has_pages_already() {
    let ground = Ground::with_object(600);
    let node = ground.node();
    let [file, other] = [0; 2].map(|_| ground.open(node, OFlags::RDONLY));
    for file in [&file, &other] {
        assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    }
    ground.read(&other, 300, 32);
    // The second window begins at page 256.
    (0..288).step_by(32).for_each(|first| ground.read(&file, first, 32));
    assert_eq!((ground.kept(), file.content().nr_cached_pages()), (288 + 32, 300 - 288));
}

#[test]
fn pages_that_the_kernel_dropped_unseen_come_in_windows() {
    let ground = Ground::with_object(600);
    let file = ground.open(ground.node(), OFlags::RDONLY);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    let read_all = || (0..600).step_by(30).for_each(|first| ground.read(&file, first, 30));
    let nr_gets = || ground.world.bucket.asked().0;
    read_all();
    let nr_first = nr_gets();
    read_all();
    assert!(nr_gets() <= 2 * nr_first + 1, "{} requests, then {}", nr_first, nr_gets() - nr_first);
}

#[test]
fn a_closed_object_is_good_for_the_next_open() {
    let ground = Ground::with_object(64);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDONLY);
    ground.read(&file, 0, 64);
    drop(file);
    let nr_gets = ground.world.bucket.asked().0;
    let again = ground.open(node, OFlags::RDONLY);
    assert_eq!(again.kernel_caching(false), KernelCaching::Keep);
    assert!(again.kernel_may_have(0, PAGE));
    assert_eq!((ground.kept(), ground.world.bucket.asked().0), (64, nr_gets));
}

#[test]
fn another_version_of_an_object_has_no_old_pages() {
    let ground = Ground::with_object(64);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDONLY);
    ground.read(&file, 0, 64);
    ground.put(64, 2);
    let refused = ground.world.volume.open(&ground.world.me, node, OFlags::RDONLY);
    assert_eq!(errno(refused), Some(Errno::STALE), "the kernel looks the name up again");
    let other = ground.node();
    assert_ne!(other, node);
    let again = ground.open(other, OFlags::RDONLY);
    assert_eq!(again.kernel_caching(false), KernelCaching::Keep);
    assert!(!again.kernel_may_have(0, 64 * PAGE) && file.kernel_may_have(0, PAGE));
    // One that is open goes on with what the kernel has, which is charged until it is forgotten.
    assert_eq!(ground.kept(), 64);
    drop(file);
    assert_eq!(ground.kept(), 64);
    ground.world.volume.forget(node, 1);
    assert_eq!(ground.kept(), 0);
    ground.check_named();
}

#[test]
fn a_forgotten_object_has_taken_its_pages_along() {
    let ground = Ground::with_object(64);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDONLY);
    ground.read(&file, 0, 64);
    drop(file);
    ground.node();
    ground.world.volume.forget(node, 1);
    assert_eq!(ground.kept(), 64, "it was looked up twice");
    ground.world.volume.forget(node, 1);
    assert_eq!(ground.kept(), 0);
    assert!(ground.kernel.drops.lock().unwrap().is_empty(), "there is nothing to ask for");
    ground.check_named();
}

#[test]
fn what_was_written_is_kept_though_its_draft_goes() {
    let ground = Ground::with_object(4);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDWR);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    let bytes = pattern((100 * PAGE) as usize, 9);
    ground.write(&file, 0, &bytes);
    assert_eq!(ground.kept(), 100, "also what is beyond the object's end");
    file.flush().unwrap();
    drop(file);
    assert_eq!((ground.kept(), ground.world.nr_staging_files()), (100, 0));
    ground.check_named();
    let again = ground.open(node, OFlags::RDONLY);
    assert_eq!(again.kernel_caching(false), KernelCaching::Keep);
    assert!(again.kernel_may_have(99 * PAGE, PAGE));
    assert_eq!(ground.world.bucket.asked().0, 1, "the copy that the draft began with");
    // What the kernel drops it reads again, from the object.
    ground.reclaim();
    while !ground.kernel.obey().is_empty() {}
    ground.read(&again, 0, 100);
    assert_eq!((ground.kept(), ground.world.read(&again).unwrap() == bytes), (100, true));
}

#[test]
fn durable_pages_of_a_draft_go_to_the_kernel() {
    let ground = Ground::with_object(4);
    let file = ground.open(ground.node(), OFlags::RDWR);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    // The draft is made after the open.
    ground.write(&file, 0, &pattern((40 * PAGE) as usize, 9));
    assert_eq!((ground.kept(), file.content().nr_cached_pages()), (40, 40), "both, until it is durable");
    // It is stored, and the staging disk confirms it later.
    file.fsync(false).unwrap();
    file.content().write_back().unwrap();
    assert_eq!((ground.kept(), file.content().nr_cached_pages()), (40, 1), "an append needs the last");
}

#[test]
fn a_read_gives_frames_back_though_a_draft_was_made() {
    let ground = Ground::with_object(200);
    let file = ground.open(ground.node(), OFlags::RDWR);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    let object = Arc::clone(file.content());
    let io = file.begin_kernel_io(0, 50 * PAGE, false, ground.world.group()).unwrap();
    drop(file.read(ground.world.group(), 0, (50 * PAGE) as usize).unwrap());
    assert!(object.nr_cached_pages() >= 50);
    ground.write(&file, 100, &pattern(PAGE as usize, 9));
    assert!(!Arc::ptr_eq(&object, file.content()));
    drop(io);
    assert!(object.try_read(0, 1, &umemcg::files::Readahead::new()).is_none());
    assert_eq!(ground.kept(), 51);
}

#[test]
fn what_is_cut_off_or_emptied_is_given_back() {
    let ground = Ground::with_object(200);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDWR);
    ground.read(&file, 0, 200);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    file.fallocate(ground.world.group(), punch, PAGE / 2, 10 * PAGE, false).unwrap();
    assert_eq!(ground.kept(), 191, "nine whole pages");
    let cut = |nr_bytes| SetAttr { size: Some(nr_bytes), ..SetAttr::default() };
    file.setattr(&ground.world.me, &cut(150 * PAGE)).unwrap();
    assert_eq!(ground.kept(), 141);
    ground.world.volume.setattr(&ground.world.me, node, &cut(99 * PAGE + 1)).unwrap();
    assert_eq!(ground.kept(), 91);
    drop(ground.open(node, OFlags::WRONLY | OFlags::TRUNC));
    assert_eq!(ground.kept(), 0);
    ground.check_named();
}

#[test]
fn all_opens_of_an_object_are_of_one_kind() {
    let ground = Ground::with_object(1000);
    let group = ground.world.group();
    ground.world.engine.set_max(group, 2 << 20);
    let node = ground.node();
    let small = ground.open(node, OFlags::RDONLY);
    assert_eq!(small.kernel_caching(false), KernelCaching::Bypass, "it does not fit");
    ground.world.engine.set_max(group, 32 << 20);
    let large = ground.open(node, OFlags::RDONLY);
    assert_eq!(large.kernel_caching(false), KernelCaching::Bypass, "it is open the other way");
    // Also once the node has lost its name.
    ground.world.unlink("f").unwrap();
    drop(small);
    assert!(!large.kernel_may_have(0, PAGE));
    ground.put(10, 2);
    let node = ground.node();
    let new = ground.open(node, OFlags::RDONLY);
    assert_eq!(new.kernel_caching(false), KernelCaching::Keep);
    drop(new);
    ground.world.engine.set_max(group, 1 << 19);
    let full = ground.open(node, OFlags::RDONLY);
    assert_eq!(full.kernel_caching(false), KernelCaching::Bypass, "the last close ends the kind");
}

#[test]
fn a_direct_write_to_an_object_waits_for_the_kernel() {
    let ground = Ground::with_object(64);
    let file = ground.open(ground.node(), OFlags::RDWR);
    assert!(!file.kernel_may_have(0, PAGE));
    ground.read(&file, 0, 64);
    let is_done = Arc::new(Mutex::new(false));
    let done = Arc::clone(&is_done);
    file.drop_kernel_pages(10 * PAGE, PAGE, Box::new(move || *done.lock().unwrap() = true));
    assert!(!*is_done.lock().unwrap());
    assert_eq!(ground.kernel.obey(), [(10, 11)]);
    assert_eq!((*is_done.lock().unwrap(), ground.kept()), (true, 63));
}

#[test]
fn a_killed_truncation_has_the_kernel_forget() {
    let ground = Ground::with_object(64);
    let node = ground.node();
    let file = ground.open(node, OFlags::RDWR);
    ground.read(&file, 0, 64);
    ground.world.volume.make_kernel_forget(node, 8 * PAGE, u64::MAX - 8 * PAGE);
    assert_eq!(*ground.kernel.changed.lock().unwrap(), [node]);
    assert_eq!(ground.kernel.obey().len(), 1);
    assert_eq!(ground.kept(), 8);
}

#[test]
fn a_cut_that_is_not_stored_has_the_kernel_forget() {
    let ground = Ground::with_object(64);
    let (node, bucket) = (ground.node(), &ground.world.bucket);
    bucket.fail_changes([ChangeFault::Refused(BucketError::Unavailable("503".into()))]);
    let cut = SetAttr { size: Some(8 * PAGE), ..SetAttr::default() };
    let changed = ground.world.volume.setattr(&ground.world.me, node, &cut);
    assert_eq!(errno(changed), Some(Errno::IO));
    assert_eq!(ground.world.volume.getattr(node).unwrap().size, 8 * PAGE, "it is cut all the same");
    assert_eq!(*ground.kernel.changed.lock().unwrap(), [node]);
}

#[test]
fn what_streams_may_replace_is_not_kept_in_the_kernel() {
    let ground = Ground::of(World::streamed(64 << 20));
    ground.put(64, 1);
    let node = ground.node();
    let before = ground.open(node, OFlags::RDONLY);
    assert_eq!(before.kernel_caching(false), KernelCaching::Bypass);
    let writer = ground.open(node, OFlags::WRONLY | OFlags::TRUNC);
    writer.write(ground.world.group(), 0, b"new", false).unwrap();
    writer.flush().unwrap();
    drop(writer);
    // The name has another inode, and what is open reads what was there before.
    assert_ne!(ground.node(), node);
    assert!(before.begin_kernel_io(0, PAGE, false, ground.world.group()).is_none());
    let after = ground.open(ground.node(), OFlags::RDONLY);
    assert_eq!(after.kernel_caching(false), KernelCaching::Bypass);
}

#[test]
fn a_removed_volume_owes_nothing_for_the_kernel() {
    let ground = Ground::with_object(64);
    let file = ground.open(ground.node(), OFlags::RDONLY);
    ground.read(&file, 0, 64);
    drop(file);
    ground.world.volume.abandon();
    assert_eq!(ground.kept(), 0);
    assert_eq!(ground.kernel.drops.lock().unwrap().len(), 1, "the kernel has them still");
    ground.check_named();
}
