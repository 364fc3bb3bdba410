//! The integration tests of `umemcg`, in one program.
#![cfg(not(schedule))]

mod account;
mod account_model;
mod background;
mod common;
mod figures;
mod housekeeping;
mod lease;
mod limits;
mod object_cache;
mod panics;
mod protection;
mod protection_model;
mod reservation;
mod soft_limit;
mod tracing_events;
mod waits;
mod without_pages;
