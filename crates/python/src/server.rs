//! The server that a node runs.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use keepwarm_wire::server::{Server as Inner, ServerConfig, ServerError};
use pyo3::prelude::*;

use crate::errors::{ClosedError, ConfigError, NodeError, detached, fault};
use crate::store::{Store, server_time};

/// Serves a store to clients over a socket.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Server {
    /// Gone after `stop`, and while `drain` waits; never locked across a wait.
    inner: Mutex<Option<Inner>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (store, path, *, node, clients_max, idle_s))]
    fn new(
        py: Python<'_>,
        store: &Store,
        path: PathBuf,
        node: String,
        clients_max: usize,
        idle_s: f64,
    ) -> PyResult<Server> {
        let store = store.inner()?;
        let mut config = ServerConfig::new(path);
        config.node = node;
        config.clients_max = clients_max;
        config.idle = server_time(idle_s, "idle")?;
        let started = detached(py, || Inner::start(store, config)).map_err(fault)?;
        let server = started.map_err(|error| {
            let text = error.to_string();
            match error {
                ServerError::Config { setting, .. } => ConfigError::new_err((text, setting)),
                ServerError::PathTooLong { .. } | ServerError::NotASocket { .. } => {
                    ConfigError::new_err((text, "socket"))
                }
                _ => NodeError::new_err(text),
            }
        })?;
        Ok(Server { inner: Mutex::new(Some(server)) })
    }

    /// No new clients, no new puts; calls under way have this long. True when all finished.
    fn drain(&self, py: Python<'_>, time_s: f64) -> PyResult<bool> {
        let time = server_time(time_s, "drain")?;
        let Some(server) = self.lock().take() else {
            return Err(ClosedError::new_err("the server is stopped, or drains already"));
        };
        let (finished, server) = detached(py, || (server.drain(time), server)).map_err(fault)?;
        *self.lock() = Some(server);
        Ok(finished)
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.lock().take();
        detached(py, || taken.map(Inner::stop)).map_err(fault).map(drop)
    }
}

impl Server {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
