//! Models of the crate's protocols between threads, on the shipped types: `make loom`.
#![cfg(loom)]

mod events;
mod excess;
mod limit;
mod offline;
mod pending;
mod stats;
mod stock;
mod subtree_marks;
