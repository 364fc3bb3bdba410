//! `hit`: the cost of a read of a cached page.
//!
//! 4 KiB copied from random places of a cached file: umemcg, the kernel's `pread` of the same file,
//! and the limit, a plain copy from touched memory of the same size. Then 8 bytes read in place, to
//! show the cost of finding and holding a page by itself. Every copy's first word is checked
//! against the file's contents, after the clock has stopped.

use std::fs::File as HostOpenFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use umemcg::files::{Arena, File, FrameId, Readahead};
use umemcg::{Engine, EngineConfig};
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Samples, Side, alternate, thread_time};
use crate::store::{HostFile, fill, is_right, make_file, word_at};

/// The cached file at full size.
const FILE_BYTES: u64 = 1 << 30;
/// The least size worth measuring: larger than the processor's caches.
const FILE_BYTES_MIN: u64 = 64 << 20;
/// Reads of one thread in one sample, at full size.
const NR_READS: u64 = 200_000;
/// The same for reads of 8 bytes.
const NR_LOADS: u64 = 1_000_000;
/// Bytes read in one call while the cache is filled.
const FILL_BYTES: usize = 1 << 20;

const LIMIT: &str = "plain copy from memory (limit)";
const PREAD: &str = "pread of the kernel";

/// The maximum cost of a copy, as a multiple of a plain copy.
const COPY_RATIO_MAX: f64 = 1.15;
/// The minimum cost of the kernel's `pread`, as a multiple of ours.
const PREAD_RATIO_MIN: f64 = 2.0;
/// Nanoseconds for 8 bytes in place.
const LOAD_NS_MAX: f64 = 60.0;
/// Our scaling to two threads, as a part of the plain copy's.
const SCALING_MIN: f64 = 0.97;

/// A random walk over the pages (xorshift). It continues from sample to sample, so no sample
/// profits from the previous sample's lines in the processor's caches.
#[derive(Clone, Copy)]
struct Walk {
    state: u64,
    nr_pages: u64,
}

impl Walk {
    fn new(thread: usize, nr_pages: u64) -> Self {
        Self { state: 0x2545_f491_4f6c_dd1d ^ ((thread as u64 + 1) << 32), nr_pages }
    }

    #[inline]
    fn next_page(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // The upper half, spread over the pages: a division would be a third of the cheapest side.
        ((self.state >> 32) * self.nr_pages) >> 32
    }
}

/// The data read by all sides.
struct Ground {
    engine: Arc<Engine>,
    /// One file for each thread in need of its own; all threads read the first.
    files: Vec<Arc<File>>,
    host: HostOpenFile,
    memory: Vec<u8>,
    /// The frame of each page of the first file.
    frames: Vec<FrameId>,
    nr_pages: u64,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let ground = Ground::new(options, &progress)?;
    let scaled = |full: u64| ((full as f64 * options.scale.min(1.0)) as u64).max(full / 20);
    let (nr_reads, nr_loads) = (scaled(NR_READS), scaled(NR_LOADS));

    let mut report = Report::new("hit", options.scale, rounds);
    let mut sides = ground.copies(1, nr_reads);
    let nr_sides = sides.len();
    sides.extend(ground.copies(2, nr_reads));
    let mut one = alternate(rounds, sides, &progress);
    let two = one.split_off(nr_sides);
    for (threads, sides) in [(1, &one), (2, &two)] {
        report.sections.push(Section {
            title: format!("4 KiB copied, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            unit: "ns",
            verdicts: vec![
                Verdict::new(
                    "of a plain copy",
                    sides[0].ratio_to(&sides[1]),
                    Target::TimesAtMost(COPY_RATIO_MAX),
                ),
                Verdict::new(
                    "pread of the kernel, of ours",
                    sides[2].ratio_to(&sides[0]),
                    Target::TimesAtLeast(PREAD_RATIO_MIN),
                ),
            ],
            sides: sides.clone(),
        });
    }
    let scaling = |side: usize| one[side].ratios_to(&two[side]);
    report.sections[1].verdicts.push(Verdict::new(
        "scaling to 2 threads, of the plain copy's",
        Samples::new("", scaling(0)).ratio_to(&Samples::new("", scaling(1))),
        Target::TimesAtLeast(SCALING_MIN),
    ));
    for threads in [1, 2] {
        let sides = alternate(rounds, ground.loads(threads, nr_loads), &progress);
        report.sections.push(Section {
            title: format!("8 bytes in place, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            unit: "ns",
            verdicts: vec![Verdict::new("a load", sides[0].median, Target::NsAtMost(LOAD_NS_MAX))],
            sides,
        });
    }
    ground.finish()?;
    report.notes.push(format!(
        "file of {} MiB, {nr_reads} copies or {nr_loads} loads a thread and sample; processor time, mean rate of the threads",
        ground_mib(options)
    ));
    Ok(report)
}

fn file_bytes(options: &Options) -> u64 {
    let bytes = (FILE_BYTES as f64 * options.scale) as u64;
    bytes.max(FILE_BYTES_MIN).next_multiple_of(FILL_BYTES as u64)
}

fn ground_mib(options: &Options) -> u64 {
    file_bytes(options) >> 20
}

impl Ground {
    fn new(options: &Options, progress: &Progress) -> Result<Self, Failure> {
        let len = file_bytes(options);
        let directory = options.directory();
        progress.show(&format!("writing a file of {} MiB below {}", len >> 20, directory.display()));
        let host = make_file(&directory, len).map_err(Failure::at(&format!(
            "cannot write a file of {len} bytes below {}",
            directory.display()
        )))?;
        let config = EngineConfig::new(2 * len + len / 4 + (64 << 20));
        let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
        let mut ground = Self {
            engine,
            files: Vec::new(),
            host,
            memory: vec![0; len as usize],
            frames: Vec::new(),
            nr_pages: len / PAGE_SIZE_U64,
        };
        progress.show("touching the memory for the plain copy");
        fill(0, &mut ground.memory);
        for _ in 0..2 {
            progress.show("filling the cache");
            let host = ground.host.try_clone().map_err(Failure::at("cannot open the file again"))?;
            let file = ground
                .engine
                .open_file(Arc::new(HostFile(host)), len)
                .map_err(Failure::at("cannot open a file in the engine"))?;
            ground.fill_cache(&file)?;
            ground.files.push(file);
        }
        ground.warm_kernel(len)?;
        Ok(ground)
    }

    /// Reads a file through the cache and checks every word.
    fn fill_cache(&mut self, file: &Arc<File>) -> Result<(), Failure> {
        let readahead = Readahead::new();
        let mut buffer = vec![0; FILL_BYTES];
        let first = self.frames.is_empty();
        for offset in (0..file.len()).step_by(FILL_BYTES) {
            let pages = file
                .read(self.engine.root(), offset, FILL_BYTES, &readahead)
                .map_err(Failure::at("cannot read through the cache"))?;
            if pages.copy_to(&mut buffer) != FILL_BYTES || !is_right(offset, &buffer) {
                return Err(Failure::Wrong(format!("the cache gave other bytes than the file at {offset}")));
            }
            if first {
                self.frames.extend(pages.segments().iter().map(|segment| segment.frame));
            }
        }
        Ok(())
    }

    fn warm_kernel(&self, len: u64) -> Result<(), Failure> {
        let mut buffer = vec![0; FILL_BYTES];
        for offset in (0..len).step_by(FILL_BYTES) {
            self.host.read_exact_at(&mut buffer, offset).map_err(Failure::at("cannot read the file"))?;
            if !is_right(offset, &buffer) {
                return Err(Failure::Wrong(format!("the file does not hold what was written, at {offset}")));
            }
        }
        Ok(())
    }

    fn arena(&self) -> &Arena {
        self.engine.arena()
    }

    /// Copies of whole pages, by side.
    fn copies(&self, threads: usize, nr: u64) -> Vec<Side<'_>> {
        let reader = move |file: usize| {
            let (file, readahead) = (&self.files[file], Readahead::new());
            move |page, buffer: &mut [u8]| {
                file.try_read_into(page * PAGE_SIZE_U64, buffer, &readahead).unwrap_or(0)
            }
        };
        let mut sides = vec![
            self.side("umemcg", threads, nr, move |_| reader(0)),
            self.side(LIMIT, threads, nr, move |_| {
                move |page, buffer: &mut [u8]| {
                    let at = page as usize * PAGE_SIZE;
                    buffer.copy_from_slice(&self.memory[at..at + PAGE_SIZE]);
                    PAGE_SIZE
                }
            }),
            self.side(PREAD, threads, nr, move |_| {
                move |page, buffer: &mut [u8]| self.host.read_at(buffer, page * PAGE_SIZE_U64).unwrap_or(0)
            }),
            self.side("umemcg: pin, copy, let go", threads, nr, move |_| {
                let (file, readahead) = (&self.files[0], Readahead::new());
                move |page, buffer: &mut [u8]| {
                    let pages = file.try_read(page * PAGE_SIZE_U64, PAGE_SIZE, &readahead);
                    pages.map_or(0, |pages| pages.copy_to(buffer))
                }
            }),
            self.side("copy from known frames", threads, nr, move |_| {
                move |page, buffer: &mut [u8]| {
                    self.arena().copy_out(self.frames[page as usize], 0, buffer);
                    PAGE_SIZE
                }
            }),
        ];
        if threads > 1 {
            sides.push(self.side("umemcg, a file for each thread", threads, nr, move |thread| {
                reader(thread % self.files.len())
            }));
        }
        sides
    }

    /// Loads of 8 bytes, by side.
    fn loads(&self, threads: usize, nr: u64) -> Vec<Side<'_>> {
        vec![
            self.load_side("umemcg", threads, nr, move || {
                let file = &*self.files[0];
                move |page| file.try_load_u64(page * PAGE_SIZE_U64).unwrap_or(0)
            }),
            self.load_side("plain load from memory (limit)", threads, nr, move || {
                move |page| {
                    let at = page as usize * PAGE_SIZE;
                    let mut word = [0; 8];
                    word.copy_from_slice(&self.memory[at..at + 8]);
                    u64::from_le_bytes(word)
                }
            }),
            self.load_side("umemcg: find, pin, load, let go", threads, nr, move || {
                let (file, readahead) = (&self.files[0], Readahead::new());
                move |page| {
                    let Some(pages) = file.try_read(page * PAGE_SIZE_U64, 8, &readahead) else { return 0 };
                    let segment = pages.segments()[0];
                    self.arena().load_u64(segment.frame, usize::from(segment.offset))
                }
            }),
            self.load_side("load from known frames", threads, nr, move || {
                move |page| self.arena().load_u64(self.frames[page as usize], 0)
            }),
        ]
    }

    fn load_side<'a, F>(
        &'a self,
        name: &'static str,
        threads: usize,
        nr: u64,
        load: impl Fn() -> F + Sync + 'a,
    ) -> Side<'a>
    where
        F: FnMut(u64) -> u64,
    {
        let mut walks: Vec<_> = (0..threads).map(|thread| Walk::new(thread, self.nr_pages)).collect();
        Side::new(name, move || {
            timed(&mut walks, nr, |_| {
                let mut load = load();
                move |page| load(page)
            })
        })
    }

    /// Returns a side that copies pages into a buffer of its thread and returns the number of
    /// bytes.
    fn side<'a, F>(
        &'a self,
        name: &'static str,
        threads: usize,
        nr: u64,
        read: impl Fn(usize) -> F + Sync + 'a,
    ) -> Side<'a>
    where
        F: FnMut(u64, &mut [u8]) -> usize,
    {
        let mut walks: Vec<_> = (0..threads).map(|thread| Walk::new(thread, self.nr_pages)).collect();
        Side::new(name, move || {
            timed(&mut walks, nr, |thread| {
                let mut read = read(thread);
                let mut room = vec![0u8; 2 * PAGE_SIZE];
                let start = room.as_ptr().align_offset(PAGE_SIZE);
                move |page| {
                    let buffer = &mut room[start..start + PAGE_SIZE];
                    if read(page, buffer) != PAGE_SIZE {
                        return 0;
                    }
                    let mut word = [0; 8];
                    word.copy_from_slice(&black_box(&*buffer)[..8]);
                    u64::from_le_bytes(word)
                }
            })
        })
    }

    /// Ends the engine; no charge may stay.
    fn finish(self) -> Result<(), Failure> {
        let Self { engine, files, .. } = self;
        let lost = engine.shut_down(Duration::from_secs(30));
        drop(files);
        engine.root().drain_stocks();
        let nr_index_nodes = engine.cache().nr_index_nodes();
        if !lost.is_empty() || nr_index_nodes != 0 {
            return Err(Failure::Wrong(format!(
                "{} files unclean, {nr_index_nodes} index nodes left",
                lost.len()
            )));
        }
        Ok(())
    }
}

/// Nanoseconds of processor time of one read, from the mean rate of the concurrent threads: a hit
/// never sleeps, and other load of the machine is no cost of a hit. Each read returns the first
/// word of its page; when the clock has stopped, all of them are checked.
fn timed<F>(walks: &mut [Walk], nr: u64, read: impl Fn(usize) -> F + Sync) -> f64
where
    F: FnMut(u64) -> u64,
{
    let barrier = Barrier::new(walks.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = walks
            .iter_mut()
            .enumerate()
            .map(|(thread, walk)| {
                let (barrier, read) = (&barrier, &read);
                scope.spawn(move || {
                    let mut read = read(thread);
                    // The walks lie side by side; stepping them in place would share a line between
                    // the threads.
                    let (mut steps, mut check) = (*walk, *walk);
                    barrier.wait();
                    let start = thread_time();
                    let mut seen = 0u64;
                    for _ in 0..nr {
                        seen = seen.rotate_left(1) ^ read(steps.next_page());
                    }
                    let elapsed = thread_time() - start;
                    *walk = steps;
                    let expected = (0..nr)
                        .fold(0u64, |sum, _| sum.rotate_left(1) ^ word_at(check.next_page() * PAGE_SIZE_U64));
                    assert_eq!(seen, expected, "a read gave the bytes of another page");
                    elapsed
                })
            })
            .collect();
        let rates: Vec<f64> = threads
            .into_iter()
            .map(|thread| nr as f64 / thread.join().expect("a wrong result").as_secs_f64())
            .collect();
        1e9 * rates.len() as f64 / rates.iter().sum::<f64>()
    })
}
