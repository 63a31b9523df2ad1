//! Handles on a store: in this process, or of a node.

use std::path::PathBuf;

use keepwarm_store::types::{Epoch, Priority, Terms};
use keepwarm_wire::address::Address;
use keepwarm_wire::client::{
    ClientError, ConnectConfig, ConnectError, HealthState, Memory as Inner, TransportChoice,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::access::{Files, credentials};
use crate::addresses::parse;
use crate::codes::{miss_names, shed_names};
use crate::errors::{ArgumentError, AttachError, ConfigError, NodeError, detached, fault};
use crate::identity::Namespace;
use crate::space::{Space, raised, seconds};
use crate::store::{Store, figures};

/// A handle on a store.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Memory {
    inner: Inner,
}

#[pymethods]
impl Memory {
    /// A store in this process, without a server.
    #[staticmethod]
    fn embedded(store: &Store) -> PyResult<Memory> {
        Ok(Memory { inner: Inner::embedded(store.inner()?) })
    }

    /// A node's store over its socket.
    #[staticmethod]
    #[pyo3(signature = (
        address, connections_max, deadline_s, name, transport, *, files=None, token=None
    ))]
    #[allow(clippy::too_many_arguments)] // keywords, from Python
    fn connect(
        py: Python<'_>,
        address: PathBuf,
        connections_max: usize,
        deadline_s: f64,
        name: String,
        transport: &str,
        files: Option<Files>,
        token: Option<&str>,
    ) -> PyResult<Memory> {
        let transport = transport_named(transport)?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let address = match address.to_str() {
            Some(text) if text.contains("://") && !text.starts_with('/') => parse(text)?,
            _ => Address::Unix(address),
        };
        let credentials = credentials(files, token)?;
        let config = ConnectConfig {
            credentials,
            connections_max,
            deadline,
            name,
            transport,
            ..ConnectConfig::new(address)
        };
        let connected = detached(py, || Inner::connect(config)).map_err(fault)?;
        connected.map(|inner| Memory { inner }).map_err(refused)
    }

    /// Several nodes as one memory. `timing`: how long a silent node keeps its share, and how long
    /// that of a new one grows, in seconds.
    #[staticmethod]
    #[pyo3(signature = (
        addresses, connections_max, deadline_s, name, transport, *, files=None, token=None,
        timing=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    fn connect_fleet(
        py: Python<'_>,
        addresses: Vec<String>,
        connections_max: usize,
        deadline_s: f64,
        name: String,
        transport: &str,
        files: Option<Files>,
        token: Option<&str>,
        timing: Option<(f64, f64)>,
    ) -> PyResult<Memory> {
        let transport = transport_named(transport)?;
        let deadline = seconds(deadline_s, "deadline_s")?;
        let address = Address::Unix(PathBuf::new()); // each node has its own
        let credentials = credentials(files, token)?;
        let each = ConnectConfig {
            credentials,
            connections_max,
            deadline,
            name,
            transport,
            ..ConnectConfig::new(address)
        };
        let config = crate::fleet::config(&addresses, each, timing)?;
        let connected = detached(py, || Inner::connect_fleet(config)).map_err(fault)?;
        connected.map(|inner| Memory { inner }).map_err(refused)
    }

    /// How each of several nodes stands.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        crate::fleet::nodes(py, &self.inner)
    }

    fn attach(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        epoch: u32,
        deadline_s: f64,
        ttl_s: Option<f64>,
        priority: Option<u8>,
    ) -> PyResult<Space> {
        let deadline = seconds(deadline_s, "deadline_s")?;
        let terms = terms(ttl_s, priority)?;
        let (spec, check) = (namespace.spec.clone(), namespace.key_check_bytes());
        let work = || self.inner.attach_on(spec, check, Epoch(epoch), terms, deadline);
        let attached = detached(py, work).map_err(fault)?;
        attached.map(Space::new).map_err(|refused| match self.inner.health().state {
            HealthState::Closed => raised(ClientError::Closed),
            _ => AttachError::new_err(refused.to_string()),
        })
    }

    fn stat<'py>(&self, py: Python<'py>, deadline_s: f64) -> PyResult<Bound<'py, PyDict>> {
        let deadline = seconds(deadline_s, "deadline_s")?;
        let stat = detached(py, || self.inner.stat(deadline)).map_err(fault)?.map_err(raised)?;
        figures(py, &stat.0)
    }

    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let health = detached(py, || self.inner.health()).map_err(fault)?;
        let out = PyDict::new(py);
        let state = match health.state {
            HealthState::Up => "up",
            HealthState::Down => "down",
            HealthState::Closed => "closed",
        };
        out.set_item("state", state)?;
        out.set_item("transport", health.transport)?;
        out.set_item("fallback", health.fallback)?;
        out.set_item("last_error", health.last_error)?;
        out.set_item("incarnation", health.incarnation)?;
        out.set_item("node", health.node.as_ref().map(|(name, _)| name))?;
        out.set_item("node_pid", health.node.as_ref().map(|(_, pid)| pid))?;
        Ok(out)
    }

    /// What this client has seen in this process.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = detached(py, || self.inner.stats()).map_err(fault)?;
        let out = PyDict::new(py);
        let numbers = [
            ("lookups", stats.lookups),
            ("gets", stats.gets),
            ("puts", stats.puts),
            ("others", stats.others),
            ("deadlines", stats.deadlines),
            ("blocks_ok", stats.blocks_ok),
            ("blocks_stored", stats.blocks_stored),
            ("blocks_present", stats.blocks_present),
            ("blocks_pending", stats.blocks_pending),
            ("bytes_got", stats.bytes_got),
            ("bytes_put", stats.bytes_put),
            ("connections", stats.connections),
            ("reconnects", stats.reconnects),
            ("corrupt", stats.corrupt),
            ("suspect_connections", stats.suspect_connections),
        ];
        for (name, number) in numbers {
            out.set_item(name, number)?;
        }
        let (missed, shed) = (PyDict::new(py), PyDict::new(py));
        for (code, name) in miss_names() {
            missed.set_item(name, stats.blocks_missed[code])?;
        }
        for (code, name) in shed_names() {
            shed.set_item(name, stats.blocks_shed[code])?;
        }
        out.set_item("blocks_missed", missed)?;
        out.set_item("blocks_shed", shed)?;
        out.set_item("transport", stats.data_path.transport)?;
        out.set_item("copies_per_byte", stats.data_path.copies_per_byte)?;
        out.set_item("system_calls_per_mib", stats.data_path.system_calls_per_mib)?;
        out.set_item("checksum", stats.data_path.checksum)?;
        Ok(out)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.inner.close()).map_err(fault)
    }
}

fn transport_named(name: &str) -> PyResult<TransportChoice> {
    match name {
        "auto" => Ok(TransportChoice::Auto),
        "shm" => Ok(TransportChoice::Shm),
        "unix" => Ok(TransportChoice::Unix),
        other => {
            let text = format!("transport is {other:?}: give auto, shm or unix");
            Err(ConfigError::new_err((text, "transport")))
        }
    }
}

fn refused(error: ConnectError) -> PyErr {
    let text = error.to_string();
    match error {
        ConnectError::Config { setting, .. } => ConfigError::new_err((text, setting)),
        ConnectError::PathTooLong { .. } | ConnectError::NotASocket { .. } => {
            ConfigError::new_err((text, "address"))
        }
        ConnectError::Credentials(_) => ConfigError::new_err((text, "credentials")),
        _ => NodeError::new_err(text),
    }
}

/// What the blocks of an attached namespace are stored on.
fn terms(ttl_s: Option<f64>, priority: Option<u8>) -> PyResult<Terms> {
    let ttl = ttl_s.map(|time| seconds(time, "ttl_s")).transpose()?;
    let priority = match priority {
        None => None,
        Some(number) => Some(Priority::new(number).ok_or_else(|| {
            let text = format!("priority is {number}: give a whole number from 0 to 3");
            ArgumentError::new_err(text)
        })?),
    };
    Ok(Terms { ttl, priority })
}
