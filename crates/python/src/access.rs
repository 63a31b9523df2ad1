//! Credentials and principals, from what the settings' own parsers have read.

use std::path::PathBuf;

use keepwarm_wire::credentials::{Credentials, Secret, TokenHash};
use keepwarm_wire::server::{Principal, Principals, Right, Tenants};
use keepwarm_wire::tls::TlsFiles;
use pyo3::prelude::*;

use crate::errors::ConfigError;

/// CA, certificate, key, revocation list.
pub type Files = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

/// Name, tenants (none: all), rights, names of certificates, hashes of tokens, user ids.
pub type PrincipalRow =
    (String, Option<Vec<String>>, Vec<String>, Vec<String>, Vec<String>, Vec<u32>);

pub fn tls_files((ca, certificate, key, revoked): Files) -> TlsFiles {
    TlsFiles { ca, certificate, key, revoked }
}

/// What a client shows.
pub fn credentials(files: Option<Files>, token: Option<&str>) -> PyResult<Credentials> {
    let wrong = |problem: &str| {
        ConfigError::new_err((format!("credentials: the token {problem}"), "credentials"))
    };
    let token = token.map(|token| Secret::new(token).map_err(wrong)).transpose()?;
    Ok(Credentials { files: files.map(tls_files).unwrap_or_default(), token })
}

/// Whom a node knows.
pub fn principals(rows: Vec<PrincipalRow>) -> PyResult<Principals> {
    let wrong = |text: String| ConfigError::new_err((text, "principals"));
    let mut all = Vec::with_capacity(rows.len());
    for (name, tenants, rights, certificates, tokens, uids) in rows {
        let right = |right: &String| {
            Right::named(right).ok_or_else(|| {
                let known = Right::ALL.map(Right::name).join(", ");
                wrong(format!("principals.{name}.rights has {right:?}: known are {known}"))
            })
        };
        let token = |token: &String| {
            TokenHash::parse(token).ok_or_else(|| {
                let what = "is no hash: give sha256: and 64 hex digits, as keepwarm certs token \
                            prints them";
                wrong(format!("principals.{name}.token {what}"))
            })
        };
        let rights = rights.iter().map(right).collect::<PyResult<_>>()?;
        let tokens = tokens.iter().map(token).collect::<PyResult<_>>()?;
        let tenants = tenants.map_or(Tenants::All, Tenants::Of);
        all.push(Principal { name, tenants, rights, certificates, tokens, uids });
    }
    Principals::new(all).map_err(|error| wrong(error.to_string()))
}

/// Refuses principals that no node could have.
#[pyfunction]
pub fn check_principals(rows: Vec<PrincipalRow>) -> PyResult<()> {
    principals(rows).map(drop)
}

/// The hash of a token, as a node keeps it.
#[pyfunction]
pub fn token_hash(token: &str) -> PyResult<String> {
    match credentials(None, Some(token))?.token {
        Some(_) => Ok(TokenHash::of(token.trim().as_bytes()).to_string()),
        None => Ok(String::new()),
    }
}
