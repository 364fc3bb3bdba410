//! Runs a target on stable Rust: the seeds of `corpus/NAME`, then mutations of them and of inputs
//! with a new outcome, for `FUZZ_SECONDS`. Everything follows from `FUZZ_SEED`, which is printed.
//!
//! An input fails when a thread panics, when it takes longer than `INPUT_SECONDS_MAX`, or when
//! memory grows beyond `MEMORY_BYTES_MAX`. It is then written to `artifacts/NAME`, and shrunk if
//! a thread panicked. `NAME FILE...` runs these inputs alone.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::mutate::{Mutator, Random};
use crate::outcome::Outcome;

/// Time limit of one input.
const INPUT_SECONDS_MAX: u64 = 60;
/// Memory limit of the process.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Time limit after a panic: the thread needed to end the input may be gone.
const PANICKED_SECONDS_MAX: u64 = 5;
/// Time limit for shrinking a failing input.
const SHRINK_SECONDS_MAX: u64 = 10;
/// Most inputs kept for mutation.
const NR_INPUTS_MAX: usize = 4096;
/// The length of a run if none is given.
const SECONDS_DEFAULT: u64 = 10;

/// The fuzzed function.
pub type Target = fn(&[u8]) -> Outcome;

/// Places of the panics since the input began, of any thread.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Panics are expected, and say nothing new.
static SHRINKS: AtomicBool = AtomicBool::new(false);
/// The input that runs.
static RUNNING: Mutex<Option<Arc<[u8]>>> = Mutex::new(None);

/// Keeps the place of a panic, and the input of the first one: the process may be about to abort.
fn note_panic(info: &PanicHookInfo<'_>, folders: &Folders) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let input = RUNNING.lock().unwrap().clone();
    let mut places = PANICS.lock().unwrap();
    places.push(place);
    if let ([place], Some(input), false) = (&**places, input, SHRINKS.load(Ordering::Relaxed)) {
        folders.report("whole", &input, &format!("{place}: {}", info.payload_as_str().unwrap_or_default()));
    }
}

/// Runs a target once. Returns its outcome, or the place of its first panic.
fn run(target: Target, input: &[u8]) -> Result<Outcome, String> {
    *RUNNING.lock().unwrap() = Some(input.into());
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    *RUNNING.lock().unwrap() = None;
    match std::mem::take(&mut *PANICS.lock().unwrap()).into_iter().next() {
        Some(place) => Err(place),
        None => Ok(outcome.expect("a panic was seen")),
    }
}

/// Returns a shorter input that panics at the same place.
fn shrink(target: Target, input: &[u8], place: &str) -> Vec<u8> {
    SHRINKS.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(SHRINK_SECONDS_MAX);
    let mut best = input.to_vec();
    let mut len = best.len().div_ceil(2);
    while len > 0 {
        let mut at = 0;
        while at < best.len() && Instant::now() < deadline {
            let mut shorter = best.clone();
            shorter.drain(at..(at + len).min(best.len()));
            match run(target, &shorter) {
                Err(panicked) if panicked == place => best = shorter,
                _ => at += len,
            }
        }
        len /= 2;
    }
    best
}

/// One target's folders.
#[derive(Debug, Clone, Copy)]
struct Folders {
    name: &'static str,
}

impl Folders {
    fn of(&self, kind: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(self.name)
    }

    fn read_seeds(&self) -> Vec<Box<[u8]>> {
        let entries = fs::read_dir(self.of("corpus")).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).unwrap().into()).collect()
    }

    /// Keeps a failing input, and reports its failure.
    fn report(&self, kind: &str, input: &[u8], what: &str) {
        let name = self.name;
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let path = self.of("artifacts").join(format!("{kind}-{:016x}", hasher.finish()));
        fs::create_dir_all(self.of("artifacts")).unwrap();
        fs::write(&path, input).unwrap();
        eprintln!("fuzz {name}: {what}");
        eprintln!("fuzz {name}: input of {} bytes: \"{}\"", input.len(), input.escape_ascii());
        eprintln!("fuzz {name}: to repeat: cargo run -p umemcg-fuzz --bin {name} -- {}", path.display());
    }
}

/// Ends the process when an input takes too much time or memory.
fn watch(folders: &Folders) {
    let (mut last, mut seconds) = (None::<Arc<[u8]>>, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let running = RUNNING.lock().unwrap().clone();
        let is_same =
            running.as_ref().zip(last.as_ref()).is_some_and(|(now, before)| Arc::ptr_eq(now, before));
        seconds = if is_same { seconds + 1 } else { 0 };
        last = running.clone();
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident_pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        let Some(input) = running else { continue };
        if !PANICS.lock().unwrap().is_empty() {
            // Its input is kept already.
            if seconds < PANICKED_SECONDS_MAX {
                continue;
            }
        } else if seconds > INPUT_SECONDS_MAX {
            folders.report("hang", &input, &format!("still running after {INPUT_SECONDS_MAX} s"));
        } else if resident_pages * umemcg_base::PAGE_SIZE_U64 > MEMORY_BYTES_MAX {
            folders.report("memory", &input, &format!("the process has more than {MEMORY_BYTES_MAX} bytes"));
        } else {
            continue;
        }
        std::process::exit(1);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| match text.parse() {
        Ok(number) => number,
        Err(_) => panic!("{name}={text} is no number"),
    })
}

/// Runs the inputs in these files, with panics shown as they are.
fn repeat(target: Target, files: &[String]) -> ExitCode {
    for file in files {
        eprintln!("fuzz: {file}");
        let _ = target(&fs::read(file).unwrap());
    }
    ExitCode::SUCCESS
}

/// Runs one target as a program.
pub fn main(name: &'static str, target: Target) -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if !files.is_empty() {
        return repeat(target, &files);
    }
    let from_clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("FUZZ_SEED").unwrap_or_else(from_clock);
    let seconds = number("FUZZ_SECONDS").unwrap_or(SECONDS_DEFAULT);
    println!("fuzz {name}: {seconds} s, FUZZ_SEED={seed}");
    let folders = Folders { name };
    std::panic::set_hook(Box::new(move |info| note_panic(info, &folders)));
    std::thread::spawn(move || watch(&folders));
    let mut corpus = folders.read_seeds();
    let nr_seeds = corpus.len();
    let mut mutator = Mutator::new(Random::new(seed), &corpus);
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut nr_runs = 0;
    while nr_runs < nr_seeds || Instant::now() < deadline {
        let input = corpus.get(nr_runs).filter(|_| nr_runs < nr_seeds);
        let input = input.cloned().unwrap_or_else(|| mutator.change(&corpus));
        match run(target, &input) {
            Ok(outcome) => {
                if outcome.is_new_to(&mut seen) && nr_runs >= nr_seeds && corpus.len() < NR_INPUTS_MAX {
                    corpus.push(input);
                }
            }
            Err(place) => {
                let shorter = shrink(target, &input, &place);
                folders.report("shrunk", &shorter, "shrunk");
                return ExitCode::FAILURE;
            }
        }
        nr_runs += 1;
    }
    println!("fuzz {name}: {nr_runs} inputs, {} outcomes, no failure", seen.len());
    ExitCode::SUCCESS
}
