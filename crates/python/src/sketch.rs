//! `keepwarm_sim::sketch` for `keepwarm.workload.measures`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use keepwarm_sim::sample::jackknife::Estimate;
use keepwarm_sim::sample::watch::WATCHED_MAX;
use keepwarm_sim::sketch::figures::Figures;
use keepwarm_sim::sketch::histogram::{QUANTILES, Told};
use keepwarm_sim::sketch::sessions::SESSIONS_MAX;
use keepwarm_sim::sketch::{LongPrefix, TraceSketch as Inner};
use pyo3::prelude::*;

use crate::columns::Columns;
use crate::curve::checked_watch;
use crate::errors::{argument, detached, fault};

type Spread = (u64, f64, f64, f64, [f64; QUANTILES.len()], f64, Vec<(f64, f64, f64)>);
type Named<T> = HashMap<&'static str, T>;
type Row = (Named<u64>, Named<(f64, f64)>, Named<Spread>, Vec<(u32, u32, u32)>);

/// Every structural measure of a trace, in one pass.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct TraceSketch {
    inner: Mutex<Inner>,
}

#[pymethods]
impl TraceSketch {
    #[new]
    #[pyo3(signature = (
        block_tokens, long_tokens, long_share, seed=0, watched_max=None,
        sessions_max=None,
    ))]
    fn new(
        block_tokens: u32,
        long_tokens: u32,
        long_share: f64,
        seed: u64,
        watched_max: Option<usize>,
        sessions_max: Option<usize>,
    ) -> PyResult<TraceSketch> {
        if block_tokens == 0 {
            return Err(argument("block_tokens is 0: pass 1 or more"));
        }
        if !(0.0..=1.0).contains(&long_share) {
            return Err(argument(format!("long_share is {long_share}: pass 0 to 1")));
        }
        let watched_max = checked_watch("watched_max", watched_max.unwrap_or(WATCHED_MAX))?;
        let sessions_max = checked_watch("sessions_max", sessions_max.unwrap_or(SESSIONS_MAX))?;
        let long = LongPrefix { tokens: long_tokens, share: long_share };
        let inner = Inner::new(block_tokens, long, seed, watched_max, sessions_max);
        Ok(TraceSketch { inner: Mutex::new(inner) })
    }

    /// Takes a `Batch`.
    fn feed(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let columns = Columns::of(batch)?;
        let work = || {
            self.inner.lock().unwrap_or_else(PoisonError::into_inner).feed(&columns.requests());
        };
        detached(py, work).map_err(fault)
    }

    /// Counts, estimates with their errors, spreads, and the most used prefixes, by name.
    fn figures(&self, py: Python<'_>) -> PyResult<Row> {
        let work = || self.inner.lock().unwrap_or_else(PoisonError::into_inner).figures();
        let figures = detached(py, work).map_err(fault)?;
        let hottest = figures.hottest.iter();
        let hottest = hottest.map(|hot| (hot.blocks, hot.uses, hot.missed_max)).collect();
        Ok((counts(&figures), estimates(&figures), spreads(&figures), hottest))
    }
}

fn counts(figures: &Figures) -> Named<u64> {
    HashMap::from([
        ("requests", figures.requests),
        ("without_blocks", figures.without_blocks),
        ("input_tokens", figures.input_tokens),
        ("output_tokens", figures.output_tokens),
        ("uses", figures.uses),
        ("session_unknown", figures.sessions.unknown),
        ("watched", figures.watched as u64),
    ])
}

fn estimates(figures: &Figures) -> Named<(f64, f64)> {
    let exact = Estimate::exact;
    let [same_session, other_session, unknown_session] = figures.by_session;
    let [same_tenant, other_tenant, unknown_tenant] = figures.by_tenant;
    let all = [
        ("span_s", exact(figures.span_s)),
        ("rate", exact(figures.rate)),
        ("distinct", figures.distinct),
        ("never_reused", figures.never_reused),
        ("prefix_blocks", figures.in_prefix[0]),
        ("prefix_tokens", figures.in_prefix[1]),
        ("block_blocks", figures.anywhere[0]),
        ("block_tokens", figures.anywhere[1]),
        ("sticky_blocks", figures.sticky[0]),
        ("sticky_tokens", figures.sticky[1]),
        ("long", figures.long),
        ("same_session", same_session),
        ("other_session", other_session),
        ("unknown_session", unknown_session),
        ("same_tenant", same_tenant),
        ("other_tenant", other_tenant),
        ("unknown_tenant", unknown_tenant),
        ("sessions", figures.sessions.sessions),
        ("single_share", figures.sessions.single_share),
    ];
    HashMap::from(all.map(|(name, figure)| (name, (figure.value, figure.error))))
}

fn spreads(figures: &Figures) -> Named<Spread> {
    let all = [
        ("input_length", &figures.input_length),
        ("output_length", &figures.output_length),
        ("distance", &figures.distance),
        ("time_s", &figures.time_s),
        ("session_requests", &figures.sessions.requests),
        ("session_tokens_added", &figures.sessions.tokens_added),
        ("session_gap_s", &figures.sessions.gap_s),
        ("session_tokens_at_end", &figures.sessions.tokens_at_end),
    ];
    let spread = |told: &Told| {
        (
            told.seen,
            told.mean,
            told.smallest,
            told.largest,
            told.quantiles,
            told.rank_error,
            told.rows.clone(),
        )
    };
    HashMap::from(all.map(|(name, told)| (name, spread(told))))
}
