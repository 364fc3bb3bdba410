//! The control files. `docs/semantics/control-files.md` shows this table; a test keeps it current.

use std::ffi::OsStr;

use crate::file_id::FileId;
use crate::inert_files::{INERT, ignore, show_zero};
use crate::pool_files::POOL;
use crate::row::{Row, Scope};
use crate::style::Version;
use crate::{
    background_files, dirty_files, memory_files, metadata_files, oom_control, pressure, process_files,
    protection_files, stat,
};

use Scope::{Everywhere, NotRoot};
use Version::{Both, Own, V1, V2};

/// All control files, in the order of a listing.
pub static ROWS: &[Row] = &concat::<{ GROUP.len() + INERT.len() + POOL.len() }>([GROUP, INERT, POOL]);

const fn concat<const NR: usize>(tables: [&[Row]; 3]) -> [Row; NR] {
    let mut all = [tables[0][0]; NR];
    let (mut table, mut nr) = (0, 0);
    while table < tables.len() {
        let mut at = 0;
        while at < tables[table].len() {
            all[nr] = tables[table][at];
            (at, nr) = (at + 1, nr + 1);
        }
        table += 1;
    }
    all
}

/// The files of a group with an effect.
const GROUP: &[Row] = &[
    Row::new("cgroup.procs", Both, Everywhere)
        .read_write(process_files::show_processes, process_files::attach_process)
        .doc("the processes in the group, one id per line; write an id to move that process with all its threads, 0 for the writer"),
    Row::new("tasks", V1, Everywhere)
        .read_write(process_files::show_tasks, process_files::attach_thread)
        .doc("the threads in the group, one id per line; write an id to move that thread, 0 for the writer"),
    Row::new("cgroup.threads", V2, Everywhere)
        .read_write(process_files::show_threads, process_files::refuse_thread)
        .doc("the threads in the group, one id per line; a write is EOPNOTSUPP, since no group is threaded"),
    Row::new("cgroup.kill", V2, NotRoot)
        .write(process_files::kill)
        .doc("write 1 to kill all processes in the group and below it"),
    Row::new("cgroup.controllers", V2, Everywhere)
        .read(process_files::show_controllers)
        .doc("always `memory`"),
    Row::new("cgroup.subtree_control", V2, Everywhere)
        .read_write(process_files::show_controllers, process_files::set_subtree_control)
        .doc("always `memory`: every child is controlled; `+memory` is accepted, `-memory` is EBUSY"),
    Row::new("cgroup.type", V2, NotRoot).read(process_files::show_type).doc("always `domain`"),
    Row::new("cgroup.events", V2, NotRoot)
        .read(process_files::show_events)
        .doc("`populated` is 1 while a process lives in the group or below it; `frozen` is always 0; can be polled like `memory.events`"),
    Row::new("cgroup.stat", V2, Everywhere)
        .read(stat::show_group_stat)
        .doc("`nr_descendants`: the groups below this one; `nr_dying_descendants`: always 0, since a removed group ends immediately"),
    Row::new("memory.limit_in_bytes", V1, Everywhere)
        .read_write(memory_files::show_limit_v1, memory_files::set_limit_v1)
        .write_reclaims()
        .doc("the hard limit in bytes, `-1` for none; a limit below usage reclaims first, and EBUSY leaves the old limit; the root's is the pool, and a write there is EINVAL"),
    Row::new("memory.max", V2, NotRoot)
        .read_write(memory_files::show_limit_v2, memory_files::set_limit_v2)
        .write_reclaims()
        .doc("the hard limit in bytes, `max` for none; takes effect immediately, then reclaims the memory above it"),
    Row::new("memory.soft_limit_in_bytes", V1, Everywhere)
        .read_write(memory_files::show_soft_limit, memory_files::set_soft_limit)
        .doc("the soft limit in bytes, `-1` for none; groups over their soft limit, and those below them, are reclaimed first; a write reclaims nothing"),
    Row::new("memory.usage_in_bytes", V1, Everywhere)
        .read(memory_files::show_usage)
        .doc("the bytes charged to the group and all groups below it"),
    Row::new("memory.current", V2, NotRoot)
        .read(memory_files::show_usage)
        .doc("the bytes charged to the group and all groups below it"),
    Row::new("memory.max_usage_in_bytes", V1, Everywhere)
        .read_write(memory_files::show_peak_v1, memory_files::reset_peak_v1)
        .doc("the highest usage since the group was created or since the last write to this file; a write resets it to the present usage"),
    Row::new("memory.peak", V2, NotRoot)
        .read_write(memory_files::show_peak_v2, memory_files::reset_peak_v2)
        .doc("the highest usage ever; a write resets it to the present usage, for this open file only"),
    Row::new("memory.failcnt", V1, Everywhere)
        .read_write(memory_files::show_failcnt, memory_files::reset_failcnt)
        .doc("the number of charges that the limit refused; any write resets it to 0"),
    Row::new("memory.force_empty", V1, Everywhere)
        .write(memory_files::force_empty)
        .write_reclaims()
        .doc("any write writes dirty data back and reclaims everything that can be reclaimed; EINVAL on the root"),
    Row::new("memory.reclaim", V2, Everywhere)
        .write(memory_files::reclaim)
        .write_reclaims()
        .doc("write a size to reclaim that many bytes from the group and those below it; EAGAIN if fewer could be reclaimed"),
    Row::new("memory.min", V2, NotRoot)
        .read_write(protection_files::show_min, protection_files::set_min)
        .doc("memory protection: this many bytes are never reclaimed by pressure from above the group, `max` for all; children share their parent's protection; a write reclaims nothing"),
    Row::new("memory.low", V2, NotRoot)
        .read_write(protection_files::show_low, protection_files::set_low)
        .doc("like `memory.min`, but only while unprotected memory can be reclaimed; reclaim below it counts as `low` in `memory.events`"),
    Row::new("memory.high", V2, NotRoot)
        .read_write(background_files::show_high, background_files::set_high)
        .write_reclaims()
        .doc("the usage above which background reclaim works on the group, and requests that charge memory are delayed by up to 2 s at their end; `max` for none"),
    Row::new("memory.low_wmark_distance", Own, Everywhere)
        .read_write(background_files::show_low_distance, background_files::set_low_distance)
        .doc("background reclaim starts when the margin below the limit is this or less; 0 for never; EINVAL unless below the high distance; the root's counts from the end of the pool"),
    Row::new("memory.high_wmark_distance", Own, Everywhere)
        .read_write(background_files::show_high_distance, background_files::set_high_distance)
        .doc("background reclaim stops when the margin below the limit is more than this; set it before the low distance; EINVAL unless below the limit and above the low distance"),
    Row::new("memory.reclaim_wmarks", Own, Everywhere)
        .read(background_files::show_marks)
        .doc("the two watermarks as usages in bytes: `low_wmark` starts background reclaim, `high_wmark` stops it"),
    Row::new("memory.kswapd_pid", Own, Everywhere)
        .read(background_files::show_kswapd_pid)
        .doc("the name and thread id of the group's dedicated worker; `memcg_null 0` while the pool of workers serves it"),
    Row::new("memory.kswapd_dedicated", Own, Everywhere)
        .read_write(background_files::show_dedicated, background_files::set_dedicated)
        .doc("1 gives the group a dedicated worker, which can be put into a CPU cgroup; 0 returns it to the pool of workers. At most 8 within one top-level group, and 64 in all (EAGAIN)"),
    Row::new("memory.wmark_ratio", Own, Everywhere)
        .read_write(background_files::show_ratio, background_files::set_ratio)
        .doc("the watermarks in percent of the limit, 0 to 100, 0 for off; overrides the distances, and is overridden by them"),
    Row::new("memory.wmark_scale_factor", Own, Everywhere)
        .read_write(background_files::show_scale_factor, background_files::set_scale_factor)
        .doc("with a ratio: the distance from the start of background reclaim down to its end, in ten-thousandths of the limit, 1 to 1000"),
    Row::new("memory.wmark_high", Own, Everywhere)
        .read(background_files::show_mark_high)
        .doc("the usage at which background reclaim starts (the low watermark by its other name)"),
    Row::new("memory.wmark_low", Own, Everywhere)
        .read(background_files::show_mark_low)
        .doc("the usage below which background reclaim stops (the high watermark by its other name)"),
    Row::new("memory.dirty_ratio", Own, Everywhere)
        .read_write(dirty_files::show_ratio, dirty_files::set_ratio)
        .doc("the dirty data at which the group's writers are throttled, in percent of its dirtyable memory, 0 to 100; 0 while `memory.dirty_limit_in_bytes` is set; a new group inherits its parent's; the root shows the pool's, and a write there is EINVAL"),
    Row::new("memory.dirty_limit_in_bytes", Own, Everywhere)
        .read_write(dirty_files::show_limit, dirty_files::set_limit)
        .doc("`memory.dirty_ratio` in bytes, with suffixes; 0 while the ratio is set; at least 256 KiB are allowed, whatever is written"),
    Row::new("memory.dirty_background_ratio", Own, Everywhere)
        .read_write(dirty_files::show_background_ratio, dirty_files::set_background_ratio)
        .doc("the dirty data above which the group's files are written in the background, in percent of its dirtyable memory; 0 while `memory.dirty_background_limit_in_bytes` is set; a value that is not below the limit counts as half of the limit"),
    Row::new("memory.dirty_background_limit_in_bytes", Own, Everywhere)
        .read_write(dirty_files::show_background_limit, dirty_files::set_background_limit)
        .doc("`memory.dirty_background_ratio` in bytes, with suffixes; 0 while the ratio is set"),
    Row::new("memory.stat", Both, Everywhere)
        .read(stat::show_memory_stat)
        .doc("memory by kind, and counts of events; see below"),
    Row::new("umemcg.stat", Own, Everywhere)
        .read(stat::show_all)
        .doc("`memory.stat` as in style `both`, whatever the style"),
    Row::new("memory.numa_stat", Both, Everywhere)
        .read(stat::show_numa_stat)
        .doc("pages (v1) or bytes (v2, and style `both`) by kind; all memory counts as node 0's"),
    Row::new("memory.kmem.usage_in_bytes", V1, Everywhere)
        .read(metadata_files::show_usage)
        .doc("the bytes of the group and those below it that are not page data: names, inodes, other objects, bookkeeping; part of the usage"),
    Row::new("memory.kmem.max_usage_in_bytes", V1, Everywhere)
        .read_write(metadata_files::show_peak, metadata_files::reset_peak)
        .doc("the highest `memory.kmem.usage_in_bytes` since the group was created or since the last write to this file"),
    Row::new("memory.kmem.limit_in_bytes", V1, Everywhere)
        .read_write(metadata_files::show_limit, metadata_files::set_limit)
        .doc("no separate limit: a write is checked and ignored, as in Linux; a write on the root is EINVAL"),
    Row::new("memory.kmem.failcnt", V1, Everywhere).read_write(show_zero, ignore).doc("always 0"),
    Row::new("memory.kmem.slabinfo", V1, Everywhere)
        .read(metadata_files::show_slabinfo)
        .doc("the group's own objects, a line for each shrinker that has any: name, objects, objects that could be freed now, bytes; then memory that goes with inodes (long and further names, contents of files), then memory that no shrinker can free"),
    Row::new("memory.use_hierarchy", V1, Everywhere)
        .read_write(memory_files::show_use_hierarchy, memory_files::set_use_hierarchy)
        .doc("always 1; writing anything else is EINVAL"),
    Row::new("memory.events", V2, NotRoot)
        .read(stat::show_events)
        .doc("counts of events at the limits of the group and all groups below it; a poll returns POLLPRI and POLLERR if they have changed since the open file was last read"),
    Row::new("memory.events.local", V2, NotRoot)
        .read(stat::show_events_local)
        .doc("like `memory.events`, for the group's own limits only"),
    Row::new("memory.pressure", V2, Everywhere)
        .read_write(pressure::show, pressure::set_trigger)
        .doc("time lost for lack of memory, by at least one request (`some`) or by all (`full`); write a trigger (`some` or `full`, then microseconds lost and window in microseconds) and poll for POLLPRI"),
    Row::new("memory.oom_control", V1, Everywhere)
        .read_write(oom_control::show, oom_control::set)
        .doc("0 or 1 is accepted without effect, since no process is killed: if a charge finally fails, its request gets an error; EINVAL on the root"),
];

/// Returns whether this name is reserved: a control file has it or may get it in a later version.
pub fn is_control_file_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    [b"memory.".as_slice(), b"cgroup.", b"vm.", b"umemcg."].iter().any(|prefix| name.starts_with(prefix))
        || find(name).is_some()
}

/// Returns the row of this name and its number.
pub(crate) fn find(name: &[u8]) -> Option<(u8, &'static Row)> {
    let at = ROWS.iter().position(|row| row.name.as_bytes() == name)?;
    Some((at as u8, &ROWS[at]))
}

/// Returns the row of a file.
pub(crate) fn row_of(file: FileId) -> &'static Row {
    &ROWS[usize::from(file.number)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let names: HashSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        assert!(ROWS.len() < 256, "a row number fits a byte");
    }

    #[test]
    fn every_file_has_a_function_and_a_description() {
        for row in ROWS {
            assert!(row.read.is_some() || row.write.is_some(), "{}", row.name);
            assert!(!row.doc.is_empty() && !row.doc.contains('|'), "{}", row.name);
        }
    }
}
