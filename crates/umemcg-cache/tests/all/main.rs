//! The integration tests of `umemcg-cache`, in one program.

mod beyond_limits;
mod common;
mod crash;
mod dirty;
mod emptying_blocks;
mod failing_stores;
mod hit;
mod idle_stores;
mod memory_files;
mod model;
mod page_cache;
mod read_ahead;
mod read_ahead_speed;
mod reads_in_flight;
mod refused_threads;
mod store_reads;
mod writeback;
