//! The daemon killed at any moment, again and again, under real programs that write in every way:
//! what a sync acknowledged is in the backing directory, whole and in order.
//!
//! The ordinary tests kill a few times; `make test-crash` hundreds (`UMEMCG_CRASH_KILLS`, with
//! `UMEMCG_CRASH_SEED` for one run again). fio verifies beside that. Power cuts, which lose what
//! the host's own cache would have kept, are in `umemcg-cache/tests/all/crash.rs` and
//! `umemcg-fuse/tests/all/power_cut.rs`.

mod expected;
mod fio;
mod kills;
pub mod record;
mod writers;
