//! The integration tests of `umemcg-arena`, in one program.
#![cfg(not(loom))]

mod alloc_cost;
mod allocator;
mod allocator_model;
mod contents;
mod io;
mod resident;
mod stress;
mod sys;
