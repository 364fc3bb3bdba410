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
use crate::row::{READ_ONLY, READ_WRITE, ReadResult, Row, Scope, WriteResult};
use crate::style::Version;

use Scope::{Everywhere, NotRoot};
use Version::{V1, V2};

/// Their rows.
pub(crate) const INERT: &[Row] = &[
    Row {
        name: "memory.memsw.limit_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_memsw_limit),
        write: Some(set_memsw_limit),
        write_reclaims: false,
        doc: "the limit of memory and swap together; stored without effect, since there is no swap; EINVAL below `memory.limit_in_bytes`, which may not be set above it",
    },
    Row {
        name: "memory.memsw.usage_in_bytes",
        version: V1,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(memory_files::show_usage),
        write: None,
        write_reclaims: false,
        doc: "the same as `memory.usage_in_bytes`: there is no swap",
    },
    Row {
        name: "memory.memsw.max_usage_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_memsw_peak),
        write: Some(reset_memsw_peak),
        write_reclaims: false,
        doc: "the highest `memory.memsw.usage_in_bytes` since the group was created or since the last write to this file",
    },
    Row {
        name: "memory.memsw.failcnt",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_zero),
        write: Some(ignore),
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.kmem.tcp.limit_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_tcp_limit),
        write: Some(set_tcp_limit),
        write_reclaims: false,
        doc: "stored without effect, since no sockets are charged; a write on the root is EINVAL",
    },
    Row {
        name: "memory.kmem.tcp.usage_in_bytes",
        version: V1,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(show_zero),
        write: None,
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.kmem.tcp.max_usage_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_zero),
        write: Some(ignore),
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.kmem.tcp.failcnt",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_zero),
        write: Some(ignore),
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.swappiness",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_swappiness),
        write: Some(set_swappiness),
        write_reclaims: false,
        doc: "0 to 200; stored without effect; a new group inherits its parent's",
    },
    Row {
        name: "memory.move_charge_at_immigrate",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_zero),
        write: Some(set_zero),
        write_reclaims: false,
        doc: "always 0; writing anything else is EINVAL, as in Linux since 6.11: charges stay where they are",
    },
    Row {
        name: "notify_on_release",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_notify),
        write: Some(set_notify),
        write_reclaims: false,
        doc: "0 or 1; stored without effect: no program is started; a new group inherits its parent's",
    },
    Row {
        name: "cgroup.clone_children",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(show_clone),
        write: Some(set_clone),
        write_reclaims: false,
        doc: "0 or 1; stored without effect; a new group inherits its parent's",
    },
    Row {
        name: "memory.swap.current",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(show_zero),
        write: None,
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.swap.peak",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(show_zero),
        write: Some(ignore),
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.swap.max",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(show_swap_max),
        write: Some(set_swap_max),
        write_reclaims: false,
        doc: "stored without effect, since there is no swap",
    },
    Row {
        name: "memory.swap.high",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(show_swap_high),
        write: Some(set_swap_high),
        write_reclaims: false,
        doc: "stored without effect, since there is no swap",
    },
    Row {
        name: "memory.swap.events",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(show_swap_events),
        write: None,
        write_reclaims: false,
        doc: "`high`, `max` and `fail`, always 0",
    },
    Row {
        name: "memory.oom.group",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(show_oom_group),
        write: Some(set_oom_group),
        write_reclaims: false,
        doc: "0 or 1; stored without effect: no process is killed for lack of memory",
    },
];

fn inert<'a>(context: &'a FileContext<'_>) -> &'a Inert {
    &context.control().inert
}

fn number(value: u64) -> ReadResult {
    Ok(format!("{value}\n"))
}

fn show_zero(_context: &FileContext<'_>) -> ReadResult {
    number(0)
}

fn ignore(_context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    Ok(())
}

fn set_zero(_context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if numbers::parse_number(written)? == 0 { Ok(()) } else { Err(ControlError::Invalid) }
}

fn show_memsw_limit(context: &FileContext<'_>) -> ReadResult {
    number(numbers::show_limit_v1(inert(context).memsw_limit()))
}

fn set_memsw_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let bytes = numbers::parse_limit_v1(written)?;
    if context.group.is_root() || bytes < context.group.max_bytes() {
        return Err(ControlError::Invalid);
    }
    inert(context).memsw_limit.store(bytes, Relaxed);
    Ok(())
}

fn show_tcp_limit(context: &FileContext<'_>) -> ReadResult {
    number(numbers::show_limit_v1(inert(context).tcp_limit.load(Relaxed)))
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
    number(context.control().peaks.read(context.group, PeakOf::Memsw))
}

fn reset_memsw_peak(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    context.control().peaks.reset(context.group, PeakOf::Memsw);
    Ok(())
}

fn show_swappiness(context: &FileContext<'_>) -> ReadResult {
    number(inert(context).swappiness.load(Relaxed).into())
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
    number(flag.load(Relaxed).into())
}

fn show_notify(context: &FileContext<'_>) -> ReadResult {
    show_flag(&inert(context).notify_on_release)
}

fn set_notify(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_flag(&inert(context).notify_on_release, written)
}

fn show_clone(context: &FileContext<'_>) -> ReadResult {
    show_flag(&inert(context).clone_children)
}

fn set_clone(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_flag(&inert(context).clone_children, written)
}

fn show_oom_group(context: &FileContext<'_>) -> ReadResult {
    show_flag(&inert(context).oom_group)
}

fn set_oom_group(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if numbers::parse_number(written)? > 1 {
        return Err(ControlError::Invalid);
    }
    set_flag(&inert(context).oom_group, written)
}

fn show_limit(limit: &AtomicU64) -> ReadResult {
    Ok(format!("{}\n", numbers::show_limit_v2(limit.load(Relaxed))))
}

fn set_limit(limit: &AtomicU64, written: &[u8]) -> WriteResult {
    limit.store(numbers::parse_limit_v2(written)?, Relaxed);
    Ok(())
}

fn show_swap_max(context: &FileContext<'_>) -> ReadResult {
    show_limit(&inert(context).swap_max)
}

fn set_swap_max(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_limit(&inert(context).swap_max, written)
}

fn show_swap_high(context: &FileContext<'_>) -> ReadResult {
    show_limit(&inert(context).swap_high)
}

fn set_swap_high(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    set_limit(&inert(context).swap_high, written)
}

fn show_swap_events(_context: &FileContext<'_>) -> ReadResult {
    Ok("high 0\nmax 0\nfail 0\n".to_owned())
}
