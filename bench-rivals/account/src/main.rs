//! `Account` and the memory pools of DataFusion, in one process and in turns: growth and shrinking
//! by 4 KiB, by one and two threads, and refusals. Prints one JSON object; `umemcg-bench account`
//! runs it and judges.

#[cfg(feature = "rivals")]
mod pools;
mod sides;

use std::sync::Barrier;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

#[cfg(feature = "rivals")]
use pools::{Fair, Greedy};
use sides::{Side, Tenants, Umemcg};

/// Operations of one sample of a thread, at full size.
const NR_PAIRS: u64 = 4 << 20;
const NR_REFUSALS: u64 = 256 << 10;
/// Bytes of a growth that is granted.
const BYTES: usize = 4096;

#[derive(Serialize)]
struct Output {
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// One comparison: the names of the sides, ours first, and nanoseconds for an operation of a
/// thread.
#[derive(Serialize)]
struct Row {
    title: String,
    is_refusal: bool,
    sides: Vec<String>,
    samples: Vec<Vec<f64>>,
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `operation` in each thread, with a state for each. Returns nanoseconds of processor time
/// for an operation of the slower thread.
fn run<S: Side>(side: &S, threads: usize, nr: u64, operation: impl Fn(&S::Holder, u64) + Sync) -> f64 {
    let start = Barrier::new(threads);
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let (start, operation) = (&start, &operation);
                scope.spawn(move || {
                    let holder = side.holder();
                    (0..1000).for_each(|at| operation(&holder, at));
                    start.wait();
                    let began = thread_time();
                    (0..nr).for_each(|at| operation(&holder, at));
                    thread_time() - began
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).max()
    });
    times.unwrap_or_default().as_nanos() as f64 / nr as f64
}

type Sample<'a> = (String, Box<dyn Fn() -> f64 + 'a>);

fn pairs<'a, S: Side>(name: &str, side: &'a S, threads: usize, nr: u64) -> Sample<'a> {
    let pair = |holder: &S::Holder, _| {
        assert!(side.grow(holder, std::hint::black_box(BYTES)), "there is room");
        side.shrink(holder, std::hint::black_box(BYTES));
    };
    (name.to_owned(), Box::new(move || run(side, threads, nr, pair)))
}

fn refusals<'a, S: Side>(name: &str, side: &'a S, nr: u64) -> Sample<'a> {
    let refusal = |holder: &S::Holder, at| {
        assert!(side.is_refused(holder, std::hint::black_box(at as usize)), "it is full")
    };
    (name.to_owned(), Box::new(move || run(side, 1, nr, refusal)))
}

/// Takes samples in turns; the first of each does not count.
fn alternate(title: &str, is_refusal: bool, rounds: usize, sides: Vec<Sample<'_>>) -> Row {
    let (sides, runs): (Vec<String>, Vec<_>) = sides.into_iter().unzip();
    let mut samples = vec![Vec::new(); runs.len()];
    for round in 0..=rounds {
        for (run, samples) in runs.iter().zip(&mut samples) {
            let sample = run();
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    Row { title: title.to_owned(), is_refusal, sides, samples }
}

/// The value of an option of the command line.
fn option(name: &str) -> Option<f64> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == name)?;
    Some(arguments.get(at + 1)?.parse().expect("a number"))
}

fn main() {
    let scale = option("--scale").unwrap_or(1.0).clamp(0.01, 1.0);
    let rounds = option("--rounds").unwrap_or(5.0) as usize;
    let of = |nr: u64| (nr as f64 * scale) as u64;
    let ours = Umemcg::new();
    #[cfg(feature = "rivals")]
    let (greedy, fair) = (Greedy::new(), Fair::new());
    let mut rows = Vec::new();
    for threads in [1, 2] {
        let nr = of(NR_PAIRS);
        let sides = Vec::from([
            pairs("umemcg", &ours, threads, nr),
            #[cfg(feature = "rivals")]
            pairs("greedy", &greedy, threads, nr),
            #[cfg(feature = "rivals")]
            pairs("fair", &fair, threads, nr),
        ]);
        let title = format!("4 KiB taken and given back, threads {threads}");
        rows.push(alternate(&title, false, rounds, sides));
    }
    assert_eq!(ours.left_bytes(), 0, "everything is given back");
    let (by_itself, by_parent) = (Tenants::full_by_itself(), Tenants::full_by_parent());
    let nr = of(NR_REFUSALS);
    let sides = Vec::from([
        refusals("umemcg, its own limit", &by_itself, nr),
        refusals("umemcg, the limit above", &by_parent, nr),
        #[cfg(feature = "rivals")]
        refusals("greedy", &greedy, nr),
        #[cfg(feature = "rivals")]
        refusals("fair", &fair, nr),
    ]);
    rows.push(alternate("refused, 1,024 tenants at depth 4", true, rounds, sides));
    let notes = vec![format!(
        "a growth and a shrink together, processor time of the slower thread, {} a sample; each thread has a \
         MemoryReservation or an Account of its own in one pool or group. A refusal is made into its value; the \
         tenants take turns",
        of(NR_PAIRS)
    )];
    println!("{}", serde_json::to_string(&Output { rows, notes }).expect("numbers and names"));
}
