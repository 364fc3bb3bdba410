//! The end of a request that is neither a read nor a write. If the request has charged memory while
//! its group is over its `memory.high`, it reclaims. If `memory.high` or a dirty limit slows it,
//! its answer is sent later, and no thread waits.
//!
//! A request that [holds its directory](Op::holds_directory) is answered at once, since every other
//! group would have to wait for the directory. A later request of its group is slowed instead.

use std::sync::Arc;
use std::time::Duration;

use umemcg::Group;
use umemcg::files::File;
use umemcg::internal::{ChargeMeter, Stalled, WritePause};
use umemcg_base::PAGE_SIZE;

use super::{DataFs, SilentOpen};
use crate::classify::Payer;
use crate::reply::{Gate, Hold, RecheckFn, Reply};
use crate::request::Request;
use crate::wait_charge::charge_held;
use crate::wire::{InHeader, Op, setattr_valid};

impl DataFs {
    /// Returns the gate for a request's answer. `None` for requests with their own delay, without a
    /// charge, or without a requesting process.
    pub(super) fn gate(&self, request: &Request<'_>) -> Option<Gate> {
        let header = *request.header;
        let written = match request.op {
            Op::Read(_) | Op::Write { .. } | Op::Release(_) | Op::Releasedir(_) => return None,
            Op::Forget { .. } | Op::BatchForget(_) | Op::Statfs | Op::Syncfs => return None,
            _ if header.pid == 0 => return None,
            Op::Fallocate(arg) => Some(self.handle(arg.fh, SilentOpen::writing(header.nodeid, 0))),
            Op::Setattr(arg) => (arg.valid & setattr_valid::FH != 0).then_some(arg.fh),
            _ => None,
        };
        // Every request able to dirty a page names its open file, or comes through a silent open.
        let content = written.and_then(|fh| Some(Arc::clone(self.files.get(fh)?.file.content())));
        let (me, meter, payer) = (self.me.clone(), ChargeMeter::start(), request.payer.cloned());
        let holds_directory = request.op.holds_directory();
        Some(Gate::new(move |reply| {
            let (me, payer) = (me.upgrade()?, payer.as_ref()?);
            if holds_directory {
                me.defer(payer, &meter);
                return None;
            }
            me.hold(&header, payer, &meter, content, reply)
        }))
    }

    fn defer(&self, payer: &Payer, meter: &ChargeMeter) {
        if meter.bytes() > 0 {
            self.engine.reclaimer().defer_over_high(&self.group_of(payer), meter.bytes());
        }
    }

    /// Reclaims if needed. Returns how to delay an answer, if it has to wait.
    fn hold(
        &self,
        header: &InHeader,
        payer: &Payer,
        meter: &ChargeMeter,
        content: Option<Arc<File>>,
        reply: &Reply,
    ) -> Option<Hold> {
        let has_charged = meter.bytes() > 0 || content.is_some();
        let group = if has_charged { self.group_of(payer) } else { Arc::clone(payer.group_for_now()) };
        // If another thread sends the answer, it may hold locks or pages that reclaim would wait
        // for.
        let high_delay = match meter.is_here() {
            true => self.high_delay(header, &group, meter.bytes(), reply),
            false => Duration::ZERO,
        };
        // At most the edges of a range.
        let (delay, again) = pause(content.as_ref(), &group, PAGE_SIZE, high_delay)?;
        let delays = Arc::clone(&self.delays);
        Some(Box::new(move |reply, answer| delays.delay(reply, answer, delay, again)))
    }
}

/// Returns the delay of an answer after `written` bytes of `content`, at least `high_delay`, and
/// the check whether it waits longer. `None` if it need not wait.
pub(super) fn pause(
    content: Option<&Arc<File>>,
    group: &Arc<Group>,
    written: usize,
    high_delay: Duration,
) -> Option<(Duration, RecheckFn)> {
    let mut pause = content.and_then(|content| content.write_pause(group, written));
    let delay = pause.as_mut().and_then(WritePause::remaining).unwrap_or_default().max(high_delay);
    if delay.is_zero() {
        return None;
    }
    let (stalled, charge) = (Stalled::begin(group), charge_held(group));
    let again = move || {
        let _until_it_goes = (&stalled, &charge);
        pause.as_mut()?.remaining()
    };
    Some((delay, Box::new(again)))
}
