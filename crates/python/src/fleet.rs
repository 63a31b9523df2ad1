//! Several nodes as one memory, and where a call's keys stand in their prompt.

use std::time::Duration;

use keepwarm_store::types::BlockKey;
use keepwarm_wire::client::{
    ConnectConfig, FleetConfig, FleetTiming, HealthState, Memory as Inner, Positions, Seed,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffers::keys;
use crate::errors::{ConfigError, detached, fault};

/// (position of the first key, heads of the runs), or nothing known.
pub type At<'py> = Option<(u64, Bound<'py, PyAny>)>;

/// The same, with the heads copied out of Python.
pub struct Places(Option<(u64, Vec<BlockKey>)>);

impl Places {
    pub fn read(at: At<'_>) -> PyResult<Places> {
        let read = |(first, heads): (u64, Bound<'_, PyAny>)| {
            keys(&heads, "run_heads").map(|heads| (first, heads))
        };
        at.map(read).transpose().map(Places)
    }

    pub fn positions(&self) -> Option<Positions<'_>> {
        self.0.as_ref().map(|(first, heads)| Positions { first: *first, heads })
    }
}

/// What several addresses mean. `timing`: grace and ramp, in seconds.
pub fn config(
    addresses: &[String],
    each: ConnectConfig,
    timing: Option<(f64, f64)>,
) -> PyResult<FleetConfig> {
    let parse = |text: &String| Seed::parse(text);
    let seeds = addresses.iter().map(parse).collect::<Result<_, _>>();
    let seeds = seeds.map_err(|error| ConfigError::new_err((error.to_string(), "address")))?;
    let mut config = FleetConfig::new(seeds, each);
    if let Some((grace_s, ramp_s)) = timing {
        let time = |value| {
            Duration::try_from_secs_f64(value)
                .map_err(|error| ConfigError::new_err((format!("timing: {error}"), "timing")))
        };
        config.timing = FleetTiming { grace: time(grace_s)?, ramp: time(ramp_s)? };
    }
    Ok(config)
}

/// How each node stands.
pub fn nodes<'py>(py: Python<'py>, memory: &Inner) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let nodes = detached(py, || memory.nodes()).map_err(fault)?;
    let row = |node: keepwarm_wire::NodeHealth| {
        let out = PyDict::new(py);
        out.set_item("name", node.name)?;
        out.set_item("state", node.state.name())?;
        out.set_item("up", node.health.state == HealthState::Up)?;
        out.set_item("share", node.share)?;
        out.set_item("weight", node.weight)?;
        out.set_item("transport", node.health.transport)?;
        out.set_item("last_error", node.health.last_error)?;
        out.set_item("incarnation", node.health.incarnation)?;
        out.set_item("node", node.health.node.as_ref().map(|(name, _)| name))?;
        Ok(out)
    };
    nodes.into_iter().map(row).collect()
}
