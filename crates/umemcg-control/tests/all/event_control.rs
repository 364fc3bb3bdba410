//! Events asked for through `cgroup.event_control`, by processes whose descriptors are numbers in a
//! table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Fixture, MIB, WRITE, fixture, request};
use rustix::io::Errno;
use umemcg_control::{
    ControlError, Credentials, DescriptorError, Descriptors, EventSink, NodeId, Request, SetAttr,
};

const LONG: Duration = Duration::from_secs(30);

/// An eventfd.
#[derive(Debug, Default)]
struct Counter {
    nr_events: AtomicU64,
    is_closed: AtomicBool,
    /// Held by the listener, by the look whether it is open, and by a test that waits for its end.
    is_slow: Mutex<()>,
    /// Calls that wait.
    nr_waiting: AtomicU64,
}

impl Counter {
    fn pass(&self) {
        self.nr_waiting.fetch_add(1, Relaxed);
        drop(self.is_slow.lock().unwrap());
        self.nr_waiting.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
struct Sink(Arc<Counter>);

impl EventSink for Sink {
    fn signal(&self, nr_events: u64) {
        self.0.pass();
        self.0.nr_events.fetch_add(nr_events, Relaxed);
    }
    fn is_open(&self) -> bool {
        self.0.pass();
        !self.0.is_closed.load(Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.0.pass();
    }
}

/// Descriptors of all threads alike: eventfds, and open control files.
#[derive(Debug, Default)]
struct Open {
    eventfds: Mutex<HashMap<u32, Arc<Counter>>>,
    files: Mutex<HashMap<u32, NodeId>>,
}

impl Descriptors for Open {
    fn eventfd(&self, _tid: u32, fd: u32) -> Result<Box<dyn EventSink>, DescriptorError> {
        if self.files.lock().unwrap().contains_key(&fd) {
            return Err(DescriptorError::WrongKind);
        }
        let counter = self.eventfds.lock().unwrap().get(&fd).cloned().ok_or(DescriptorError::NotOpen)?;
        Ok(Box::new(Sink(counter)))
    }
    fn control_file(&self, _tid: u32, fd: u32) -> Result<NodeId, DescriptorError> {
        if self.eventfds.lock().unwrap().contains_key(&fd) {
            return Err(DescriptorError::WrongKind);
        }
        self.files.lock().unwrap().get(&fd).copied().ok_or(DescriptorError::NotOpen)
    }
}

struct World {
    f: Fixture,
    open: Open,
}

impl World {
    fn new() -> Self {
        let f = fixture();
        f.mkdir("g").unwrap();
        f.mkdir("g/below").unwrap();
        Self { f, open: Open::default() }
    }

    fn eventfd(&self, fd: u32) -> Arc<Counter> {
        let counter = Arc::<Counter>::default();
        self.open.eventfds.lock().unwrap().insert(fd, Arc::clone(&counter));
        counter
    }

    /// Opens a control file under a number.
    fn open(&self, fd: u32, path: &str) {
        self.open.files.lock().unwrap().insert(fd, self.f.node(path).unwrap());
    }

    fn register_as(&self, group: &str, text: &str, caller: &Credentials) -> Result<(), ControlError> {
        let file = self.f.open_as(&format!("{group}/cgroup.event_control"), WRITE, caller)?;
        let request = Request { descriptors: &self.open, ..request(1) };
        self.f.tree.write(&file, text.as_bytes(), &request)
    }

    /// Registers for events of `g`, as a user in the group `tenant`.
    fn register_from(&self, tenant: &str, user: u32) -> Result<(), ControlError> {
        let (node, payer) = (self.f.node("g/cgroup.event_control")?, self.f.group(tenant));
        let file = self.f.tree.open_for(node, WRITE, Credentials::user(user, user), Some(&payer))?;
        let request = Request { descriptors: &self.open, ..request(1) };
        self.f.tree.write(&file, b"5 7 1M", &request)
    }

    fn register(&self, group: &str, text: &str) -> Result<(), ControlError> {
        self.register_as(group, text, &Credentials::ROOT)
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until_events(counter: &Counter, nr: u64) {
    until("events come", || counter.nr_events.load(Relaxed) >= nr);
    assert_eq!(counter.nr_events.load(Relaxed), nr);
}

#[test]
fn a_threshold_is_told_both_ways_and_of_a_short_rise() {
    let world = World::new();
    let counter = world.eventfd(5);
    let never = world.eventfd(6);
    world.open(7, "g/memory.usage_in_bytes");
    world.register("g", "5 7 10M").unwrap();
    world.register("g", "6 7 -1").unwrap();
    let group = world.f.group("g");
    let charge = world.f.engine.charge(&group, 12 * MIB).unwrap();
    until_events(&counter, 1);
    drop(charge);
    group.drain_stocks();
    until_events(&counter, 2);
    // Whichever look comes in between, it makes two.
    drop(world.f.engine.charge(&group, 12 * MIB).unwrap());
    group.drain_stocks();
    until_events(&counter, 4);
    drop(world.f.engine.charge(&group, 4 * MIB).unwrap());
    assert_eq!((counter.nr_events.load(Relaxed), never.nr_events.load(Relaxed)), (4, 0));
}

#[test]
fn watching_a_peak_changes_it_for_no_other_reader() {
    let world = World::new();
    let counter = world.eventfd(5);
    world.open(7, "g/memory.usage_in_bytes");
    world.register("g", "5 7 2M").unwrap();
    let group = world.f.group("g");
    drop(world.f.engine.charge(&group, 20 * MIB).unwrap());
    group.drain_stocks();
    until_events(&counter, 2);
    drop(world.f.engine.charge(&group, 3 * MIB).unwrap());
    group.drain_stocks();
    until_events(&counter, 4);
    let peak: u64 = world.f.read("g/memory.peak").unwrap().trim().parse().unwrap();
    assert!((20 * MIB..22 * MIB).contains(&peak), "{peak}");
    assert_eq!(world.f.read("g/memory.max_usage_in_bytes").unwrap().trim(), peak.to_string());
}

#[test]
fn a_failed_charge_is_an_event_of_its_group_and_those_below() {
    let world = World::new();
    let [here, below, beside] = [5, 6, 8].map(|fd| world.eventfd(fd));
    world.f.mkdir("beside").unwrap();
    for (fd, group, eventfd) in [(20, "g", 5), (21, "g/below", 6), (22, "beside", 8)] {
        world.open(fd, &format!("{group}/memory.oom_control"));
        world.register(group, &format!("{eventfd} {fd}")).unwrap();
    }
    world.f.write("g/memory.max", "1m").unwrap();
    assert!(world.f.engine.charge(&world.f.group("g/below"), 2 * MIB).is_err());
    until_events(&here, 1);
    until_events(&below, 1);
    assert_eq!(beside.nr_events.load(Relaxed), 0);
}

#[test]
fn a_level_goes_to_the_nearest_listener_unless_it_asks_for_more() {
    let world = World::new();
    let near = world.eventfd(1);
    let far = world.eventfd(2);
    let always = world.eventfd(3);
    let own = world.eventfd(4);
    world.open(20, "g/memory.pressure_level");
    world.open(21, "g/below/memory.pressure_level");
    world.register("g/below", "1 21 medium").unwrap();
    world.register("g", "2 20 low").unwrap();
    world.register("g", "3 20 critical,hierarchy").unwrap();
    world.register("g", "4 20 low,local").unwrap();
    // Nothing can be freed: the last priorities are reached, which is critical.
    let below = world.f.group("g/below");
    let held = world.f.engine.charge(&below, MIB / 2).unwrap();
    world.f.write("g/below/memory.max", "1m").unwrap();
    assert!(world.f.engine.charge(&below, MIB).is_err());
    until("the nearest is told", || near.nr_events.load(Relaxed) > 0);
    until("and the listener that wants all", || always.nr_events.load(Relaxed) > 0);
    assert_eq!((far.nr_events.load(Relaxed), own.nr_events.load(Relaxed)), (0, 0));
    drop(held);
}

#[test]
fn a_closed_eventfd_gets_no_events_and_removal_is_the_last() {
    let world = World::new();
    let [closed, left] = [5, 6].map(|fd| world.eventfd(fd));
    world.open(7, "g/below/memory.usage_in_bytes");
    world.register("g/below", "5 7 1M").unwrap();
    world.register("g/below", "6 7 1G").unwrap();
    closed.is_closed.store(true, Relaxed);
    until("it is let go of", || Arc::strong_count(&closed) == 2);
    world.f.rmdir("g/below").unwrap();
    until_events(&left, 1);
    until("it is let go of", || Arc::strong_count(&left) == 2);
    assert_eq!(closed.nr_events.load(Relaxed), 0);
}

#[test]
fn a_slow_eventfd_holds_up_no_registration_and_no_removal() {
    let world = World::new();
    let [slow, other] = [5, 6].map(|fd| world.eventfd(fd));
    world.f.mkdir("other").unwrap();
    world.open(7, "g/below/memory.usage_in_bytes");
    world.open(8, "other/memory.usage_in_bytes");
    world.register("g/below", "5 7 1M").unwrap();
    world.register("other", "6 8 1M").unwrap();
    {
        // First the look whether it is open: events come in spite of it.
        let _slow = slow.is_slow.lock().unwrap();
        until("a write waits", || slow.nr_waiting.load(Relaxed) > 0);
        drop(world.f.engine.charge(&world.f.group("other"), 2 * MIB).unwrap());
        world.f.group("other").drain_stocks();
        until_events(&other, 2);
        // Then its last event as well.
        world.f.rmdir("g/below").unwrap();
        until("both wait", || slow.nr_waiting.load(Relaxed) == 2);
        world.register("other", "6 8 2M").unwrap();
        world.f.rmdir("other").unwrap();
        world.f.mkdir("other").unwrap();
        assert_eq!(slow.nr_waiting.load(Relaxed), 2);
    }
    until_events(&slow, 1);
    until_events(&other, 4);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_kernels_errors() {
    let world = World::new();
    world.eventfd(5);
    for (fd, path) in
        [(7, "g/memory.usage_in_bytes"), (8, "memory.usage_in_bytes"), (9, "g/memory.stat"), (10, "g")]
    {
        world.open(fd, path);
    }
    world.open(11, "g/memory.pressure_level");
    world.open(12, "g/memory.memsw.usage_in_bytes");
    use ControlError::{BadDescriptor, Denied, Invalid};
    for (text, error) in [
        ("", Invalid),
        ("5", Invalid),
        ("5  7 1M", BadDescriptor),
        ("5 7  1M", Invalid),
        ("5 7 x", Invalid),
        ("5 12 x", Invalid),
        ("7 7 1M", Invalid),
        ("5 5 1M", Invalid),
        ("5 8 1M", Invalid),
        ("5 9 1M", Invalid),
        ("5 10 1M", Invalid),
        ("5 11 lots", Invalid),
        ("5 11", Invalid),
        ("99 7 1M", BadDescriptor),
        ("5 99 1M", BadDescriptor),
        ("99 99 1M", BadDescriptor),
    ] {
        assert_eq!(world.register("g", text), Err(error), "{text:?}");
    }
    assert_eq!(world.register("g", "5 7"), Ok(()), "no threshold is one of 0, as in the kernel");
    assert_eq!(world.register("g", "5 12 1M"), Ok(()), "of memory and swap, of which there is none");
    let stranger = Credentials { uid: 1000, gid: 1000, supplementary: Vec::new() };
    assert_eq!(world.register_as("g", "5 7 1M", &stranger), Err(Denied));
    assert_eq!(world.f.write("g/cgroup.event_control", "5 7 1M"), Err(BadDescriptor));
}

#[test]
fn no_tenant_takes_all_that_may_listen_nor_do_all_of_them() {
    let world = World::new();
    let counter = world.eventfd(5);
    world.open(7, "g/memory.usage_in_bytes");
    let set = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    let file = world.f.node("g/cgroup.event_control").unwrap();
    world.f.tree.set_attr(file, set, &Credentials::ROOT).unwrap();
    ["greedy", "other"].iter().for_each(|tenant| world.f.mkdir(tenant).unwrap());
    let register_all =
        |tenant: &str, user: u32| (0..).take_while(|_| world.register_from(tenant, user).is_ok()).count();
    let of_many: usize = (1000..1015).map(|user| register_all("greedy", user)).sum();
    assert_eq!((of_many, register_all("other", 1000)), (448, 224));
    assert_eq!(world.register_from("other", 1000), Err(ControlError::System(Errno::MFILE)));
    for _ in 448 + 224..1024 {
        world.register("g", "5 7 1M").unwrap();
    }
    assert_eq!(world.register("g", "5 7 1M"), Err(ControlError::System(Errno::NFILE)));
    world.f.rmdir("g/below").unwrap();
    world.f.rmdir("g").unwrap();
    until_events(&counter, 1024);
    world.f.mkdir("g").unwrap();
    world.open(7, "g/memory.usage_in_bytes");
    assert_eq!(world.register("g", "5 7 1M"), Ok(()), "their places are free again");
}

#[test]
fn oom_control_takes_its_switch_and_shows_no_kill() {
    let world = World::new();
    let f = &world.f;
    assert_eq!(f.read("g/memory.oom_control").unwrap(), "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    f.write("g/memory.oom_control", "1\n").unwrap();
    assert!(f.read("g/memory.oom_control").unwrap().starts_with("oom_kill_disable 1\n"));
    for (path, text) in
        [("g/memory.oom_control", "2"), ("g/memory.oom_control", ""), ("memory.oom_control", "0")]
    {
        assert_eq!(f.write(path, text), Err(ControlError::Invalid), "{path} {text}");
    }
}

/// Their thread may then be the one that ends the engine, and does so with no lock held.
#[test]
fn an_engine_may_end_while_its_listeners_are_looked_at() {
    for _ in 0..300 {
        let world = World::new();
        let counter = world.eventfd(5);
        world.open(7, "g/below/memory.usage_in_bytes");
        world.register("g/below", "5 7 10M").unwrap();
        world.f.rmdir("g/below").unwrap();
        // From here on the thread is about to look whether there still is an engine.
        let start = Instant::now();
        while counter.nr_events.load(Relaxed) == 0 {
            assert!(start.elapsed() < LONG, "the removal is not told");
        }
    }
}
