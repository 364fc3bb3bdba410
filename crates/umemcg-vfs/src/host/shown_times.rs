//! The times shown for a file with cached content, and the detection of changes of the host's file
//! since our last operation.
//!
//! A write takes effect at the moment it is accepted: `mtime` and `ctime` change then. The host's
//! file changes later, at write-back, and gets times of its own. So while content is cached, the
//! times to show are kept here. After write-back the host's `mtime` is set to the accepted `mtime`
//! (*restoring*), so it stays the same when the cache drops the file. The host's `ctime` cannot be
//! set: once the file has been dropped, it shows the time of the write-back.
//!
//! A change from outside is detected when the file's stamp (size, mtime, ctime) differs from the
//! stamp after the daemon's own last operation. The daemon's operations on the host's file exclude
//! each other: each holds the file's lock exclusively, reads the stamp first, which reveals changes
//! since the last operation, and reads it again at the end. A thread only reading the attributes
//! shares the lock. While an operation holds it, the attributes known from before are shown.
//!
//! A store through a mapping by another program changes the times only if the page was clean. While
//! the host has not written the page back, further stores leave the stamp as it is. So content that
//! was taken soon after a change of the file is doubted once, after [`SETTLES_AFTER_NS`].
//!
//! The clock of a file system advances in steps of some milliseconds. Each accepted write
//! nevertheless shows a later `ctime` than the change before it, by one nanosecond if the clock has
//! not advanced. Otherwise a second mount above this one, or a backup program, could miss a change.
//! (Since 6.13, Linux uses a finer time after a `stat`.) `mtime` follows the clock, since `make`
//! compares it with the host's times of other files.
//!
//! ```text
//!   try_shared()  share the lock ──► stat ──► peek     busy: the attributes known from before
//!   exclusive()   take the lock ──► stat, found ──► write, truncate, set times, chmod … ──► stat, left ──► unlock
//! ```

use umemcg_base::{LeafMutex, Rank, RankedReadGuard, RankedRwLock, RankedWriteGuard};

use crate::attr::{Attr, Timestamp};

/// The attributes that distinguish one version of a host file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) mode: u32,
}

impl Stamp {
    pub(crate) fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, mode: attr.mode }
    }
}

/// Times to show instead of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// The effect of one of the daemon's operations on the host's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnOperation {
    /// Wrote accepted data back. The host's times are not the accepted ones. The file's length is
    /// at least `end`, and equal to it unless the file was longer before.
    WriteBack {
        /// The end of the written range.
        end: u64,
    },
    /// Set the accepted modification time, or tried to.
    RestoreTimes {
        /// The time, if it could not be set.
        refused: Option<Timestamp>,
    },
    /// Changed the content as the caller requested (its length, its allocation): the host's times
    /// are the ones to show.
    Content,
    /// Updated the access time without a caller's request: the times to show stay.
    Access,
    /// Changed attributes.
    Attributes {
        /// The modification time among them.
        mtime: bool,
    },
}

/// The known times of the host, and the times to show instead.
#[derive(Debug)]
struct KnownTimes {
    /// The host's stamp after our last operation.
    known: Stamp,
    /// `None`: the host's times are the ones to show.
    shown: Option<Shown>,
    /// Write-back moved the host's modification time, and it has not been set back yet.
    mtime_pending: bool,
    /// The number of outside changes of the host's file, and the number of the last of them adopted
    /// by the cache.
    nr_changes: u64,
    nr_adopted: u64,
    /// When the content taken at the last look is to be doubted, in nanoseconds since 1970;
    /// [`i64::MAX`] for never.
    doubt_at_ns: i64,
}

/// The time after a change of a file in which the host may not have written all changed pages back:
/// 30 s until a page is written, 5 s between two rounds (`vm.dirty_expire_centisecs`,
/// `vm.dirty_writeback_centisecs`), and the writing itself.
pub(crate) const SETTLES_AFTER_NS: i64 = 40_000_000_000;

/// The longest time between two moves of the clock: a tick at 100 Hz.
const CLOCK_STEP_NS_MAX: i64 = 10_000_000;

/// Returns the `ctime` of a change at `now`, later than the `ctime` before it unless the clock was
/// set back.
fn ctime_after(before: Timestamp, now: Timestamp) -> Timestamp {
    let ahead_ns = before.as_nanoseconds().saturating_sub(now.as_nanoseconds());
    let has_clock_stood = (0..=CLOCK_STEP_NS_MAX).contains(&ahead_ns);
    if has_clock_stood { Timestamp::from_nanoseconds(before.as_nanoseconds().saturating_add(1)) } else { now }
}

impl KnownTimes {
    fn note_change_if(&mut self, is_changed: bool) {
        self.nr_changes += u64::from(is_changed);
    }

    /// Returns the number of the latest change, unless the cache has adopted it.
    fn change(&self) -> Option<u64> {
        (self.nr_changes > self.nr_adopted).then_some(self.nr_changes)
    }

    /// Returns whether the present stamp is the stamp left by the last operation. Where times
    /// drift, they are compared only after they have been set.
    fn is_as_left(&self, stamp: Stamp, times_drift: bool) -> bool {
        if times_drift && self.mtime_pending { stamp.size == self.known.size } else { stamp == self.known }
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct ShownTimes {
    /// Held across system calls on this file, so a cache hit never takes it. Taken after the file's
    /// content lock.
    host: RankedRwLock<()>,
    /// A leaf lock.
    state: LeafMutex<KnownTimes>,
    /// (C) Whether the host changes the times of a file again some time after a write, as network
    /// file systems do.
    times_drift: bool,
}

/// Proof that exactly one operation of the daemon is in progress.
#[must_use]
#[derive(Debug)]
pub(crate) struct ExclusiveAccess<'a> {
    times: &'a ShownTimes,
    _alone: RankedWriteGuard<'a, ()>,
}

impl ShownTimes {
    /// Creates the state of a file with the host stamp `known`.
    pub(crate) fn new(known: Stamp, times_drift: bool) -> Self {
        let state = KnownTimes {
            known,
            shown: None,
            mtime_pending: false,
            nr_changes: 0,
            nr_adopted: 0,
            doubt_at_ns: i64::MAX,
        };
        Self { host: RankedRwLock::new(Rank::HostFile, ()), state: LeafMutex::new(state), times_drift }
    }

    /// Notes the acceptance of a write or another change of the content now.
    pub(crate) fn accept(&self, now: Timestamp) {
        let mut state = self.state.lock();
        let before = state.shown.map_or(state.known.ctime, |shown| shown.ctime);
        state.shown = Some(Shown { mtime: now, ctime: ctime_after(before, now) });
    }

    /// Takes shared access to the host's file, unless an operation of the daemon is in progress.
    /// Never waits.
    pub(crate) fn try_shared(&self) -> Option<RankedReadGuard<'_, ()>> {
        self.host.try_read()
    }

    /// Takes shared access. Waits for an operation of the daemon in progress.
    pub(crate) fn shared(&self) -> RankedReadGuard<'_, ()> {
        self.host.read()
    }

    /// Takes exclusive access to the host's file for an operation. May wait for the host.
    pub(crate) fn exclusive(&self) -> ExclusiveAccess<'_> {
        ExclusiveAccess { times: self, _alone: self.host.write() }
    }

    /// Returns the file's stamp after the last operation, and the times to show; `None` if the file
    /// has been changed from outside since then.
    pub(crate) fn known(&self) -> Option<(Stamp, Option<Shown>)> {
        let state = self.state.lock();
        state.change().is_none().then_some((state.known, state.shown))
    }

    /// Has the file count as changed from outside, even with an unchanged stamp.
    pub(crate) fn suspect(&self) {
        self.state.lock().note_change_if(true);
    }

    /// Notes that content of the known stamp is taken from now on. If the host's file changed just
    /// before, [`doubt_if_due`](Self::doubt_if_due) will suspect it once.
    pub(crate) fn took_content(&self, now: Timestamp) {
        let mut state = self.state.lock();
        let settles_at_ns = state.known.ctime.as_nanoseconds().saturating_add(SETTLES_AFTER_NS);
        state.doubt_at_ns = if now.as_nanoseconds() < settles_at_ns { settles_at_ns } else { i64::MAX };
    }

    /// Has the file count as changed from outside if its content was taken too soon after a change,
    /// and the host has written that change back since.
    pub(crate) fn doubt_if_due(&self, now: impl FnOnce() -> Timestamp) {
        let mut state = self.state.lock();
        if state.doubt_at_ns < i64::MAX && now().as_nanoseconds() >= state.doubt_at_ns {
            state.doubt_at_ns = i64::MAX;
            state.note_change_if(true);
        }
    }

    /// Returns the times to show if a stamp is the stamp left by the last operation. `None` if not:
    /// the file was changed from outside, or the stamp was read without shared access and must be
    /// read again.
    pub(crate) fn peek(&self, stamp: Stamp) -> Option<Option<Shown>> {
        let state = self.state.lock();
        (state.change().is_none() && state.is_as_left(stamp, self.times_drift)).then_some(state.shown)
    }

    /// Returns the times to show, if they differ from the host's.
    pub(crate) fn shown(&self) -> Option<Shown> {
        self.state.lock().shown
    }

    /// Returns whether the host's file has the shown `mtime`.
    pub(crate) fn is_restored(&self) -> bool {
        !self.state.lock().mtime_pending
    }

    /// Returns whether the host's own times are the ones to show.
    pub(crate) fn are_the_hosts(&self) -> bool {
        let state = self.state.lock();
        let known = Shown { mtime: state.known.mtime, ctime: state.known.ctime };
        !state.mtime_pending && state.shown.is_none_or(|shown| shown == known)
    }
}

impl ExclusiveAccess<'_> {
    /// Records the stamp before an operation. If the last operation did not leave that stamp, the
    /// file was changed from outside.
    pub(crate) fn found(&self, stamp: Stamp) {
        let mut state = self.times.state.lock();
        if state.is_as_left(stamp, self.times.times_drift) {
            return;
        }
        state.note_change_if(true);
        let has_its_time = state.known.mtime != stamp.mtime;
        state.shown = state.shown.filter(|_| !has_its_time);
        if let Some(shown) = &mut state.shown {
            shown.ctime = shown.ctime.max(stamp.ctime);
        }
        state.known = stamp;
    }

    /// Returns the number of the latest change from outside, unless the cache has adopted it.
    pub(crate) fn change(&self) -> Option<u64> {
        self.times.state.lock().change()
    }

    /// Records that the cache has adopted the changes from outside up to this one.
    pub(crate) fn adopted(&self, change: u64) {
        let mut state = self.times.state.lock();
        state.nr_adopted = state.nr_adopted.max(change);
    }

    /// Returns the modification time to set on the host's file; the outer `None` means nothing to
    /// restore.
    pub(crate) fn mtime_pending(&self) -> Option<Option<Timestamp>> {
        let state = self.times.state.lock();
        state.mtime_pending.then_some(state.shown.map(|shown| shown.mtime))
    }

    /// Records the effect of the operation, complete or partial, and the stamp left by it. A size
    /// or modification time not caused by the operation indicates a change from outside.
    pub(crate) fn left(&self, stamp: Stamp, did: OwnOperation) {
        let mut state = self.times.state.lock();
        let before = std::mem::replace(&mut state.known, stamp);
        let has_same_content = stamp.size == before.size
            && (stamp.mtime == before.mtime || self.times.times_drift && state.mtime_pending);
        match did {
            OwnOperation::WriteBack { end } => {
                state.mtime_pending = true;
                state.note_change_if(stamp.size != before.size.max(end));
            }
            OwnOperation::RestoreTimes { refused } => {
                state.note_change_if(stamp.size != before.size);
                // A write accepted meanwhile is written back later.
                state.mtime_pending = false;
                // The daemon does not own the file, so the host's own time is shown.
                if let Some(shown) = &mut state.shown
                    && Some(shown.mtime) == refused
                {
                    shown.mtime = stamp.mtime;
                }
            }
            OwnOperation::Content => {
                if let Some(shown) = &mut state.shown {
                    shown.mtime = stamp.mtime;
                    shown.ctime = shown.ctime.max(stamp.ctime);
                }
            }
            OwnOperation::Access => state.note_change_if(!has_same_content),
            OwnOperation::Attributes { mtime: true } => {
                state.note_change_if(stamp.size != before.size);
                // Also if the host's times were shown so far: pending write-back will change them.
                let ctime = state.shown.map_or(stamp.ctime, |shown| shown.ctime.max(stamp.ctime));
                state.shown = Some(Shown { mtime: stamp.mtime, ctime });
            }
            OwnOperation::Attributes { mtime: false } => {
                state.note_change_if(!has_same_content);
                if let Some(shown) = &mut state.shown {
                    shown.ctime = shown.ctime.max(stamp.ctime);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }
    fn stamp(size: u64, time: i64) -> Stamp {
        Stamp { size, mtime: at(time), ctime: at(time), mode: 0o100_644 }
    }
    fn write_back(times: &ShownTimes, left: Stamp) {
        times.exclusive().left(left, OwnOperation::WriteBack { end: left.size });
    }

    #[test]
    fn an_accepted_write_shows_its_time_before_and_after_write_back() {
        let times = ShownTimes::new(stamp(0, 1), false);
        times.accept(at(5));
        let shown = Some(Shown { mtime: at(5), ctime: at(5) });
        assert_eq!(times.peek(stamp(0, 1)), Some(shown));
        write_back(&times, stamp(9, 7));
        assert_eq!(times.peek(stamp(9, 7)), Some(shown));
        let after = Stamp { mtime: at(5), ctime: at(8), ..stamp(9, 0) };
        assert_eq!(times.exclusive().mtime_pending(), Some(Some(at(5))));
        times.exclusive().left(after, OwnOperation::RestoreTimes { refused: None });
        assert_eq!(times.peek(after), Some(shown));
        assert!(times.is_restored());
    }

    #[test]
    fn each_accepted_write_shows_a_later_ctime() {
        let (times, now) = (ShownTimes::new(stamp(0, 1), false), at(5));
        times.accept(now);
        let first = times.shown().unwrap();
        times.accept(now);
        let second = times.shown().unwrap();
        assert!(second.ctime > first.ctime && second.mtime == first.mtime, "{first:?}, {second:?}");
        times.accept(at(4));
        assert_eq!(times.shown().unwrap().ctime, at(4), "the clock was set back");
    }

    #[test]
    fn a_write_after_a_look_at_the_hosts_times_shows_another_ctime() {
        let times = ShownTimes::new(stamp(0, 5), false);
        times.accept(at(5));
        assert!(times.shown().unwrap().ctime > at(5));
    }

    #[test]
    fn an_outside_change_is_told_from_our_own() {
        let times = ShownTimes::new(stamp(3, 1), false);
        assert_eq!(times.peek(stamp(4, 2)), None);
        times.exclusive().found(stamp(4, 2));
        write_back(&times, stamp(9, 3));
        assert_eq!(times.peek(stamp(9, 3)), None, "write-back does not hide it");
        let change = times.exclusive().change().unwrap();
        times.suspect();
        times.exclusive().adopted(change);
        assert_eq!(times.peek(stamp(9, 3)), None, "another has come since");
        let change = times.exclusive().change().unwrap();
        times.exclusive().adopted(change);
        assert_eq!(times.peek(stamp(9, 3)), Some(None));
    }

    #[test]
    fn content_taken_soon_after_a_change_is_doubted_once() {
        let (times, settled) =
            (ShownTimes::new(stamp(3, 100), false), 100 + SETTLES_AFTER_NS / 1_000_000_000);
        let is_believed = || times.peek(stamp(3, 100)).is_some();
        times.doubt_if_due(|| at(settled));
        assert!(is_believed(), "no content was taken");
        times.took_content(at(101));
        times.doubt_if_due(|| at(settled - 1));
        assert!(is_believed());
        times.doubt_if_due(|| at(settled));
        assert!(!is_believed());
        let change = times.exclusive().change().unwrap();
        times.exclusive().adopted(change);
        times.took_content(at(settled));
        times.doubt_if_due(|| at(2 * settled));
        assert!(is_believed(), "the host had written it back before");
    }

    #[test]
    fn a_length_that_write_back_did_not_make_is_an_outside_change() {
        let times = ShownTimes::new(stamp(3, 1), false);
        times.exclusive().left(stamp(12, 2), OwnOperation::WriteBack { end: 9 });
        assert_eq!(times.peek(stamp(12, 2)), None);
    }

    #[test]
    fn no_look_meets_an_operation_of_ours_under_way() {
        let times = ShownTimes::new(stamp(3, 1), false);
        let alone = times.exclusive();
        assert!(times.try_shared().is_none());
        assert_eq!(times.known(), Some((stamp(3, 1), None)));
        drop(alone);
        let _both = (times.try_shared().unwrap(), times.try_shared().unwrap());
    }

    #[test]
    fn our_change_of_attributes_hides_no_outside_change_of_length() {
        for did in [
            OwnOperation::Attributes { mtime: false },
            OwnOperation::Attributes { mtime: true },
            OwnOperation::Access,
            OwnOperation::RestoreTimes { refused: None },
        ] {
            let times = ShownTimes::new(stamp(3, 1), false);
            let alone = times.exclusive();
            alone.found(stamp(3, 1));
            alone.left(stamp(4, 2), did);
            drop(alone);
            assert_eq!(times.peek(stamp(4, 2)), None, "{did:?}");
        }
    }

    #[test]
    fn our_change_of_names_hides_no_outside_change_of_content() {
        let times = ShownTimes::new(stamp(3, 1), false);
        let moved = Stamp { ctime: at(2), ..stamp(3, 1) };
        let did = OwnOperation::Attributes { mtime: false };
        times.exclusive().left(moved, did);
        assert_eq!(times.peek(moved), Some(None), "our own link");
        times.exclusive().left(stamp(4, 3), did);
        assert_eq!(times.peek(stamp(4, 3)), None, "theirs came between");
    }

    #[test]
    fn a_time_that_was_set_survives_the_write_back_of_older_data() {
        let times = ShownTimes::new(stamp(3, 1), false);
        times
            .exclusive()
            .left(Stamp { mtime: at(0), ..stamp(3, 2) }, OwnOperation::Attributes { mtime: true });
        write_back(&times, stamp(9, 7));
        assert_eq!(times.exclusive().mtime_pending(), Some(Some(at(0))));
    }

    #[test]
    fn where_the_mtime_cannot_be_restored_the_hosts_is_shown() {
        let times = ShownTimes::new(stamp(0, 1), false);
        times.accept(at(5));
        write_back(&times, stamp(9, 7));
        times.exclusive().left(stamp(9, 7), OwnOperation::RestoreTimes { refused: Some(at(5)) });
        assert_eq!(times.peek(stamp(9, 7)), Some(Some(Shown { mtime: at(7), ctime: at(5) })));
    }
}
