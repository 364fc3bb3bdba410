//! Readers of sources and documents for the checks of the house: the dependencies between files,
//! the homes of methods, the lengths of functions, and the figures quoted by documents.
#![forbid(unsafe_code)]

mod figures;
mod file_graph;
mod functions;

pub use figures::{figures_without_source, with_figures_of};
pub use file_graph::{FileGraph, InherentImpl};
pub use functions::{Function, functions_in};
