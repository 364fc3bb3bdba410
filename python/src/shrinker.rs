//! `Shrinker`: a program's own cache, shrunk when a group needs memory.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;
use umemcg::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Usage};

use crate::callbacks::{call, check_callable};
use crate::engine::Engine;
use crate::gate::detached;
use crate::group::Group;
use crate::held::Held;

struct Callbacks {
    name: String,
    count: Py<PyAny>,
    scan: Py<PyAny>,
    reparent: Option<Py<PyAny>>,
    seeks: u32,
    batch: u64,
    /// Upper bound of the freed bytes.
    pool_bytes: u64,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Callbacks {
    /// Calls the count function for a group; `None` when the number is unknown.
    fn ask_count(&self, target: &ShrinkTarget<'_>) -> Option<u64> {
        call(&self.count, |count| count.call1((target.group.id(),))?.extract::<Option<u64>>()).flatten()
    }
}

impl umemcg::shrinker::Shrinker for Callbacks {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn seeks(&self) -> u32 {
        self.seeks
    }

    fn batch(&self) -> u64 {
        self.batch
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.ask_count(target) {
            None => Count::NothingNow,
            Some(0) => Count::Empty,
            Some(nr) => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let answer = call(&self.scan, |scan| {
            scan.call1((target.group.id(), nr, target.wanted_bytes))?.extract::<Option<(u64, u64)>>()
        });
        let Some((scanned, freed_bytes)) = answer.flatten() else { return Scan::Stop };
        // Impossible numbers are clamped, so that sums do not overflow.
        let freed_bytes = freed_bytes.min(self.pool_bytes);
        Scan::Done(Scanned { scanned: scanned.min(nr), freed_bytes, ..Scanned::default() })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let nr = self.ask_count(target).unwrap_or(0);
        Usage { objects: nr, reclaimable: nr, ..Usage::default() }
    }

    fn reparent(&self, dying: &Arc<umemcg::Group>, parent: &Arc<umemcg::Group>) {
        if let Some(reparent) = &self.reparent {
            call(reparent, |reparent| reparent.call1((dying.id(), parent.id())).map(drop));
        }
    }
}

#[derive(Debug)]
struct ShrinkerPart {
    id: u32,
    _registration: Registration,
    engine: Arc<umemcg::Engine>,
}

#[pyclass(frozen, module = "umemcg")]
#[derive(Debug)]
pub(crate) struct Shrinker {
    held: Held<ShrinkerPart>,
}

#[pymethods]
impl Shrinker {
    #[new]
    #[pyo3(signature = (engine, name, count, scan, *, reparent = None, seeks = 2, batch = 128))]
    #[allow(clippy::too_many_arguments)] // Keywords, for a caller in Python.
    fn new(
        py: Python<'_>,
        engine: &Engine,
        name: &str,
        count: Bound<'_, PyAny>,
        scan: Bound<'_, PyAny>,
        reparent: Option<Bound<'_, PyAny>>,
        seeks: u32,
        batch: u64,
    ) -> PyResult<Self> {
        check_callable(&count, "count")?;
        check_callable(&scan, "scan")?;
        reparent.as_ref().map_or(Ok(()), |reparent| check_callable(reparent, "reparent"))?;
        let engine = engine.held.part(py)?;
        let callbacks = Callbacks {
            name: name.split_whitespace().collect::<Vec<_>>().join("-"),
            count: count.unbind(),
            scan: scan.unbind(),
            reparent: reparent.map(Bound::unbind),
            seeks,
            batch: batch.max(1),
            pool_bytes: engine.root().max_bytes(),
        };
        let part = detached(py, || {
            let id = engine.reserve_shrinker();
            Ok(ShrinkerPart {
                id: id.get(),
                _registration: engine.register_shrinker(id, Arc::new(callbacks)),
                engine: Arc::clone(&engine),
            })
        })?;
        Ok(Self { held: Held::new(part) })
    }

    fn announce(&self, py: Python<'_>, group: &Group) -> PyResult<()> {
        let part = self.held.part(py)?;
        let group = group.part_of(py, &part.engine)?;
        part.engine.note_objects(&group.group, part.id);
        Ok(())
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
