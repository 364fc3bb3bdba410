//! What a request that waits keeps, and who pays for it.
//!
//! Its group does. A reader cannot reclaim, and data I/O must not fail for want of memory, so a request that finds no room takes some all the
//! same: its header and the start of what it writes. The rest of a long write is let go of, and the write is short, as `write(2)` may be;
//! its maker comes again with the rest. So a group whose requests wait exceeds its limit by an eighth of it, [`OVERDRAFT_BYTES_MAX`]
//! at most, and by [`KEPT_BYTES_MIN`] and a page for each request. Others are not concerned.

use std::sync::Arc;

use umemcg::{AccountedCharge, Group, StatItem};
use umemcg_base::PAGE_SIZE;

use crate::wire::InHeader;
use crate::wire::request::{shorten_write, write_payload};

/// What a request takes beside its bytes: itself, its entry among those that can be interrupted, its place in the queue.
pub const REQUEST_BYTES: u64 = 512;
/// So much of a write is kept whatever the limits say, and up to the end of a page.
pub const KEPT_BYTES_MIN: usize = 16 << 10;
/// The most that what waits may exceed a limit by, the least of each request left aside.
pub const OVERDRAFT_BYTES_MAX: u64 = 16 << 20;
/// The part of a limit that this is.
const OVERDRAFT_PART: u64 = 8;
/// The part of the room that is left which one request may take.
const REQUEST_PART: u64 = 8;

/// The charge of a request that waits with `bytes` of message, and how many of these it may keep.
pub(crate) fn charge(group: &Arc<Group>, header: &InHeader, message: &[u8]) -> (AccountedCharge, usize) {
    let bytes = REQUEST_BYTES + message.len() as u64;
    if let Ok(charge) = group.try_charge(bytes) {
        return (AccountedCharge::new(charge, StatItem::SlabUnreclaimable), message.len());
    }
    let kept = match write_payload(header, message) {
        // What a mapping has written cannot be told to come again.
        Some(write) if !write.is_late => {
            let granted = (overdraft_left(group) / REQUEST_PART) as usize;
            let end = write.offset.saturating_add(granted.max(KEPT_BYTES_MIN) as u64);
            let kept = (end.next_multiple_of(PAGE_SIZE as u64) - write.offset) as usize;
            write.at + kept.min(message.len() - write.at)
        }
        _ => message.len(),
    };
    let bytes = REQUEST_BYTES + kept as u64;
    (AccountedCharge::forced(group, bytes, StatItem::SlabUnreclaimable), kept)
}

/// A charge for what a held-back answer keeps; none when there is no room.
pub(crate) fn charge_answer(group: &Arc<Group>, bytes: usize) -> Option<AccountedCharge> {
    let charge = group.try_charge(REQUEST_BYTES + bytes as u64).ok()?;
    Some(AccountedCharge::new(charge, StatItem::SlabUnreclaimable))
}

/// The charge of a request whose answer is held back without anything to keep.
pub(crate) fn charge_held(group: &Group) -> AccountedCharge {
    AccountedCharge::forced(group, REQUEST_BYTES, StatItem::SlabUnreclaimable)
}

/// How much more may be taken beyond the limits of a group and those above.
fn overdraft_left(group: &Group) -> u64 {
    let left = |at: &Group| {
        let max = at.max_bytes();
        let overdraft = (max / OVERDRAFT_PART).min(OVERDRAFT_BYTES_MAX);
        max.saturating_add(overdraft).saturating_sub(at.usage_bytes())
    };
    group.ancestors().map(left).min().unwrap_or(0)
}

/// Makes a message that was cut after so many bytes one that is whole.
pub(crate) fn close(header: &mut InHeader, message: &mut [u8]) {
    if (header.len as usize) > message.len() {
        shorten_write(header, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::request::WriteIn;
    use crate::wire::{Dialect, Op, opcode, write_flag};
    use umemcg::{Engine, EngineConfig};
    use zerocopy::IntoBytes;

    fn write(offset: u64, len: usize, write_flags: u32) -> (InHeader, Vec<u8>) {
        let arg = WriteIn { offset, size: len as u32, write_flags, ..Default::default() };
        let total = (size_of::<InHeader>() + size_of::<WriteIn>() + len) as u32;
        let header = InHeader { len: total, opcode: opcode::WRITE, ..Default::default() };
        let mut message = [header.as_bytes(), arg.as_bytes()].concat();
        message.extend((0..len).map(|n| n as u8));
        (header, message)
    }

    fn group(max: u64) -> (Arc<Engine>, Arc<Group>) {
        let engine = Engine::new(EngineConfig { pool_bytes: 64 << 20, ..Default::default() }).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        group.set_max(max);
        (engine, group)
    }

    #[test]
    fn with_room_a_request_waits_whole_and_gives_it_back() {
        let (_engine, group) = group(8 << 20);
        let (header, message) = write(0, 1 << 20, 0);
        let before = group.stat_local(StatItem::SlabUnreclaimable);
        let (charge, kept) = super::charge(&group, &header, &message);
        assert_eq!(kept, message.len());
        assert_eq!(charge.bytes(), REQUEST_BYTES + message.len() as u64);
        drop(charge);
        assert_eq!(group.stat_local(StatItem::SlabUnreclaimable), before);
    }

    #[test]
    fn without_room_what_waits_is_bounded_and_still_a_write() {
        let (_engine, group) = group(8 << 20);
        let mut held = Vec::new();
        for n in 0..500 {
            let (mut header, mut message) = write(100, 1 << 20, 0);
            let (charge, kept) = super::charge(&group, &header, &message);
            message.truncate(kept);
            close(&mut header, &mut message);
            let op = Op::parse(&message, Dialect::default()).unwrap();
            let Op::Write { arg, data } = op else { panic!("{op:?}") };
            assert_eq!(arg.size as usize, data.len());
            assert!(data.len() >= KEPT_BYTES_MIN, "{n}: {}", data.len());
            assert!(data.len() == 1 << 20 || (100 + data.len()).is_multiple_of(PAGE_SIZE), "{}", data.len());
            assert_eq!(data, &write(100, 1 << 20, 0).1[80..80 + data.len()]);
            held.push(charge);
        }
        let most = (8 << 20) + (1 << 20) + 500 * (KEPT_BYTES_MIN + PAGE_SIZE + 1024) as u64;
        assert!(group.usage_bytes() <= most, "{} of {most}", group.usage_bytes());
    }

    #[test]
    fn neither_short_writes_nor_late_ones_nor_other_requests_are_cut() {
        let (_engine, group) = group(0);
        for (header, message) in [write(4000, 8 << 10, 0), write(0, 1 << 20, write_flag::CACHE)] {
            assert_eq!(super::charge(&group, &header, &message).1, message.len());
        }
        let header = InHeader { opcode: opcode::SETXATTR, ..Default::default() };
        assert_eq!(super::charge(&group, &header, &[0; 60_000]).1, 60_000);
    }
}
