//! The native part of the Python package `umemcg`; `umemcg/__init__.pyi` is its documentation.
//!
//! - Code that may wait, reclaim or end a thread runs with the interpreter's lock released
//!   (`gate.rs`).
//! - Callbacks take it again; their exceptions go to `sys.unraisablehook` (`callbacks.rs`).
//! - Objects are dropped only in the process that created them (`held.rs`), and no thread of the
//!   engine calls Python any more when the interpreter ends (`gate.rs`).

mod account;
mod cache;
mod callbacks;
mod engine;
mod errors;
mod gate;
mod group;
mod held;
mod shrinker;
mod value;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::Engine>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<group::Charge>()?;
    module.add_class::<group::Guarantee>()?;
    module.add_class::<account::Account>()?;
    module.add_class::<cache::ObjectCache>()?;
    module.add_class::<shrinker::Shrinker>()?;
    module.add_function(wrap_pyfunction!(gate::close, module)?)?;
    Ok(())
}
