//! The documented behaviour on a real mount with real programs. Needs root and `/dev/fuse`; reports
//! each test that is skipped.

mod background;
mod bad_input;
mod close_on_exec;
mod control_files;
mod documents;
mod durability;
mod ending;
mod fstab;
mod full_groups;
mod growth;
mod hostile;
mod kernel_charges;
mod kernel_group;
mod kernel_pages;
mod killed_changes;
mod linux_cases;
mod mappings;
mod membership;
mod metrics;
mod names;
#[cfg(feature = "object")]
mod object_growth;
#[cfg(feature = "object")]
mod object_neighbours;
#[cfg(feature = "object")]
mod object_pages;
#[cfg(feature = "object")]
mod object_programs;
#[cfg(feature = "object")]
mod object_scale;
#[cfg(feature = "object")]
mod objects;
mod orphan_guard;
mod outside_changes;
mod payers;
mod programs;
mod protection;
mod shortages;
mod silent_opens;
#[cfg(feature = "object")]
mod staged_volume;
#[cfg(feature = "object")]
mod staging_disk;
#[cfg(feature = "object")]
mod starting;
#[cfg(feature = "object")]
mod synthetic_store;
mod top;
mod top_screen;
mod transcript;
mod umount;
mod user;
mod volumes;
mod walks;
