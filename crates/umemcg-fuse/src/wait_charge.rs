//! The memory kept by a waiting request, and the charge for it.
//!
//! The group pays while it has room. A device reader cannot reclaim, and a write must not fail or
//! be short for lack of memory, since most programs treat a short write to a file as an error. So a
//! write in a group without room borrows memory of the daemon, as running requests do. A mount has
//! [`LENT_BYTES_MAX`] to lend, divided among tenants and their groups.
//!
//! Beyond the loans (more than a hundred simultaneous writers of a mebibyte in one tenant), only
//! the header and the start of the data are kept, charged beyond the limit: at most
//! [`KEPT_BYTES_MIN`] and a page for each request. The write is then short, and its caller retries
//! with the rest.

use std::sync::Arc;

use umemcg::internal::{AccountedCharge, GroupPath, Reclaimer, ShareByPath};
use umemcg::{ChargeEffort, Group, StatItem};
use umemcg_base::{LeafMutex, PAGE_SIZE};

use crate::wire::InHeader;
use crate::wire::request::{shorten_write, write_payload};

/// The cost of a request in addition to its message, in bytes: the request itself, its entry in the
/// register of requests in flight, and its place in the queue.
pub const REQUEST_BYTES: u64 = 512;
/// The cost of a parked read in addition to [`REQUEST_BYTES`], in bytes: its steps so far, its
/// reply, and its waits.
pub const PARKED_READ_BYTES: u64 = 1024;
/// The cost of each page of a parked read, in bytes: a place in the answer, and one in the buffers
/// for the store. The pages themselves are charged as pages.
pub const PARKED_PAGE_BYTES: u64 = 32;
/// The bytes of a write kept regardless of limits, rounded up to the end of a page.
pub const KEPT_BYTES_MIN: usize = 16 << 10;
/// The bytes that a mount can lend to waiting writes: enough for 256 of the largest.
pub const LENT_BYTES_MAX: u64 = 256 << 20;

/// A bound that tenants and the groups in them share.
#[derive(Debug, Clone)]
pub(crate) struct SharedBound(Arc<LeafMutex<ShareByPath>>);

impl SharedBound {
    pub(crate) fn new(nr_max: u64) -> Self {
        Self(Arc::new(LeafMutex::new(ShareByPath::new(nr_max))))
    }

    /// Counts `nr` for a group; `None` if its tenant has its share.
    pub(crate) fn take(&self, group: &Group, nr: u64) -> Option<CountedShare> {
        let path = GroupPath::of(group);
        let is_taken = self.0.lock().take(&path, nr);
        is_taken.then(|| CountedShare { bound: self.clone(), path, nr })
    }
}

/// A number counted against a bound; released when dropped.
#[derive(Debug)]
pub(crate) struct CountedShare {
    bound: SharedBound,
    path: GroupPath,
    nr: u64,
}

impl Drop for CountedShare {
    fn drop(&mut self) {
        self.bound.0.lock().give(&self.path, self.nr);
    }
}

/// The charge and the loan of a waiting request, released when dropped.
#[derive(Debug)]
pub(crate) struct WaitCharge {
    _charge: AccountedCharge,
    _loan: Option<CountedShare>,
}

/// Charges or borrows the memory for a waiting request with `message`. Returns the number of bytes
/// of `message` that may be kept.
pub(crate) fn keep(
    group: &Arc<Group>,
    loans: &SharedBound,
    header: &InHeader,
    message: &[u8],
) -> (WaitCharge, usize) {
    let kept = |charge, loan, len| (WaitCharge { _charge: charge, _loan: loan }, len);
    if let Ok(charge) = group.try_charge(REQUEST_BYTES + message.len() as u64) {
        return kept(AccountedCharge::new(charge, StatItem::SlabUnreclaimable), None, message.len());
    }
    let forced = |bytes: usize| {
        AccountedCharge::forced(group, REQUEST_BYTES + bytes as u64, StatItem::SlabUnreclaimable)
    };
    // The late write-back of a mapping cannot be retried.
    let Some(write) = write_payload(header, message).filter(|write| !write.is_late) else {
        return kept(forced(message.len()), None, message.len());
    };
    let end = write.offset.saturating_add(KEPT_BYTES_MIN as u64).next_multiple_of(PAGE_SIZE as u64);
    let least = message.len().min(write.at + (end - write.offset) as usize);
    if least < message.len()
        && let Some(loan) = loans.take(group, (message.len() - write.at) as u64)
    {
        return kept(forced(0), Some(loan), message.len());
    }
    kept(forced(least), None, least)
}

/// Returns the charge for the content of a delayed answer; `None` when there is no room.
pub(crate) fn charge_answer(group: &Arc<Group>, bytes: usize) -> Option<AccountedCharge> {
    let charge = group.try_charge(REQUEST_BYTES + bytes as u64).ok()?;
    Some(AccountedCharge::new(charge, StatItem::SlabUnreclaimable))
}

/// Returns the charge of a request whose delayed answer has no content.
pub(crate) fn charge_held(group: &Group) -> AccountedCharge {
    AccountedCharge::forced(group, REQUEST_BYTES, StatItem::SlabUnreclaimable)
}

/// Returns the charge for a parked read of `size` bytes. Reclaims in one round if there is no room,
/// and charges beyond the limit if there still is none: the read has begun, and others may wait for
/// its pages.
pub(crate) fn charge_parked(reclaimer: &Reclaimer, group: &Arc<Group>, size: usize) -> AccountedCharge {
    // The read may begin and end within a page.
    let nr_pages = (size / PAGE_SIZE + 2) as u64;
    let bytes = REQUEST_BYTES + PARKED_READ_BYTES + nr_pages * PARKED_PAGE_BYTES;
    let charge = reclaimer.charge(group, bytes, ChargeEffort::Opportunistic);
    let charge = charge.unwrap_or_else(|_| group.charge_forced(bytes));
    AccountedCharge::new(charge, StatItem::SlabUnreclaimable)
}

/// Turns a truncated message into the valid message of a shorter request.
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
    use umemcg::internal::testing::hundred_below;
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
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        group.store_max(max);
        (engine, group)
    }

    #[test]
    fn with_room_a_request_waits_whole_and_gives_it_back() {
        let (_engine, group) = group(8 << 20);
        let (header, message) = write(0, 1 << 20, 0);
        let before = group.stat_local(StatItem::SlabUnreclaimable);
        let (request, kept) = keep(&group, &SharedBound::new(LENT_BYTES_MAX), &header, &message);
        assert_eq!(kept, message.len());
        let charged = group.stat_local(StatItem::SlabUnreclaimable) - before;
        assert_eq!(charged, REQUEST_BYTES as i64 + message.len() as i64);
        drop(request);
        assert_eq!(group.stat_local(StatItem::SlabUnreclaimable), before);
    }

    #[test]
    fn without_room_a_write_waits_whole_on_loan() {
        let (engine, group) = group(0);
        let other = engine.create_group(engine.root(), "other".as_ref()).unwrap();
        other.store_max(0);
        let (loans, (header, message)) = (SharedBound::new(LENT_BYTES_MAX), write(0, 1 << 20, 0));
        let whole = |group| {
            let waits = std::iter::repeat_with(|| keep(group, &loans, &header, &message));
            waits.take_while(|(_, kept)| *kept == message.len()).map(|(request, _)| request).collect()
        };
        let first: Vec<WaitCharge> = whole(&group);
        assert_eq!(first.len() as u64, (LENT_BYTES_MAX / 2) >> 20);
        assert!(group.usage_bytes() <= first.len() as u64 * REQUEST_BYTES + (1 << 20), "it is not charged");
        let second: Vec<WaitCharge> = whole(&other);
        assert_eq!(second.len(), first.len() / 2, "a half of what the first has left");
        drop((first, second));
        assert_eq!(loans.0.lock().nr(), 0);
    }

    #[test]
    fn a_hundred_groups_of_a_tenant_borrow_no_more_than_one() {
        let (engine, many) = group(8 << 20);
        let one = engine.create_group(engine.root(), "one".as_ref()).unwrap();
        let loans = SharedBound::new(LENT_BYTES_MAX);
        let all = |group: &Arc<Group>| std::iter::from_fn(|| loans.take(group, 1 << 20)).collect::<Vec<_>>();
        let of_many: Vec<_> = hundred_below(engine.tree(), &many).iter().flat_map(all).collect();
        let nr_of_pool = LENT_BYTES_MAX >> 20;
        assert_eq!((of_many.len() as u64, all(&one).len() as u64), (nr_of_pool / 2 - 1, nr_of_pool / 4));
    }

    #[test]
    fn past_all_loans_what_waits_is_bounded_and_still_a_write() {
        let (_engine, group) = group(8 << 20);
        let (loans, mut held) = (SharedBound::new(LENT_BYTES_MAX), Vec::new());
        let mut nr_cut = 0;
        for n in 0..500 {
            let (mut header, mut message) = write(100, 1 << 20, 0);
            let (request, kept) = keep(&group, &loans, &header, &message);
            message.truncate(kept);
            close(&mut header, &mut message);
            let op = Op::parse(&message, Dialect::default()).unwrap();
            let Op::Write { arg, data } = op else { panic!("{op:?}") };
            assert_eq!(arg.size as usize, data.len());
            assert!(data.len() >= KEPT_BYTES_MIN, "{n}: {}", data.len());
            assert!(data.len() == 1 << 20 || (100 + data.len()).is_multiple_of(PAGE_SIZE), "{}", data.len());
            assert_eq!(data, &write(100, 1 << 20, 0).1[80..80 + data.len()]);
            nr_cut += usize::from(data.len() < 1 << 20);
            held.push(request);
        }
        assert!((300..400).contains(&nr_cut), "{nr_cut} of 500");
        let most = (8 << 20) + 500 * (KEPT_BYTES_MIN + PAGE_SIZE + 1024) as u64;
        assert!(group.usage_bytes() <= most, "{} of {most}", group.usage_bytes());
    }

    #[test]
    fn a_parked_read_is_charged_for_its_pages_and_gives_that_back() {
        let (engine, group) = group(0);
        let before = group.stat_local(StatItem::SlabUnreclaimable);
        let charge = charge_parked(engine.reclaimer(), &group, 1 << 20);
        let charged = group.stat_local(StatItem::SlabUnreclaimable) - before;
        assert_eq!(charged as u64, REQUEST_BYTES + PARKED_READ_BYTES + 258 * PARKED_PAGE_BYTES);
        drop(charge);
        assert_eq!(group.stat_local(StatItem::SlabUnreclaimable), before);
    }

    #[test]
    fn only_long_writes_are_cut() {
        let (_engine, group) = group(0);
        let loans = SharedBound::new(LENT_BYTES_MAX);
        for (header, message) in [write(4000, 8 << 10, 0), write(0, 1 << 20, write_flag::CACHE)] {
            assert_eq!(keep(&group, &loans, &header, &message).1, message.len());
        }
        let header = InHeader { opcode: opcode::SETXATTR, ..Default::default() };
        assert_eq!(keep(&group, &loans, &header, &[0; 60_000]).1, 60_000);
        assert_eq!(loans.0.lock().nr(), 0);
    }
}
