//! Calls of Python functions from reclaim and from caches, on any thread. The caller cannot handle
//! their exceptions, so these go to `sys.unraisablehook`.

use pyo3::prelude::*;

use crate::gate;

/// Calls a function of the program. `None` when it raised, or the interpreter is ending.
pub(crate) fn call<R>(
    function: &Py<PyAny>,
    call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
) -> Option<R> {
    let answer = gate::attached(|py| {
        let function = function.bind(py);
        call(function).map_err(|error| error.write_unraisable(py, Some(function))).ok()
    });
    answer.flatten()
}

/// Refuses an object that cannot be called before the first call.
pub(crate) fn check_callable(function: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    if function.is_callable() {
        return Ok(());
    }
    Err(pyo3::exceptions::PyTypeError::new_err(format!("`{name}` cannot be called")))
}
