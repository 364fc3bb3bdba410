//! `memory.oom_control`. No process is killed here: a charge that fails for good is an error of its
//! request. So the switch changes nothing, and no group is ever "under OOM". The file is kept for
//! programs that set it or listen to it.

use std::sync::atomic::Ordering::Relaxed;

use umemcg::EventKind;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers::parse_number;

pub(crate) fn show(context: &FileContext<'_>) -> Result<String, ControlError> {
    let disabled = u8::from(context.control().oom_kill_disabled.load(Relaxed));
    let nr_kills = context.group.event_count_local(EventKind::OomKill);
    Ok(format!("oom_kill_disable {disabled}\nunder_oom 0\noom_kill {nr_kills}\n"))
}

pub(crate) fn set(context: &FileContext<'_>, written: &[u8]) -> Result<(), ControlError> {
    let disabled = match parse_number(written)? {
        _ if context.group.is_root() => return Err(ControlError::Invalid),
        0 => false,
        1 => true,
        _ => return Err(ControlError::Invalid),
    };
    context.control().oom_kill_disabled.store(disabled, Relaxed);
    Ok(())
}
