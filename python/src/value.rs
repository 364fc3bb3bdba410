//! A cached value exposed to Python as a `memoryview`: it stays in place as long as a view of it
//! exists, even after leaving the cache.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use umemcg::objects::Pinned;

use crate::held::Held;

/// The owner of the bytes behind a view.
#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Value {
    bytes: Arc<[u8]>,
    /// Keeps them charged; dropped after them. The engine comes last: the charge leads to its
    /// groups.
    _pin: Option<Held<Pin>>,
}

/// A pinned value, and the engine of its charge.
type Pin = (Pinned<Arc<[u8]>>, Arc<umemcg::Engine>);

/// Returns a read-only view of bytes, without a copy.
pub(crate) fn view(py: Python<'_>, bytes: Arc<[u8]>) -> PyResult<Bound<'_, PyMemoryView>> {
    view_of(py, Value { bytes, _pin: None })
}

/// Returns a read-only view of a pinned value; the value stays charged as long as the view exists.
pub(crate) fn pinned_view<'py>(
    py: Python<'py>,
    value: Pinned<Arc<[u8]>>,
    engine: &Arc<umemcg::Engine>,
) -> PyResult<Bound<'py, PyMemoryView>> {
    let bytes = Arc::clone(&value);
    view_of(py, Value { bytes, _pin: Some(Held::new((value, Arc::clone(engine)))) })
}

fn view_of(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, value)?.as_any())
}

#[pymethods]
impl Value {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let len = isize::try_from(bytes.len()).map_err(|_| PyBufferError::new_err("too long for a view"))?;
        let data = bytes.as_ptr().cast_mut().cast();
        // SAFETY: [12] The interpreter gives a view to fill. The bytes live as long as this object,
        // which the view keeps; they never change, and the view is read-only.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 1, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
