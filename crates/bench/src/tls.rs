//! rustls as it comes: its own buffered stream, TLS 1.3, the server's certificate checked.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn told(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// One end of a connection over TLS.
pub(crate) enum Session<S: Read + Write> {
    Client(rustls::StreamOwned<ClientConnection, S>),
    Server(rustls::StreamOwned<ServerConnection, S>),
}

impl<S: Read + Write> Read for Session<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Session::Client(stream) => stream.read(to),
            Session::Server(stream) => stream.read(to),
        }
    }
}

impl<S: Read + Write> Write for Session<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Session::Client(stream) => stream.write(from),
            Session::Server(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Session::Client(stream) => stream.flush(),
            Session::Server(stream) => stream.flush(),
        }
    }
}

/// Opens sessions to servers that a certificate authority vouches for.
pub struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Connector {
    /// Trusts the authority of a PEM file, and asks for `name`.
    ///
    /// # Errors
    /// The file is no such thing.
    pub fn new(authority: &[u8], name: &str) -> io::Result<Connector> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority) {
            roots.add(certificate.map_err(told)?).map_err(told)?;
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(told)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).map_err(told)?;
        Ok(Connector { config: Arc::new(config), name })
    }

    pub(crate) fn connect<S: Read + Write>(&self, mut socket: S) -> io::Result<Session<S>> {
        let mut tls =
            ClientConnection::new(self.config.clone(), self.name.clone()).map_err(told)?;
        tls.complete_io(&mut socket)?;
        Ok(Session::Client(rustls::StreamOwned::new(tls, socket)))
    }
}

/// Accepts sessions with a certificate.
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Shows the certificates, and has the key, of two PEM files.
    ///
    /// # Errors
    /// The files are no such thing.
    pub fn new(certificates: &[u8], key: &[u8]) -> io::Result<Acceptor> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(told)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(told)?
            .with_no_client_auth()
            .with_single_cert(chain.map_err(told)?, key)
            .map_err(told)?;
        Ok(Acceptor { config: Arc::new(config) })
    }

    pub(crate) fn accept<S: Read + Write>(&self, mut socket: S) -> io::Result<Session<S>> {
        let mut tls = ServerConnection::new(self.config.clone()).map_err(told)?;
        tls.complete_io(&mut socket)?;
        Ok(Session::Server(rustls::StreamOwned::new(tls, socket)))
    }
}
