//! The marks of background reclaim in both spellings, its worker, and `memory.high`.

use umemcg::InvalidMarks;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers;
use crate::row::{ReadResult, WriteResult, line};

impl From<InvalidMarks> for ControlError {
    fn from(_: InvalidMarks) -> Self {
        Self::Invalid
    }
}

fn parse_number(written: &[u8]) -> Result<u32, ControlError> {
    u32::try_from(numbers::parse_number(written)?).map_err(|_| ControlError::Invalid)
}

pub(crate) fn show_low_distance(context: &FileContext<'_>) -> ReadResult {
    line(context.engine().reclaimer().low_wmark_distance(context.group))
}

pub(crate) fn set_low_distance(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_size_v1(written)?;
    Ok(context.engine().reclaimer().set_low_wmark_distance(context.group, bytes)?)
}

pub(crate) fn show_high_distance(context: &FileContext<'_>) -> ReadResult {
    line(context.engine().reclaimer().high_wmark_distance(context.group))
}

pub(crate) fn set_high_distance(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_size_v1(written)?;
    Ok(context.engine().reclaimer().set_high_wmark_distance(context.group, bytes)?)
}

pub(crate) fn show_marks(context: &FileContext<'_>) -> ReadResult {
    let marks = context.engine().reclaimer().marks(context.group);
    let (low, high) = (numbers::show_limit_v1(marks.low), numbers::show_limit_v1(marks.high));
    Ok(format!("low_wmark {low}\nhigh_wmark {high}\n"))
}

/// Shows `memcg_` with the group's number, and the thread id of its dedicated worker;
/// `memcg_null 0` while the shared pool of workers serves it.
pub(crate) fn show_kswapd_pid(context: &FileContext<'_>) -> ReadResult {
    Ok(match context.engine().kswapd().dedicated_tid(context.group) {
        Some(tid) => format!("memcg_{} {tid}\n", context.group.id()),
        None => "memcg_null 0\n".to_owned(),
    })
}

pub(crate) fn show_dedicated(context: &FileContext<'_>) -> ReadResult {
    line(u64::from(context.engine().kswapd().dedicated_tid(context.group).is_some()))
}

pub(crate) fn set_dedicated(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let dedicated = match parse_number(written)? {
        0 => false,
        1 => true,
        _ => return Err(ControlError::Invalid),
    };
    context.engine().kswapd().set_dedicated(context.group, dedicated).map_err(|_| ControlError::Again)
}

pub(crate) fn show_ratio(context: &FileContext<'_>) -> ReadResult {
    line(context.engine().reclaimer().wmark_ratio(context.group))
}

pub(crate) fn set_ratio(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    Ok(context.engine().reclaimer().set_wmark_ratio(context.group, parse_number(written)?)?)
}

pub(crate) fn show_scale_factor(context: &FileContext<'_>) -> ReadResult {
    line(context.engine().reclaimer().wmark_scale_factor(context.group))
}

pub(crate) fn set_scale_factor(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    Ok(context.engine().reclaimer().set_wmark_scale_factor(context.group, parse_number(written)?)?)
}

/// Shows the high mark in terms of usage: reclaim starts at it. The engine's `low` mark is the
/// higher usage.
pub(crate) fn show_mark_high(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v1(context.engine().reclaimer().marks(context.group).low))
}

pub(crate) fn show_mark_low(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v1(context.engine().reclaimer().marks(context.group).high))
}

pub(crate) fn show_high(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v2(context.engine().reclaimer().high(context.group)))
}

/// Succeeds regardless of how much could be reclaimed.
pub(crate) fn set_high(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v2(written)?;
    (context.request.accepted)();
    let stop_early = || context.request.nonblocking || (context.request.cancelled)();
    context.engine().set_high_unless(context.group, bytes, &stop_early);
    Ok(())
}
