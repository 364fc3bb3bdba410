//! Which of the pages that the kernel keeps stay: the order of their arrival, and what returns
//! soon.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::common::page_kernel::{PAGE, kept};
use crate::common::{Fixture, ROOT, name};
use umemcg::{DropCaches, Group, StatItem};
use umemcg_vfs::{Caller, IdleInode, KernelCache, Lookup, OFlags, Open, PageDrop, Volume, VolumeFile};

const WINDOW: u64 = 64;
/// Windows that the tests have room for.
const ROOM: u64 = 16;
const SHARE_BYTES_MAX: u64 = 256;

/// A kernel that does what it is asked for at once, and notes it.
#[derive(Debug, Default)]
struct Obedient(Mutex<Vec<Range<u64>>>);

impl KernelCache for Obedient {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, _: Vec<IdleInode>) -> bool {
        true
    }
    fn keeps_pages(&self) -> bool {
        true
    }
    fn drop_pages(&self, drops: Vec<PageDrop>) {
        for drop in drops {
            let may_tell = drop.task.may_tell();
            drop.task.done(may_tell);
            self.0.lock().unwrap().extend(may_tell.then_some(drop.pages));
        }
    }
}

/// A kernel that drops pages when the test says so.
#[derive(Debug, Default)]
struct Slow(Mutex<Vec<PageDrop>>);

impl Slow {
    fn nr_asked(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Drops the first of what it was asked for.
    fn drop_first(&self, nr: usize) {
        let drops: Vec<PageDrop> = self.0.lock().unwrap().drain(..nr).collect();
        drops.into_iter().for_each(|drop| drop.task.done(true));
    }
}

impl KernelCache for Slow {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, _: Vec<IdleInode>) -> bool {
        true
    }
    fn keeps_pages(&self) -> bool {
        true
    }
    fn drop_pages(&self, drops: Vec<PageDrop>) {
        self.0.lock().unwrap().extend(drops);
    }
}

struct World {
    fixture: Fixture,
    kernel: Arc<Obedient>,
    group: Arc<Group>,
}

impl World {
    fn new() -> Self {
        let kernel: Arc<Obedient> = Arc::default();
        Self::under(Arc::<Obedient>::clone(&kernel), kernel)
    }

    fn under(above: Arc<dyn KernelCache>, kernel: Arc<Obedient>) -> Self {
        let fixture = Fixture::new();
        fixture.vfs.set_kernel(above);
        let group = fixture.engine.create_group(fixture.engine.root(), "g".as_ref()).unwrap();
        Self { fixture, kernel, group }
    }

    fn open(&self, path: &str, nr_pages: u64) -> Arc<dyn VolumeFile> {
        let file = std::fs::File::create(self.fixture.dir.path().join(path)).unwrap();
        file.set_len(nr_pages * PAGE).unwrap();
        let caller = Caller { group: Arc::clone(&self.group), ..self.fixture.root.clone() };
        let entry = self.fixture.vfs.lookup(&caller, ROOT, name(path)).unwrap();
        self.fixture.vfs.open(&caller, entry.node, OFlags::RDONLY).unwrap()
    }

    /// Opens a file again, as an OPEN of the kernel does, and closes it.
    fn reopen(&self, file: &Arc<dyn VolumeFile>) {
        let caller = Caller { group: Arc::clone(&self.group), ..self.fixture.root.clone() };
        let again = self.fixture.vfs.open(&caller, file.node(), OFlags::RDONLY).unwrap();
        again.kernel_caching(false);
    }

    /// Answers a READ of the kernel.
    fn read(&self, file: &Arc<dyn VolumeFile>, first: u64, nr: u64) {
        drop(file.begin_kernel_io(first * PAGE, nr * PAGE, false, &self.group).unwrap());
    }

    fn kept(&self) -> u64 {
        kept(&self.group)
    }
}

/// Has reclaim take back windows until they are this many pages. Returns the runs that were
/// dropped.
fn take_back_pages(world: &World, nr_pages: u64) -> Vec<Range<u64>> {
    world.fixture.engine.reclaim(&world.group, nr_pages * PAGE).ok();
    std::mem::take(&mut world.kernel.0.lock().unwrap())
}

/// Has reclaim take this many windows back.
fn take_back(world: &World, nr_windows: u64) {
    take_back_pages(world, nr_windows * WINDOW);
}

/// Reads a window, and has one taken back when there is no room for it.
fn read_window(world: &World, file: &Arc<dyn VolumeFile>, window: u64) {
    world.read(file, window * WINDOW, WINDOW);
    if world.kept() > ROOM * WINDOW {
        take_back(world, 1);
    }
}

/// Reads window 0, a stream that drives it out, and window 0 again. Returns how many windows of the
/// stream have been read.
fn return_soon(world: &World, hot: &Arc<dyn VolumeFile>, stream: &Arc<dyn VolumeFile>) -> u64 {
    read_window(world, hot, 0);
    let mut nr = 0;
    while hot.kernel_may_have(0, PAGE) {
        read_window(world, stream, nr);
        nr += 1;
    }
    assert_eq!(nr, ROOM, "the order is that of arrival");
    read_window(world, hot, 0);
    nr
}

#[test]
fn a_window_that_returned_soon_outlives_a_stream() {
    let world = World::new();
    let (hot, stream) = (world.open("hot", WINDOW), world.open("stream", 100 * WINDOW));
    let nr = return_soon(&world, &hot, &stream);
    let stat = |item: StatItem| world.group.stat_total(item);
    assert_eq!((stat(StatItem::WorkingsetRefault), stat(StatItem::WorkingsetActivate)), (64, 64));
    (nr..100).for_each(|window| read_window(&world, &stream, window));
    assert!(hot.kernel_may_have(0, PAGE), "84 windows later");
}

#[test]
fn a_protected_window_that_is_not_read_again_goes() {
    let world = World::new();
    let (old, stream) = (world.open("old", WINDOW), world.open("stream", 100 * WINDOW));
    return_soon(&world, &old, &stream);
    let new = world.open("new", 20 * WINDOW);
    for round in 0.. {
        let window = round % 20;
        if !new.kernel_may_have(window * WINDOW * PAGE, PAGE) {
            read_window(&world, &new, window);
        }
        if !old.kernel_may_have(0, PAGE) {
            break;
        }
        assert!(round < 2000, "others return all the time");
    }
}

#[test]
fn a_loop_that_does_not_fit_keeps_a_part() {
    let world = World::new();
    let looped = world.open("f", 20 * WINDOW);
    let mut nr_hits = 0;
    for round in 0..1000 {
        let window = round % 20;
        if looped.kernel_may_have(window * WINDOW * PAGE, PAGE) {
            nr_hits += 1;
        } else {
            read_window(&world, &looped, window);
        }
    }
    assert!(nr_hits > 300, "{nr_hits}: in the order of arrival alone, each goes before it returns");
}

#[test]
fn a_window_of_an_opened_file_outlives_a_stream() {
    let world = World::new();
    let (hot, stream) = (world.open("hot", WINDOW), world.open("stream", 100 * WINDOW));
    read_window(&world, &hot, 0);
    (0..ROOM / 2).for_each(|window| read_window(&world, &stream, window));
    world.reopen(&hot);
    (ROOM / 2..100).for_each(|window| read_window(&world, &stream, window));
    assert!(hot.kernel_may_have(0, PAGE), "it would have been the first to go");
    assert_eq!(world.group.stat_total(StatItem::PgActivate), WINDOW as i64);
}

#[test]
fn an_open_keeps_a_window_only_once() {
    let world = World::new();
    let old = world.open("old", ROOM * WINDOW);
    (0..ROOM).for_each(|window| read_window(&world, &old, window));
    world.reopen(&old);
    let first = |runs: Vec<Range<u64>>| runs[0].start / WINDOW;
    assert_eq!(first(take_back_pages(&world, WINDOW)), 0, "all are opened, so the oldest goes");
    assert_eq!(first(take_back_pages(&world, WINDOW)), 1);
    world.reopen(&old);
    assert_eq!(first(take_back_pages(&world, WINDOW)), 2, "a protected one must be opened twice");
    (0..2).for_each(|_| world.reopen(&old));
    assert_eq!(first(take_back_pages(&world, WINDOW)), 3, "all were opened twice");
    assert_eq!(first(take_back_pages(&world, WINDOW)), 4);
}

#[test]
fn second_chances_are_bounded() {
    let world = World::new();
    let file = world.open("f", 100 * WINDOW);
    world.read(&file, 0, 100 * WINDOW);
    for (round, expected) in [32, 65, 98].into_iter().enumerate() {
        (0..2).for_each(|_| world.reopen(&file));
        let runs = take_back_pages(&world, WINDOW);
        assert_eq!(runs[0].start / WINDOW, expected, "round {round}: behind 32 that were kept");
    }
}

#[test]
fn a_second_chance_joins_the_pages_of_a_window() {
    let world = World::new();
    let (file, rest) = (world.open("f", WINDOW), world.open("rest", 8 * WINDOW));
    world.read(&file, 20, 1);
    world.read(&rest, 0, 8 * WINDOW);
    assert_eq!(take_back_pages(&world, 1)[0], 20..21);
    let bookkeeping = || {
        world.group.drain_own_stock();
        assert_eq!(world.group.named_bytes(), world.group.usage_bytes());
        world.group.usage_bytes() - world.kept() * PAGE
    };
    world.read(&file, 20, 1);
    let with_one = bookkeeping();
    world.read(&file, 0, WINDOW);
    assert!(bookkeeping() > with_one, "page 20 is protected, and the others are not");
    world.reopen(&file);
    let mut runs = Vec::new();
    while runs.last() != Some(&(0..64)) && world.kept() > 0 {
        runs.extend(take_back_pages(&world, 1));
    }
    assert_eq!(runs.last(), Some(&(0..64)), "{runs:?}");
    assert!(!runs.iter().any(|run| run.end <= 64 && run.start < 20 && *run != (0..64)), "{runs:?}");
}

#[test]
fn ghosts_are_charged_and_bounded() {
    let world = World::new();
    let stream = world.open("stream", 1000 * WINDOW);
    let bookkeeping = || {
        world.group.drain_own_stock();
        assert_eq!(world.group.named_bytes(), world.group.usage_bytes());
        world.group.usage_bytes() - world.kept() * PAGE
    };
    read_window(&world, &stream, 0);
    let before = bookkeeping();
    (1..1000).for_each(|window| read_window(&world, &stream, window));
    let nr_max = ROOM + ROOM * WINDOW / 8 + 1;
    let ghosts = bookkeeping() - before;
    assert!(ghosts > 100 * 128, "{ghosts}");
    assert!(ghosts <= nr_max * SHARE_BYTES_MAX, "{ghosts}: no more than one for eight pages");
    while world.kept() > 0 {
        take_back(&world, ROOM);
    }
    assert!(bookkeeping() <= before, "none without pages");
}

#[test]
fn ghosts_go_with_their_file() {
    let world = World::new();
    let (file, other) = (world.open("f", 8 * WINDOW), world.open("other", WINDOW));
    read_window(&world, &other, 0);
    world.group.drain_own_stock();
    let before = world.group.usage_bytes();
    world.read(&file, 0, 8 * WINDOW);
    take_back(&world, 4);
    let node = file.node();
    drop(file);
    world.fixture.vfs.forget(node, u64::MAX);
    world.group.drain_own_stock();
    assert!(world.group.usage_bytes() <= before + SHARE_BYTES_MAX, "but for the head of a list");
}

#[test]
fn the_lists_of_ghosts_go_with_the_last_of_them() {
    let slow: Arc<Slow> = Arc::default();
    let world = World::under(Arc::<Slow>::clone(&slow), Arc::default());
    let engine = &world.fixture.engine;
    let file = world.open("f", 8 * WINDOW);
    world.read(&file, 0, 8 * WINDOW);
    engine.reclaim_unless(&world.group, 8 * WINDOW * PAGE, &|| slow.nr_asked() == 8).ok();
    // Some are ghosts, and there is nothing to ask for.
    slow.drop_first(4);
    engine.reclaim_unless(&world.group, PAGE, &|| true).ok();
    engine.drop_caches(DropCaches::Objects);
    slow.drop_first(4);
    let node = file.node();
    drop(file);
    world.fixture.vfs.forget(node, u64::MAX);
    engine.drop_caches(DropCaches::Both);
    assert_eq!(world.group.usage_exact(), 0);
}

#[test]
fn what_a_removed_group_had_is_its_parents() {
    let world = World::new();
    let (hot, stream) = (world.open("hot", WINDOW), world.open("stream", 40 * WINDOW));
    return_soon(&world, &hot, &stream);
    let root = world.fixture.engine.root();
    world.fixture.engine.remove_group(&world.group).unwrap();
    assert_eq!(kept(root), ROOM * WINDOW);
    // Window 0 of the stream has a ghost.
    let io = stream.begin_kernel_io(0, WINDOW * PAGE, false, root).unwrap();
    drop(io);
    assert_eq!(root.stat_local(StatItem::WorkingsetRefault), 128, "64 of the group before");
    while kept(root) > 0 {
        world.fixture.engine.reclaim(root, 64 << 20).ok();
    }
    assert!(!hot.kernel_may_have(0, PAGE));
}

#[test]
fn pages_between_others_are_dropped_in_runs() {
    let world = World::new();
    let (file, rest) = (world.open("f", WINDOW), world.open("rest", 8 * WINDOW));
    world.read(&file, 20, 1);
    world.read(&rest, 0, 8 * WINDOW);
    assert_eq!(take_back_pages(&world, 1)[0], 20..21);
    world.read(&file, 20, 1);
    world.read(&file, 0, WINDOW);
    let mut runs = Vec::new();
    while !runs.contains(&(21..64)) && world.kept() > 0 {
        runs.extend(take_back_pages(&world, 1));
    }
    assert!(runs.contains(&(0..20)), "{runs:?}");
    assert!(file.kernel_may_have(20 * PAGE, PAGE), "it has returned, and is protected");
}
