//! What the checks of the house need to read the sources: which file uses which, and how
//! long functions are.
#![forbid(unsafe_code)]

mod file_graph;
mod functions;

pub use file_graph::FileGraph;
pub use functions::{Function, functions_in};
