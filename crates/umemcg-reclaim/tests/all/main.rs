//! The integration tests of `umemcg-reclaim`, in one program.
#![cfg(not(loom))]

mod dirty_pages;
mod isolated_pages;
mod list_lru_model;
mod panics;
mod pending_release;
mod shrinkers;
mod support;
