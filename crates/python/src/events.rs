//! A subscription: what happens in a namespace, batch by batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keepwarm_store::types::MissReason;
use keepwarm_store::{Event, EventBatch, EventKind};
use keepwarm_wire::ProcessId;
use keepwarm_wire::client::{ClientError, EventStream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{ClosedError, argument, detached, fault};
use crate::space::{raised, seconds, tier_name};

/// What happens in a namespace. One thread at a time asks for it.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Subscription {
    /// A forked child inherits what its parent's threads hold, and must leave it alone.
    process: ProcessId,
    /// Locked only while the GIL is held and never across a wait.
    state: Mutex<State>,
}

enum State {
    /// Nobody asks.
    Idle(Box<dyn EventStream>),
    /// A thread has it.
    Asked,
    /// Also while a thread still asks: its stream ends with its call.
    Closed,
}

/// Kind, key, engine hash, tier.
type Row<'py> = (&'static str, Option<Bound<'py, PyBytes>>, Option<u64>, Option<&'static str>);

/// Kind, events, whether a snapshot ends, node.
type Batch<'py> = (&'static str, Vec<Row<'py>>, bool, Option<String>);

#[pymethods]
impl Subscription {
    /// The next batch as (kind, events, last, node).
    fn next_batch<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Batch<'py>> {
        let wait = seconds(wait_s, "wait_s")?;
        let mut stream = self.ask()?;
        let answer = detached(py, || {
            let batch = stream.next_batch(wait);
            (batch, stream)
        });
        // After a fault of ours there is no stream to give back.
        let answer = answer.inspect_err(|_| *self.lock() = State::Closed);
        let (batch, stream) = answer.map_err(fault)?;
        let node = stream.node().map(str::to_owned);
        let over = self.give_back(stream);
        detached(py, || drop(over)).map_err(fault)?;
        Ok(match batch.map_err(raised)? {
            EventBatch::Events { events, .. } => ("events", rows(py, &events), false, node),
            EventBatch::Resync { .. } => ("resync", Vec::new(), false, node),
            EventBatch::Snapshot { events, last } => ("snapshot", rows(py, &events), last, node),
        })
    }

    /// (node, incarnation, sequence) to go on from; the name of an only node is empty.
    #[getter]
    fn since(&self) -> Vec<(String, u64, u64)> {
        match &*self.lock() {
            State::Idle(stream) => stream.places(),
            State::Asked | State::Closed => Vec::new(),
        }
    }

    /// Ends it. A thread that asks meanwhile gets its answer, and ends it then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = std::mem::replace(&mut *self.lock(), State::Closed);
        detached(py, || drop(taken)).map_err(fault)
    }
}

impl Subscription {
    pub fn new(stream: Box<dyn EventStream>) -> Subscription {
        Subscription { process: ProcessId::here(), state: Mutex::new(State::Idle(stream)) }
    }

    /// Takes the stream for one call.
    fn ask(&self) -> PyResult<Box<dyn EventStream>> {
        if self.process != ProcessId::here() {
            return Err(raised(ClientError::NotDone(MissReason::StoreDown)));
        }
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Asked) {
            State::Idle(stream) => Ok(stream),
            State::Asked => {
                Err(argument("another thread asks this subscription: subscribe once per thread"))
            }
            State::Closed => {
                *state = State::Closed;
                Err(ClosedError::new_err("the subscription is closed: subscribe again"))
            }
        }
    }

    /// The stream waits for the next call; returned if it was closed meanwhile.
    fn give_back(&self, stream: Box<dyn EventStream>) -> Option<Box<dyn EventStream>> {
        let mut state = self.lock();
        match &*state {
            State::Closed => return Some(stream),
            State::Asked | State::Idle(_) => *state = State::Idle(stream),
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
