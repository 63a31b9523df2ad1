//! Why two sides do not trust each other, in words that name what to change.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// A handshake or a record that TLS refused. Travels inside an [`io::Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Distrust {
    pub(crate) problem: String,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Distrust {}

/// The refusal inside an error, if it is one.
pub(crate) fn distrust_in(error: &io::Error) -> Option<&Distrust> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Who is meant by "the other side's certificate".
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Node,
    Client,
}

pub(super) fn explain(error: &Error, peer: Peer) -> io::Error {
    let (theirs, ours) = match peer {
        Peer::Node => ("the node", "this client"),
        Peer::Client => ("the client", "this node"),
    };
    let problem = match error {
        Error::InvalidCertificate(found) => {
            format!("{theirs}'s certificate {}", of_certificate(found, ours))
        }
        Error::NoCertificatesPresented => {
            format!("{theirs} shows no certificate, and no token is accepted here: give it one")
        }
        Error::AlertReceived(alert) => of_alert(*alert, theirs, ours),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            format!("{theirs} does not speak TLS: use tls:// for a TLS port alone")
        }
        Error::PeerIncompatible(_) => {
            format!("{theirs} has no version or cipher in common with {ours}: TLS 1.3 is needed")
        }
        Error::DecryptError => String::from("a record was changed on the way, or the keys differ"),
        other => format!("TLS with {theirs} failed: {other}"),
    };
    io::Error::new(io::ErrorKind::InvalidData, Distrust { problem })
}

fn of_certificate(error: &CertificateError, ours: &str) -> String {
    use CertificateError::{
        Expired, ExpiredContext, InvalidPurpose, InvalidPurposeContext, NotValidForName,
        NotValidForNameContext, NotValidYet, NotValidYetContext, Revoked, UnknownIssuer,
        UnknownRevocationStatus,
    };
    match error {
        ExpiredContext { time, not_after } => {
            let ago = days(time.as_secs().saturating_sub(not_after.as_secs()));
            format!("has expired {ago} ago by {ours}'s clock: renew it, or set the clock right")
        }
        Expired => format!("has expired by {ours}'s clock: renew it, or set the clock right"),
        NotValidYetContext { time, not_before } => {
            let ahead = days(not_before.as_secs().saturating_sub(time.as_secs()));
            format!("is not valid yet, for {ahead} by {ours}'s clock: set the clocks right")
        }
        NotValidYet => format!("is not valid yet by {ours}'s clock: set the clocks right"),
        Revoked => String::from("is revoked: make a new one"),
        UnknownIssuer => {
            format!("is not signed by the CA that {ours} trusts: give both the same ca.pem")
        }
        UnknownRevocationStatus => {
            String::from("is from a CA of which the revocation list says nothing: add its list")
        }
        NotValidForNameContext { expected, presented } => format!(
            "is not for {}, only for {}: connect by one of these, or make one for that name",
            expected.to_str(),
            presented.join(", ")
        ),
        NotValidForName => String::from("is not for the name that was connected to"),
        InvalidPurpose | InvalidPurposeContext { .. } => {
            String::from("is for another purpose: a node needs a server's, a client a client's")
        }
        other => format!("is refused: {other}"),
    }
}

fn of_alert(alert: AlertDescription, theirs: &str, ours: &str) -> String {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, HandshakeFailure, ProtocolVersion, UnknownCA,
        UnsupportedCertificate,
    };
    match alert {
        CertificateExpired => format!(
            "{theirs} finds {ours}'s certificate expired or not valid yet by its clock: renew it, \
             or set the clocks right"
        ),
        CertificateRevoked => {
            format!("{theirs} refuses {ours}'s certificate as revoked: make a new one")
        }
        UnknownCA => format!(
            "{theirs} does not trust the CA of {ours}'s certificate: give both the same ca.pem"
        ),
        CertificateRequired => {
            format!("{theirs} wants a certificate: give {ours} one, or a token if it takes tokens")
        }
        BadCertificate
        | CertificateUnknown
        | UnsupportedCertificate
        | AccessDenied
        | DecryptError => format!("{theirs} refuses {ours}'s certificate ({alert:?})"),
        HandshakeFailure | ProtocolVersion => {
            format!("{theirs} has no version or cipher in common with {ours}: TLS 1.3 is needed")
        }
        other => format!("{theirs} ended TLS: {other:?}"),
    }
}

fn days(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
