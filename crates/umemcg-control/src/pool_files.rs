//! The files of the root that concern the whole pool. Linux has them as sysctls.

use crate::row::{DONE, Row, SET, Scope};
use crate::style::Version;
use crate::{dirty_files, metadata_files};

use Scope::RootOnly;
use Version::Own;

/// Their rows.
pub(crate) const POOL: &[Row] = &[
    Row {
        name: "vm.drop_caches",
        version: Own,
        mode: DONE,
        scope: RootOnly,
        read: None,
        write: Some(metadata_files::drop_caches),
        write_reclaims: true,
        doc: "write 1 to drop clean pages of the whole pool, 2 for objects, 3 for both; dirty data stays",
    },
    Row {
        name: "vm.compact_memory",
        version: Own,
        mode: DONE,
        scope: RootOnly,
        read: None,
        write: Some(metadata_files::compact_memory),
        write_reclaims: true,
        doc: "write 1 to give all free memory of the pool back to the operating system, pages moved together first",
    },
    Row {
        name: "vm.dirty_ratio",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_ratio),
        write: Some(dirty_files::set_vm_ratio),
        write_reclaims: false,
        doc: "dirty data at which all writers are held, in percent of the pool's dirtyable memory; 0 while the bytes are set",
    },
    Row {
        name: "vm.dirty_bytes",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_limit),
        write: Some(dirty_files::set_vm_bytes),
        write_reclaims: false,
        doc: "the same in bytes, 8192 at least; 0 while the ratio is set",
    },
    Row {
        name: "vm.dirty_background_ratio",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_background_ratio),
        write: Some(dirty_files::set_vm_background_ratio),
        write_reclaims: false,
        doc: "dirty data above which write-back works by itself, in percent of the pool's dirtyable memory; 0 while the bytes are set",
    },
    Row {
        name: "vm.dirty_background_bytes",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_background_limit),
        write: Some(dirty_files::set_vm_background_bytes),
        write_reclaims: false,
        doc: "the same in bytes, 1 at least; 0 while the ratio is set",
    },
    Row {
        name: "vm.dirty_expire_centisecs",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_expire),
        write: Some(dirty_files::set_expire),
        write_reclaims: false,
        doc: "age in hundredths of a second at which dirty data is written whatever the thresholds",
    },
    Row {
        name: "vm.dirty_writeback_centisecs",
        version: Own,
        mode: SET,
        scope: RootOnly,
        read: Some(dirty_files::show_interval),
        write: Some(dirty_files::set_interval),
        write_reclaims: false,
        doc: "how often write-back looks for data of that age, in hundredths of a second; 0 for never",
    },
];
