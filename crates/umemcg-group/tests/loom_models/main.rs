//! Models of the crate's protocols between threads, on the shipped types: `make loom`.
#![cfg(loom)]

mod attention;
mod events;
mod excess;
mod holding;
mod limit;
mod offline;
mod pending;
mod stats;
mod stock;
mod subtree_marks;
