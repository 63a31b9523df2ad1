//! The Python module `keepwarm._core`: thin bindings over the store and the wire. Nothing is
//! decided here: arguments are checked, the GIL is released, outcomes become codes.

use pyo3::prelude::*;

mod access;
mod addresses;
mod buffers;
mod certificates;
mod codes;
mod columns;
mod curve;
mod errors;
mod events;
mod export;
mod flash;
mod fleet;
mod identity;
mod journal;
mod limits;
mod memory;
mod server;
mod sim;
mod sketch;
mod space;
mod store;
mod twin;

/// Keepwarm's native core. Private: use what `keepwarm` exports.
#[pymodule(name = "_core")]
mod core_module {
    #[pymodule_export]
    use super::access::{check_principals, token_hash};
    #[pymodule_export]
    use super::addresses::canonical_address;
    #[pymodule_export]
    use super::certificates::{make_ca, make_certificate, make_revocations};
    #[pymodule_export]
    use super::codes::outcome_codes;
    #[pymodule_export]
    use super::curve::TraceCurve;
    #[pymodule_export]
    use super::errors::drill_fault;
    #[pymodule_export]
    use super::events::Subscription;
    #[pymodule_export]
    use super::identity::{Namespace, namespace_fields};
    #[pymodule_export]
    use super::journal::{log_events, log_last, log_levels, log_listen, log_next, log_say};
    #[pymodule_export]
    use super::limits::{IndexTable, LimitFile, LimitStreams, limit_copy, limit_serve};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::server::Server;
    #[pymodule_export]
    use super::sim::{Foresight, Simulation, sim_policies};
    #[pymodule_export]
    use super::sketch::TraceSketch;
    #[pymodule_export]
    use super::space::{Found, Space};
    #[pymodule_export]
    use super::store::{Store, policy_names};
    #[pymodule_export]
    use super::twin::StoreTwin;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
