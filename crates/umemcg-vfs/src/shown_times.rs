//! The times that a file with cached content shows, and whether the host's file is still the one we left.
//!
//! A write counts from the moment it is accepted: `mtime` and `ctime` move then, while the host's file changes
//! later, at write-back, and gets times of its own. So while content is cached we keep the times to show here.
//! After write-back the host's `mtime` is set to the accepted one (*settling*), so that it stays the same when the
//! cache forgets the file; its `ctime` cannot be set, and reads as the time of the write-back once the file has been forgotten.
//!
//! Somebody else's change on the host is noticed by its stamp (size, mtime, ctime) differing from the stamp that our own
//! last operation left. Our own write-back moves the stamp too, so a stamp is judged only when it was read
//! with none of our operations in between:
//!
//! ```text
//!   reader                         write-back
//!   epoch()        -> e            begin()          in_flux + 1, epoch + 1
//!   stat                             pwrite
//!   judge(stamp,e)                 end()            in_flux − 1, epoch + 1, unsettled
//!                                  settle()         futimens, stat, known = stamp
//! ```

use umemcg_base::sync::Mutex;

use crate::attr::{Attr, Timestamp};

/// What tells one version of a host file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

impl Stamp {
    pub(crate) fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// Times to show instead of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// What a stamp of the host means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The host's file is as we left it, or being changed by us: show ours where there is something to show.
    Ours(Option<Shown>),
    /// Somebody else changed it.
    Outside,
    /// Our own write-back came between; look again.
    Raced(Option<Shown>),
}

#[derive(Debug)]
struct State {
    /// The host's stamp after our last operation.
    known: Stamp,
    /// `None`: the host's times are the ones to show.
    shown: Option<Shown>,
    /// Operations of ours on the host's file that have begun and not ended.
    in_flux: u32,
    /// Moves when such an operation begins, ends, or leaves a new known stamp.
    epoch: u64,
    /// Write-back moved the host's stamp and nobody has settled it.
    unsettled: bool,
}

/// See the file's head. The lock is a leaf: nothing is called with it held.
#[derive(Debug)]
pub(crate) struct ShownTimes {
    state: Mutex<State>,
    /// One settles at a time. Held across calls on this very file of the host, so never taken by a hit.
    settling: Mutex<()>,
}

impl ShownTimes {
    /// Starts with what the host has.
    pub(crate) fn new(known: Stamp) -> Self {
        Self {
            state: Mutex::new(State { known, shown: None, in_flux: 0, epoch: 0, unsettled: false }),
            settling: Mutex::new(()),
        }
    }

    /// A write or another change of the content is accepted now.
    pub(crate) fn accept(&self, now: Timestamp) {
        let mut state = self.state.lock();
        state.shown = Some(Shown { mtime: now, ctime: now });
    }

    /// Where the file's history stands; taken before a stamp is read.
    pub(crate) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// What a stamp that was read after `epoch` means.
    pub(crate) fn judge(&self, stamp: Stamp, epoch: Option<u64>) -> Verdict {
        let state = self.state.lock();
        if state.in_flux > 0 || state.unsettled || state.known == stamp {
            Verdict::Ours(state.shown)
        } else if epoch == Some(state.epoch) {
            Verdict::Outside
        } else {
            Verdict::Raced(state.shown)
        }
    }

    /// Adopts what somebody else made of the file, unless our own operation came between.
    pub(crate) fn adopt(&self, stamp: Stamp, epoch: u64) -> bool {
        let mut state = self.state.lock();
        if state.epoch != epoch || state.in_flux > 0 {
            return false;
        }
        state.known = stamp;
        state.shown = None;
        state.epoch += 1;
        true
    }

    /// An operation of ours begins to change the host's file.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.in_flux += 1;
        state.epoch += 1;
    }

    /// Write-back ended, well or not.
    pub(crate) fn end_write(&self) {
        let mut state = self.state.lock();
        state.in_flux -= 1;
        state.epoch += 1;
        state.unsettled = true;
    }

    /// A change of the content that was asked for (its length, its allocation) ended and left this stamp; none: it failed.
    pub(crate) fn end_change(&self, left: Option<Stamp>) {
        let mut state = self.state.lock();
        state.in_flux -= 1;
        state.epoch += 1;
        let Some(stamp) = left else { return };
        if let Some(shown) = &mut state.shown {
            shown.mtime = stamp.mtime;
            shown.ctime = shown.ctime.max(stamp.ctime);
        }
        if state.in_flux == 0 && !state.unsettled {
            state.known = stamp;
        }
    }

    /// An operation of ours changed attributes of the host's file and left this stamp; with `mtime_set` it set the
    /// modification time, too. A size or modification time that it cannot have changed betrays somebody else, who is then found
    /// at the next look.
    pub(crate) fn changed_attributes(&self, stamp: Stamp, mtime_set: bool) {
        let mut state = self.state.lock();
        state.epoch += 1;
        if let Some(shown) = &mut state.shown {
            if mtime_set {
                shown.mtime = stamp.mtime;
            }
            shown.ctime = shown.ctime.max(stamp.ctime);
        }
        let plausible = state.known.size == stamp.size && (mtime_set || state.known.mtime == stamp.mtime);
        if plausible && state.in_flux == 0 && !state.unsettled {
            state.known = stamp;
        }
    }

    /// Whether the host's file carries the times that we show.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.in_flux == 0 && !state.unsettled
    }

    /// Whether the host tells all that is known here.
    pub(crate) fn are_the_hosts(&self) -> bool {
        let state = self.state.lock();
        let known = Shown { mtime: state.known.mtime, ctime: state.known.ctime };
        state.in_flux == 0 && !state.unsettled && state.shown.is_none_or(|shown| shown == known)
    }

    /// Gives the host's file the accepted modification time and notes its stamp. `set_mtime` and `stat` are calls on the
    /// host's file; a failure of the first (a file that is not the daemon's own) makes the host's times the shown ones.
    pub(crate) fn settle<E>(
        &self,
        set_mtime: impl Fn(Timestamp) -> Result<(), E>,
        stat: impl Fn() -> Result<Stamp, E>,
    ) -> Result<(), E> {
        let _one = self.settling.lock();
        let (epoch, mtime) = {
            let state = self.state.lock();
            if !state.unsettled {
                return Ok(());
            }
            (state.epoch, state.shown.map(|s| s.mtime))
        };
        let restored = mtime.is_none_or(|mtime| set_mtime(mtime).is_ok());
        let stamp = stat()?;
        let mut state = self.state.lock();
        // Write-back that came between is followed by a sync of its own, which settles.
        if state.epoch == epoch && state.in_flux == 0 {
            // A write accepted meanwhile will be written back in its turn.
            state.unsettled = false;
            state.known = stamp;
            state.epoch += 1;
            if !restored
                && let Some(shown) = &mut state.shown
                && Some(shown.mtime) == mtime
            {
                shown.mtime = stamp.mtime;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }
    fn stamp(size: u64, time: i64) -> Stamp {
        Stamp { size, mtime: at(time), ctime: at(time) }
    }

    #[test]
    fn an_accepted_write_shows_its_time_before_and_after_write_back() {
        let times = ShownTimes::new(stamp(0, 1));
        times.accept(at(5));
        let shown = Some(Shown { mtime: at(5), ctime: at(5) });
        assert_eq!(times.judge(stamp(0, 1), None), Verdict::Ours(shown));
        times.begin();
        assert_eq!(times.judge(stamp(9, 7), None), Verdict::Ours(shown));
        times.end_write();
        assert_eq!(times.judge(stamp(9, 7), None), Verdict::Ours(shown));
        let after = Stamp { size: 9, mtime: at(5), ctime: at(8) };
        times.settle(|mtime| (mtime == at(5)).then_some(()).ok_or(()), || Ok(after)).unwrap();
        assert_eq!(times.judge(after, Some(times.epoch())), Verdict::Ours(shown));
        assert!(times.is_settled());
    }

    #[test]
    fn somebody_elses_change_is_told_from_our_own() {
        let times = ShownTimes::new(stamp(3, 1));
        let epoch = times.epoch();
        assert_eq!(times.judge(stamp(4, 2), Some(epoch)), Verdict::Outside);
        times.begin();
        times.end_write();
        times.settle(|_| Ok::<_, ()>(()), || Ok(stamp(9, 3))).unwrap();
        assert_eq!(times.judge(stamp(4, 2), Some(epoch)), Verdict::Raced(None));
        assert!(!times.adopt(stamp(4, 2), epoch));
        assert!(times.adopt(stamp(9, 4), times.epoch()));
        assert_eq!(times.judge(stamp(9, 4), None), Verdict::Ours(None));
    }

    #[test]
    fn write_back_during_settling_leaves_the_file_unsettled_for_its_own_sync() {
        let times = ShownTimes::new(stamp(0, 1));
        times.accept(at(5));
        times.begin();
        times.end_write();
        let stat = || {
            times.begin();
            times.end_write();
            Ok::<_, ()>(stamp(9, 6))
        };
        times.settle(|_| Ok(()), stat).unwrap();
        assert!(!times.is_settled());
        times.settle(|_| Ok::<_, ()>(()), || Ok(stamp(9, 7))).unwrap();
        assert!(times.is_settled());
    }

    #[test]
    fn a_change_of_attributes_of_ours_does_not_hide_somebody_elses_of_the_content() {
        let times = ShownTimes::new(stamp(3, 1));
        times.changed_attributes(Stamp { size: 3, mtime: at(1), ctime: at(2) }, false);
        assert_eq!(
            times.judge(Stamp { size: 3, mtime: at(1), ctime: at(2) }, None),
            Verdict::Ours(None),
            "our own chmod"
        );
        times.changed_attributes(Stamp { size: 4, mtime: at(3), ctime: at(3) }, false);
        assert_eq!(times.judge(stamp(4, 3), Some(times.epoch())), Verdict::Outside, "theirs came between");
    }

    #[test]
    fn where_the_mtime_cannot_be_restored_the_hosts_is_shown() {
        let times = ShownTimes::new(stamp(0, 1));
        times.accept(at(5));
        times.begin();
        times.end_write();
        let first = std::cell::Cell::new(true);
        times.settle(|_| if first.replace(false) { Err(()) } else { Ok(()) }, || Ok(stamp(9, 7))).unwrap();
        assert_eq!(times.judge(stamp(9, 7), None), Verdict::Ours(Some(Shown { mtime: at(7), ctime: at(5) })));
    }
}
