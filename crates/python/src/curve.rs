//! `keepwarm_sim::curve` for `keepwarm.workload.curve`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keepwarm_sim::curve::lru::LruCurve;
use keepwarm_sim::curve::scaled::ScaledCurve;
use keepwarm_sim::order::OrderKind;
use keepwarm_sim::requests::Requests;
use keepwarm_sim::sample::watch::{WATCHED_MAX, WATCHED_MIN, Watch};
use pyo3::prelude::*;

use crate::columns::Columns;
use crate::errors::{argument, detached, fault};

/// Capacities that may be asked for exactly.
const ASKED_MAX: usize = 4_096;

type Figure = (f64, f64);

/// Capacities of which each is simulated by itself.
const SIMULATED_MAX: usize = 64;

enum Curve {
    Lru(Box<LruCurve>),
    Scaled(Box<ScaledCurve>),
}

impl Curve {
    fn feed(&mut self, requests: &Requests<'_>) {
        match self {
            Curve::Lru(curve) => curve.feed(requests),
            Curve::Scaled(curve) => curve.feed(requests),
        }
    }

    fn watch(&self) -> &Watch {
        match self {
            Curve::Lru(curve) => curve.watch(),
            Curve::Scaled(curve) => curve.watch(),
        }
    }
}

/// Hit rate against capacity under a policy, in one pass.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct TraceCurve {
    inner: Mutex<Curve>,
}

impl TraceCurve {
    fn lock(&self) -> MutexGuard<'_, Curve> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this argument says of how many may be watched, within bounds.
pub fn checked_watch(argument_name: &str, most: usize) -> PyResult<usize> {
    if (WATCHED_MIN..=1 << 24).contains(&most) {
        return Ok(most);
    }
    Err(argument(format!("{argument_name} is {most}: pass {WATCHED_MIN} to {}", 1 << 24)))
}

#[pymethods]
impl TraceCurve {
    #[new]
    #[pyo3(signature = (block_tokens, capacities, seed=0, watched_max=None, policy="lru"))]
    fn new(
        block_tokens: u32,
        capacities: Vec<u64>,
        seed: u64,
        watched_max: Option<usize>,
        policy: &str,
    ) -> PyResult<TraceCurve> {
        if block_tokens == 0 {
            return Err(argument("block_tokens is 0: pass 1 or more"));
        }
        let Some(kind) = OrderKind::named(policy) else {
            let known = OrderKind::names().join(", ");
            return Err(argument(format!("policy {policy:?} is not known: pass one of {known}")));
        };
        let is_lru = kind.name() == "lru";
        let capacities_max = if is_lru { ASKED_MAX } else { SIMULATED_MAX };
        if capacities.len() > capacities_max {
            return Err(argument(format!("more than {capacities_max} capacities: pass fewer")));
        }
        if capacities.contains(&0) {
            return Err(argument("a capacity is 0: pass 1 block or more"));
        }
        let watched_max = checked_watch("watched_max", watched_max.unwrap_or(WATCHED_MAX))?;
        let inner = if is_lru {
            let curve = LruCurve::new(block_tokens, &capacities, seed, watched_max);
            Curve::Lru(Box::new(curve))
        } else {
            let curve = ScaledCurve::new(block_tokens, kind, &capacities, seed, watched_max);
            Curve::Scaled(Box::new(curve))
        };
        Ok(TraceCurve { inner: Mutex::new(inner) })
    }

    /// Takes a `Batch`.
    fn feed(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let columns = Columns::of(batch)?;
        detached(py, || self.lock().feed(&columns.requests())).map_err(fault)
    }

    /// By capacity (none: unbounded): hit rate of blocks and of tokens, each with its error.
    fn points(
        &self,
        py: Python<'_>,
        capacities: Vec<Option<u64>>,
    ) -> PyResult<Vec<(Figure, Figure)>> {
        if capacities.contains(&Some(0)) {
            return Err(argument("a capacity is 0: pass 1 block or more"));
        }
        let work = || match &*self.lock() {
            Curve::Lru(curve) => Some(curve.points(&capacities)),
            Curve::Scaled(curve) => curve.points(&capacities),
        };
        let points = detached(py, work).map_err(fault)?;
        let points = points.ok_or_else(|| {
            argument("this policy's curve is known at the capacities that it was made for alone")
        })?;
        let pair = |each: keepwarm_sim::curve::Point| {
            ((each.blocks.value, each.blocks.error), (each.tokens.value, each.tokens.error))
        };
        Ok(points.into_iter().map(pair).collect())
    }

    /// The share of blocks watched; watched blocks, plain and heavy; uses of blocks in all.
    fn watched(&self) -> (f64, usize, usize, u64) {
        let inner = self.lock();
        let (plain, heavy) = inner.watch().len();
        (inner.watch().rate(), plain, heavy, inner.watch().uses())
    }

    /// For each of these ids: uses counted and uses missed at most, if it is heavy.
    fn heavy_uses(&self, ids: Vec<u64>) -> Vec<Option<(u32, u32)>> {
        let inner = self.lock();
        let uses = |id: u64| inner.watch().heavy(id).map(|each| (each.uses, each.missed_max));
        ids.into_iter().map(uses).collect()
    }
}
