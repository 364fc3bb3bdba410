//! The files of the root for the whole pool. Linux has them as sysctls.

use crate::row::{READ_WRITE, Row, Scope, WRITE_ONLY};
use crate::style::Version;
use crate::{dirty_files, metadata_files};

use Scope::RootOnly;
use Version::Own;

/// Their rows.
pub(crate) const POOL: &[Row] = &[
    Row {
        name: "vm.drop_caches",
        version: Own,
        mode: WRITE_ONLY,
        scope: RootOnly,
        read: None,
        write: Some(metadata_files::drop_caches),
        write_reclaims: true,
        doc: "write 1 to drop the clean pages of the whole pool, 2 to drop objects, 3 to drop both; dirty data stays",
    },
    Row {
        name: "vm.compact_memory",
        version: Own,
        mode: WRITE_ONLY,
        scope: RootOnly,
        read: None,
        write: Some(metadata_files::compact_memory),
        write_reclaims: true,
        doc: "write 1 to move pages together and return all free memory of the pool to the operating system",
    },
    Row {
        name: "vm.dirty_ratio",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_ratio),
        write: Some(dirty_files::set_vm_ratio),
        write_reclaims: false,
        doc: "the dirty data at which all writers are throttled, in percent of the pool's dirtyable memory; 0 while `vm.dirty_bytes` is set",
    },
    Row {
        name: "vm.dirty_bytes",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_limit),
        write: Some(dirty_files::set_vm_bytes),
        write_reclaims: false,
        doc: "`vm.dirty_ratio` in bytes, at least 8192; 0 while the ratio is set",
    },
    Row {
        name: "vm.dirty_background_ratio",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_background_ratio),
        write: Some(dirty_files::set_vm_background_ratio),
        write_reclaims: false,
        doc: "the dirty data above which background write-back runs, in percent of the pool's dirtyable memory; 0 while `vm.dirty_background_bytes` is set",
    },
    Row {
        name: "vm.dirty_background_bytes",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_background_limit),
        write: Some(dirty_files::set_vm_background_bytes),
        write_reclaims: false,
        doc: "`vm.dirty_background_ratio` in bytes, at least 1; 0 while the ratio is set",
    },
    Row {
        name: "vm.dirty_expire_centisecs",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_expire),
        write: Some(dirty_files::set_expire),
        write_reclaims: false,
        doc: "the age at which dirty data is written regardless of thresholds, in hundredths of a second",
    },
    Row {
        name: "vm.dirty_writeback_centisecs",
        version: Own,
        mode: READ_WRITE,
        scope: RootOnly,
        read: Some(dirty_files::show_interval),
        write: Some(dirty_files::set_interval),
        write_reclaims: false,
        doc: "the interval at which write-back looks for data of that age, in hundredths of a second; 0 for never",
    },
];
