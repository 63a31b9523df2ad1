//! The server that a node runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keepwarm_wire::server::{Server as Inner, ServerConfig, ServerError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::access::{Files, PrincipalRow, principals, tls_files};
use crate::addresses::parse;
use crate::errors::{ClosedError, ConfigError, NodeError, detached, fault};
use crate::store::{Store, figures, server_time};

/// Serves a store to clients over a socket.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Server {
    /// Gone after `stop`; never locked across a wait.
    inner: Mutex<Option<Arc<Inner>>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        store, path, *, listen=vec![], tls=None, principals=vec![], node, clients_max, idle_s
    ))]
    #[allow(clippy::too_many_arguments)] // keywords, from Python
    fn new(
        py: Python<'_>,
        store: &Store,
        path: PathBuf,
        listen: Vec<String>,
        tls: Option<Files>,
        principals: Vec<PrincipalRow>,
        node: String,
        clients_max: usize,
        idle_s: f64,
    ) -> PyResult<Server> {
        let store = store.inner()?;
        let mut config = ServerConfig::new(path);
        config.listen = listen.iter().map(|text| parse(text)).collect::<PyResult<_>>()?;
        config.tls = tls.map(tls_files);
        config.principals = self::principals(principals)?;
        config.node = node;
        config.clients_max = clients_max;
        config.idle = server_time(idle_s, "idle")?;
        let started = detached(py, || Inner::start(store, config)).map_err(fault)?;
        let server = started.map_err(refused)?;
        Ok(Server { inner: Mutex::new(Some(Arc::new(server))) })
    }

    /// Reads certificates again and takes other principals; ends whoever would not be let in now.
    fn reload_access(&self, py: Python<'_>, principals: Vec<PrincipalRow>) -> PyResult<()> {
        let principals = self::principals(principals)?;
        let server = self.inner()?;
        detached(py, || server.reload_access(principals)).map_err(fault)?.map_err(refused)
    }

    /// Where it listens: its socket first.
    fn addresses(&self) -> PyResult<Vec<String>> {
        Ok(self.inner()?.addresses().iter().map(ToString::to_string).collect())
    }

    /// The node's figures under their dotted names.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let server = self.inner()?;
        let stat = detached(py, || server.stat()).map_err(fault)?;
        figures(py, &stat.0)
    }

    /// Its share among several nodes, against 1 of an ordinary one; with 0 clients put elsewhere.
    fn announce(&self, py: Python<'_>, weight: f64) -> PyResult<()> {
        let permille = (weight * 1e3).round();
        if !(0.0..=1e6).contains(&permille) {
            let text = format!("weight is {weight}: give a number from 0 to 1000");
            return Err(ConfigError::new_err((text, "weight")));
        }
        let server = self.inner()?;
        let permille = permille as u32;
        detached(py, || server.announce(permille, permille == 0)).map_err(fault)
    }

    /// How long a connection may ask for nothing, from now on.
    fn set_idle(&self, py: Python<'_>, idle_s: f64) -> PyResult<()> {
        let idle = server_time(idle_s, "idle")?;
        let server = self.inner()?;
        let set = detached(py, || server.set_idle(idle)).map_err(fault)?;
        set.map_err(|error| ConfigError::new_err((error.to_string(), "idle")))
    }

    /// Why nobody reaches the node any more, if so.
    fn lost(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let server = self.inner()?;
        detached(py, || server.lost()).map_err(fault)
    }

    /// No new clients, no new puts; calls under way have this long. True when all finished.
    fn drain(&self, py: Python<'_>, time_s: f64) -> PyResult<bool> {
        let time = server_time(time_s, "drain")?;
        let server = self.inner()?;
        detached(py, || server.drain(time)).map_err(fault)
    }

    /// Ends connections and threads, once calls of this object in other threads have returned.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.lock().take();
        // Dropping the last reference is what stops it.
        detached(py, || drop(taken)).map_err(fault)
    }
}

fn refused(error: ServerError) -> PyErr {
    let text = error.to_string();
    match error {
        ServerError::Config { setting, .. } => ConfigError::new_err((text, setting)),
        ServerError::PathTooLong { .. } | ServerError::NotASocket { .. } => {
            ConfigError::new_err((text, "socket"))
        }
        ServerError::Exposed { .. } => ConfigError::new_err((text, "listen")),
        ServerError::Nobody { .. } => ConfigError::new_err((text, "principals")),
        ServerError::Tls(_) => ConfigError::new_err((text, "tls_cert")),
        _ => NodeError::new_err(text),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The garbage collector holds the GIL, and a server waits for its calls to end.
        let taken = self.lock().take();
        Python::try_attach(move |py| detached(py, || drop(taken)));
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Inner>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> PyResult<Arc<Inner>> {
        self.lock().clone().ok_or_else(|| ClosedError::new_err("the server is stopped"))
    }
}
