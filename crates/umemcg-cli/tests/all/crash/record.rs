//! The data of the writers: records that name their writer, their number and their length, and that
//! are wrong when one byte of them is.

/// Before the payload: number, length of all of it, name.
const HEAD_BYTES: usize = 16;
/// Longest record.
pub const RECORD_BYTES_MAX: usize = 12_000;
/// A cell is written and lost as one: aligned, and within one page.
pub const CELL_BYTES: usize = 512;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (x ^ (x >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d)
}

/// A small generator, so that a failure can be repeated from its seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 33) % bound
    }
}

fn name_number(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

/// Record `number` of `name`; `bytes` long, head included.
pub fn record(name: &str, number: u64, bytes: usize) -> Vec<u8> {
    assert!((HEAD_BYTES..=RECORD_BYTES_MAX).contains(&bytes));
    let name = name_number(name);
    let mut record = Vec::with_capacity(bytes);
    record.extend(number.to_le_bytes());
    record.extend((bytes as u32).to_le_bytes());
    record.extend(name.to_le_bytes());
    let seed = mix(number ^ u64::from(name) << 32);
    record.extend((0..(bytes - HEAD_BYTES) as u64).map(|at| (mix(seed ^ (at / 8)) >> (at % 8 * 8)) as u8));
    record
}

/// The record that starts here, if it is whole: its number and length.
pub fn parse(name: &str, bytes: &[u8]) -> Option<(u64, usize)> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let len = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
    if !(HEAD_BYTES..=RECORD_BYTES_MAX).contains(&len) {
        return None;
    }
    (bytes.get(..len)? == record(name, number, len)).then_some((number, len))
}

/// Whole records 0, 1, 2 … from the start of a log: how many, and how many bytes they take.
pub fn whole_records(name: &str, bytes: &[u8]) -> (u64, usize) {
    let (mut nr, mut at) = (0, 0);
    while let Some((number, len)) = parse(name, &bytes[at..])
        && number == nr
    {
        nr += 1;
        at += len;
    }
    (nr, at)
}

#[test]
fn a_record_with_one_wrong_byte_is_no_record() {
    let good = record("log", 7, 100);
    assert_eq!(parse("log", &good), Some((7, 100)));
    assert_eq!(parse("other", &good), None);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(parse("log", &bad), None, "byte {at}");
    }
    let log = [record("log", 0, 50), record("log", 1, 60), record("log", 3, 70)].concat();
    assert_eq!(whole_records("log", &log), (2, 110));
}
