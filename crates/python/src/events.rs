//! A subscription: what happens in a namespace, batch by batch.

use std::sync::{Mutex, PoisonError};

use keepwarm_store::{Event, EventBatch, EventKind};
use keepwarm_wire::client::EventStream;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{argument, detached, fault};
use crate::space::{raised, seconds, tier_name};

/// What happens in a namespace. One thread at a time asks for it.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Subscription {
    stream: Mutex<Option<Box<dyn EventStream>>>,
}

/// Kind, key, engine hash, tier.
type Row<'py> = (&'static str, Option<Bound<'py, PyBytes>>, Option<u64>, Option<&'static str>);

#[pymethods]
impl Subscription {
    /// The next batch as (kind, events, last).
    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        wait_s: f64,
    ) -> PyResult<(&'static str, Vec<Row<'py>>, bool)> {
        let wait = seconds(wait_s, "wait_s")?;
        let Some(mut stream) = self.lock().take() else {
            return Err(argument(
                "the subscription is closed, or another thread asks it: subscribe again",
            ));
        };
        let answer = detached(py, || {
            let batch = stream.next_batch(wait);
            (batch, stream)
        });
        let (batch, stream) = answer.map_err(fault)?;
        *self.lock() = Some(stream);
        Ok(match batch.map_err(raised)? {
            EventBatch::Events { events, .. } => ("events", rows(py, &events), false),
            EventBatch::Resync { .. } => ("resync", Vec::new(), false),
            EventBatch::Snapshot { events, last } => ("snapshot", rows(py, &events), last),
        })
    }

    /// (incarnation, sequence) to go on from.
    #[getter]
    fn since(&self) -> Option<(u64, u64)> {
        self.lock().as_ref().and_then(|stream| stream.since())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.lock().take();
        detached(py, || drop(taken)).map_err(fault)
    }
}

impl Subscription {
    pub fn new(stream: Box<dyn EventStream>) -> Subscription {
        Subscription { stream: Mutex::new(Some(stream)) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Box<dyn EventStream>>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rows<'py>(py: Python<'py>, events: &[Event]) -> Vec<Row<'py>> {
    let row = |event: &Event| match event.kind {
        EventKind::Stored { key, engine_hash } => {
            ("stored", Some(PyBytes::new(py, &key.0)), engine_hash, None)
        }
        EventKind::Removed { key, engine_hash, tier } => {
            ("removed", Some(PyBytes::new(py, &key.0)), engine_hash, Some(tier_name(tier)))
        }
        EventKind::Cleared => ("cleared", None, None, None),
    };
    events.iter().map(row).collect()
}
