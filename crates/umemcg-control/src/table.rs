//! The control files. `docs/semantics/control-files.md` shows this table; a test keeps it current.

use std::ffi::OsStr;

use crate::file_id::FileId;
use crate::inert_files::INERT;
use crate::pool_files::POOL;
use crate::row::{READ_ONLY, READ_WRITE, Row, Scope, WRITE_ONLY};
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
    Row {
        name: "cgroup.procs",
        version: Both,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(process_files::show_processes),
        write: Some(process_files::attach_process),
        write_reclaims: false,
        doc: "the processes in the group, one id per line; write an id to move that process with all its threads, 0 for \
              the writer",
    },
    Row {
        name: "tasks",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(process_files::show_tasks),
        write: Some(process_files::attach_thread),
        write_reclaims: false,
        doc: "the threads in the group, one id per line; write an id to move that thread, 0 for the writer",
    },
    Row {
        name: "cgroup.threads",
        version: V2,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(process_files::show_threads),
        write: Some(process_files::refuse_thread),
        write_reclaims: false,
        doc: "the threads in the group, one id per line; a write is EOPNOTSUPP, since no group is threaded",
    },
    Row {
        name: "cgroup.kill",
        version: V2,
        mode: WRITE_ONLY,
        scope: NotRoot,
        read: None,
        write: Some(process_files::kill),
        write_reclaims: false,
        doc: "write 1 to kill all processes in the group and below it",
    },
    Row {
        name: "cgroup.controllers",
        version: V2,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(process_files::show_controllers),
        write: None,
        write_reclaims: false,
        doc: "always `memory`",
    },
    Row {
        name: "cgroup.subtree_control",
        version: V2,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(process_files::show_controllers),
        write: Some(process_files::set_subtree_control),
        write_reclaims: false,
        doc: "always `memory`: every child is controlled; `+memory` is accepted, `-memory` is EBUSY",
    },
    Row {
        name: "cgroup.type",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(process_files::show_type),
        write: None,
        write_reclaims: false,
        doc: "always `domain`",
    },
    Row {
        name: "cgroup.events",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(process_files::show_events),
        write: None,
        write_reclaims: false,
        doc: "`populated` is 1 while a process lives in the group or below it; `frozen` is always 0; can be polled like `memory.events`",
    },
    Row {
        name: "cgroup.stat",
        version: V2,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(stat::show_group_stat),
        write: None,
        write_reclaims: false,
        doc: "`nr_descendants`: the groups below this one; `nr_dying_descendants`: always 0, since a removed group ends immediately",
    },
    Row {
        name: "memory.limit_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(memory_files::show_limit_v1),
        write: Some(memory_files::set_limit_v1),
        write_reclaims: true,
        doc: "the hard limit in bytes, `-1` for none; a limit below usage reclaims first, and EBUSY leaves the old limit; \
              the root's is the pool, and a write there is EINVAL",
    },
    Row {
        name: "memory.max",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(memory_files::show_limit_v2),
        write: Some(memory_files::set_limit_v2),
        write_reclaims: true,
        doc: "the hard limit in bytes, `max` for none; takes effect immediately, then reclaims the memory above it",
    },
    Row {
        name: "memory.soft_limit_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(memory_files::show_soft_limit),
        write: Some(memory_files::set_soft_limit),
        write_reclaims: false,
        doc: "the soft limit in bytes, `-1` for none; groups over their soft limit, and those below them, are reclaimed first; a write reclaims nothing",
    },
    Row {
        name: "memory.usage_in_bytes",
        version: V1,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(memory_files::show_usage),
        write: None,
        write_reclaims: false,
        doc: "the bytes charged to the group and all groups below it",
    },
    Row {
        name: "memory.current",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(memory_files::show_usage),
        write: None,
        write_reclaims: false,
        doc: "the bytes charged to the group and all groups below it",
    },
    Row {
        name: "memory.max_usage_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(memory_files::show_peak_v1),
        write: Some(memory_files::reset_peak_v1),
        write_reclaims: false,
        doc: "the highest usage since the group was created or since the last write to this file; a write resets it to the present usage",
    },
    Row {
        name: "memory.peak",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(memory_files::show_peak_v2),
        write: Some(memory_files::reset_peak_v2),
        write_reclaims: false,
        doc: "the highest usage ever; a write resets it to the present usage, for this open file only",
    },
    Row {
        name: "memory.failcnt",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(memory_files::show_failcnt),
        write: Some(memory_files::reset_failcnt),
        write_reclaims: false,
        doc: "the number of charges that the limit refused; any write resets it to 0",
    },
    Row {
        name: "memory.force_empty",
        version: V1,
        mode: WRITE_ONLY,
        scope: Everywhere,
        read: None,
        write: Some(memory_files::force_empty),
        write_reclaims: true,
        doc: "any write writes dirty data back and reclaims everything that can be reclaimed; EINVAL on the root",
    },
    Row {
        name: "memory.reclaim",
        version: V2,
        mode: WRITE_ONLY,
        scope: Everywhere,
        read: None,
        write: Some(memory_files::reclaim),
        write_reclaims: true,
        doc: "write a size to reclaim that many bytes from the group and those below it; EAGAIN if fewer could be reclaimed",
    },
    Row {
        name: "memory.min",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(protection_files::show_min),
        write: Some(protection_files::set_min),
        write_reclaims: false,
        doc: "memory protection: this many bytes are never reclaimed by pressure from above the group, `max` for all; children share their parent's protection; a write reclaims nothing",
    },
    Row {
        name: "memory.low",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(protection_files::show_low),
        write: Some(protection_files::set_low),
        write_reclaims: false,
        doc: "like `memory.min`, but only while unprotected memory can be reclaimed; reclaim below it counts as `low` in `memory.events`",
    },
    Row {
        name: "memory.high",
        version: V2,
        mode: READ_WRITE,
        scope: NotRoot,
        read: Some(background_files::show_high),
        write: Some(background_files::set_high),
        write_reclaims: true,
        doc: "the usage above which background reclaim works on the group, and requests that charge memory are delayed by up to 2 s at their end; `max` for none",
    },
    Row {
        name: "memory.low_wmark_distance",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(background_files::show_low_distance),
        write: Some(background_files::set_low_distance),
        write_reclaims: false,
        doc: "background reclaim starts when the margin below the limit is this or less; 0 for never; EINVAL unless below the high distance; the root's counts from the end of the pool",
    },
    Row {
        name: "memory.high_wmark_distance",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(background_files::show_high_distance),
        write: Some(background_files::set_high_distance),
        write_reclaims: false,
        doc: "background reclaim stops when the margin below the limit is more than this; set it before the low distance; EINVAL unless below the limit and above the low distance",
    },
    Row {
        name: "memory.reclaim_wmarks",
        version: Own,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(background_files::show_marks),
        write: None,
        write_reclaims: false,
        doc: "the two watermarks as usages in bytes: `low_wmark` starts background reclaim, `high_wmark` stops it",
    },
    Row {
        name: "memory.kswapd_pid",
        version: Own,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(background_files::show_kswapd_pid),
        write: None,
        write_reclaims: false,
        doc: "the name and thread id of the group's dedicated worker; `memcg_null 0` while the pool of workers serves it",
    },
    Row {
        name: "memory.kswapd_dedicated",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(background_files::show_dedicated),
        write: Some(background_files::set_dedicated),
        write_reclaims: false,
        doc: "1 gives the group a dedicated worker, which can be put into a CPU cgroup; 0 returns it to the pool of workers. At most 8 within one top-level group, and 64 in all (EAGAIN)",
    },
    Row {
        name: "memory.wmark_ratio",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(background_files::show_ratio),
        write: Some(background_files::set_ratio),
        write_reclaims: false,
        doc: "the watermarks in percent of the limit, 0 to 100, 0 for off; overrides the distances, and is overridden by them",
    },
    Row {
        name: "memory.wmark_scale_factor",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(background_files::show_scale_factor),
        write: Some(background_files::set_scale_factor),
        write_reclaims: false,
        doc: "with a ratio: the distance from the start of background reclaim down to its end, in ten-thousandths of the limit, 1 to 1000",
    },
    Row {
        name: "memory.wmark_high",
        version: Own,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(background_files::show_mark_high),
        write: None,
        write_reclaims: false,
        doc: "the usage at which background reclaim starts (the low watermark by its other name)",
    },
    Row {
        name: "memory.wmark_low",
        version: Own,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(background_files::show_mark_low),
        write: None,
        write_reclaims: false,
        doc: "the usage below which background reclaim stops (the high watermark by its other name)",
    },
    Row {
        name: "memory.dirty_ratio",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(dirty_files::show_ratio),
        write: Some(dirty_files::set_ratio),
        write_reclaims: false,
        doc: "the dirty data at which the group's writers are throttled, in percent of its dirtyable memory, 0 to 100; 0 while `memory.dirty_limit_in_bytes` is set; a new group inherits its parent's; the root shows the pool's, and a write there is EINVAL",
    },
    Row {
        name: "memory.dirty_limit_in_bytes",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(dirty_files::show_limit),
        write: Some(dirty_files::set_limit),
        write_reclaims: false,
        doc: "`memory.dirty_ratio` in bytes, with suffixes; 0 while the ratio is set; at least 256 KiB are allowed, whatever is written",
    },
    Row {
        name: "memory.dirty_background_ratio",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(dirty_files::show_background_ratio),
        write: Some(dirty_files::set_background_ratio),
        write_reclaims: false,
        doc: "the dirty data above which the group's files are written in the background, in percent of its dirtyable memory; 0 while `memory.dirty_background_limit_in_bytes` is set; a value that is not below the limit counts as half of the limit",
    },
    Row {
        name: "memory.dirty_background_limit_in_bytes",
        version: Own,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(dirty_files::show_background_limit),
        write: Some(dirty_files::set_background_limit),
        write_reclaims: false,
        doc: "`memory.dirty_background_ratio` in bytes, with suffixes; 0 while the ratio is set",
    },
    Row {
        name: "memory.stat",
        version: Both,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(stat::show_memory_stat),
        write: None,
        write_reclaims: false,
        doc: "memory by kind, and counts of events; see below",
    },
    Row {
        name: "umemcg.stat",
        version: Own,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(stat::show_all),
        write: None,
        write_reclaims: false,
        doc: "`memory.stat` as in style `both`, whatever the style",
    },
    Row {
        name: "memory.numa_stat",
        version: Both,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(stat::show_numa_stat),
        write: None,
        write_reclaims: false,
        doc: "pages (v1) or bytes (v2, and style `both`) by kind; all memory counts as node 0's",
    },
    Row {
        name: "memory.kmem.usage_in_bytes",
        version: V1,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(metadata_files::show_usage),
        write: None,
        write_reclaims: false,
        doc: "the bytes of the group and those below it that are not page data: names, inodes, other objects, bookkeeping; part of the usage",
    },
    Row {
        name: "memory.kmem.max_usage_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(metadata_files::show_peak),
        write: Some(metadata_files::reset_peak),
        write_reclaims: false,
        doc: "the highest `memory.kmem.usage_in_bytes` since the group was created or since the last write to this file",
    },
    Row {
        name: "memory.kmem.limit_in_bytes",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(metadata_files::show_limit),
        write: Some(metadata_files::set_limit),
        write_reclaims: false,
        doc: "no separate limit: a write is checked and ignored, as in Linux; a write on the root is EINVAL",
    },
    Row {
        name: "memory.kmem.failcnt",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(metadata_files::show_failcnt),
        write: Some(metadata_files::reset_failcnt),
        write_reclaims: false,
        doc: "always 0",
    },
    Row {
        name: "memory.kmem.slabinfo",
        version: V1,
        mode: READ_ONLY,
        scope: Everywhere,
        read: Some(metadata_files::show_slabinfo),
        write: None,
        write_reclaims: false,
        doc: "the group's own objects, a line for each shrinker that has any: name, objects, objects that could be freed now, bytes; then memory that goes with inodes (long and further names, contents of files), then memory that no shrinker can free",
    },
    Row {
        name: "memory.use_hierarchy",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(memory_files::show_use_hierarchy),
        write: Some(memory_files::set_use_hierarchy),
        write_reclaims: false,
        doc: "always 1; writing anything else is EINVAL",
    },
    Row {
        name: "memory.events",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(stat::show_events),
        write: None,
        write_reclaims: false,
        doc: "counts of events at the limits of the group and all groups below it; a poll returns POLLPRI and POLLERR if they have changed since the open file was last read",
    },
    Row {
        name: "memory.events.local",
        version: V2,
        mode: READ_ONLY,
        scope: NotRoot,
        read: Some(stat::show_events_local),
        write: None,
        write_reclaims: false,
        doc: "like `memory.events`, for the group's own limits only",
    },
    Row {
        name: "memory.pressure",
        version: V2,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(pressure::show),
        write: Some(pressure::set_trigger),
        write_reclaims: false,
        doc: "time lost for lack of memory, by at least one request (`some`) or by all (`full`); write a trigger (`some` or `full`, then microseconds lost and window in microseconds) and poll for POLLPRI",
    },
    Row {
        name: "memory.oom_control",
        version: V1,
        mode: READ_WRITE,
        scope: Everywhere,
        read: Some(oom_control::show),
        write: Some(oom_control::set),
        write_reclaims: false,
        doc: "0 or 1 is accepted without effect, since no process is killed: if a charge finally fails, its request gets an error; EINVAL on the root",
    },
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
    fn modes_grant_what_the_functions_do_and_nothing_else() {
        for row in ROWS {
            assert_eq!(row.mode & 0o444 != 0, row.read.is_some(), "{}", row.name);
            assert_eq!(row.mode & 0o222 != 0, row.write.is_some(), "{}", row.name);
            assert_eq!(row.mode & 0o033, 0, "{}: only the owner writes, and it is not executable", row.name);
            assert!(!row.doc.is_empty() && !row.doc.contains('|'), "{}", row.name);
        }
    }
}
