//! Certificates and keys: PEM files, read at start and again when they have changed.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Longest file that is read: bundles of many CAs are smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where one side's certificates are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// Certificates of the CAs that vouch for the other side.
    pub ca: Option<PathBuf>,
    /// This side's certificate, and those between it and its CA. A client may have none.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Revocation lists of the CAs.
    pub revoked: Option<PathBuf>,
}

/// A file that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// One that is needed is not given.
    #[error("TLS needs {what}: give it")]
    Missing {
        /// In the words of the settings.
        what: &'static str,
    },
    /// It cannot be read.
    #[error("cannot read {what} {path}: {problem}")]
    Unreadable {
        /// In the words of the settings.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// It is not what it should be.
    #[error("{what} {path} {problem}")]
    Malformed {
        /// In the words of the settings.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Others may read the key.
    #[error("private key {path} can be read by others: run chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// They do not go together.
    #[error("certificate {certificate} and key {key} cannot be used: {problem}")]
    Unusable {
        /// The file.
        certificate: PathBuf,
        /// The file.
        key: PathBuf,
        /// What TLS says.
        problem: String,
    },
}

/// What a node needs for TLS.
#[derive(Clone)]
pub struct NodeTls {
    pub(super) config: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl NodeTls {
    /// Whether a client's certificate, then those between it and its CA, would be taken now.
    pub(crate) fn vouches_for(&self, chain: &[CertificateDer<'static>]) -> bool {
        let Some((first, rest)) = chain.split_first() else { return false };
        let now = UnixTime::now();
        let verify = |with: &Arc<dyn ClientCertVerifier>| with.verify_client_cert(first, rest, now);
        self.verifier.as_ref().is_some_and(|verifier| verify(verifier).is_ok())
    }
}

/// What a client needs for TLS.
#[derive(Clone)]
pub struct ClientTls(pub(super) Arc<ClientConfig>);

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeTls")
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

impl TlsFiles {
    /// Reads a node's files. `tokens`: clients without a certificate may come too, with a token.
    ///
    /// # Errors
    /// A file is missing, or is not what it should be.
    pub fn node(&self, tokens: bool) -> Result<NodeTls, FilesError> {
        let (chain, key, paths) = self
            .identity()?
            .ok_or(FilesError::Missing { what: "the node's certificate and key" })?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| paths.unusable(&error))?;
        let mut verifies = None;
        let builder = match &self.ca {
            None if tokens => builder.with_no_client_auth(),
            None => return Err(FilesError::Missing { what: "the CA that vouches for clients" }),
            Some(path) => {
                let roots = roots(path)?;
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider());
                if tokens {
                    verifier = verifier.allow_unauthenticated();
                }
                if let Some(path) = &self.revoked {
                    verifier = verifier.with_crls(lists(path)?);
                }
                let verifier = verifier.build();
                let verifier = verifier.map_err(|error| malformed("CA", path, &error))?;
                verifies = Some(verifier.clone());
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| paths.unusable(&error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(NodeTls { config: Arc::new(config), verifier: verifies })
    }

    /// Reads a client's files.
    ///
    /// # Errors
    /// As [`TlsFiles::node`].
    pub fn client(&self) -> Result<ClientTls, FilesError> {
        let what = "the CA that vouches for the node (ca.pem)";
        let path = self.ca.as_ref().ok_or(FilesError::Missing { what })?;
        let roots = roots(path)?;
        let mut verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider());
        if let Some(path) = &self.revoked {
            verifier = verifier.with_crls(lists(path)?);
        }
        let verifier = verifier.build().map_err(|error| malformed("CA", path, &error))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| malformed("CA", path, &error))?
            .with_webpki_verifier(verifier);
        let mut config = match self.identity()? {
            None => builder.with_no_client_auth(),
            Some((chain, key, paths)) => {
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| paths.unusable(&error))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(ClientTls(Arc::new(config)))
    }

    fn identity(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, Pair)>, FilesError>
    {
        let (certificate, key) = match (&self.certificate, &self.key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (None, Some(_)) => return Err(FilesError::Missing { what: "the key's certificate" }),
            (Some(_), None) => return Err(FilesError::Missing { what: "the certificate's key" }),
        };
        let chain = certificates("certificate", certificate)?;
        if let Ok(found) = fs::metadata(key)
            && found.mode() & 0o077 != 0
        {
            return Err(FilesError::Exposed { path: key.clone() });
        }
        let bytes = read("private key", key)?;
        let found = PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(|error| malformed("private key", key, &error))?;
        Ok(Some((chain, found, Pair { certificate: certificate.clone(), key: key.clone() })))
    }

    /// When the files were last written.
    fn stamps(&self) -> Stamps {
        let files = [&self.ca, &self.certificate, &self.key, &self.revoked];
        let stamp = |path: &PathBuf| {
            let found = fs::metadata(path).ok()?;
            Some((found.mtime(), found.mtime_nsec(), found.ino()))
        };
        files.into_iter().flatten().map(stamp).collect()
    }
}

/// When each file was written last, and its inode; none for one that cannot be looked at.
type Stamps = Vec<Option<(i64, i64, u64)>>;

struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn unusable(&self, error: &rustls::Error) -> FilesError {
        let (certificate, key) = (self.certificate.clone(), self.key.clone());
        FilesError::Unusable { certificate, key, problem: error.to_string() }
    }
}

/// A client's files, read again when they were replaced: certificates end, and engines run on.
#[derive(Debug)]
pub(crate) struct Watched {
    files: TlsFiles,
    last: Mutex<Option<(Stamps, ClientTls)>>,
}

impl Watched {
    pub(crate) fn new(files: TlsFiles) -> Watched {
        Watched { files, last: Mutex::new(None) }
    }

    /// What they hold now. Files that are being replaced leave the last good ones in force.
    pub(crate) fn now(&self) -> Result<ClientTls, FilesError> {
        let stamps = self.files.stamps();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, tls)) = &*last
            && *seen == stamps
        {
            return Ok(tls.clone());
        }
        match (self.files.client(), &*last) {
            (Ok(tls), _) => {
                *last = Some((stamps, tls.clone()));
                Ok(tls)
            }
            (Err(_), Some((_, tls))) => Ok(tls.clone()),
            (Err(error), None) => Err(error),
        }
    }
}

/// The one provider: no other is linked, and none is a global of the process, which belongs to
/// whoever embeds us.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn malformed(what: &'static str, path: &Path, error: &impl fmt::Display) -> FilesError {
    FilesError::Malformed { what, path: path.into(), problem: format!("is no PEM: {error}") }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, FilesError> {
    let unreadable = |error: io::Error| {
        let problem = error.to_string();
        FilesError::Unreadable { what, path: path.into(), problem }
    };
    match fs::metadata(path).map_err(unreadable)?.len() {
        0..=FILE_BYTES_MAX => fs::read(path).map_err(unreadable),
        _ => Err(unreadable(io::Error::other("larger than any such file"))),
    }
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    let bytes = read(what, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(malformed(what, path, &"it holds no certificate")),
        Err(error) => Err(malformed(what, path, &error)),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, FilesError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA", path)? {
        roots.add(certificate).map_err(|error| malformed("CA", path, &error))?;
    }
    Ok(roots)
}

fn lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, FilesError> {
    let bytes = read("revocation list", path)?;
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match found {
        // Nothing is not the same as a list that revokes nobody: it is a file cut short, and would
        // let in whoever was revoked.
        Ok(found) if found.is_empty() => {
            Err(malformed("revocation list", path, &"it holds no revocation list"))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(malformed("revocation list", path, &error)),
    }
}
