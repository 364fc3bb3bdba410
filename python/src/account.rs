//! The Python class `Account`: memory of a query, or of another job.

use std::sync::Arc;

use pyo3::prelude::*;
use umemcg_bindings::{CheckedAccount, Failure};

use crate::errors::to_python;
use crate::gate::detached;
use crate::group::{Group, given_or_current};
use crate::held::Held;

/// An account, and a reference to its engine.
type AccountPart = (CheckedAccount, Arc<umemcg::Engine>);

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Account {
    held: Held<AccountPart>,
}

impl Account {
    pub(crate) fn open(py: Python<'_>, group: &Group) -> PyResult<Self> {
        let part = group.part(py)?;
        let account = CheckedAccount::new(&part.engine, &part.group);
        Ok(Self { held: Held::new((account, Arc::clone(&part.engine))) })
    }

    fn with<R>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&AccountPart) -> Result<R, Failure>,
    ) -> PyResult<R> {
        let part = self.held.part(py)?;
        use_it(&part).map_err(|failure| to_python(py, &failure))
    }
}

#[pymethods]
impl Account {
    #[new]
    #[pyo3(signature = (group = None))]
    fn new<'py>(py: Python<'py>, group: Option<Bound<'py, Group>>) -> PyResult<Self> {
        Self::open(py, given_or_current(py, group)?.get())
    }

    fn try_grow(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let part = self.held.part(py)?;
        detached(py, || part.0.try_grow(bytes))
    }

    fn grow(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.with(py, |(account, _)| account.grow(bytes))
    }

    fn shrink(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.with(py, |(account, _)| account.shrink(bytes))
    }

    fn split(&self, py: Python<'_>, bytes: u64) -> PyResult<Self> {
        self.with(py, |(account, engine)| {
            Ok(Self { held: Held::new((account.split(bytes)?, Arc::clone(engine))) })
        })
    }

    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |(account, _)| Ok(account.account().bytes()))
    }

    #[getter]
    fn peak(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |(account, _)| Ok(account.account().peak()))
    }

    fn close(&self) {
        self.held.close();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _type: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }
}
