//! The C interface of umemcg. Its documentation is `umemcg.h`, generated from these sources.
//!
//! ```text
//!   function of the interface ─▶ call ──▶ handle ─▶ object ─▶ engine      *_functions.rs
//!                                 │        handle_table.rs, objects.rs
//!                                 └ forked? inside a callback? a panic? details of the failure
//! ```
//!
//! Every misuse of handles (null, freed, of another kind, of another engine) and of sizes returns a
//! code. The program guarantees the validity of pointers, as for any C function; SAFETY.md has the
//! details.
#![allow(non_camel_case_types)]
// The header has the requirements on pointers once, for all functions.
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
