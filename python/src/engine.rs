//! The Python class `Engine`: a pool of memory and a tree of groups.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use umemcg::EngineConfig;
use umemcg_bindings::{Failure, open_group, process};

use crate::gate::detached;
use crate::group::{Group, GroupPart, stats_dict};
use crate::held::Held;

/// The largest pool and the most workers.
const POOL_BYTES_MAX: u64 = 1 << 48;
const NR_WORKERS_MAX: usize = 1024;

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) held: Held<Arc<umemcg::Engine>>,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (pool_bytes = 256 << 20, *, workers = 0, pool_marks = false, recursive_protection = true))]
    fn new(
        py: Python<'_>,
        pool_bytes: u64,
        workers: usize,
        pool_marks: bool,
        recursive_protection: bool,
    ) -> PyResult<Self> {
        let engine = detached(py, || {
            if pool_bytes > POOL_BYTES_MAX || workers > NR_WORKERS_MAX {
                return Err(Failure::invalid("the pool or the number of workers is too large"));
            }
            // Objects and charges alone: the package has no files.
            let config = EngineConfig::new(pool_bytes)
                .pages(false)
                .nr_kswapd(workers)
                .pool_marks(pool_marks)
                .recursive_protection(recursive_protection);
            process::watch_forks()?;
            Ok(umemcg::Engine::new(config)?)
        })?;
        Ok(Self { held: Held::new(engine) })
    }

    #[getter]
    fn root(&self, py: Python<'_>) -> PyResult<Group> {
        let engine = self.held.part(py)?;
        Ok(Group::of(GroupPart { engine: Arc::clone(&engine), group: Arc::clone(engine.root()) }))
    }

    #[pyo3(signature = (path, *, create = true))]
    fn group(&self, py: Python<'_>, path: PathBuf, create: bool) -> PyResult<Group> {
        let engine = self.held.part(py)?;
        let group = detached(py, || open_group(&engine, &path, create))?;
        Ok(Group::of(GroupPart { engine: Arc::clone(&engine), group }))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let engine = self.held.part(py)?;
        stats_dict(py, engine.root())
    }

    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.held.part(py)?;
        detached(py, || {
            engine.trim();
            Ok(())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let engine = self.held.part(py)?;
        Ok(format!("<umemcg.Engine of {} bytes>", engine.root().max_bytes()))
    }
}
