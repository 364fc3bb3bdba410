//! Models of the crate's protocols between threads, on the shipped types: `make loom`.
#![cfg(loom)]

mod shrinker_bits;
mod stall_counts;
