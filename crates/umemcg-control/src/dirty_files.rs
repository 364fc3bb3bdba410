//! The control files of dirty limits: the pairs of each group (mail per-cgroup-dirty-limits,
//! `kernel-semantics` §6.1), those of the pool under the names of `/proc/sys/vm`, and the times of
//! write-back.
//!
//! One file of a pair is set; the other reads 0. The root shows the pool's settings.

use std::time::Duration;

use umemcg::files::{DirtyBound, DirtyThreshold};
use umemcg_base::PAGE_SIZE_U64;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers;
use crate::row::{ReadResult, WriteResult, line};

use DirtyThreshold::{Background, Foreground};

/// Least value of `vm.dirty_bytes`.
const VM_DIRTY_BYTES_MIN: u64 = 2 * PAGE_SIZE_U64;
/// A centisecond.
const CENTISECOND_MS: u64 = 10;

fn bound(context: &FileContext<'_>, which: DirtyThreshold) -> DirtyBound {
    context.engine().cache().dirty_limits().bounds(context.group).get(which)
}

fn show_percent(context: &FileContext<'_>, which: DirtyThreshold) -> ReadResult {
    line(bound(context, which).percent())
}

fn show_bytes(context: &FileContext<'_>, which: DirtyThreshold) -> ReadResult {
    line(bound(context, which).bytes())
}

fn set(context: &FileContext<'_>, which: DirtyThreshold, bound: DirtyBound) -> WriteResult {
    context.engine().cache().dirty_limits().set_bound(context.group, which, bound);
    Ok(())
}

fn not_root(context: &FileContext<'_>) -> WriteResult {
    if context.group.is_root() { Err(ControlError::Invalid) } else { Ok(()) }
}

fn set_percent(context: &FileContext<'_>, which: DirtyThreshold, written: &[u8]) -> WriteResult {
    match u8::try_from(numbers::parse_number(written)?) {
        Ok(percent @ 0..=100) => set(context, which, DirtyBound::Percent(percent)),
        _ => Err(ControlError::Invalid),
    }
}

fn set_bytes(context: &FileContext<'_>, which: DirtyThreshold, least: u64, written: &[u8]) -> WriteResult {
    match numbers::parse_size_v1(written)? {
        bytes if bytes < least || bytes > i64::MAX as u64 => Err(ControlError::Invalid),
        bytes => set(context, which, DirtyBound::Bytes(bytes)),
    }
}

pub(crate) fn show_ratio(context: &FileContext<'_>) -> ReadResult {
    show_percent(context, Foreground)
}

pub(crate) fn set_ratio(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    not_root(context)?;
    set_percent(context, Foreground, written)
}

pub(crate) fn show_limit(context: &FileContext<'_>) -> ReadResult {
    show_bytes(context, Foreground)
}

pub(crate) fn set_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    not_root(context)?;
    set_bytes(context, Foreground, 0, written)
}

pub(crate) fn show_background_ratio(context: &FileContext<'_>) -> ReadResult {
    show_percent(context, Background)
}

pub(crate) fn set_background_ratio(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    not_root(context)?;
    set_percent(context, Background, written)
}

pub(crate) fn show_background_limit(context: &FileContext<'_>) -> ReadResult {
    show_bytes(context, Background)
}

pub(crate) fn set_background_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    not_root(context)?;
    set_bytes(context, Background, 0, written)
}

pub(crate) fn set_vm_ratio(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_percent(context, Foreground, written)
}

pub(crate) fn set_vm_background_ratio(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_percent(context, Background, written)
}

pub(crate) fn set_vm_bytes(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_bytes(context, Foreground, VM_DIRTY_BYTES_MIN, written)
}

pub(crate) fn set_vm_background_bytes(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_bytes(context, Background, 1, written)
}

fn show_centiseconds(time: Duration) -> ReadResult {
    line(time.as_millis() as u64 / CENTISECOND_MS)
}

fn parse_centiseconds(written: &[u8]) -> Result<Duration, ControlError> {
    // The largest value of an `int` in the kernel.
    let number = numbers::parse_number(written)?;
    if number > i32::MAX as u64 {
        return Err(ControlError::Invalid);
    }
    Ok(Duration::from_millis(number * CENTISECOND_MS))
}

pub(crate) fn show_expire(context: &FileContext<'_>) -> ReadResult {
    show_centiseconds(context.engine().cache().dirty_limits().expire())
}

pub(crate) fn set_expire(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let age = parse_centiseconds(written)?;
    context.engine().cache().dirty_limits().set_expire(age);
    context.engine().cache().wake_flushers();
    Ok(())
}

pub(crate) fn show_interval(context: &FileContext<'_>) -> ReadResult {
    show_centiseconds(context.engine().cache().dirty_limits().interval())
}

pub(crate) fn set_interval(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let interval = parse_centiseconds(written)?;
    context.engine().cache().dirty_limits().set_interval(interval);
    context.engine().cache().wake_flushers();
    Ok(())
}
