//! Files expected by tools written for Linux, without effect here: there is no swap, no socket is
//! charged, no process is killed. Written values are checked as in Linux, and stored where Linux
//! shows them on a read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::context::FileContext;
use crate::error::ControlError;
use crate::inert::Inert;
use crate::memory_files;
use crate::numbers::{self, SWAPPINESS_MAX};
use crate::peak::PeakOf;
use crate::row::{ReadResult, Row, Scope, WriteResult, line};
use crate::style::Version;

use Scope::{Everywhere, NotRoot};
use Version::{V1, V2};

/// Their rows.
pub(crate) const INERT: &[Row] = &[
    Row::new("memory.memsw.limit_in_bytes", V1, Everywhere)
        .read(|context| line(numbers::show_limit_v1(inert(context).memsw_limit())))
        .write(set_memsw_limit)
        .doc("the limit of memory and swap together; stored without effect, since there is no swap; EINVAL below `memory.limit_in_bytes`, which may not be set above it"),
    Row::new("memory.memsw.usage_in_bytes", V1, Everywhere)
        .read(memory_files::show_usage)
        .doc("the same as `memory.usage_in_bytes`: there is no swap"),
    Row::new("memory.memsw.max_usage_in_bytes", V1, Everywhere)
        .read_write(show_memsw_peak, reset_memsw_peak)
        .doc("the highest `memory.memsw.usage_in_bytes` since the group was created or since the last write to this file"),
    Row::new("memory.memsw.failcnt", V1, Everywhere).read_write(show_zero, ignore).doc("always 0"),
    Row::new("memory.kmem.tcp.limit_in_bytes", V1, Everywhere)
        .read(|context| line(numbers::show_limit_v1(inert(context).tcp_limit.load(Relaxed))))
        .write(set_tcp_limit)
        .doc("stored without effect, since no sockets are charged; a write on the root is EINVAL"),
    Row::new("memory.kmem.tcp.usage_in_bytes", V1, Everywhere).read(show_zero).doc("always 0"),
    Row::new("memory.kmem.tcp.max_usage_in_bytes", V1, Everywhere)
        .read_write(show_zero, ignore)
        .doc("always 0"),
    Row::new("memory.kmem.tcp.failcnt", V1, Everywhere).read_write(show_zero, ignore).doc("always 0"),
    Row::new("memory.swappiness", V1, Everywhere)
        .read_write(|context| line(inert(context).swappiness.load(Relaxed)), set_swappiness)
        .doc("0 to 200; stored without effect; a new group inherits its parent's"),
    Row::new("memory.move_charge_at_immigrate", V1, Everywhere)
        .read_write(show_zero, set_zero)
        .doc("always 0; writing anything else is EINVAL, as in Linux since 6.11: charges stay where they are"),
    Row::new("notify_on_release", V1, Everywhere)
        .read(|context| show_flag(&inert(context).notify_on_release))
        .write(|context, written| set_flag(&inert(context).notify_on_release, written))
        .doc("0 or 1; stored without effect: no program is started; a new group inherits its parent's"),
    Row::new("cgroup.clone_children", V1, Everywhere)
        .read(|context| show_flag(&inert(context).clone_children))
        .write(|context, written| set_flag(&inert(context).clone_children, written))
        .doc("0 or 1; stored without effect; a new group inherits its parent's"),
    Row::new("memory.swap.current", V2, NotRoot).read(show_zero).doc("always 0"),
    Row::new("memory.swap.peak", V2, NotRoot).read_write(show_zero, ignore).doc("always 0"),
    Row::new("memory.swap.max", V2, NotRoot)
        .read(|context| show_limit(&inert(context).swap_max))
        .write(|context, written| set_limit(&inert(context).swap_max, written))
        .doc("stored without effect, since there is no swap"),
    Row::new("memory.swap.high", V2, NotRoot)
        .read(|context| show_limit(&inert(context).swap_high))
        .write(|context, written| set_limit(&inert(context).swap_high, written))
        .doc("stored without effect, since there is no swap"),
    Row::new("memory.swap.events", V2, NotRoot)
        .read(|_context| Ok("high 0\nmax 0\nfail 0\n".to_owned()))
        .doc("`high`, `max` and `fail`, always 0"),
    Row::new("memory.oom.group", V2, NotRoot)
        .read_write(|context| show_flag(&inert(context).oom_group), set_oom_group)
        .doc("0 or 1; stored without effect: no process is killed for lack of memory"),
];

fn inert<'a>(context: &'a FileContext<'_>) -> &'a Inert {
    &context.control().inert
}

pub(crate) fn show_zero(_context: &FileContext<'_>) -> ReadResult {
    line(0)
}

pub(crate) fn ignore(_context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    Ok(())
}

fn set_zero(_context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if numbers::parse_number(written)? == 0 { Ok(()) } else { Err(ControlError::Invalid) }
}

fn set_memsw_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v1(written)?;
    if context.group.is_root() || bytes < context.group.max_bytes() {
        return Err(ControlError::Invalid);
    }
    inert(context).memsw_limit.store(bytes, Relaxed);
    Ok(())
}

fn set_tcp_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v1(written)?;
    if context.group.is_root() {
        return Err(ControlError::Invalid);
    }
    inert(context).tcp_limit.store(bytes, Relaxed);
    Ok(())
}

fn show_memsw_peak(context: &FileContext<'_>) -> ReadResult {
    line(context.control().peaks.read(context.group, PeakOf::Memsw))
}

fn reset_memsw_peak(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    context.control().peaks.reset(context.group, PeakOf::Memsw);
    Ok(())
}

fn set_swappiness(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    match numbers::parse_number(written)? {
        swappiness @ 0..=SWAPPINESS_MAX => {
            inert(context).swappiness.store(swappiness as u8, Relaxed);
            Ok(())
        }
        _ => Err(ControlError::Invalid),
    }
}

/// Sets a flag. Any number but 0 is 1, as in Linux.
fn set_flag(flag: &AtomicBool, written: &[u8]) -> WriteResult {
    flag.store(numbers::parse_number(written)? != 0, Relaxed);
    Ok(())
}

fn show_flag(flag: &AtomicBool) -> ReadResult {
    line(u8::from(flag.load(Relaxed)))
}

fn set_oom_group(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if numbers::parse_number(written)? > 1 {
        return Err(ControlError::Invalid);
    }
    set_flag(&inert(context).oom_group, written)
}

fn show_limit(limit: &AtomicU64) -> ReadResult {
    line(numbers::show_limit_v2(limit.load(Relaxed)))
}

fn set_limit(limit: &AtomicU64, written: &[u8]) -> WriteResult {
    limit.store(numbers::parse_limit_v2(written)?, Relaxed);
    Ok(())
}
