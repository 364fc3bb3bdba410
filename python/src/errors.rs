//! Failures as exceptions of the package, with the group and the numbers as attributes.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use umemcg_bindings::Failure;

/// Returns the exception of a failure; the Python package maps codes to classes.
pub(crate) fn to_python(py: Python<'_>, failure: &Failure) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let import = || PyResult::Ok(py.import("umemcg._errors")?.getattr("make")?.unbind());
    let make = || -> PyResult<Bound<'_, PyAny>> {
        let group = (!failure.path.is_empty()).then_some(&failure.path);
        let arguments = (
            failure.code as i32,
            &failure.message,
            group,
            failure.wanted_bytes,
            failure.limit_bytes,
            failure.free_bytes,
            failure.reclaimable_bytes,
        );
        MAKE.get_or_try_init(py, import)?.bind(py).call1(arguments)
    };
    match make() {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
