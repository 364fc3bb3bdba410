//! The files of the root for the whole pool. Linux has them as sysctls.

use crate::row::{Row, Scope};
use crate::style::Version;
use crate::{dirty_files, metadata_files};

use Scope::RootOnly;
use Version::Own;

/// Their rows.
pub(crate) const POOL: &[Row] = &[
    Row::new("vm.drop_caches", Own, RootOnly)
        .write(metadata_files::drop_caches)
        .write_reclaims()
        .doc("write 1 to drop the clean pages of the whole pool, 2 to drop objects, 3 to drop both; dirty data stays"),
    Row::new("vm.compact_memory", Own, RootOnly)
        .write(metadata_files::compact_memory)
        .write_reclaims()
        .doc("write 1 to move pages together and return all free memory of the pool to the operating system"),
    Row::new("vm.dirty_ratio", Own, RootOnly)
        .read_write(dirty_files::show_ratio, dirty_files::set_vm_ratio)
        .doc("the dirty data at which all writers are throttled, in percent of the pool's dirtyable memory; 0 while `vm.dirty_bytes` is set"),
    Row::new("vm.dirty_bytes", Own, RootOnly)
        .read_write(dirty_files::show_limit, dirty_files::set_vm_bytes)
        .doc("`vm.dirty_ratio` in bytes, at least 8192; 0 while the ratio is set"),
    Row::new("vm.dirty_background_ratio", Own, RootOnly)
        .read_write(dirty_files::show_background_ratio, dirty_files::set_vm_background_ratio)
        .doc("the dirty data above which background write-back runs, in percent of the pool's dirtyable memory; 0 while `vm.dirty_background_bytes` is set"),
    Row::new("vm.dirty_background_bytes", Own, RootOnly)
        .read_write(dirty_files::show_background_limit, dirty_files::set_vm_background_bytes)
        .doc("`vm.dirty_background_ratio` in bytes, at least 1; 0 while the ratio is set"),
    Row::new("vm.dirty_expire_centisecs", Own, RootOnly)
        .read_write(dirty_files::show_expire, dirty_files::set_expire)
        .doc("the age at which dirty data is written regardless of thresholds, in hundredths of a second"),
    Row::new("vm.dirty_writeback_centisecs", Own, RootOnly)
        .read_write(dirty_files::show_interval, dirty_files::set_interval)
        .doc("the interval at which write-back looks for data of that age, in hundredths of a second; 0 for never"),
];
