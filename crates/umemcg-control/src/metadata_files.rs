//! Memory other than page data: the `memory.kmem.*` files, the table of objects, `vm.drop_caches`
//! and `vm.compact_memory`.

use std::fmt::Write;

use umemcg::{DropCaches, StatItem};

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers;
use crate::row::{ReadResult, WriteResult, line};

pub(crate) fn show_usage(context: &FileContext<'_>) -> ReadResult {
    line(context.group.metadata_bytes())
}

pub(crate) fn show_peak(context: &FileContext<'_>) -> ReadResult {
    line(context.group.metadata_peak_bytes())
}

pub(crate) fn reset_peak(context: &FileContext<'_>, _written: &[u8]) -> WriteResult {
    context.group.reset_metadata_peak();
    Ok(())
}

/// Shows "no limit": metadata has no limit of its own.
pub(crate) fn show_limit(_context: &FileContext<'_>) -> ReadResult {
    line(numbers::UNLIMITED_V1_SHOWN)
}

/// Checks the written value, and ignores it, like Linux since 6.1.
pub(crate) fn set_limit(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    numbers::parse_limit_v1(written)?;
    if context.group.is_root() { Err(ControlError::Invalid) } else { Ok(()) }
}

/// Objects that belong to inodes: their names, statistics, and bytes charged for each.
const WITH_INODES: [(&str, StatItem, u64); 2] = [
    ("dentry-name", StatItem::SlabNames, umemcg::internal::NAME_BYTES),
    ("file-content", StatItem::SlabContents, umemcg::internal::CONTENT_BYTES),
];

/// Returns a line for each shrinker, for the objects of inodes, and for objects that no shrinker
/// can free. The bytes add up to the group's own `memory.kmem` bytes.
pub(crate) fn show_slabinfo(context: &FileContext<'_>) -> ReadResult {
    let mut table = context.engine().reclaimer().slab_usage(context.group);
    table.sort_by_key(|line| std::cmp::Reverse(line.usage.bytes));
    let mut text = String::from("# name <objects> <reclaimable> <bytes>\n");
    for line in table {
        let usage = line.usage;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {} {} {}", line.name, usage.objects, usage.reclaimable, usage.bytes);
    }
    for (name, item, bytes_each) in WITH_INODES {
        let bytes = context.group.stat_local(item).max(0).cast_unsigned();
        if bytes > 0 {
            let _ = writeln!(text, "{name} {} 0 {bytes}", bytes / bytes_each);
        }
    }
    // Index nodes with only shadow entries are counted by a shrinker.
    let indexes =
        context.group.stat_local(StatItem::IndexNodes) - context.group.stat_local(StatItem::ShadowNodes);
    if indexes > 0 {
        let bytes = indexes.cast_unsigned();
        let _ = writeln!(text, "index-node {} 0 {bytes}", bytes / umemcg::internal::INDEX_NODE_BYTES);
    }
    let groups = context.group.stat_local(StatItem::GroupState).max(0).cast_unsigned();
    if groups > 0 {
        let _ = writeln!(text, "group {} 0 {groups}", groups / umemcg::internal::GROUP_STATE_BYTES);
    }
    let fixed = context.group.stat_local(StatItem::SlabUnreclaimable).max(0);
    let _ = writeln!(text, "unreclaimable 0 0 {fixed}");
    Ok(text)
}

pub(crate) fn drop_caches(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    let what = match numbers::parse_number(written)? {
        1 => DropCaches::Pages,
        2 => DropCaches::Objects,
        3 => DropCaches::Both,
        _ => return Err(ControlError::Invalid),
    };
    context.engine().drop_caches_unless(what, context.request.cancelled);
    if (context.request.cancelled)() { Err(ControlError::Interrupted) } else { Ok(()) }
}

/// Serves `vm.compact_memory`.
pub(crate) fn compact_memory(context: &FileContext<'_>, written: &[u8]) -> WriteResult {
    if numbers::parse_number(written)? != 1 {
        return Err(ControlError::Invalid);
    }
    context.engine().trim();
    Ok(())
}
