//! Random changes of inputs: of bytes, of numbers in text, of lines, and of words of the seeds. The
//! same seed makes the same changes.

/// Longest input made.
const INPUT_BYTES_MAX: usize = 4096;
/// Most changes of one input.
const NR_CHANGES_MAX: usize = 6;
/// Numbers at which programs break.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    7,
    8,
    100,
    101,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65_535,
    1 << 20,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 4096,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];

/// A generator of random numbers (splitmix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &'a [Box<T>]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len())]) }
    }

    /// Returns a range of `0..len`, short ones more often.
    fn range(&mut self, len: usize) -> (usize, usize) {
        let from = self.below(len + 1);
        let longest = [1, 4, 16, len].map(|longest| longest.min(len - from))[self.below(4)];
        (from, from + self.below(longest + 1))
    }
}

/// Changes inputs.
#[derive(Debug)]
pub struct Mutator {
    random: Random,
    words: Vec<Box<[u8]>>,
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

impl Mutator {
    /// Returns a mutator that knows the words of these inputs.
    pub fn new(random: Random, seeds: &[Box<[u8]>]) -> Self {
        let mut words: Vec<Box<[u8]>> = seeds
            .iter()
            .flat_map(|seed| seed.split(|&byte| !is_of_word(byte)))
            .filter(|word| !word.is_empty())
            .map(Box::from)
            .collect();
        words.sort_unstable();
        words.dedup();
        Self { random, words }
    }

    /// Returns a changed copy of one of these inputs.
    pub fn change(&mut self, corpus: &[Box<[u8]>]) -> Box<[u8]> {
        let mut input = self.random.pick(corpus).unwrap_or_default().to_vec();
        for _ in 0..=self.random.below(NR_CHANGES_MAX) {
            self.change_once(&mut input, corpus);
        }
        input.truncate(INPUT_BYTES_MAX);
        input.into()
    }

    fn change_once(&mut self, input: &mut Vec<u8>, corpus: &[Box<[u8]>]) {
        let (from, to) = self.random.range(input.len());
        match self.random.below(11) {
            0 if from < input.len() => input[from] ^= 1 << self.random.below(8),
            1 if from < input.len() => input[from] = self.random.next() as u8,
            2 => drop(input.drain(from..to)),
            3 => {
                let copied = input[from..to].to_vec();
                let at = self.random.below(input.len() + 1);
                input.splice(at..at, copied);
            }
            4 => {
                let number = NUMBERS[self.random.below(NUMBERS.len())].to_ne_bytes();
                let len = 1 << self.random.below(4);
                input.splice(from..(from + len).min(input.len()), number[..len].iter().copied());
            }
            5 => self.change_number(input, from),
            6 => self.change_word(input, from),
            7 | 8 => self.change_lines(input, corpus),
            9 => {
                let bytes: Vec<u8> = (0..self.random.below(9)).map(|_| self.random.next() as u8).collect();
                input.splice(from..from, bytes);
            }
            _ => {
                let other = self.random.pick(corpus).unwrap_or_default();
                let (other_from, other_to) = self.random.range(other.len());
                input.splice(from..to, other[other_from..other_to].iter().copied());
            }
        }
    }

    /// Puts another number in the place of the first one behind `from`.
    fn change_number(&mut self, input: &mut Vec<u8>, from: usize) {
        let Some(start) = input[from..].iter().position(u8::is_ascii_digit).map(|at| from + at) else {
            return;
        };
        let len = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = match self.random.below(3) {
            0 => self.random.next() >> self.random.below(64),
            _ => NUMBERS[self.random.below(NUMBERS.len())],
        };
        input.splice(start..start + len, number.to_string().into_bytes());
    }

    /// Puts another word in the place of the first one behind `from`, or before it.
    fn change_word(&mut self, input: &mut Vec<u8>, from: usize) {
        let Some(word) = self.random.pick(&self.words).map(<[u8]>::to_vec) else { return };
        let start = input[from..].iter().position(|&byte| is_of_word(byte)).map_or(from, |at| from + at);
        let len = input[start..].iter().take_while(|&&byte| is_of_word(byte)).count();
        input.splice(start..start + if self.random.below(4) == 0 { 0 } else { len }, word);
    }

    /// Removes, repeats, moves or adds a line.
    fn change_lines(&mut self, input: &mut Vec<u8>, corpus: &[Box<[u8]>]) {
        let mut lines: Vec<Vec<u8>> = input.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        let (from, to) = (self.random.below(lines.len()), self.random.below(lines.len()));
        match self.random.below(4) {
            0 => drop(lines.remove(from)),
            1 => lines.insert(to, lines[from].clone()),
            2 => lines.swap(from, to),
            _ => {
                let other = self.random.pick(corpus).unwrap_or_default();
                let others: Vec<&[u8]> = other.split(|&byte| byte == b'\n').collect();
                lines.insert(to, others[self.random.below(others.len())].to_vec());
            }
        }
        *input = lines.join(&b'\n');
    }
}
