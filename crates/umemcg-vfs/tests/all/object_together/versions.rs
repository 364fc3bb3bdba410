//! Contents that tell their writer: every byte follows from the writer and the number of the
//! version, so that a mixture of two is known by itself.
//!
//! A version has a head and a tail. An edit replaces the tail and names the head that it was made
//! for: an edit that was applied to another version is known, too.

/// A writer, and the number of a version.
pub type Stamp = (u32, u32);

/// Bytes of the header of a part: its kind, its stamp, the stamp of the head, its length.
const HEADER: usize = 24;
/// Bytes of a record of a log.
pub const RECORD: usize = 256;

const HEAD: u32 = 0x4441_4548;
const TAIL: u32 = 0x4c49_4154;
const LOG: u32 = 0x2d47_4f4c;

/// What a whole version is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    pub head: Stamp,
    pub tail: Stamp,
    pub head_len: usize,
    pub tail_len: usize,
}

fn part(kind: u32, stamp: Stamp, of: Stamp, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for word in [kind, stamp.0, stamp.1, of.0, of.1, len as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let mut state = u64::from(stamp.0) << 40 ^ u64::from(stamp.1) << 8 ^ u64::from(kind);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_be_bytes()[..4]);
    }
    bytes.truncate(len);
    bytes
}

/// Returns the bytes of a version; its lengths follow from its stamp, too.
pub fn whole(stamp: Stamp) -> Vec<u8> {
    let mixed = (stamp.0.wrapping_mul(0x9e37_79b9) ^ stamp.1.wrapping_mul(0x85eb_ca6b)) as usize;
    let len = |bits: usize| HEADER + bits % [100, 5_000, 50_000][bits % 3];
    let mut bytes = part(HEAD, stamp, stamp, len(mixed >> 3));
    bytes.extend(part(TAIL, stamp, stamp, len(mixed >> 13)));
    bytes
}

/// Returns a tail for another version's head.
pub fn tail_for(parts: Parts, stamp: Stamp) -> Vec<u8> {
    part(TAIL, stamp, parts.head, parts.tail_len + 100)
}

/// Returns a record of a log.
pub fn record(stamp: Stamp) -> Vec<u8> {
    part(LOG, stamp, stamp, RECORD)
}

fn parse_part(bytes: &[u8], kind: u32) -> Option<(Stamp, Stamp, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(4 * at..4 * at + 4)?.try_into().ok()?));
    let (stamp, of, len) = ((word(1)?, word(2)?), (word(3)?, word(4)?), word(5)? as usize);
    let is_whole = word(0)? == kind && bytes.len() >= len && bytes[..len] == part(kind, stamp, of, len);
    is_whole.then_some((stamp, of, len))
}

/// Returns what a content is made of; `None` unless it is one whole version.
pub fn parse(bytes: &[u8]) -> Option<Parts> {
    let (head, _, head_len) = parse_part(bytes, HEAD)?;
    let (tail, of, tail_len) = parse_part(&bytes[head_len..], TAIL)?;
    let is_whole = of == head && head_len + tail_len == bytes.len();
    is_whole.then_some(Parts { head, tail, head_len, tail_len })
}

/// Says what is wrong with a content.
pub fn describe(bytes: &[u8]) -> String {
    let head = parse_part(bytes, HEAD);
    let tail = head.and_then(|(_, _, len)| parse_part(&bytes[len..], TAIL));
    format!("{} bytes, head {head:?}, tail {tail:?}", bytes.len())
}

/// Returns the stamps of the records of a log; `None` unless all are whole.
pub fn parse_log(bytes: &[u8]) -> Option<Vec<Stamp>> {
    bytes.chunks(RECORD).map(|record| Some(parse_part(record, LOG)?.0)).collect()
}
