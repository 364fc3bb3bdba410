//! The C interface of umemcg: `umemcg.h`, which is made from these sources, is its documentation.
//!
//! ```text
//!   function of the interface ─▶ call ──▶ handle ─▶ object ─▶ engine      *_functions.rs
//!                                 │        handle_table.rs, objects.rs
//!                                 └ forked? inside a callback? a panic? details of the failure
//! ```
//!
//! Whatever a program does with handles (null, freed, of another kind, of another engine) and with
//! sizes gets a code. Pointers are its word, as with any C function; SAFETY.md says what that
//! means.
#![allow(non_camel_case_types)]
// The header says what each function's pointers must be, once for all.
#![allow(clippy::missing_safety_doc)]

pub mod account_functions;
pub mod cache_functions;
mod call;
pub mod callback;
pub mod charge_functions;
mod charge_purses;
pub mod engine_functions;
pub mod group_functions;
mod handle_table;
pub mod last_error;
mod objects;
mod pointers;
pub mod shrinker_functions;
pub mod statistics_functions;
