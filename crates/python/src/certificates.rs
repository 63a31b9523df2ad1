//! Making a CA, and certificates from it: ECDSA P-256, for nodes and clients of one fleet.

use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};
use time::{Duration, OffsetDateTime};

use crate::errors::ConfigError;

/// How much earlier than now a certificate begins, for clocks that are behind.
const EARLIER: Duration = Duration::minutes(10);

/// A certificate and its key, PEM.
type Made = (String, String);

fn failed(error: impl std::fmt::Display) -> PyErr {
    ConfigError::new_err((format!("certificate cannot be made: {error}"), "certs"))
}

fn lasting(params: &mut CertificateParams, days: u32) -> PyResult<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(failed)?;
    let seconds = i64::try_from(since.as_secs()).map_err(failed)?;
    let now = OffsetDateTime::from_unix_timestamp(seconds).map_err(failed)?;
    params.not_before = now - EARLIER;
    params.not_after = now + Duration::days(days.into());
    Ok(())
}

/// A CA that signs certificates of nodes and clients, and lists of revoked ones.
#[pyfunction]
pub fn make_ca(name: &str, days: u32) -> PyResult<Made> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    lasting(&mut params, days)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// A node's or a client's certificate for `names`, signed by a CA.
#[pyfunction]
pub fn make_certificate(
    ca: &str,
    ca_key: &str,
    names: Vec<String>,
    node: bool,
    days: u32,
    serial: u64,
) -> PyResult<Made> {
    let issuer = issuer(ca, ca_key)?;
    let common = names.first().cloned().unwrap_or_default();
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, common);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match node {
        true => ExtendedKeyUsagePurpose::ServerAuth,
        false => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    params.serial_number = Some(SerialNumber::from(serial));
    params.use_authority_key_identifier_extension = true;
    lasting(&mut params, days)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// A list of a CA that revokes certificates by their serial numbers.
#[pyfunction]
pub fn make_revocations(
    ca: &str,
    ca_key: &str,
    serials: Vec<u64>,
    days: u32,
    number: u64,
) -> PyResult<String> {
    let issuer = issuer(ca, ca_key)?;
    let mut term = CertificateParams::default();
    lasting(&mut term, days)?;
    let revoked = |serial: u64| RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: term.not_before,
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: term.not_before,
        next_update: term.not_after,
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: serials.into_iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).and_then(|list| list.pem()).map_err(failed)
}

fn issuer(ca: &str, ca_key: &str) -> PyResult<Issuer<'static, KeyPair>> {
    let key = KeyPair::from_pem(ca_key).map_err(failed)?;
    Issuer::from_ca_cert_pem(ca, key).map_err(failed)
}
