//! Addresses as text.

use keepwarm_wire::address::Address;
use pyo3::prelude::*;

use crate::errors::ConfigError;

/// The address that a text names.
pub fn parse(text: &str) -> PyResult<Address> {
    Address::parse(text).map_err(|error| ConfigError::new_err((error.to_string(), "address")))
}

/// An address in its one spelling, its port included.
#[pyfunction]
pub fn canonical_address(text: &str) -> PyResult<String> {
    Ok(parse(text)?.to_string())
}
