//! The five made-up traces, at any size, with the same numbers each time.

use std::collections::HashMap;

/// Requests at scale 1.
const NR_REQUESTS: f64 = 400_000.0;
/// Pages of room at scale 1.
const ROOM: f64 = 10_000.0;
/// Pages of a window of the kernel's pages.
const WINDOW_PAGES: u64 = 64;

/// Where a trace's pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In any order in one file, without gaps.
    Scattered,
    /// Each in a window of its own.
    Windows,
}

/// A sequence of page reads.
#[derive(Debug)]
pub struct Trace {
    pub name: String,
    /// By the number of the page in `places`.
    pub requests: Vec<u32>,
    /// The file of each page, and its number there.
    pub places: Vec<(u32, u64)>,
    /// Opens of these files, each with the number of requests before it.
    pub opens: Vec<(usize, u32)>,
    /// Pages of room.
    pub room: u64,
}

/// Random numbers (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws objects, each the more often the smaller its number.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(nr: f64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=nr as u64).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let at = random.fraction() * self.0[self.0.len() - 1];
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Makes the five traces: Zipf, Zipf with scans, a loop, a moving working set, and a trace with
/// half of its objects read once.
pub fn synthetic(scale: f64, placement: Placement) -> Vec<Trace> {
    let nr = (NR_REQUESTS * scale) as u64;
    let room = (ROOM * scale).max(1000.0);
    // Numbers of objects, as multiples of the room: those of libCacheSim's figures on record.
    let of_room = |times: f64| (room * times) as u64;
    let mut random = Random::new();
    let zipf = Zipf::new(10.0 * room, 0.99);
    let moving = Zipf::new(2.5 * room, 0.99);
    let flat = Zipf::new(3.0 * room, 0.9);
    let once = |at: u64| (1 << 32) + at;
    let mut kinds: Vec<(&str, Vec<u64>)> = Vec::new();
    kinds.push(("Zipf 0.99", (0..nr).map(|_| zipf.draw(&mut random)).collect()));
    let (undisturbed, period) = (of_room(1.0), of_room(2.1));
    let scans = |at: u64| if at % period < undisturbed { zipf.draw(&mut random) } else { once(at) };
    kinds.push(("Zipf and scans", (0..nr).map(scans).collect()));
    kinds.push(("loop", (0..nr).map(|at| at % of_room(1.2)).collect()));
    let shift = |at: u64| moving.draw(&mut random) + at / of_room(4.0) * of_room(1.25);
    kinds.push(("shifting", (0..nr).map(shift).collect()));
    let half = |at: u64| if random.next() >> 63 == 0 { flat.draw(&mut random) } else { once(at) };
    kinds.push(("one-hit 50 %", (0..nr).map(half).collect()));
    let traces = kinds.into_iter().map(|(name, objects)| {
        let (requests, nr_pages) = number(objects);
        let (name, places) = match placement {
            Placement::Scattered => (format!("{name}, scattered"), scatter(nr_pages, &mut random)),
            Placement::Windows => {
                let places = (0..nr_pages as u64).map(|page| (0, page * WINDOW_PAGES));
                (format!("{name}, windows"), places.collect())
            }
        };
        Trace { name, requests, places, opens: Vec::new(), room: room as u64 }
    });
    traces.collect()
}

/// Numbers requested objects in the order of their first request. Returns the number of objects,
/// too.
pub fn number<T: std::hash::Hash + Eq>(all: Vec<T>) -> (Vec<u32>, usize) {
    let mut numbers = HashMap::new();
    let requests = all.into_iter().map(|object| {
        let next = numbers.len() as u32;
        *numbers.entry(object).or_insert(next)
    });
    let requests: Vec<u32> = requests.collect();
    (requests, numbers.len())
}

/// Returns the pages of one file in any order.
fn scatter(nr_pages: usize, random: &mut Random) -> Vec<(u32, u64)> {
    let mut places: Vec<(u32, u64)> = (0..nr_pages as u64).map(|page| (0, page)).collect();
    for at in (1..nr_pages).rev() {
        places.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    places
}
