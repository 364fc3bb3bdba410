//! The Python classes `Group`, `Charge` and `Guarantee`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use umemcg_bindings::{Code, Failure, get, set, statistics};

use crate::errors::to_python;
use crate::gate::detached;
use crate::held::{Held, InUse};

/// A group. The engine comes last: the drop of the group may need it.
#[derive(Debug)]
pub(crate) struct GroupPart {
    pub(crate) group: Arc<umemcg::Group>,
    pub(crate) engine: Arc<umemcg::Engine>,
}

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Group {
    held: Held<GroupPart>,
}

impl Group {
    pub(crate) fn of(part: GroupPart) -> Self {
        Self { held: Held::new(part) }
    }

    pub(crate) fn part(&self, py: Python<'_>) -> PyResult<InUse<GroupPart>> {
        self.held.part(py)
    }

    /// Returns the group, if it belongs to that engine.
    pub(crate) fn part_of(&self, py: Python<'_>, engine: &Arc<umemcg::Engine>) -> PyResult<InUse<GroupPart>> {
        let part = self.part(py)?;
        if Arc::ptr_eq(&part.engine, engine) {
            return Ok(part);
        }
        let failure = Failure::new(Code::OtherEngine, "the group belongs to another engine");
        Err(to_python(py, &failure.at(&part.group.path())))
    }
}

/// Returns the given group, or else the program's current group.
pub(crate) fn given_or_current<'py>(
    py: Python<'py>,
    group: Option<Bound<'py, Group>>,
) -> PyResult<Bound<'py, Group>> {
    if let Some(group) = group {
        return Ok(group);
    }
    let current = py.import("umemcg._context")?.getattr("current_group")?.call0()?;
    if current.is_none() {
        let failure = Failure::invalid("no group is given, and the program is in none (`with group:`)");
        return Err(to_python(py, &failure));
    }
    Ok(current.cast_into::<Group>()?)
}

/// Returns the statistics of a group by name.
pub(crate) fn stats_dict<'py>(py: Python<'py>, group: &umemcg::Group) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    for (name, value) in statistics(group) {
        let is_unlimited = name == "max_bytes" && value == i64::MAX;
        stats.set_item(name, (!is_unlimited).then_some(value))?;
    }
    Ok(stats)
}

/// No limit is `None`.
fn or_none(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

#[pymethods]
impl Group {
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.part(py)?.group.path().to_string_lossy().into_owned())
    }

    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.part(py)?.group.id())
    }

    #[getter]
    fn usage(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.part(py)?.group.usage_bytes())
    }

    fn __getitem__(&self, py: Python<'_>, key: &str) -> PyResult<Option<u64>> {
        let part = self.part(py)?;
        let value = get(&part.engine, &part.group, key);
        value.map(or_none).map_err(|failure| to_python(py, &failure))
    }

    fn __setitem__(&self, py: Python<'_>, key: &str, value: Option<u64>) -> PyResult<()> {
        let part = self.part(py)?;
        detached(py, || set(&part.engine, &part.group, key, value.unwrap_or(u64::MAX)))
    }

    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        let part = self.part(py)?;
        detached(py, || {
            let removed = part.engine.remove_group(&part.group);
            removed.map_err(|error| Failure::from(error).at(&part.group.path()))
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_dict(py, &self.part(py)?.group)
    }

    fn account(&self, py: Python<'_>) -> PyResult<crate::account::Account> {
        crate::account::Account::open(py, self)
    }

    #[pyo3(signature = (bytes, *, force = false))]
    fn charge(&self, py: Python<'_>, bytes: u64, force: bool) -> PyResult<Charge> {
        let part = self.part(py)?;
        let charge = detached(py, || match force {
            _ if bytes > i64::MAX as u64 => Err(Failure::invalid("a size that is too large")),
            true if bytes > part.engine.root().max_bytes() => {
                Err(Failure::invalid("more than the whole pool, even by force"))
            }
            true => Ok(part.group.charge_forced(bytes)),
            false => part.engine.charge(&part.group, bytes).map_err(|error| Failure::charge(&error, bytes)),
        })?;
        Ok(Charge { bytes, held: Held::new((charge, Arc::clone(&part.engine))) })
    }

    fn guarantee(&self, py: Python<'_>, bytes: u64) -> PyResult<Guarantee> {
        let part = self.part(py)?;
        let granted = part.engine.guarantee(&part.group, bytes);
        let granted = granted.map_err(|refusal| to_python(py, &Failure::from(&refusal)))?;
        Ok(Guarantee { bytes, held: Held::new(granted) })
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.py().import("umemcg._context")?.getattr("push")?.call1((&slf,))?;
        Ok(slf)
    }

    fn __exit__(
        slf: Bound<'_, Self>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        slf.py().import("umemcg._context")?.getattr("pop")?.call0()?;
        Ok(())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Self>() {
            Ok(other) => Ok(self.id(py)? == other.get().id(py)?),
            Err(_) => Ok(false),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        self.id(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let part = self.part(py)?;
        Ok(format!("<umemcg.Group {} with {} bytes>", part.group.path().display(), part.group.usage_bytes()))
    }
}

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
    held: Held<(umemcg::Charge, Arc<umemcg::Engine>)>,
}

#[pymethods]
impl Charge {
    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
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

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Guarantee {
    bytes: u64,
    held: Held<umemcg::Guarantee>,
}

#[pymethods]
impl Guarantee {
    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
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
