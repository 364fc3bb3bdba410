//! Models of the crate's protocols between threads, on the shipped types: `make loom`.
#![cfg(loom)]

mod flags;
mod optimistic_read;
mod pin_freeze;
