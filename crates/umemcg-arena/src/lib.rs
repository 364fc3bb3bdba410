//! Memory: page frames, and the only unsafe code of the project.
//!
//! The arena is one reservation of address space, cut into frames of 4 KiB and blocks of 2 MiB. A
//! frame has a record of 64 bytes that says what it holds; its contents are bytes that threads and
//! system calls may touch at the same time, so they are copied and never borrowed. Frames and
//! records never move and are never unmapped while the [`Arena`] lives: a stale frame number
//! reaches the wrong page at worst, never memory that is not there.
//!
//! All other unsafe code lives here, too: vectored I/O straight into frames ([`io`]), file handles
//! ([`handle`]), a device call ([`sys`]), sparse tables of words ([`ZeroTable`]) and prefetches.
//! `SAFETY.md` at the root of the repository holds the whole argument; the numbers in the comments
//! are its sections.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the copy routine knows x86-64 and aarch64 only");
#[cfg(not(target_os = "linux"))]
compile_error!("the arena needs Linux");

mod arena;
mod blocks;
mod bytes;
mod frame;
pub mod handle;
pub mod io;
mod mapping;
mod prefetch;
mod stable_table;
pub mod sys;
mod zero_table;

pub use arena::{Arena, Frame};
pub use blocks::{BLOCK_BYTES, BLOCK_FRAMES, SparseFrame};
pub use frame::{FrameFlags, FrameId, FrameRecord, ReadStamp};
pub use io::{IoFlags, Segment};
pub use prefetch::{prefetch, prefetch_for_write, prefetch_what_it_leads_to};
pub use zero_table::ZeroTable;
