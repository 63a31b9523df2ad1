//! `keepwarm_sim`'s exact replay for `keepwarm.workload.simulate`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keepwarm_sim::cache::{SLOTS_MAX, Touch};
use keepwarm_sim::costs::{Costs, Link};
use keepwarm_sim::fleet::{Below, Fleet, FleetSettings, TooManyBlocks};
use keepwarm_sim::hierarchy::Hierarchy;
use keepwarm_sim::interner::Interner;
use keepwarm_sim::level::{Admission, LevelSettings, Source};
use keepwarm_sim::memory::{Memory, Tier};
use keepwarm_sim::opt::{Foretold, Opt};
use keepwarm_sim::order::OrderKind;
use keepwarm_sim::outcomes::Outcomes;
use keepwarm_sim::router::Router;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::columns::Columns;
use crate::errors::{argument, detached, fault};
use crate::twin::{NodeRow, model_of, twin_of, unfit};

const REPLICAS_MAX: usize = 4_096;

/// Tier, capacity in blocks, policy, time to live, second uses only, filled by demotion.
type LevelRow = (String, Option<u32>, String, Option<f64>, bool, bool);
/// Seconds for a request, a token, and a token before it; bytes of a token; for each tier, latency
/// and bytes a second.
type CostsRow = (f64, f64, f64, f64, Vec<(f64, f64)>);

/// Names of the simulator's policies that need not know the future, the default's first.
#[pyfunction]
pub fn sim_policies() -> Vec<&'static str> {
    OrderKind::names()
}

fn too_many(_: TooManyBlocks) -> PyErr {
    argument(format!(
        "the trace has more than {SLOTS_MAX} distinct blocks: ask keepwarm workload curve, which \
         takes a sample of them"
    ))
}

fn tier_named(name: &str) -> PyResult<Tier> {
    let names = ["device", "host", "dram", "flash", "object"];
    let known = names.iter().position(|known| *known == name).map(|at| Tier::ALL[at]);
    known.ok_or_else(|| argument(format!("tier is {name:?}: give one of {}", names.join(", "))))
}

fn level(row: &LevelRow) -> PyResult<LevelSettings> {
    let (tier, capacity, policy, ttl_s, second_use, demoted) = row;
    let order = OrderKind::named(policy).ok_or_else(|| {
        let names = OrderKind::names().join(", ");
        argument(format!("policy is {policy:?}: give opt, default, or one of {names}"))
    })?;
    if *capacity == Some(0) {
        return Err(argument(format!("{tier} has no capacity: leave it out, or give 1 block")));
    }
    if ttl_s.is_some_and(|ttl_s| ttl_s.is_nan() || ttl_s <= 0.0) {
        return Err(argument(format!("{tier}'s time to live must be above 0")));
    }
    Ok(LevelSettings {
        tier: tier_named(tier)?,
        capacity: *capacity,
        order,
        ttl_s: *ttl_s,
        admission: if *second_use { Admission::SecondUse } else { Admission::All },
        source: if *demoted { Source::Demotion } else { Source::Requests },
    })
}

fn router_named(name: &str, prefix_blocks: u32) -> PyResult<Router> {
    match name {
        "round-robin" => Ok(Router::RoundRobin),
        "sticky" => Ok(Router::Sticky),
        "prefix-hash" if prefix_blocks > 0 => Ok(Router::PrefixHash { blocks: prefix_blocks }),
        "prefix-hash" => Err(argument("prefix_blocks is 0: give 1 or more")),
        "kv-aware" => Ok(Router::KvAware),
        _ => Err(argument(format!(
            "router is {name:?}: give round-robin, sticky, prefix-hash or kv-aware"
        ))),
    }
}

fn costs(row: &CostsRow) -> PyResult<Costs> {
    let (fixed_s, token_s, attention_s, token_bytes, rows) = row;
    let unfit = || argument("costs must be numbers from 0 on, and rates above 0, for five tiers");
    let is_fit = |number: f64| number >= 0.0 && number.is_finite();
    let links: Vec<Link> =
        rows.iter().map(|&(latency_s, bytes_per_s)| Link { latency_s, bytes_per_s }).collect();
    let are_fit = links.iter().all(|link| is_fit(link.latency_s) && link.bytes_per_s > 0.0);
    let links = links.try_into().map_err(|_| unfit())?;
    if !are_fit || ![fixed_s, token_s, attention_s, token_bytes].into_iter().all(|&n| is_fit(n)) {
        return Err(unfit());
    }
    Ok(Costs {
        fixed_s: *fixed_s,
        token_s: *token_s,
        attention_s: *attention_s,
        token_bytes: *token_bytes,
        links,
    })
}

/// What OPT has to know: all of a trace's blocks.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Foresight {
    inner: Mutex<(Opt, Interner)>,
}

#[pymethods]
impl Foresight {
    #[new]
    fn new() -> Foresight {
        Foresight { inner: Mutex::default() }
    }

    /// Takes a `Batch`.
    fn feed(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let columns = Columns::of(batch)?;
        let take = || {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let (opt, interner) = &mut *inner;
            let requests = columns.requests();
            let mut numbers = Vec::new();
            for at in 0..requests.len() {
                numbers.clear();
                for id in requests.blocks(at) {
                    numbers.push(interner.number(*id).ok_or(TooManyBlocks)?);
                }
                opt.push(&numbers);
            }
            Ok(())
        };
        detached(py, take).map_err(fault)?.map_err(too_many)
    }

    /// Bytes that OPT over these requests takes, about.
    fn bytes(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.bytes()
    }
}

/// Replicas, a router and tiers, and requests through them.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Simulation {
    inner: Mutex<Option<Fleet>>,
}

impl Simulation {
    fn lock(&self) -> MutexGuard<'_, Option<Fleet>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hierarchy(levels: &[LevelSettings], touch: Touch) -> Box<dyn Memory + Send> {
    Box::new(Hierarchy::new(levels, touch))
}

fn fleet(
    settings: FleetSettings,
    levels: &[LevelSettings],
    replicas: usize,
    shared: bool,
    touch: Touch,
) -> Fleet {
    let (own, below) = levels.split_at(levels.partition_point(|each| each.tier < Tier::Dram));
    let below_source = below.first().map(|level| level.source);
    let below = match (below, shared) {
        ([], _) => Below::Nothing,
        (below, true) => Below::Shared(hierarchy(below, touch)),
        (below, false) => Below::Local((0..replicas).map(|_| hierarchy(below, touch)).collect()),
    };
    let takes_leavers = below_source == Some(Source::Demotion);
    let own = |_| {
        let mut own = Hierarchy::new(own, touch);
        if takes_leavers {
            own.follow();
        }
        own
    };
    let own = (0..replicas).map(own).collect();
    Fleet::new(settings, own, below)
}

/// Nodes behind the replicas' own levels: one for all, or one each.
fn fleet_over_nodes(
    settings: FleetSettings,
    levels: &[LevelSettings],
    replicas: usize,
    shared: bool,
    touch: Touch,
    node: NodeRow,
) -> PyResult<Fleet> {
    if levels.iter().any(|each| each.tier >= Tier::Dram) {
        return Err(argument("a node is dram and flash: give levels of device and host beside it"));
    }
    let model = model_of(node)?;
    model.check(if shared { 1 } else { replicas }).map_err(unfit)?;
    let twin = || twin_of(&model).map(|twin| Box::new(twin) as Box<dyn Memory + Send>);
    let below = match shared {
        true => Below::Shared(twin()?),
        false => Below::Local((0..replicas).map(|_| twin()).collect::<PyResult<_>>()?),
    };
    let own = (0..replicas).map(|_| Hierarchy::new(levels, touch)).collect();
    Ok(Fleet::new(settings, own, below))
}

/// One replica whose only level knew what comes.
fn foretold(
    py: Python<'_>,
    settings: FleetSettings,
    levels: &[LevelSettings],
    foresight: &Foresight,
) -> PyResult<Fleet> {
    let &[LevelSettings { tier, capacity, .. }] = levels else {
        return Err(argument("opt is for one level"));
    };
    let run = || {
        let inner = foresight.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.run(capacity.unwrap_or(u32::MAX))
    };
    let hits = detached(py, run).map_err(fault)?;
    let below = Below::Shared(Box::new(Foretold::new(hits, tier)));
    Ok(Fleet::new(settings, vec![Hierarchy::new(&[], Touch::default())], below))
}

#[pymethods]
impl Simulation {
    /// `levels` as each replica has them: those from dram on once for all if `shared`. A node
    /// stands for dram and flash. A foresight
    /// of the trace that follows stands for the policy of the only level of the only replica.
    #[new]
    #[pyo3(signature = (levels, *, block_tokens, replicas=1, router="round-robin", prefix_blocks=1,
        shared=true, head_first=false, costs, planned=false, foresight=None, node=None))]
    #[allow(clippy::too_many_arguments)] // each has a name where it is called
    fn new(
        py: Python<'_>,
        levels: Vec<LevelRow>,
        block_tokens: u32,
        replicas: usize,
        router: &str,
        prefix_blocks: u32,
        shared: bool,
        head_first: bool,
        costs: CostsRow,
        planned: bool,
        foresight: Option<&Foresight>,
        node: Option<NodeRow>,
    ) -> PyResult<Simulation> {
        let levels: Vec<_> = levels.iter().map(level).collect::<PyResult<_>>()?;
        if !levels.is_sorted_by(|a, b| a.tier < b.tier) {
            return Err(argument("levels must be in the order of tiers, each tier once"));
        }
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            return Err(argument(format!("replicas is {replicas}: give 1 to {REPLICAS_MAX}")));
        }
        if block_tokens == 0 {
            return Err(argument("block_tokens is 0: pass 1 or more"));
        }
        let settings = FleetSettings {
            router: router_named(router, prefix_blocks)?,
            costs: self::costs(&costs)?,
            is_planned: planned,
            block_tokens,
        };
        let touch = if head_first { Touch::HeadFirst } else { Touch::TailFirst };
        let fleet = match (foresight, node) {
            (None, Some(node)) => {
                fleet_over_nodes(settings, &levels, replicas, shared, touch, node)?
            }
            (None, None) => fleet(settings, &levels, replicas, shared, touch),
            (Some(_), node) if replicas != 1 || node.is_some() => {
                return Err(argument("opt is for one replica"));
            }
            (Some(foresight), _) => foretold(py, settings, &levels, foresight)?,
        };
        Ok(Simulation { inner: Mutex::new(Some(fleet)) })
    }

    /// Takes a `Batch`.
    fn feed(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let columns = Columns::of(batch)?;
        let serve = || {
            let mut inner = self.lock();
            inner.as_mut().map(|fleet| fleet.serve(&columns.requests()))
        };
        let served = detached(py, serve).map_err(fault)?;
        served.ok_or_else(finished)?.map_err(too_many)
    }

    /// Columns by name, as bytes of numpy's; and distinct blocks. Only once.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, usize)> {
        let fleet = self.lock().take().ok_or_else(finished)?;
        let distinct = fleet.distinct_blocks();
        let outcomes = detached(py, || fleet.finish()).map_err(fault)?;
        Ok((as_columns(py, outcomes)?, distinct))
    }
}

fn finished() -> PyErr {
    argument("the simulation is finished: begin another")
}

/// Each column is freed as soon as Python has it.
fn as_columns(py: Python<'_>, outcomes: Outcomes) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    let put = |name: &str, bytes: PyResult<Bound<'_, PyBytes>>| columns.set_item(name, bytes?);
    put("replica", column(py, [outcomes.replica], u32::to_ne_bytes))?;
    put("input_tokens", column(py, [outcomes.input_tokens], u32::to_ne_bytes))?;
    put("blocks", column(py, [outcomes.blocks], u32::to_ne_bytes))?;
    put("hit_blocks", column(py, outcomes.hit_blocks, u32::to_ne_bytes))?;
    put("hit_tokens", column(py, outcomes.hit_tokens, u32::to_ne_bytes))?;
    put("restore_s", column(py, [outcomes.restore_s], f64::to_ne_bytes))?;
    put("wait_s", column(py, [outcomes.wait_s], f64::to_ne_bytes))?;
    put("prefill_s", column(py, [outcomes.prefill_s], f64::to_ne_bytes))?;
    Ok(columns)
}

/// Columns behind each other.
fn column<'py, T: Copy, const N: usize, const COLUMNS: usize>(
    py: Python<'py>,
    columns: [Vec<T>; COLUMNS],
    write: fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>> {
    let count: usize = columns.iter().map(Vec::len).sum();
    PyBytes::new_with(py, count * N, |bytes| {
        let values = columns.iter().flatten();
        for (place, value) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(values) {
            *place = write(*value);
        }
        Ok(())
    })
}
