//! File pages that the kernel keeps: what reclaim asks for, with a kernel that the test plays.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::page_kernel::{PAGE, World, kept};
use umemcg::internal::{HoldsUp, Reason, leaving_bytes};
use umemcg::{EventKind, Group, StatItem};

const MIB: u64 = 1 << 20;

#[test]
fn reclaim_asks_for_the_oldest_and_waits_for_the_answer() {
    let world = World::new(8 << 20);
    let file = world.open("f", 256);
    world.read(&file, 64, 64);
    world.read(&file, 0, 64);
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert_eq!(world.kept(), 128, "not before they are gone");
    let proactive = |item: StatItem| world.group.stat_total(item);
    assert_eq!((proactive(StatItem::PgScanProactive), proactive(StatItem::PgStealProactive)), (128, 0));
    assert_eq!(world.kernel.obey(), [(64, 128), (0, 64)]);
    assert_eq!(world.kept(), 0);
    assert_eq!(proactive(StatItem::PgStealProactive), 128, "they count as the pages that they are");
}

/// Returns a group of which the kernel keeps 1,024 pages.
fn world_of_1024_pages() -> World {
    let world = World::new(8 * MIB);
    let file = world.open("f", 1024);
    world.read(&file, 0, 1024);
    drop(file);
    assert_eq!(world.kept(), 1024);
    world
}

#[test]
fn what_is_on_its_way_is_not_asked_for_again() {
    with_prompt_kernel(|| {
        let world = world_of_1024_pages();
        while_obeyed(&world, || world.fixture.engine.reclaim(&world.group, 2 * MIB).unwrap());
        // As much as was wanted, and a window more at most.
        assert!((448..=512).contains(&world.kept()), "{}", world.kept());
    });
}

#[test]
fn a_kernel_that_is_slow_to_begin_is_waited_for() {
    with_prompt_kernel(|| {
        let world = World::new(64 * MIB);
        // So many that the first request comes early: then it could be given up and made again.
        let file = world.open("f", 8192);
        (0..8192).step_by(256).for_each(|first| world.read(&file, first, 256));
        let body = || world.fixture.engine.reclaim(&world.group, 2 * MIB).unwrap();
        // Longer than reclaim waits for names.
        while_obeyed_after(Duration::from_millis(200), &world, body);
        assert!((8192 - 576..=8192 - 512).contains(&world.kept()), "{}", world.kept());
    });
}

#[test]
fn a_request_amid_a_drop_under_way_holds_it_up() {
    let world = World::new(8 * MIB);
    let file = world.open("f", 256);
    world.read(&file, 0, 32);
    world.read(&file, 64, 64);
    ask_for_all(&world);
    let begin = |first: u64| file.begin_kernel_io(first * PAGE, PAGE, true, &world.group).unwrap();
    let drops = std::mem::take(&mut *world.kernel.drops.lock().unwrap());
    let early = begin(70);
    let told = drops.iter().map(|drop| (drop.pages.clone(), drop.task.may_tell()));
    let told: Vec<_> = told.filter_map(|(pages, may_tell)| may_tell.then_some(pages)).collect();
    assert!(matches!(&told[..], [pages] if *pages == (0..32)), "the kernel would wait for the request");
    assert!(!early.holds_up_release());
    let late = [31, 32].map(begin);
    assert_eq!(late.each_ref().map(|io| io.holds_up_release()), [true, false]);
    world.fixture.engine.set_max(&world.group, 0);
    assert!(late[0].holds_up_release(), "only a little is beyond the limit");
    let much = world.group.charge_forced(2 * MIB);
    assert!(!late[0].holds_up_release(), "the kernel may be waiting for others");
    drop(much);
    assert!(late[0].holds_up_release());
    drops.into_iter().for_each(|drop| drop.task.done(drop.pages == (0..32)));
    assert!(!late[0].holds_up_release());
}

/// Returns two groups below the world's, and makes the first the one that pays. Of both the kernel
/// keeps 512 pages, and the second has this much of `memory.low`.
fn two_groups_of_512_pages(world: &mut World, low: u64) -> [Arc<Group>; 3] {
    let engine = &world.fixture.engine;
    let [one, other] = ["one", "other"].map(|name| engine.create_group(&world.group, name.as_ref()).unwrap());
    engine.set_low(&other, low);
    let parent = std::mem::replace(&mut world.group, Arc::clone(&other));
    world.read(&world.open("other", 512), 0, 512);
    world.group = Arc::clone(&one);
    world.read(&world.open("one", 512), 0, 512);
    [parent, one, other]
}

/// Has all pages of the group that pays on their way out.
fn ask_for_all(world: &World) {
    let reclaimer = world.fixture.engine.reclaimer();
    for _ in 0..64 {
        reclaimer.reclaim_promptly(&world.group, 64);
    }
    assert_eq!(leaving_bytes(&world.group), world.kept() * PAGE, "all of it");
}

#[test]
fn what_is_on_its_way_out_protects_nothing() {
    let mut world = World::new(16 * MIB);
    let [parent, _, other] = two_groups_of_512_pages(&mut world, 0);
    world.fixture.engine.set_min(&other, MIB);
    for _ in 0..64 {
        world.fixture.engine.reclaimer().reclaim_promptly(&parent, 32);
    }
    world.kernel.obey();
    // The last request may be for a window more than there was beyond the protection.
    assert!((192..=256).contains(&kept(&other)), "{}", kept(&other));
}

#[test]
fn a_charge_waits_for_what_is_on_its_way() {
    with_prompt_kernel(|| {
        let world = World::new(8 * MIB);
        // Open, so that there is no name to ask for and to wait for.
        let file = world.open("f", 1024);
        world.read(&file, 0, 1024);
        let (engine, group) = (&world.fixture.engine, &world.group);
        ask_for_all(&world);
        engine.set_max(group, group.usage_bytes());
        let charge =
            while_obeyed_after(Duration::from_millis(60), &world, || engine.charge(group, 2 * MIB).map(drop));
        assert!(charge.is_ok(), "refused while the kernel was about to free more");
    });
}

#[test]
fn low_is_not_taken_while_other_pages_are_on_their_way() {
    with_prompt_kernel(|| {
        let mut world = World::new(16 * MIB);
        let [parent, _, other] = two_groups_of_512_pages(&mut world, 16 * MIB);
        ask_for_all(&world);
        while_obeyed_after(Duration::from_millis(60), &world, || {
            world.fixture.engine.reclaimer().reclaim(&parent, 32, Reason::Direct)
        });
        assert_eq!((kept(&other), other.event_count(EventKind::Low)), (512, 0));
    });
}

#[test]
fn a_worker_takes_no_low_while_other_pages_are_on_their_way() {
    with_prompt_kernel(|| {
        let mut world = World::new(6 * MIB);
        let [parent, _, other] = two_groups_of_512_pages(&mut world, 16 * MIB);
        let (engine, usage) = (&world.fixture.engine, parent.usage_bytes());
        ask_for_all(&world);
        while_obeyed_after(Duration::from_millis(60), &world, || {
            engine.reclaimer().set_high_wmark_distance(&parent, 3 * MIB).unwrap();
            engine.reclaimer().set_low_wmark_distance(&parent, 2 * MIB).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while parent.usage_bytes() >= 3 * MIB && Instant::now() < deadline {
                std::thread::yield_now();
            }
        });
        assert!(usage >= 4 * MIB && parent.usage_bytes() < 3 * MIB, "the worker had work, and it is done");
        assert_eq!((kept(&other), other.event_count(EventKind::Low)), (512, 0));
    });
}

#[test]
fn a_worker_asks_for_what_is_not_on_its_way() {
    with_prompt_kernel(|| {
        let world = World::new(6 * MIB);
        let file = world.open("f", 1024);
        world.read(&file, 0, 1024);
        let (engine, group) = (&world.fixture.engine, &world.group);
        while_obeyed(&world, || {
            // Of 4 MiB two have to go, which takes longer than a worker waits for what does not
            // come.
            engine.reclaimer().set_high_wmark_distance(group, 4 * MIB).unwrap();
            engine.reclaimer().set_low_wmark_distance(group, 3 * MIB).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while group.usage_bytes() >= 2 * MIB && Instant::now() < deadline {
                std::thread::yield_now();
            }
        });
        assert!((384..512).contains(&world.kept()), "{}", world.kept());
    });
}

#[test]
fn force_empty_returns_when_the_kernel_has_dropped_all() {
    with_prompt_kernel(|| {
        let world = world_of_1024_pages();
        let left = while_obeyed(&world, || {
            world.fixture.engine.force_empty(&world.group).unwrap();
            world.kept()
        });
        assert_eq!(left, 0, "half of it is not all");
    });
}

#[test]
fn reclaim_on_request_returns_when_the_kernel_has_dropped_all() {
    with_prompt_kernel(|| {
        let world = world_of_1024_pages();
        let left = while_obeyed(&world, || {
            world.fixture.engine.reclaim(&world.group, 4 * MIB).unwrap();
            world.kept()
        });
        assert_eq!(left, 0, "half of it is not all");
    });
}

#[test]
fn a_stream_at_its_limit_gives_a_part_of_its_pages_ahead() {
    with_prompt_kernel(|| {
        let world = World::new(16 * MIB);
        let group = &world.group;
        let file = world.open("f", 16_384);
        let set_silent = |is_silent| world.kernel.opens_silently.store(is_silent, Ordering::Relaxed);
        set_silent(true);
        // Lets a reclaim take what it wants of the group.
        let asked_for = |reason| {
            let before = world.kept();
            while_obeyed(&world, || world.fixture.engine.reclaimer().reclaim(group, 32, reason));
            before - world.kept()
        };
        let read = |first: u64, nr: u64| {
            while_obeyed(&world, || (first..first + nr).step_by(64).for_each(|at| world.read(&file, at, 64)));
        };
        // The kernel that the test plays gives all back that was ever asked for.
        let fill = || {
            (0..64).take_while(|_| group.usage_bytes() < 15 * MIB + MIB / 2).for_each(|at| read(64 * at, 64));
        };
        // What is taken returns.
        for _ in 0..8 {
            read(0, 2_048);
            while_obeyed(&world, || world.fixture.engine.reclaim(group, 4 * MIB).unwrap());
        }
        fill();
        assert_eq!(asked_for(Reason::Direct), 64, "what it gives it reads again");
        read(0, 16_384);
        fill();
        assert_eq!(asked_for(Reason::Kswapd), 64, "a worker waits for nothing");
        assert_eq!(asked_for(Reason::Direct), 64 + 64);
        fill();
        set_silent(false);
        assert_eq!(asked_for(Reason::Direct), 64, "a stream would not be here");
        set_silent(true);
        world.fixture.engine.set_max(group, 32 * MIB);
        assert_eq!(asked_for(Reason::Direct), 64, "there is room");
        // The open was told, and so is the close.
        set_silent(false);
    });
}

/// Longer than the kernel that the test plays may be kept from its processor: reclaim waits for two
/// seconds without progress, and for eight in all.
const GAP_MAX: Duration = Duration::from_millis(200);

thread_local! {
    /// The longest time for which it was, in the claim that this thread checks.
    static LONGEST_GAP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Checks a claim about a kernel that does in time what it is asked for: once more if it fails and
/// the kernel was late.
fn with_prompt_kernel(claim: impl Fn()) {
    for _ in 0..20 {
        LONGEST_GAP.set(Duration::ZERO);
        let Err(panic) = catch_unwind(AssertUnwindSafe(&claim)) else { return };
        if LONGEST_GAP.get() < GAP_MAX {
            resume_unwind(panic);
        }
        eprintln!("the kernel did nothing for {:?}: once more", LONGEST_GAP.get());
    }
    panic!("the kernel is late again and again");
}

/// Runs something while the kernel does what it is asked for.
fn while_obeyed<R>(world: &World, body: impl FnOnce() -> R) -> R {
    while_obeyed_after(Duration::ZERO, world, body)
}

/// Runs something while the kernel does what it is asked for, beginning after a time.
fn while_obeyed_after<R>(pause: Duration, world: &World, body: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    let runs = Barrier::new(2);
    let (result, gap) = std::thread::scope(|threads| {
        let kernel = threads.spawn(|| {
            let begun = Instant::now();
            runs.wait();
            std::thread::sleep(pause);
            let late = begun.elapsed() - pause;
            late.max(world.kernel.obey_slowly(&is_over))
        });
        runs.wait();
        let result = catch_unwind(AssertUnwindSafe(body));
        is_over.store(true, Ordering::Relaxed);
        (result, kernel.join().unwrap())
    });
    LONGEST_GAP.set(LONGEST_GAP.get().max(gap));
    world.kernel.obey();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}
