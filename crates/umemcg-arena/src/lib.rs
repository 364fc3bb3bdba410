//! Memory: page frames, and the only unsafe code of the project.
//!
//! The arena is one reservation of address space, cut into frames of 4 KiB and blocks of 2 MiB. A
//! frame has a record of 64 bytes with its identity and state. Threads and system calls may touch
//! its contents concurrently, so these are copied and never borrowed. Frames and records never move
//! and are never unmapped while the [`Arena`] lives: a stale frame number reaches the wrong page at
//! worst, never unmapped memory.
//!
//! On systems other than Linux the crate compiles for engines without pages: tables come from the
//! allocator, and there is no I/O into frames.
//!
//! All other unsafe code lives here, too: vectored I/O straight into frames ([`io`]), file handles
//! ([`handle`]), events of a file system ([`fanotify`]), a device call ([`sys`]), sparse tables of
//! words ([`ZeroTable`]) and prefetches. `SAFETY.md` at the root of the repository has the whole
//! argument; the numbers in the comments are its sections.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the copy routine knows x86-64 and aarch64 only");

mod arena;
mod blocks;
mod bytes;
#[cfg(target_os = "linux")]
pub mod fanotify;
mod frame;
#[cfg(target_os = "linux")]
pub mod handle;
#[cfg(target_os = "linux")]
pub mod io;
mod mapping;
mod prefetch;
mod segment;
mod stable_table;
#[cfg_attr(not(target_os = "linux"), path = "sys_elsewhere.rs")]
pub mod sys;
mod zero_table;

pub use arena::{Arena, Frame};
pub use blocks::{BLOCK_BYTES, BLOCK_FRAMES, SparseFrame};
pub use frame::{FrameFlags, FrameId, FrameRecord, ReadStamp};
#[cfg(target_os = "linux")]
pub use io::IoFlags;
pub use prefetch::{prefetch, prefetch_for_write, prefetch_what_it_leads_to};
pub use segment::{Segment, total_len};
pub use zero_table::ZeroTable;
