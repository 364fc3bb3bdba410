//! File pages that the kernel keeps: what is charged and given back, with a kernel that the test
//! plays.

use std::sync::{Arc, Mutex};

use crate::common::page_kernel::{PAGE, World, kept, note_missing};
use crate::common::{ROOT, name};
use umemcg::StatItem;
use umemcg_vfs::{Attributes, Create, KernelCaching, Lookup, OFlags, Open, SetAttr, Volume};

#[test]
fn what_was_read_is_charged_once() {
    let world = World::new(8 << 20);
    let file = world.open("f", 300);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    world.read(&file, 0, 200);
    assert_eq!((world.kept(), file.content().nr_cached_pages() < 100), (200, true), "read ahead at most");
    world.read(&file, 100, 200);
    assert_eq!(world.kept(), 300);
    world.group.drain_own_stock();
    assert_eq!(world.group.named_bytes(), world.group.usage_bytes());
    let beyond = file.begin_kernel_io(299 * PAGE, 64 * PAGE, false, &world.group).unwrap();
    drop(beyond);
    assert_eq!(world.kept(), 300, "the kernel has nothing beyond the end");
}

#[test]
fn a_request_under_way_keeps_its_window() {
    let world = World::new(8 << 20);
    let file = world.open("f", 128);
    world.read(&file, 0, 128);
    let io = file.begin_kernel_io(10 * PAGE, PAGE, false, &world.group).unwrap();
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert_eq!(world.kernel.obey(), [(64, 128)]);
    drop(io);
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert_eq!(world.kernel.obey(), [(0, 64)]);
    assert_eq!(world.kept(), 0);
}

#[test]
fn a_request_that_ends_amid_a_drop_keeps_the_charge() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    world.read(&file, 0, 64);
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    world.read(&file, 5, 1);
    assert_eq!(world.kernel.obey(), [(0, 64)]);
    assert_eq!(world.kept(), 64, "the kernel may have page 5 again");
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert_eq!((world.kernel.obey().len(), world.kept()), (1, 0), "it is asked for again");
}

#[test]
fn two_groups_pay_for_what_each_has_read() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    let other = world.fixture.engine.create_group(world.fixture.engine.root(), "h".as_ref()).unwrap();
    world.read(&file, 0, 16);
    let io = file.begin_kernel_io(0, 32 * PAGE, false, &other).unwrap();
    drop(file.read(&other, 0, (32 * PAGE) as usize).unwrap());
    drop(io);
    assert_eq!((world.kept(), kept(&other)), (16, 16));
    world.fixture.engine.reclaim(&other, 4 << 20).ok();
    assert_eq!(world.kernel.obey(), [(16, 32)]);
    assert_eq!((world.kept(), kept(&other)), (16, 0));
}

#[test]
fn only_drops_that_are_under_way_are_awaited() {
    let world = World::new(8 * PAGE);
    let file = world.open("f", 64);
    assert_eq!(file.kernel_caching(false), KernelCaching::Bypass);
    let begin = |first| file.begin_kernel_io(first * PAGE, 16 * PAGE, false, &world.group).unwrap();
    let (one, other) = (begin(0), begin(16));
    drop(one);
    // The window of both cannot be asked for.
    assert!(other.is_beyond_limit() && !other.awaits_drops());
    drop(other);
    let next = begin(32);
    assert!(next.is_beyond_limit() && next.awaits_drops());
    drop(next);
    while !world.kernel.obey().is_empty() {}
    assert!(!begin(0).awaits_drops());
}

#[test]
fn a_group_may_go_while_its_request_is_under_way() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    let io = file.begin_kernel_io(0, 64 * PAGE, false, &world.group).unwrap();
    assert!(io.charge_copy(None, &world.group));
    world.fixture.engine.remove_group(&world.group).unwrap();
    drop(io);
    assert_eq!(kept(world.fixture.engine.root()), 64);
    world.fixture.engine.reclaim(world.fixture.engine.root(), 4 << 20).ok();
    world.kernel.obey();
    assert_eq!(kept(world.fixture.engine.root()), 0);
}

#[test]
fn a_group_without_room_has_its_pages_dropped_behind() {
    let world = World::new(2 << 20);
    let file = world.open("f", 64);
    let taken = world.fixture.engine.charge(&world.group, (2 << 20) - (64 << 10)).unwrap();
    world.read(&file, 0, 64);
    assert!(world.group.usage_bytes() > 2 << 20);
    world.read(&file, 0, 64);
    assert_eq!(world.kernel.obey(), [(0, 64)], "once, however many requests find no room");
    assert_eq!(world.kept(), 64, "the second may have put them back");
    assert_eq!(world.kernel.obey(), [(0, 64)], "and a group beyond its limit may ask for nothing more");
    assert_eq!(world.kept(), 0);
    drop(taken);
}

#[test]
fn what_a_writer_has_written_counts_twice_until_it_is_durable() {
    let world = World::new(8 << 20);
    let file = world.open("f", 0);
    let io = file.begin_kernel_io(0, 10 * PAGE, false, &world.group).unwrap();
    assert!(io.charge_copy(Some(&world.fixture.engine), &world.group));
    file.write(&world.group, 0, &[1; 10 * PAGE as usize], false).unwrap();
    drop(io);
    assert_eq!((world.kept(), file.content().nr_dirty()), (10, 10));
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    file.fsync(false).unwrap();
    assert_eq!((world.kept(), file.content().nr_cached_pages()), (10, 1), "an append needs the last");
    world.read(&file, 0, 10);
    assert_eq!((world.kept(), file.content().nr_cached_pages()), (10, 0));
}

#[test]
fn what_the_kernel_drops_by_itself_is_given_back() {
    let world = World::new(8 << 20);
    let file = world.open("f", 200);
    world.read(&file, 0, 200);
    let punch = umemcg_vfs::FallocateFlags::PUNCH_HOLE | umemcg_vfs::FallocateFlags::KEEP_SIZE;
    file.fallocate(&world.group, punch, PAGE / 2, 10 * PAGE, false).unwrap();
    assert_eq!(world.kept(), 191, "nine whole pages");
    let cut = SetAttr { size: Some(99 * PAGE + 1), ..SetAttr::default() };
    world.fixture.vfs.setattr(&world.fixture.root, file.node(), &cut).unwrap();
    assert_eq!(world.kept(), 91);
    let node = file.node();
    drop(file);
    assert_eq!(world.kept(), 91, "closed files keep their pages");
    world.fixture.vfs.forget(node, u64::MAX);
    assert_eq!(world.kept(), 0, "they went with the inode");
}

#[test]
fn a_change_from_outside_refills_the_cache() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    world.read(&file, 0, 64);
    let path = world.fixture.dir.path().join("f");
    std::fs::write(&path, [9; 100 * PAGE as usize]).unwrap();
    let again = world.reopen("f");
    assert_eq!(again.kernel_caching(false), KernelCaching::Refill);
    assert_eq!(*world.kernel.changed.lock().unwrap(), [file.node()], "the drop tells of this one");
    let is_open = Arc::new(Mutex::new(false));
    let opens = Arc::clone(&is_open);
    again.when_refillable(Box::new(move || *opens.lock().unwrap() = true));
    assert!(!*is_open.lock().unwrap(), "the look at the name has asked for the old pages");
    assert_eq!(world.kernel.obey().len(), 1);
    assert!(*is_open.lock().unwrap());
    assert_eq!((world.kept(), again.kernel_caching(false)), (0, KernelCaching::Keep));
    world.read(&again, 0, 100);
    std::fs::write(&path, [8; 50 * PAGE as usize]).unwrap();
    for nr_asked in [0, 1] {
        world.fixture.vfs.getattr(file.node()).unwrap();
        assert_eq!(world.kernel.drops.lock().unwrap().len(), nr_asked, "the answer comes first");
        world.fixture.vfs.drop_changed(file.node());
        assert_eq!(world.kernel.drops.lock().unwrap().len(), 1, "asked for once");
    }
    assert_eq!(world.reopen("f").kernel_caching(false), KernelCaching::Refill, "it is not done yet");
    world.kernel.obey();
    assert_eq!(world.reopen("f").kernel_caching(false), KernelCaching::Keep);
}

#[test]
fn what_goes_with_a_change_from_outside_is_no_refault() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    world.read(&file, 0, 64);
    std::fs::write(world.fixture.dir.path().join("f"), [9; 65 * PAGE as usize]).unwrap();
    world.fixture.vfs.getattr(file.node()).unwrap();
    world.read(&file, 0, 64);
    world.fixture.vfs.drop_changed(file.node());
    assert_eq!(world.kernel.obey().len(), 1, "also what was read after the change");
    let nr_refaults = || world.group.stat_local(StatItem::WorkingsetRefault);
    world.read(&file, 0, 64);
    assert_eq!(nr_refaults(), 0);
    world.read(&file, 0, 64);
    assert_eq!(nr_refaults(), 63, "the rest of the file may have been left");
}

#[test]
fn an_open_waits_for_the_drop_of_the_latest_change() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    world.read(&file, 0, 64);
    let path = world.fixture.dir.path().join("f");
    let (opens, is_open) = std::sync::mpsc::channel();
    for (nr_pages, byte) in [(10, 1), (20, 2)] {
        std::fs::write(&path, vec![byte; (nr_pages * PAGE) as usize]).unwrap();
        let (again, opens) = (world.reopen("f"), opens.clone());
        assert_eq!(again.kernel_caching(false), KernelCaching::Refill);
        again.when_refillable(Box::new(move || opens.send(nr_pages).unwrap()));
    }
    assert!(is_open.try_recv().is_err());
    assert_eq!(world.kernel.obey().len(), 1, "one after the other");
    assert_eq!(is_open.try_iter().collect::<Vec<_>>(), [10], "the other would read beside its drop");
    assert_eq!(world.kernel.obey().len(), 1);
    assert_eq!(is_open.try_iter().collect::<Vec<_>>(), [20]);
    assert_eq!(world.kernel.changed.lock().unwrap().len(), 1, "by the drops alone");
}

#[test]
fn an_open_waits_for_no_drop_that_was_asked_for_later() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    world.read(&file, 0, 64);
    let (opens, is_open) = std::sync::mpsc::channel();
    file.drop_kernel_pages(0, PAGE, Box::new(|| {}));
    file.when_refillable(Box::new(move || opens.send(()).unwrap()));
    let before = std::mem::take(&mut *world.kernel.drops.lock().unwrap());
    file.drop_kernel_pages(PAGE, PAGE, Box::new(|| {}));
    assert!(is_open.try_recv().is_err());
    before.into_iter().for_each(|drop| drop.task.done(true));
    assert!(is_open.try_recv().is_ok(), "a busy file is asked for again and again");
}

#[test]
fn a_file_that_grew_before_its_first_open_is_read_to_its_end() {
    let world = World::new(8 << 20);
    std::fs::write(world.fixture.dir.path().join("f"), []).unwrap();
    let entry = world.fixture.vfs.lookup(&world.fixture.root, ROOT, name("f")).unwrap();
    assert_eq!(entry.attr.size, 0, "the kernel takes it to be empty from here on");
    let file = world.open("f", 10);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    assert_eq!(*world.kernel.changed.lock().unwrap(), [entry.node]);
    assert_eq!(world.reopen("f").kernel_caching(false), KernelCaching::Keep);
    assert_eq!(world.kernel.changed.lock().unwrap().len(), 1, "it has been told");
}

#[test]
fn all_opens_of_a_file_are_of_one_kind() {
    let world = World::new(2 << 20);
    let small = world.open("f", 1000);
    assert_eq!(small.kernel_caching(false), KernelCaching::Bypass, "it does not fit");
    let root = world.fixture.vfs.open(&world.fixture.root, small.node(), OFlags::RDONLY).unwrap();
    assert_eq!(root.kernel_caching(false), KernelCaching::Bypass, "it is open the other way");
    drop((small, root));
    let entry = world.fixture.vfs.lookup(&world.fixture.root, ROOT, name("f")).unwrap();
    let root = world.fixture.vfs.open(&world.fixture.root, entry.node, OFlags::RDONLY).unwrap();
    assert_eq!(root.kernel_caching(false), KernelCaching::Keep);
    assert_eq!(world.reopen("f").kernel_caching(false), KernelCaching::Keep);
    let flags = OFlags::RDWR | OFlags::CREATE;
    let (_, new) = world.fixture.vfs.create(&world.fixture.root, ROOT, name("new"), 0o644, flags).unwrap();
    assert_eq!(new.kernel_caching(true), KernelCaching::Keep);
}

#[test]
fn a_direct_write_waits_until_the_kernel_has_dropped_its_pages() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    assert!(!file.kernel_may_have(0, PAGE));
    world.read(&file, 0, 64);
    assert!(file.kernel_may_have(10 * PAGE, PAGE) && !file.kernel_may_have(64 * PAGE, PAGE));
    let io = file.begin_kernel_io(64 * PAGE, PAGE, false, &world.group).unwrap();
    assert!(file.kernel_may_have(64 * PAGE, 1), "a read may be bringing it");
    drop(io);
    let is_done = Arc::new(Mutex::new(false));
    let done = Arc::clone(&is_done);
    file.drop_kernel_pages(10 * PAGE, PAGE, Box::new(move || *done.lock().unwrap() = true));
    assert!(!*is_done.lock().unwrap());
    assert_eq!(world.kernel.obey(), [(10, 11)]);
    assert!(*is_done.lock().unwrap());
    assert_eq!(world.kept(), 63);
}

#[test]
fn a_reader_without_room_leaves_the_pages_of_others() {
    let world = World::new(2 << 20);
    let file = world.open("f", 64);
    let other = world.fixture.engine.create_group(world.fixture.engine.root(), "h".as_ref()).unwrap();
    let io = file.begin_kernel_io(0, 60 * PAGE, false, &other).unwrap();
    drop(file.read(&other, 0, (60 * PAGE) as usize).unwrap());
    drop(io);
    let taken = world.fixture.engine.charge(&world.group, (2 << 20) - (8 << 10)).unwrap();
    world.read(&file, 60, 4);
    assert!(world.group.usage_bytes() > 2 << 20);
    assert_eq!(world.kernel.obey(), [(60, 64)]);
    assert_eq!(kept(&other), 60);
    drop(taken);
}

#[test]
fn a_second_open_amid_a_refill_refills_as_well() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    assert_eq!(file.kernel_caching(false), KernelCaching::Keep);
    world.read(&file, 0, 64);
    std::fs::write(world.fixture.dir.path().join("f"), [9; 100 * PAGE as usize]).unwrap();
    let first = world.reopen("f");
    assert_eq!(first.kernel_caching(false), KernelCaching::Refill);
    // The first has not been answered: the kernel has all old pages.
    let second = world.reopen("f");
    assert_eq!(second.kernel_caching(false), KernelCaching::Refill);
    assert_eq!(world.kernel.obey().len(), 1, "one drop is enough for both");
    assert_eq!(world.reopen("f").kernel_caching(false), KernelCaching::Keep);
}

#[test]
fn no_drop_waits_in_the_kernel_for_a_request_that_is_known() {
    let world = World::new(8 << 20);
    let file = world.open("f", 128);
    world.read(&file, 0, 128);
    // Chosen by reclaim before the request came: it stays.
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    let io = file.begin_kernel_io(0, PAGE, false, &world.group).unwrap();
    assert_eq!(world.kernel.obey(), [(64, 128)]);
    assert_eq!(world.kept(), 64);
    // What must go waits for the request, and goes then.
    let is_done = Arc::new(Mutex::new(false));
    let done = Arc::clone(&is_done);
    file.drop_kernel_pages(0, PAGE, Box::new(move || *done.lock().unwrap() = true));
    assert_eq!(world.kernel.obey(), []);
    drop(io);
    let later = file.begin_kernel_io(0, PAGE, false, &world.group).unwrap();
    assert_eq!(world.kernel.obey(), [], "another has come before its turn");
    assert!(!*is_done.lock().unwrap());
    drop(later);
    assert_eq!(world.kernel.obey(), [(0, 1)]);
    assert!(*is_done.lock().unwrap());
}

#[test]
fn a_write_knows_of_reads_beside_it() {
    let world = World::new(8 << 20);
    let file = world.open("f", 64);
    let begin =
        |first: u64, is_write| file.begin_kernel_io(first * PAGE, 2 * PAGE, is_write, &world.group).unwrap();
    let read = begin(0, false);
    let (before, apart) = (begin(1, true), begin(10, true));
    assert!(before.is_crossed() && !apart.is_crossed() && !read.is_crossed());
    drop(begin(11, false));
    assert!(apart.is_crossed(), "also once the read has ended");
}

#[test]
fn a_lister_pays_for_the_names_that_the_kernel_keeps() {
    let world = World::new(8 << 20);
    if !world.fixture.vfs.lists_without_open() {
        return;
    }
    let node = world.directory("d", 1000);
    let (mut position, mut nr) = (0, 0);
    loop {
        let (end, listed) = world.list(node, position, 100);
        if listed == 0 {
            break;
        }
        (position, nr) = (end, nr + listed);
    }
    assert_eq!((nr, world.kept()), (1002, 8), "dot and dot-dot in the rest of the last page");
    world.list(node, 0, 2000);
    assert_eq!(world.kept(), 8, "the same pages again");
    world.group.drain_own_stock();
    assert_eq!(world.group.named_bytes(), world.group.usage_bytes());
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert_eq!(world.kernel.obey(), [(0, 8)]);
    assert_eq!(world.kept(), 0);
    world.list(node, 0, 2000);
    world.fixture.vfs.forget(node, u64::MAX);
    assert_eq!(world.kept(), 0, "the names went with the inode");
    world.group.drain_own_stock();
    assert!(world.group.usage_bytes() < 512, "what is left are the heads of its lists");
}

#[test]
fn two_processes_that_list_share_the_pages() {
    let world = World::new(8 << 20);
    if !world.fixture.vfs.lists_without_open() {
        return;
    }
    let node = world.directory("d", 1000);
    let (mut ahead, mut behind) = ((0, 0), (0, 0));
    for _ in 0..22 {
        ahead = world.list(node, ahead.0, 90);
        behind = world.list(node, behind.0, 50);
    }
    assert_eq!((ahead.1, behind.1, world.kept()), (0, 0, 8));
    // The kernel keeps the names that follow those it has, wherever that is in the host's order.
    world.list(node, 0, 2000);
    let unknown = world.list(node, 0, 7).0;
    (0..9).fold(0, |position, _| world.list(node, position, 100).0);
    world.list(node, unknown, 100);
    assert_eq!(world.kept(), 9, "of which the kernel may have put the last beyond the end");
}

#[test]
fn a_listing_under_way_is_charged_though_the_inode_goes() {
    let world = World::new(8 << 20);
    if !world.fixture.vfs.lists_without_open() {
        return;
    }
    let node = world.directory("d", 200);
    let dir = world.fixture.vfs.directory_for_request(node).unwrap();
    let (io, mut part) = dir.begin_kernel_io(0, &world.group).unwrap();
    (1..200).for_each(|position| part.push(position, 8));
    io.listed(&part);
    world.fixture.vfs.forget(node, u64::MAX);
    drop(io);
    assert_eq!(world.kept(), 0, "what the answer has left, the kernel is to drop");
    assert_eq!(world.kernel.drops.lock().unwrap().len(), 1);
    drop(dir);
    world.kernel.obey();
    world.group.drain_own_stock();
    assert!(world.group.usage_bytes() < 256, "what is left is the head of its list");
}

#[test]
fn two_requests_may_list_a_directory_for_the_first_time() {
    let world = World::new(8 << 20);
    if !world.fixture.vfs.lists_without_open() {
        return;
    }
    for nr in 0..500 {
        let node = world.directory(&format!("d{nr}"), 1);
        let both = std::sync::Barrier::new(2);
        let begin = || {
            let dir = world.fixture.vfs.directory_for_request(node).unwrap();
            both.wait();
            drop(dir.begin_kernel_io(0, &world.group).unwrap());
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(begin);
            begin();
            other.join().unwrap();
        });
    }
}

#[test]
fn pages_that_are_missing_in_the_kernel_are_given_back() {
    let world = World::new(8 << 20);
    let file = world.open("f", 200);
    world.read(&file, 0, 200);
    let mut place = 0;
    let mut windows = world.kernel.windows(&mut place, 3);
    assert_ne!(place, 0);
    windows.extend(world.kernel.windows(&mut place, 3));
    assert_eq!((windows.len(), place), (4, 0), "the last round begins anew");
    windows.sort_by_key(|window| window.runs[0].start);
    assert_eq!(windows[3].runs[0], 192..200);
    assert!(note_missing(&windows[0], 10..20) && note_missing(&windows[3], 192..200));
    assert_eq!(world.kept(), 182);
    let left = world.kernel.windows(&mut place, 9);
    assert_eq!(left.iter().map(|window| window.runs.len()).sum::<usize>(), 4, "around the gap, and two");
    world.group.drain_own_stock();
    assert_eq!(world.group.named_bytes(), world.group.usage_bytes());
}

#[test]
fn a_page_that_comes_back_amid_a_comparison_stays_charged() {
    let world = World::new(8 << 20);
    let file = world.open("f", 192);
    world.read(&file, 0, 192);
    let mut windows = world.kernel.windows(&mut 0, 9);
    windows.sort_by_key(|window| window.runs[0].start);
    // One has come back, one is on its way, one was asked for.
    world.read(&file, 5, 1);
    let io = file.begin_kernel_io(64 * PAGE, PAGE, false, &world.group).unwrap();
    world.fixture.engine.reclaim(&world.group, 4 << 20).ok();
    assert!(!windows.iter().any(|window| note_missing(window, window.runs[0].clone())));
    assert_eq!(world.kept(), 192);
    assert!(world.kernel.windows(&mut 0, 9).is_empty(), "asked for, or busy");
    drop(io);
    world.kernel.obey();
    assert_eq!(world.kept(), 64, "the page that a request brought");
}
