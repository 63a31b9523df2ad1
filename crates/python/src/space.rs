//! One namespace in a memory, and what its calls answer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use keepwarm_store::types::{
    Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome, ShedReason, Tier,
};
use keepwarm_store::{Lookup, Reported};
use keepwarm_wire::client::{ClientError, EpochOutcome, GetItem, PutItem, Space as Inner};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{Access, Regions, keys};
use crate::codes::{get_code, miss_code, miss_name, put_code};
use crate::errors::{ClosedError, NodeError, argument, detached, fault};
use crate::events::Subscription;
use crate::fleet::{At, Places};

/// One namespace in a memory.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Space {
    /// Gone after `close`. Locked only while the GIL is held and never across a wait, so that a
    /// fork, which holds the GIL too, finds it free.
    inner: Mutex<Option<Inner>>,
}

#[pymethods]
impl Space {
    #[getter]
    fn epoch(&self) -> PyResult<u32> {
        Ok(self.inner()?.epoch().0)
    }

    #[getter]
    fn joined(&self) -> PyResult<bool> {
        Ok(self.inner()?.joined())
    }

    #[getter]
    fn problem(&self) -> PyResult<Option<String>> {
        Ok(self.inner()?.problem())
    }

    #[getter]
    fn nearest(&self) -> PyResult<Option<String>> {
        Ok(self.inner()?.nearest())
    }

    /// Nodes that have not acknowledged the epoch of the last bump.
    #[getter]
    fn behind(&self) -> PyResult<Vec<String>> {
        Ok(self.inner()?.behind())
    }

    #[pyo3(name = "lookup")]
    fn find(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        at: At<'_>,
        lease_s: Option<f64>,
        deadline_s: f64,
    ) -> PyResult<Found> {
        let (keys, space, at) = (self::keys(keys, "keys")?, self.inner()?, Places::read(at)?);
        let lease = lease_s.map(|wait| seconds(wait, "lease_s")).transpose()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let work = || space.lookup_at(&keys, at.positions(), lease, deadline);
        let lookup = match detached(py, work) {
            Ok(answer) => answer.map_err(raised)?,
            Err(_) => nothing(keys.len(), space.epoch()),
        };
        Ok(Found { lookup })
    }

    fn get_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        buffers: &Bound<'py, PyAny>,
        part: u8,
        at: At<'py>,
        deadline_s: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (keys, space, at) = (self::keys(keys, "keys")?, self.inner()?, Places::read(at)?);
        let deadline = seconds(deadline_s, "deadline_s")?;
        let regions = Regions::find(buffers, keys.len(), Access::Write)?;
        let work = || {
            let item = |(&key, region): (_, &crate::buffers::Region)| GetItem {
                key,
                part,
                ptr: region.ptr,
                len: region.len,
            };
            let items: Vec<_> = keys.iter().zip(&regions.list).map(item).collect();
            // SAFETY: each region is writable for its length while `regions` holds its export, or
            // by the caller's word for a bare pointer; they do not overlap. Who else uses them
            // meanwhile breaks the documented contract of `get_into`. `regions` outlives the call:
            // tests/test_threads.py resizes a destination from another thread and is refused.
            unsafe { space.get_into_at(&items, at.positions(), deadline) }
        };
        let outcomes = match detached(py, work) {
            Ok(answer) => answer.map_err(raised)?,
            Err(_) => vec![GetOutcome::Miss(MissReason::StoreDown); keys.len()],
        };
        drop(regions);
        Ok(PyBytes::new(py, &outcomes.into_iter().map(get_code).collect::<Vec<_>>()))
    }

    #[expect(clippy::too_many_arguments, reason = "one for each of the call's")]
    fn put_from<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        buffers: &Bound<'py, PyAny>,
        part: u8,
        engine_hashes: Option<Vec<Option<u64>>>,
        at: At<'py>,
        deadline_s: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (keys, space, at) = (self::keys(keys, "keys")?, self.inner()?, Places::read(at)?);
        let deadline = seconds(deadline_s, "deadline_s")?;
        let hashes = engine_hashes.unwrap_or_else(|| vec![None; keys.len()]);
        if hashes.len() != keys.len() {
            return Err(argument(format!(
                "engine_hashes has {} entries for {} keys: pass one per key, None where there is \
                 none",
                hashes.len(),
                keys.len()
            )));
        }
        let regions = Regions::find(buffers, keys.len(), Access::Read)?;
        let work = || {
            let item = |(i, region): (usize, &crate::buffers::Region)| PutItem {
                key: keys[i],
                part,
                ptr: region.ptr,
                len: region.len,
                engine_hash: hashes[i],
            };
            let items: Vec<_> = regions.list.iter().enumerate().map(item).collect();
            // SAFETY: each region is readable for its length while `regions` holds its export, or
            // by the caller's word for a bare pointer. A writer that races breaks the documented
            // contract of `put_from`; tests/test_api.py puts from every kind of buffer.
            unsafe { space.put_from_at(&items, at.positions(), deadline) }
        };
        let outcomes = match detached(py, work) {
            Ok(answer) => answer.map_err(raised)?,
            Err(_) => vec![PutOutcome::Shed(ShedReason::StoreDown); keys.len()],
        };
        drop(regions);
        Ok(PyBytes::new(py, &outcomes.into_iter().map(put_code).collect::<Vec<_>>()))
    }

    /// None: the node did not answer.
    fn touch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        at: At<'_>,
        deadline_s: f64,
    ) -> PyResult<Option<u32>> {
        let (keys, space, at) = (self::keys(keys, "keys")?, self.inner()?, Places::read(at)?);
        let deadline = seconds(deadline_s, "deadline_s")?;
        softly(detached(py, || space.touch_at(&keys, at.positions(), deadline)))
    }

    /// None: the node did not answer.
    fn renew(
        &self,
        py: Python<'_>,
        lease: u64,
        hold_s: f64,
        deadline_s: f64,
    ) -> PyResult<Option<bool>> {
        let space = self.inner()?;
        let hold = seconds(hold_s, "hold_s")?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        softly(detached(py, || space.renew(LeaseId(lease), hold, deadline)))
    }

    fn release(&self, py: Python<'_>, lease: u64, deadline_s: f64) -> PyResult<()> {
        let space = self.inner()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        softly(detached(py, || space.release(LeaseId(lease), deadline))).map(drop)
    }

    /// None: the node did not answer.
    fn report(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        part: u8,
        generation: u32,
        deadline_s: f64,
    ) -> PyResult<Option<&'static str>> {
        let space = self.inner()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let [key] = keys(key, "key")?[..] else {
            return Err(argument("key has not exactly 16 bytes: report one block at a time"));
        };
        let work = || space.report(key, part, Generation(generation), deadline);
        let reported = softly(detached(py, work))?;
        Ok(reported.map(|reported| match reported {
            Reported::Removed => "removed",
            Reported::Intact => "intact",
            Reported::Gone => "gone",
        }))
    }

    #[pyo3(name = "drop")]
    fn drop_blocks(
        &self,
        py: Python<'_>,
        keys: Option<&Bound<'_, PyAny>>,
        deadline_s: f64,
    ) -> PyResult<u64> {
        let space = self.inner()?;
        let keys = keys.map(|object| self::keys(object, "keys")).transpose()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let work = || match &keys {
            Some(keys) => space.drop_keys(keys, deadline),
            None => space.drop_all(deadline),
        };
        detached(py, work).map_err(fault)?.map_err(raised)
    }

    fn bump_epoch(&self, py: Python<'_>, epoch: u32, deadline_s: f64) -> PyResult<&'static str> {
        let space = self.inner()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let work = || space.bump_epoch(Epoch(epoch), deadline);
        let outcome = detached(py, work).map_err(fault)?.map_err(raised)?;
        Ok(match outcome {
            EpochOutcome::Acknowledged => "acknowledged",
            EpochOutcome::StillLeased => "still_leased",
            EpochOutcome::NotReached => "not_reached",
        })
    }

    fn subscribe(
        &self,
        py: Python<'_>,
        since: Vec<(String, u64, u64)>,
        deadline_s: f64,
    ) -> PyResult<Subscription> {
        let space = self.inner()?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let stream = detached(py, || space.subscribe_from(&since, deadline)).map_err(fault)?;
        stream.map(Subscription::new).map_err(raised)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || drop(taken)).map_err(fault)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // The garbage collector holds the GIL, and a node may be slow to hear that a space is gone.
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if taken.is_some() {
            Python::try_attach(move |py| detached(py, || drop(taken)));
        }
    }
}

impl Space {
    pub fn new(inner: Inner) -> Space {
        Space { inner: Mutex::new(Some(inner)) }
    }

    fn inner(&self) -> PyResult<Inner> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .clone()
            .ok_or_else(|| ClosedError::new_err("the memory is closed: open it, or connect, again"))
    }
}

/// What a lookup found; the lists are made when asked for.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Found {
    lookup: Lookup,
}

#[pymethods]
impl Found {
    #[getter]
    fn count(&self) -> usize {
        self.lookup.hits.len()
    }

    #[getter]
    fn prefix(&self) -> u32 {
        self.lookup.prefix
    }

    #[getter]
    fn miss(&self) -> Option<u8> {
        self.lookup.miss.map(miss_code)
    }

    #[getter]
    fn lease(&self) -> Option<u64> {
        self.lookup.lease.map(|lease| lease.0)
    }

    #[getter]
    fn lease_s(&self) -> f64 {
        f64::from(self.lookup.lease_ms) / 1e3
    }

    #[getter]
    fn restore_s(&self) -> f64 {
        self.lookup.restore_ns as f64 / 1e9
    }

    #[getter]
    fn epoch(&self) -> u32 {
        self.lookup.epoch.0
    }

    #[getter]
    fn incarnation(&self) -> u64 {
        self.lookup.incarnation
    }

    fn hits(&self) -> Vec<bool> {
        self.lookup.hits.iter().map(Option::is_some).collect()
    }

    fn tiers(&self) -> Vec<Option<&'static str>> {
        self.lookup.hits.iter().map(|hit| hit.map(|hit| tier_name(hit.tier))).collect()
    }

    fn lengths(&self) -> Vec<u32> {
        self.lookup.hits.iter().map(|hit| hit.map_or(0, |hit| hit.length)).collect()
    }

    fn generations(&self) -> Vec<u32> {
        self.lookup.hits.iter().map(|hit| hit.map_or(0, |hit| hit.generation.0)).collect()
    }
}

/// The name of a tier.
pub fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Dram => "dram",
        Tier::Flash => "flash",
        Tier::Object => "object",
    }
}

/// Seconds from Python, up to a day: longer is a mistake, or no deadline at all.
pub fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(time) if time <= Duration::from_secs(86_400) => Ok(time),
        _ => Err(argument(format!("{name} is {value}: pass seconds from 0 to 86400"))),
    }
}

/// The exception for a call that has no outcome.
pub fn raised(error: ClientError) -> PyErr {
    match error {
        ClientError::Closed => ClosedError::new_err(error.to_string()),
        ClientError::NotDone(reason) => {
            NodeError::new_err(format!("not done: {}; memory.health() says why", miss_name(reason)))
        }
        ClientError::Refused(_) => NodeError::new_err(error.to_string()),
        _ => argument(error.to_string()),
    }
}

/// For calls on the path of a request: a node in trouble is None there, and so is a fault of ours.
fn softly<T>(answer: Result<Result<T, ClientError>, String>) -> PyResult<Option<T>> {
    match answer {
        Ok(Ok(value)) => Ok(Some(value)),
        Ok(Err(ClientError::NotDone(_) | ClientError::Refused(_))) | Err(_) => Ok(None),
        Ok(Err(error)) => Err(raised(error)),
    }
}

fn nothing(keys: usize, epoch: Epoch) -> Lookup {
    Lookup {
        prefix: 0,
        hits: vec![None; keys],
        miss: Some(MissReason::StoreDown),
        lease: None,
        lease_ms: 0,
        restore_ns: 0,
        epoch,
        incarnation: 0,
    }
}
