//! Errors as the exceptions of `keepwarm.errors`; panics never cross.

use std::panic::{AssertUnwindSafe, catch_unwind};

use keepwarm_store::identity::IdentityError as StoreIdentityError;
use pyo3::prelude::*;

pyo3::import_exception!(keepwarm.errors, KeepwarmError);
pyo3::import_exception!(keepwarm.errors, ArgumentError);
pyo3::import_exception!(keepwarm.errors, AttachError);
pyo3::import_exception!(keepwarm.errors, ClosedError);
pyo3::import_exception!(keepwarm.errors, ConfigError);
pyo3::import_exception!(keepwarm.errors, IdentityError);
pyo3::import_exception!(keepwarm.errors, NodeError);

/// An `ArgumentError` that names the argument.
pub fn argument(text: impl Into<String>) -> PyErr {
    ArgumentError::new_err(text.into())
}

/// An `IdentityError` with the field it is about.
pub fn identity(error: StoreIdentityError) -> PyErr {
    let field = match &error {
        StoreIdentityError::Missing { field, .. } | StoreIdentityError::BadValue { field, .. } => {
            Some((*field).to_owned())
        }
        StoreIdentityError::Unknown { field, .. } => Some(field.clone()),
        StoreIdentityError::Secret { .. } => Some("secret".to_owned()),
        StoreIdentityError::Encoding { .. } | StoreIdentityError::TooLarge { .. } => None,
    };
    IdentityError::new_err((error.to_string(), field))
}

/// Runs `work` without the GIL. A panic inside, which is a fault of ours, comes back as its text;
/// the panic hook has written it with its place to standard error.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    // What a panic may have left half done belongs to the core, whose guards clean up on unwind.
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// The exception for a panic where no outcome can carry it.
pub fn fault(text: String) -> PyErr {
    KeepwarmError::new_err(format!(
        "internal fault in the native core: {text}; this is a bug, please report it with the \
         lines on standard error"
    ))
}

/// A fault on purpose: shows that one neither ends the process nor passes as an answer.
#[pyfunction]
pub fn drill_fault(py: Python<'_>) -> PyResult<()> {
    detached(py, || panic!("a drill")).map_err(fault)
}
