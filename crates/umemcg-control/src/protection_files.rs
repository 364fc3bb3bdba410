//! `memory.min` and `memory.low`: protection from reclaim.

use crate::context::FileContext;
use crate::numbers;
use crate::row::{ReadResult, WriteResult, line};

fn shown(bytes: u64) -> ReadResult {
    line(numbers::show_limit_v2(bytes))
}

pub(crate) fn show_min(context: &FileContext<'_>) -> ReadResult {
    shown(context.group.min_bytes())
}

pub(crate) fn show_low(context: &FileContext<'_>) -> ReadResult {
    shown(context.group.low_bytes())
}

pub(crate) fn set_min(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    context.engine().set_min(context.group, numbers::parse_limit_v2(written)?);
    Ok(())
}

pub(crate) fn set_low(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    context.engine().set_low(context.group, numbers::parse_limit_v2(written)?);
    Ok(())
}
