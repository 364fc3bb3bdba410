//! Reads that a store begins and ends later: what the reader gets, whatever the store does and
//! whatever happens beside them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::late_store::{Answer, Answerer, LateStore};
use crate::common::steps::{Steps, Wanted, read_in_steps};
use crate::common::{Pool, group, pattern, pool, read_all};
use umemcg_cache::overrun::OVERRUN_PAGES_PER_REQUEST;
use umemcg_cache::{File, FileError, ReadStep, Readahead};
use umemcg_group::{Group, StatItem};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(60);

struct Ground {
    pool: Arc<Pool>,
    tenant: Arc<Group>,
    answerer: Arc<Answerer>,
    store: Arc<LateStore>,
    file: Arc<File>,
    data: Vec<u8>,
}

impl Ground {
    /// A file of this length, and a group with this limit.
    fn new(len: usize, limit: u64) -> Self {
        let pool = pool(64 << 20);
        let tenant = group(&pool, "t", limit);
        let (answerer, data) = (Answerer::start(), pattern(7, 0, len));
        let store = LateStore::with(data.clone(), &answerer);
        let file = pool.open_file(store.clone(), len as u64).unwrap();
        Self { pool, tenant, answerer, store, file, data }
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, FileError> {
        read_in_steps(&self.file, &self.tenant, offset as u64, len)
    }

    fn begin(&self, ranges: impl IntoIterator<Item = (usize, usize)>) -> Steps {
        let wanted = |(offset, len)| Wanted::new(&self.file, &self.tenant, offset as u64, len);
        Steps::begin(ranges.into_iter().map(wanted).collect())
    }

    /// Waits until nothing is left of what was in flight.
    fn check_end(&self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.pool.drop_caches();
            self.tenant.drain_stocks();
            let (nr_pages, usage) = (self.file.nr_cached_pages(), self.tenant.usage_bytes());
            if nr_pages == 0 && usage < 64 << 10 {
                return;
            }
            assert!(Instant::now() < deadline, "{nr_pages} pages are left, {usage} bytes charged");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

#[test]
fn what_the_store_delivers_is_read_in_whatever_pieces() {
    for how in [Answer::Whole, Answer::Pieces, Answer::TooMuch, Answer::Immediately] {
        let ground = Ground::new(MIB + 123, 32 << 20);
        *ground.store.answer.lock() = how;
        for (offset, len) in [(5 * PAGE + 7, 3 * PAGE), (MIB, PAGE), (0, 2 * MIB), (2 * MIB, 1)] {
            let end = ground.data.len().min(offset + len);
            let expected = &ground.data[offset.min(end)..end];
            assert!(ground.read(offset, len).unwrap() == expected, "{how:?} {offset} {len}");
        }
        assert!(read_all(&ground.file, &ground.tenant) == ground.data);
        assert_eq!(ground.store.nr_blocking_reads.load(Ordering::Relaxed), 0);
        ground.check_end();
    }
}

#[test]
fn a_long_read_is_begun_in_parts_side_by_side() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "t", 32 << 20);
    let answerer = Answerer::start();
    answerer.hold();
    let bytes = pattern(1, 0, 5 << 20);
    let store = LateStore::with(bytes.clone(), &answerer);
    let file = pool.open_file(store, bytes.len() as u64).unwrap();
    let steps = Steps::begin(vec![Wanted::new(&file, &tenant, 0, bytes.len())]);
    assert_eq!(answerer.nr_begun(), 3, "of 2 MiB each at most");
    answerer.release();
    assert!(steps.finish().pop().unwrap().unwrap() == bytes);
}

#[test]
fn a_read_that_fails_tells_it_and_leaves_nothing() {
    for how in [Answer::Fail, Answer::Panic, Answer::Drop, Answer::PanicAtOnce] {
        let ground = Ground::new(MIB, 32 << 20);
        *ground.store.answer.lock() = how;
        let result = ground.read(3 * PAGE, 2 * PAGE);
        assert!(matches!(result, Err(FileError::Store(_))), "{how:?}: {result:?}");
        assert_eq!(ground.file.nr_cached_pages(), 0);
        *ground.store.answer.lock() = Answer::Whole;
        assert!(ground.read(3 * PAGE, 2 * PAGE).unwrap() == ground.data[3 * PAGE..5 * PAGE]);
        ground.check_end();
    }
}

#[test]
fn what_a_store_does_not_have_reads_as_zeroes() {
    let ground = Ground::new(MIB, 32 << 20);
    *ground.store.answer.lock() = Answer::Short;
    let mut expected = ground.data[..1000].to_vec();
    expected.resize(2 * PAGE, 0);
    assert!(ground.read(0, 2 * PAGE).unwrap() == expected);
}

#[test]
fn a_bad_place_ends_a_read_before_it() {
    let ground = Ground::new(MIB, 32 << 20);
    *ground.store.bad.lock() = (9 * PAGE) as u64..(9 * PAGE + 1) as u64;
    assert!(ground.read(4 * PAGE, 16 * PAGE).unwrap() == ground.data[4 * PAGE..9 * PAGE]);
    assert!(matches!(ground.read(9 * PAGE, PAGE), Err(FileError::Store(_))));
    // It lies in the window that is read ahead.
    assert!(ground.read(0, PAGE).unwrap() == ground.data[..PAGE]);
    ground.check_end();
}

#[test]
fn a_store_that_does_not_answer_is_asked_once() {
    const NR: usize = 512;
    let ground = Ground::new(2 * NR * PAGE, 64 << 20);
    let nr_asked = |offset, len| {
        let nr_before = ground.answerer.nr_begun();
        let steps = ground.begin([(offset, len)]);
        let nr_at_once = ground.answerer.nr_begun() - nr_before;
        ground.answerer.release();
        let result = steps.finish().remove(0);
        assert!(matches!(result, Err(FileError::Store(_))), "{result:?}");
        ground.answerer.hold();
        (nr_at_once, ground.answerer.nr_begun() - nr_before)
    };
    *ground.store.answer.lock() = Answer::Silence;
    ground.answerer.hold();
    assert_eq!(nr_asked(0, PAGE), (1, 1), "with what is read ahead");
    *ground.store.answer.lock() = Answer::Whole;
    ground.answerer.release();
    // Every other page is cached, so each of the others is a run.
    ground.begin((0..NR).map(|nr| ((2 * nr + 1) * PAGE, 1))).finish();
    *ground.store.answer.lock() = Answer::Silence;
    ground.answerer.hold();
    let (nr_at_once, nr) = nr_asked(0, 2 * NR * PAGE);
    assert!(nr == nr_at_once && nr < NR, "{nr}, {nr_at_once} at once");
    ground.answerer.release();
    ground.check_end();
}

#[test]
fn readers_of_one_page_share_what_was_begun() {
    let ground = Ground::new(MIB, 32 << 20);
    ground.answerer.hold();
    let steps = ground.begin((0..50).map(|nr| (3 * PAGE + nr, 100)));
    assert_eq!((ground.answerer.nr_begun(), steps.nr_done()), (1, 0));
    ground.answerer.release();
    for (nr, result) in steps.finish().into_iter().enumerate() {
        assert!(result.unwrap() == ground.data[3 * PAGE + nr..3 * PAGE + nr + 100]);
    }
    assert_eq!(ground.answerer.nr_begun(), 1);
    ground.check_end();
}

#[test]
fn a_thread_may_wait_for_what_was_begun() {
    let ground = Ground::new(MIB, 32 << 20);
    ground.answerer.hold();
    let steps = ground.begin([(0, PAGE)]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&ground.file, &ground.tenant));
        let writer = scope.spawn(|| ground.file.write(&ground.tenant, 5, b"new").unwrap());
        ground.answerer.release();
        assert_eq!(reader.join().unwrap().len(), MIB);
        writer.join().unwrap();
    });
    assert_eq!(steps.finish().remove(0).unwrap().len(), PAGE);
    assert_eq!(ground.read(5, 3).unwrap(), b"new");
}

#[test]
fn a_truncation_waits_for_reads_and_they_for_it() {
    let ground = Ground::new(16 * MIB, 32 << 20);
    ground.answerer.hold();
    let mut before = ground.begin([(0, 8 * PAGE), (100 * PAGE, PAGE)]);
    let is_cut = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let truncation = scope.spawn(|| {
            ground.file.set_len(4 * PAGE as u64 + 10).unwrap();
            is_cut.store(true, Ordering::Relaxed);
        });
        // Until no more are begun, since the truncation waits.
        let mut during = Vec::new();
        for page in 120.. {
            assert!(page < 4000, "the truncation keeps out nothing");
            let nr_begun = ground.answerer.nr_begun();
            during.push(ground.begin([(page * PAGE, 10)]));
            if ground.answerer.nr_begun() == nr_begun {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        before.go_on();
        assert_eq!((before.nr_done(), is_cut.load(Ordering::Relaxed)), (0, false));
        assert_eq!(ground.file.len(), 16 * MIB as u64);
        ground.answerer.release();
        truncation.join().unwrap();
        during.into_iter().for_each(|steps| drop(steps.finish()));
    });
    before.finish().into_iter().for_each(|result| assert!(!result.unwrap().is_empty()));
    assert!(read_all(&ground.file, &ground.tenant) == ground.data[..4 * PAGE + 10]);
    ground.file.set_len(MIB as u64).unwrap();
    let bytes = ground.read(0, MIB).unwrap();
    assert!(bytes[..4 * PAGE + 10] == ground.data[..4 * PAGE + 10]);
    assert!(bytes.len() == MIB && bytes[4 * PAGE + 10..].iter().all(|&byte| byte == 0));
    ground.check_end();
}

#[test]
fn operations_that_follow_each_other_let_reads_in() {
    const NR: usize = 20;
    let ground = Ground::new(NR * MIB, 32 << 20);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Long enough for the other to wait by then.
                let change = || {
                    std::thread::sleep(Duration::from_millis(2));
                    Ok(())
                };
                while !is_over.load(Ordering::Relaxed) {
                    ground.file.allocate(None, change).unwrap();
                }
            });
        }
        let reads = (0..NR).map(|nr| ground.begin([(nr * MIB, PAGE)]));
        let results = std::panic::catch_unwind(AssertUnwindSafe(|| {
            reads.map(|steps| steps.finish().remove(0).unwrap()).collect::<Vec<_>>()
        }));
        is_over.store(true, Ordering::Relaxed);
        for (nr, bytes) in results.expect("a read ends").into_iter().enumerate() {
            assert!(bytes == ground.data[nr * MIB..nr * MIB + PAGE], "read {nr}");
        }
    });
    ground.check_end();
}

#[test]
fn a_read_that_does_not_take_its_turn_holds_up_nothing() {
    let ground = Ground::new(MIB, 32 << 20);
    let (file, (begun, has_begun), (go_on, may_go_on)) = (&ground.file, channel(), channel());
    std::thread::scope(|scope| {
        let change = move || {
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
            Ok(())
        };
        let operation = scope.spawn(|| file.allocate(None, change));
        has_begun.recv().unwrap();
        let kept_out = ground.begin([(0, PAGE)]);
        go_on.send(()).unwrap();
        operation.join().unwrap().unwrap();
        file.set_len(10).unwrap();
        assert_eq!(ground.answerer.nr_begun(), 0);
        assert!(kept_out.finish().remove(0).unwrap()[..10] == ground.data[..10]);
    });
    ground.check_end();
}

#[test]
fn reads_beyond_a_limit_wait_for_each_other_without_a_thread() {
    const NR: usize = 40;
    let ground = Ground::new(NR * MIB, 0);
    ground.answerer.hold();
    let steps = ground.begin((0..NR).map(|nr| (nr * MIB, MIB)));
    // A group may have a quarter of the pages in flight beyond limits.
    assert_eq!(ground.answerer.nr_begun(), 16);
    let most = 17 * OVERRUN_PAGES_PER_REQUEST * PAGE as u64;
    assert!(ground.tenant.usage_bytes() <= most, "{}", ground.tenant.usage_bytes());
    // A neighbour has its own.
    let neighbour = group(&ground.pool, "n", 0);
    let others = Steps::begin(vec![Wanted::new(&ground.file, &neighbour, 0, 10)]);
    ground.answerer.release();
    for (nr, result) in steps.finish().into_iter().enumerate() {
        assert!(result.unwrap() == ground.data[nr * MIB..(nr + 1) * MIB], "read {nr}");
    }
    assert!(others.finish().remove(0).unwrap() == ground.data[..10]);
    assert!(ground.tenant.stat_local(StatItem::UncachedIo) > 0);
    ground.check_end();
}

#[test]
fn a_read_that_is_given_up_keeps_its_room_beyond_the_limit() {
    let ground = Ground::new(40 * MIB, 0);
    ground.answerer.hold();
    for nr in 0..40 {
        let read = ground.file.start_read((nr * MIB) as u64, MIB);
        drop(ground.file.step_read(&ground.tenant, read, &Readahead::new()).unwrap());
    }
    assert_eq!(ground.answerer.nr_begun(), 16, "their pages are still being filled");
    ground.answerer.release();
    assert!(ground.read(20 * MIB, MIB).unwrap() == ground.data[20 * MIB..21 * MIB]);
    ground.check_end();
}

#[test]
fn a_flood_of_reads_leaves_room_and_goes_on_in_order() {
    const NR: usize = 2000;
    let ground = Ground::new((NR + 1) * 3 * PAGE, 64 << 20);
    ground.answerer.hold();
    let flood = ground.begin((1..=NR).map(|nr| (nr * 3 * PAGE, 1)));
    let nr_begun = ground.answerer.nr_begun();
    assert!(nr_begun < NR / 4, "a store is asked for {nr_begun} at once");
    let neighbour = group(&ground.pool, "n", 4 << 20);
    let others = Steps::begin(vec![Wanted::new(&ground.file, &neighbour, PAGE as u64, 1)]);
    assert_eq!(ground.answerer.nr_begun(), nr_begun + 1, "a neighbour has room");
    // What becomes of readers returns no room: the store still reads for them.
    drop(flood);
    let next = ground.begin([(2 * PAGE, 1)]);
    assert_eq!((ground.answerer.nr_begun(), next.nr_done()), (nr_begun + 1, 0));
    ground.answerer.release();
    assert_eq!(others.finish().remove(0).unwrap(), ground.data[PAGE..=PAGE]);
    assert_eq!(next.finish().remove(0).unwrap(), ground.data[2 * PAGE..=2 * PAGE]);
    ground.check_end();
}

#[test]
fn stores_of_one_source_leave_reads_to_others() {
    // More than may be begun.
    const NR: usize = 2000;
    const NR_STORES: usize = 8;
    let ground = Ground::new((NR + 1) * 3 * PAGE, 64 << 20);
    ground.answerer.hold();
    let tenants = [group(&ground.pool, "a", 64 << 20), group(&ground.pool, "b", 64 << 20)];
    let floods: Vec<_> = (0..NR_STORES)
        .map(|nr| {
            let store = LateStore::of_source((100 + nr as u64, 100), ground.data.clone(), &ground.answerer);
            let file = ground.pool.open_file(store, ground.data.len() as u64).unwrap();
            let wanted = |at| Wanted::new(&file, &tenants[nr % 2], (at * 3 * PAGE) as u64, 1);
            Steps::begin((0..NR / NR_STORES).map(wanted).collect())
        })
        .collect();
    let nr_before = ground.answerer.nr_begun();
    let others = ground.begin((1..=8).map(|nr| (nr * 3 * PAGE, 1)));
    assert_eq!(ground.answerer.nr_begun(), nr_before + 8, "all of another source");
    ground.answerer.release();
    for steps in floods.into_iter().chain([others]) {
        assert!(steps.finish().into_iter().all(|result| result.is_ok()));
    }
    ground.check_end();
}

#[test]
fn parts_of_a_read_that_may_not_be_begun_follow_each_other() {
    const NR: usize = 512;
    let ground = Ground::new(2 * NR * PAGE, 64 << 20);
    // Every other page is cached, so each of the others is a run.
    ground.begin((0..NR).map(|nr| ((2 * nr + 1) * PAGE, 1))).finish();
    let nr_before = ground.answerer.nr_begun();
    ground.answerer.hold();
    let steps = ground.begin([(0, 2 * NR * PAGE)]);
    let nr_at_once = ground.answerer.nr_begun() - nr_before;
    assert!((2..=NR / 2).contains(&nr_at_once), "{nr_at_once} at once");
    ground.answerer.release();
    assert!(steps.finish().remove(0).unwrap() == ground.data);
    assert_eq!(ground.answerer.nr_begun() - nr_before, NR);
    ground.check_end();
}

#[test]
fn a_group_that_is_removed_leaves_its_reads_to_its_parent() {
    let ground = Ground::new(4 * MIB, 32 << 20);
    ground.answerer.hold();
    let steps = ground.begin((0..16).map(|nr| (nr * 64 * PAGE, 4 * PAGE)));
    ground.pool.remove_group(&ground.tenant).unwrap();
    ground.answerer.release();
    for (nr, result) in steps.finish().into_iter().enumerate() {
        assert!(result.unwrap() == ground.data[nr * 64 * PAGE..][..4 * PAGE]);
    }
    ground.check_end();
}

#[test]
fn a_read_that_is_given_up_leaves_its_pages_to_the_cache() {
    let ground = Ground::new(MIB, 32 << 20);
    ground.answerer.hold();
    let step = |offset: u64| {
        let read = ground.file.start_read(offset, PAGE);
        match ground.file.step_read(&ground.tenant, read, &Readahead::new()).unwrap() {
            ReadStep::Waits(waiting) => waiting,
            ReadStep::Done(pages) => panic!("nothing is cached: {pages:?}"),
        }
    };
    drop(step(0));
    let (sent, received) = std::sync::mpsc::channel::<()>();
    step(50 * PAGE as u64).when_ready(move |read| {
        let _sent = sent;
        panic!("so much for {read:?}");
    });
    ground.answerer.release();
    // The sender is dropped with the callback.
    assert!(received.recv_timeout(TIMEOUT).is_err());
    assert!(ground.read(0, PAGE).unwrap() == ground.data[..PAGE]);
    assert!(ground.read(50 * PAGE, PAGE).unwrap() == ground.data[50 * PAGE..51 * PAGE]);
    ground.check_end();
}

#[test]
fn reads_get_their_bytes_beside_eviction_and_changing_limits() {
    let ground = Ground::new(4 * MIB, 2 << 20);
    let (is_over, ground) = (&AtomicBool::new(false), &ground);
    std::thread::scope(|scope| {
        let disturber = scope.spawn(move || {
            for nr in 0u64.. {
                match nr % 5 {
                    0 => ground.pool.set_max(&ground.tenant, 0),
                    1 => ground.file.invalidate_clean(),
                    2 => ground.pool.set_max(&ground.tenant, 64 << 10),
                    3 => ground.pool.drop_caches(),
                    _ => ground.pool.set_max(&ground.tenant, 2 << 20),
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let readers: Vec<_> = (0..3u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    let mut below = |most: usize| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                        (random >> 33) as usize % most
                    };
                    for _ in 0..100 {
                        let answers = [Answer::Whole, Answer::Pieces, Answer::Immediately];
                        *ground.store.answer.lock() = answers[below(3)];
                        let ranges: Vec<_> = (0..10).map(|_| (below(4 * MIB), below(64) * 999)).collect();
                        for (result, (offset, len)) in
                            ground.begin(ranges.clone()).finish().iter().zip(ranges)
                        {
                            let bytes = result.as_ref().unwrap();
                            let end = ground.data.len().min(offset + len);
                            assert!(*bytes == ground.data[offset..end], "{offset} {len}: {}", bytes.len());
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        disturber.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    ground.check_end();
}
