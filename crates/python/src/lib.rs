//! The Python module `keepwarm._core`: thin bindings over the store and the wire. Nothing is decided
//! here: arguments are checked, the GIL is released, outcomes become codes.

use pyo3::prelude::*;

mod buffers;
mod errors;
mod identity;

/// Keepwarm's native core. Private: use what `keepwarm` exports.
#[pymodule(name = "_core")]
mod core_module {
    #[pymodule_export]
    use super::identity::{Namespace, namespace_fields};
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
