//! The integration tests of `umemcg-group`, in one program.
#![cfg(not(loom))]

mod excess;
mod footprint;
mod groups;
mod model;
mod pending;
mod rounds;
mod stress;
