//! The integration tests of `umemcg-fuse`, in one program.

mod common;
mod control_mount;
mod control_waiting;
mod data;
mod dirty;
mod faults;
mod high;
mod interrupts;
mod mapped_ids;
mod mounting;
mod named_charges;
mod object_pages;
mod older_kernel;
mod parked_reads;
mod polling;
mod power_cut;
mod protocol;
mod session;
mod tenants;
mod volumes;
mod waiting;
