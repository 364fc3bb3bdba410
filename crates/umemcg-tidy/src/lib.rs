//! Readers of the sources for the checks of the house: the dependencies between files, the homes of
//! methods, and the lengths of functions.
#![forbid(unsafe_code)]

mod file_graph;
mod functions;

pub use file_graph::{FileGraph, InherentImpl};
pub use functions::{Function, functions_in};
