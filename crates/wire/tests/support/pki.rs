//! A CA of the test's own, and certificates from it, good and bad.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use keepwarm_wire::credentials::Credentials;
use keepwarm_wire::tls::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use time::{Duration, OffsetDateTime};

/// When a certificate is good, from now on.
#[derive(Clone, Copy)]
pub enum Term {
    Now,
    Over,
    NotYet,
}

pub struct Ca {
    folder: PathBuf,
    name: String,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new(folder: &Path, name: &str) -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let ca = Ca { folder: folder.to_owned(), name: name.to_owned(), pem, issuer };
        ca.write("ca.pem", &ca.pem);
        ca
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(format!("{}-{name}", self.name));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}-ca.pem", self.name))
    }

    /// Files of one side, with a certificate for `names`, numbered `serial`.
    pub fn issue(&self, names: &[&str], serial: u64, term: Term) -> TlsFiles {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = OffsetDateTime::now_utc();
        let (from, to) = match term {
            Term::Now => (-1, 1),
            Term::Over => (-10, -9),
            Term::NotYet => (9, 10),
        };
        params.not_before = now + Duration::days(from);
        params.not_after = now + Duration::days(to);
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        TlsFiles {
            ca: Some(self.file()),
            certificate: Some(self.write(&format!("{serial}.pem"), &pem)),
            key: Some(self.write(&format!("{serial}.key"), &key.serialize_pem())),
            revoked: None,
        }
    }

    /// A list that revokes these.
    pub fn revoke(&self, serials: &[u64]) -> PathBuf {
        let now = OffsetDateTime::now_utc();
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now - Duration::days(1),
            next_update: now + Duration::days(1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("crl.pem", &params.signed_by(&self.issuer).unwrap().pem().unwrap())
    }
}

/// What a client shows: these files, and nothing else.
pub fn with_files(files: TlsFiles) -> Credentials {
    Credentials { files, token: None }
}
