//! `memory.min` and `memory.low`: protection from reclaim.

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers;

type Shown = Result<String, ControlError>;
type Done = Result<(), ControlError>;

fn shown(bytes: u64) -> Shown {
    Ok(format!("{}\n", numbers::show_limit_v2(bytes)))
}

pub(crate) fn show_min(context: &FileContext<'_>) -> Shown {
    shown(context.group.min_bytes())
}

pub(crate) fn show_low(context: &FileContext<'_>) -> Shown {
    shown(context.group.low_bytes())
}

pub(crate) fn set_min(context: &FileContext<'_>, written: &[u8]) -> Done {
    context.engine().set_min(context.group, numbers::parse_limit_v2(written)?);
    Ok(())
}

pub(crate) fn set_low(context: &FileContext<'_>, written: &[u8]) -> Done {
    context.engine().set_low(context.group, numbers::parse_limit_v2(written)?);
    Ok(())
}
