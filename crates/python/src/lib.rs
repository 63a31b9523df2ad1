//! The Python module `keepwarm._core`: thin bindings over the store and the wire.

use pyo3::prelude::*;

/// Keepwarm's native core.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
