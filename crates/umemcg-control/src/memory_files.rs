//! Limits, usage, peaks, and commands to reclaim.

use std::sync::Arc;

use umemcg::{LimitError, ReclaimError};

use crate::context::FileContext;
use crate::error::ControlError;
use crate::group_control::GroupControl;
use crate::numbers;
use crate::peak::PeakOf;
use crate::row::{ReadResult, WriteResult, line};

pub(crate) fn show_usage(context: &FileContext<'_>) -> ReadResult {
    line(context.group.usage_bytes())
}

pub(crate) fn show_limit_v1(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v1(context.group.max_bytes()))
}

pub(crate) fn show_limit_v2(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v2(context.group.max_bytes()))
}

pub(crate) fn set_limit_v1(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v1(written)?;
    if bytes > part(context).inert.memsw_limit() {
        return Err(ControlError::Invalid);
    }
    let set = context.engine().set_limit_unless(context.group, bytes, context.request.cancelled);
    set.map_err(|error| match error {
        LimitError::Busy => ControlError::Busy,
        LimitError::Interrupted => ControlError::Interrupted,
        LimitError::IsRoot => ControlError::Invalid,
    })
}

/// Succeeds regardless of how much could be reclaimed; the limit is set even if the writer gives up
/// waiting.
pub(crate) fn set_limit_v2(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v2(written)?;
    (context.request.accepted)();
    let stop_early = || context.request.nonblocking || (context.request.cancelled)();
    context.engine().set_max_unless(context.group, bytes, &stop_early);
    Ok(())
}

pub(crate) fn show_soft_limit(context: &FileContext<'_>) -> ReadResult {
    line(numbers::show_limit_v1(context.group.soft_limit_bytes()))
}

/// Stores the soft limit. Groups above their soft limit are reclaimed first.
pub(crate) fn set_soft_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    context.engine().set_soft_limit(context.group, numbers::parse_limit_v1(written)?);
    Ok(())
}

fn part<'a>(context: &'a FileContext<'_>) -> &'a GroupControl {
    context.control()
}

pub(crate) fn show_peak_v1(context: &FileContext<'_>) -> ReadResult {
    line(part(context).peaks.read(context.group, PeakOf::V1))
}

pub(crate) fn reset_peak_v1(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    part(context).peaks.reset(context.group, PeakOf::V1);
    Ok(())
}

pub(crate) fn show_peak_v2(context: &FileContext<'_>) -> ReadResult {
    let own = context.file.peak.lock().clone();
    let whose = own.as_ref().map_or(PeakOf::Lifetime, PeakOf::OpenFile);
    line(part(context).peaks.read(context.group, whose))
}

pub(crate) fn reset_peak_v2(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    let note = Arc::clone(context.file.peak.lock().get_or_insert_with(Arc::default));
    part(context).peaks.reset(context.group, PeakOf::OpenFile(&note));
    Ok(())
}

pub(crate) fn show_failcnt(context: &FileContext<'_>) -> ReadResult {
    line(context.group.failcnt())
}

pub(crate) fn reset_failcnt(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    context.group.reset_failcnt();
    Ok(())
}

pub(crate) fn force_empty(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    context.engine().force_empty_unless(context.group, context.request.cancelled).map_err(reclaim_error)
}

pub(crate) fn reclaim(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_reclaim(written)?;
    context.engine().reclaim_unless(context.group, bytes, context.request.cancelled).map_err(reclaim_error)
}

fn reclaim_error(error: ReclaimError) -> ControlError {
    match error {
        ReclaimError::Again => ControlError::Again,
        ReclaimError::Interrupted => ControlError::Interrupted,
        ReclaimError::IsRoot => ControlError::Invalid,
    }
}

pub(crate) fn show_use_hierarchy(_context: &FileContext<'_>) -> ReadResult {
    line(1)
}

pub(crate) fn set_use_hierarchy(_context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    match numbers::parse_number(written)? {
        1 => Ok(()),
        _ => Err(ControlError::Invalid),
    }
}
