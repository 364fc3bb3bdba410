//! The order of starting requests.

use super::*;

const PLACES: PoolLimits = PoolLimits {
    readers_min: 1,
    readers_max: 2,
    running_max: 64,
    all_max: 256,
    computing_max: 200,
    spare_life: Duration::from_secs(10),
};

#[derive(Debug, PartialEq, Eq)]
struct Job(u32);

impl Waiting for Job {
    fn is_finished(&self) -> bool {
        self.0 == u32::MAX
    }
}

/// Starts a request of a tenant itself, or lets it wait.
fn try_start(queue: &mut Queue<Job>, group: u64, store: u64, job: u32) -> Option<Started> {
    try_start_at(queue, Keys::single(group, store), job)
}

/// The same, of any group.
fn try_start_at(queue: &mut Queue<Job>, keys: Keys, job: u32) -> Option<Started> {
    let may_start = queue.may_start(keys);
    if !may_start {
        queue.push(keys, Job(job));
    }
    may_start.then(|| queue.started(keys))
}

/// Returns whether it was started; else it waits.
fn ask(queue: &mut Queue<Job>, group: u64, store: u64, job: u32) -> bool {
    try_start(queue, group, store, job).is_some()
}

/// Ends one request of this pair, whichever.
fn finish_one(queue: &mut Queue<Job>, group: u64, store: u64) {
    let run = queue.computing.begin();
    queue.finished(&Started { keys: Keys::single(group, store), run });
}

/// Finishes a request and starts the next, until none waits. Returns the order of the starts.
fn run_out(queue: &mut Queue<Job>, first: Started) -> Vec<u32> {
    let mut order = Vec::new();
    let mut started = first;
    loop {
        queue.finished(&started);
        let Some((next, Job(job))) = queue.pick() else { return order };
        order.push(job);
        started = next;
    }
}

#[test]
fn one_group_on_one_store_has_a_quarter_of_the_places() {
    let mut queue = Queue::new(PLACES);
    let started = (0..100).filter(|&n| ask(&mut queue, 1, 7, n)).count();
    assert_eq!((started, queue.len()), (16, 84));
}

#[test]
fn groups_that_want_one_store_share_what_it_may_have() {
    let mut queue = Queue::new(PLACES);
    for n in 0..100 {
        ask(&mut queue, 1, 7, n);
    }
    // A neighbour's requests start although the first group's wait, several of them.
    let started = (0..100).filter(|&n| ask(&mut queue, 2, 7, n)).count();
    assert_eq!(started, 10, "a third of the store's 32");
    // A group with more than a fair part starts nothing until it has less.
    for _ in 0..6 {
        finish_one(&mut queue, 1, 7);
        assert_eq!(queue.pick(), None);
    }
    finish_one(&mut queue, 1, 7);
    assert_eq!(queue.pick().map(|(started, _)| started.keys.path.tenant()), Some(1));
    assert!(ask(&mut queue, 3, 7, 0), "and there is room for the next one");
}

#[test]
fn stores_that_hang_keep_no_other_pair_from_its_first_request() {
    let mut queue = Queue::new(PLACES);
    for hanging in 0..50 {
        for n in 0..100 {
            ask(&mut queue, hanging % 10, hanging, n);
        }
    }
    assert!(queue.nr_running() >= 64, "{}", queue.nr_running());
    assert!(ask(&mut queue, 1000, 1000, 0));
    assert!(ask(&mut queue, 1000, 0, 0), "also on a store that others hang on");
    assert!(ask(&mut queue, 1001, 1000, 0));
}

#[test]
fn a_pair_with_nothing_running_starts_wherever_it_is_listed() {
    let mut queue = Queue::new(PLACES);
    for n in 0..40 {
        ask(&mut queue, 1, 7, n);
    }
    for n in 0..40 {
        ask(&mut queue, 2, 7, 100 + n);
    }
    assert_eq!(queue.pick(), None, "all that waits is blocked");
    // With this many others on the store, the part of each is one.
    for group in 3..30 {
        ask(&mut queue, group, 7, 0);
    }
    for nr_left in (0..10).rev() {
        finish_one(&mut queue, 2, 7);
        let picked = queue.pick();
        assert_eq!(picked.is_some(), nr_left == 0, "{nr_left}: {picked:?}");
    }
}

#[test]
fn what_waits_starts_in_order_and_pairs_take_turns() {
    let mut queue = Queue::new(PoolLimits { running_max: 2, all_max: 2, ..PLACES });
    let first = try_start(&mut queue, 1, 1, 0).unwrap();
    for job in 1..4 {
        assert!(!ask(&mut queue, 1, 1, job));
    }
    for job in 10..12 {
        assert!(!ask(&mut queue, 2, 1, job));
    }
    assert_eq!(run_out(&mut queue, first), [1, 10, 2, 11, 3]);
    assert_eq!((queue.len(), queue.nr_running()), (0, 0));
}

#[test]
fn groups_of_a_tenant_share_what_one_has() {
    let mut queue = Queue::new(PLACES);
    let mut running = Vec::new();
    for round in 0..3 {
        for nr in 0..100 {
            let keys = Keys { path: GroupPath::new(&[1, 100 + nr]), store: 7 };
            match queue.may_start(keys) {
                true => running.push(queue.started(keys)),
                false => assert!(queue.push(keys, Job(round)).is_empty()),
            }
        }
    }
    assert_eq!(running.len(), 16, "as one group");
    let mut turns = std::collections::HashSet::new();
    for _ in 0..100 {
        queue.finished(&running.remove(0));
        let (started, _) = queue.pick().unwrap();
        assert!(turns.insert(started.keys.path), "a second turn before all had one");
        running.push(started);
    }
    assert!(ask(&mut queue, 2, 7, 0), "another tenant starts although these wait");
    // They have no more room for waiting requests than one group.
    let nr = (0..u32::MAX).take_while(|nr| {
        let keys = Keys { path: GroupPath::new(&[3, 1000 + u64::from(nr % 100)]), store: 9 };
        let may = queue.may_wait(keys);
        may && queue.park(keys, false)
    });
    assert!(nr.count() <= NR_WAITING_MAX / 2);
}

#[test]
fn a_group_that_hangs_leaves_a_place_to_the_next_one() {
    let mut queue = Queue::new(PLACES);
    let of = |group| Keys { path: GroupPath::new(&[1, group]), store: 7 };
    let start = |queue: &mut Queue<Job>, group, job| try_start_at(queue, of(group), job);
    let hanging: Vec<_> = (0..100).filter_map(|job| start(&mut queue, 10, job)).collect();
    assert_eq!(hanging.len(), 15, "a quarter of 64 but one");
    assert!(queue.pick().is_none());
    assert!(start(&mut queue, 11, 200).is_none(), "it overtakes none");
    let (second, job) = queue.pick().unwrap();
    assert_eq!((second.keys, job), (of(11), Job(200)));
    assert!(start(&mut queue, 12, 300).is_none() && queue.pick().is_none(), "the place is taken");
    queue.finished(&second);
    let (third, job) = queue.pick().unwrap();
    assert_eq!((third.keys, job), (of(12), Job(300)));
    // The tenant's own are not among them.
    hanging.iter().for_each(|hanging| queue.finished(hanging));
    assert_eq!(queue.pick().unwrap().0.keys, of(10));
}

#[test]
fn groups_that_go_on_share_places_and_the_first_needs_none() {
    let mut queue = Queue::new(PLACES);
    let going_on =
        |tenant: u64, nr: u64| Keys { path: GroupPath::new(&[tenant, 100 + nr]), store: 7 }.to_go_on();
    let nr_started = (0..2000).filter(|&nr| try_start_at(&mut queue, going_on(1, nr), 0).is_some()).count();
    assert_eq!(nr_started, PLACES.running_max / 2);
    assert!(queue.tenants.is_empty() && queue.stores.is_empty(), "they take no part from others");
    let nr_others = (10..).take_while(|&n| ask(&mut queue, n, n, 0)).count();
    assert_eq!(nr_started + nr_others, PLACES.all_max);
    // All of them may wait for a page or a claim of another tenant's.
    let first = try_start_at(&mut queue, going_on(2, 0), 1000).unwrap();
    for nr in 1..100 {
        assert!(try_start_at(&mut queue, going_on(2, nr), 1000 + nr as u32).is_none());
    }
    assert_eq!(run_out(&mut queue, first), (1001..1100).collect::<Vec<u32>>(), "one after the other");
}

#[test]
fn killed_requests_do_not_pile_up_and_can_be_swept() {
    let mut queue = Queue::new(PLACES);
    for n in 0..16 {
        ask(&mut queue, 1, 1, n);
    }
    for _ in 0..10_000 {
        assert!(!ask(&mut queue, 1, 1, u32::MAX));
    }
    assert!(queue.len() <= SWEEP_LEN_MIN);
    ask(&mut queue, 1, 1, 7);
    assert!(queue.sweep().iter().all(|job| job.0 == u32::MAX));
    assert_eq!(queue.len(), 1);
}

#[test]
fn of_what_may_wait_no_group_takes_all() {
    let mut queue = Queue::new(PLACES);
    let mut nr = [0; 3];
    for group in 0..3 {
        let keys = Keys::single(group, 1);
        while queue.may_wait(keys) {
            queue.push(keys, Job(0));
            nr[group as usize] += 1;
        }
    }
    assert_eq!(nr, [NR_WAITING_MAX / 2, NR_WAITING_MAX / 4, NR_WAITING_MAX / 8]);
}

#[test]
fn whatever_comes_and_goes_nothing_stays_that_could_start() {
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut queue = Queue::new(PoolLimits { running_max: 8, all_max: 16, computing_max: 6, ..PLACES });
    let mut running = Vec::new();
    for round in 0..50_000 {
        if next(5) < 3 && queue.len() < 200 {
            let levels = [next(6), 10 + next(3), 20 + next(2)];
            let keys = Keys { path: GroupPath::new(&levels[..1 + next(3) as usize]), store: next(6) };
            let job = if next(9) == 0 { u32::MAX } else { round };
            running.extend(try_start_at(&mut queue, keys, job));
        } else if next(200) == 0 {
            assert!(queue.sweep().iter().all(Job::is_finished));
        } else if !running.is_empty() {
            let at = next(running.len() as u64) as usize;
            queue.finished(&running.swap_remove(at));
            while let Some((started, _)) = queue.pick() {
                running.push(started);
            }
            let could: Vec<PairKeys> = queue
                .pairs
                .iter()
                .filter(|(_, pair)| !pair.waiting.is_empty())
                .map(|(&keys, _)| keys)
                .collect();
            for keys in could {
                let is_stopped = queue.obstacle(keys).is_some() || !queue.has_for_last(keys);
                assert!(is_stopped, "round {round}: {keys:?} could start");
            }
        }
        assert_eq!(queue.nr_running(), running.len());
    }
    while let Some(started) = running.pop() {
        queue.finished(&started);
        while let Some((started, _)) = queue.pick() {
            running.push(started);
        }
    }
    assert_eq!((queue.len(), queue.nr_running(), queue.tenants.len(), queue.stores.len()), (0, 0, 0, 0));
    assert_eq!((queue.computing.room(), queue.waits.nr()), (6, 0));
    // Pairs with all requests swept stay listed until the next look.
    assert!(!queue.may_pick() && queue.find().is_none());
    assert_eq!((queue.pairs.len(), queue.blocked.len()), (0, 0));
}

#[test]
fn further_requests_wait_for_a_processor_and_first_ones_do_not() {
    let mut queue = Queue::new(PoolLimits { computing_max: 3, ..PLACES });
    let mut running: Vec<Started> = (0..8).filter_map(|n| try_start(&mut queue, 1, 7, n)).collect();
    assert_eq!((running.len(), queue.len()), (3, 5));
    assert!(queue.pick().is_none() && queue.blocked.contains_key(&Obstacle::Processors));
    assert!(ask(&mut queue, 2, 7, 0), "the first of its pair");
    assert!(!ask(&mut queue, 2, 7, 1));
    // Two requests of the first group wait for their store: one processor too many was in use, one
    // has become free.
    for started in &mut running[..2] {
        started.run = queue.waits(started.run, Wait::Sure);
    }
    let (next, _) = queue.pick().unwrap();
    assert_eq!(next.keys.path.tenant(), 2);
    assert!(queue.pick().is_none());
    // The other group's turn.
    queue.finished(&next);
    assert_eq!(queue.pick().unwrap().0.keys.path.tenant(), 1);
}

#[test]
fn a_store_gets_as_many_requests_as_places_allow() {
    let mut queue = Queue::new(PoolLimits { computing_max: 1, ..PLACES });
    let mut nr = 0;
    for n in 0..100 {
        if let Some(started) = try_start(&mut queue, 1, 7, n) {
            queue.waits(started.run, Wait::Sure);
            nr += 1;
        }
    }
    assert_eq!(nr, 21, "a third of 64: a quarter of what there is with its own");
}

#[test]
fn what_sleeps_takes_no_place_from_others() {
    let mut queue = Queue::new(PLACES);
    let nr_started = |queue: &mut Queue<Job>, group, store, sleeps: bool| {
        let start = |n| {
            let started = try_start(queue, group, store, n)?;
            Some(if sleeps { queue.waits(started.run, Wait::Sure) } else { started.run })
        };
        (0..100).filter_map(start).collect::<Vec<Run>>()
    };
    assert_eq!(nr_started(&mut queue, 1, 7, false).len(), 16);
    let mut busy = Queue::new(PLACES);
    // Two groups with hanging stores take nothing from a third one.
    for (group, store) in [(2, 8), (3, 9)] {
        assert!(nr_started(&mut busy, group, store, true).len() > 10);
    }
    let nr_of_third = nr_started(&mut busy, 1, 7, false).len();
    assert!(nr_of_third >= 8, "a quarter of a quarter of 64 and of all that sleep: {nr_of_third}");
    assert!(busy.nr_running() - nr_of_third == busy.nr_asleep);
}

#[test]
fn groups_on_many_stores_that_hang_leave_room_for_the_next() {
    let mut queue = Queue::new(PLACES);
    let mut nr_of = [0; 6];
    for (group, nr) in nr_of.iter_mut().enumerate() {
        for store in 0..1000 {
            *nr += usize::from(ask(&mut queue, group as u64, store, 0));
        }
    }
    assert_eq!(nr_of, [128, 64, 32, 16, 8, 4]);
}
