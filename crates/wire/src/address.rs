//! Where a node is reached, as people write it.
//!
//! | text | what it is |
//! | --- | --- |
//! | `unix:/path`, `/path` | a Unix socket |
//! | `tcp://host:port` | TCP in plain text: for loopback |
//! | `tls://host:port` | TCP under TLS 1.3; never falls back to plain text |
//!
//! Without a port it is [`PORT`]. A host is a name, an IPv4 address, or an IPv6 address in
//! brackets.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The port of a node that names none.
pub const PORT: u16 = 9478;

/// Longest host: what DNS allows.
const HOST_BYTES_MAX: usize = 253;

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system of this machine.
    Unix(PathBuf),
    /// TCP in plain text.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// 0, where a node listens: one that the system chooses.
        port: u16,
    },
    /// TCP under TLS.
    Tls {
        /// As in `Tcp`; the node's certificate must be for it.
        host: String,
        /// As in `Tcp`.
        port: u16,
    },
}

/// A text that names no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {text} {problem}: give unix:/path, tcp://host:port or tls://host:port")]
pub struct AddressError {
    /// As given.
    pub text: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// It names none.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let wrong = |problem| AddressError { text: text.to_owned(), problem };
        if let Some((scheme, rest)) = text.split_once("://") {
            let (host, port) = host_and_port(rest).map_err(wrong)?;
            return match scheme {
                "tcp" => Ok(Address::Tcp { host, port }),
                "tls" => Ok(Address::Tls { host, port }),
                _ => Err(wrong("is of a kind that this version does not know")),
            };
        }
        let path = text.strip_prefix("unix:").unwrap_or(text);
        let is_path = path.len() < text.len() || path.contains('/') || !path.contains(':');
        match path {
            "" => Err(wrong("is empty")),
            _ if path.contains('\0') => Err(wrong("has a zero byte")),
            _ if !is_path => Err(wrong("is of a kind that this version does not know")),
            _ => Ok(Address::Unix(PathBuf::from(path))),
        }
    }

    /// Host and port, where it has them.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Address::Unix(_) => None,
            Address::Tcp { host, port } | Address::Tls { host, port } => Some((host, *port)),
        }
    }

    /// The same address at another port; a socket stays what it is.
    pub fn at_port(&self, port: u16) -> Address {
        match self.clone() {
            Address::Unix(path) => Address::Unix(path),
            Address::Tcp { host, .. } => Address::Tcp { host, port },
            Address::Tls { host, .. } => Address::Tls { host, port },
        }
    }

    /// The name of the transport: `unix`, `tcp` or `tls`.
    pub fn transport(&self) -> &'static str {
        match self {
            Address::Unix(_) => "unix",
            Address::Tcp { .. } => "tcp",
            Address::Tls { .. } => "tls",
        }
    }

    /// Whether only this machine can be meant: a socket, a loopback address, or `localhost`.
    pub fn is_local(&self) -> bool {
        self.host_and_port().is_none_or(|(host, _)| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(is_loopback)
        })
    }
}

/// Loopback, as IPv4 within IPv6 too.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("has a bracket that never closes")?;
            host.parse::<Ipv6Addr>().map_err(|_| "has brackets around what is no IPv6 address")?;
            match after.strip_prefix(':') {
                None if after.is_empty() => (host, None),
                None => return Err("has something else than a port after its bracket"),
                Some(port) => (host, Some(port)),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("has an IPv6 address without brackets");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = match port {
        None => PORT,
        Some(port) if is_digits(port) => port.parse().map_err(|_| "has no port below 65536")?,
        Some(_) => return Err("has no port below 65536"),
    };
    // In one spelling: clients of several nodes place blocks by it, and two that spell one node
    // differently would find nothing of each other's.
    match host.parse::<IpAddr>() {
        Ok(address) => Ok((address.to_string(), port)),
        Err(_) if is_name(host) => Ok((host.to_ascii_lowercase(), port)),
        Err(_) => Err("has no host that can be one"),
    }
}

fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed)
    };
    // What is all digits and dots is a slip in an address, not a name.
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    host.len() <= HOST_BYTES_MAX && !is_number && host.split('.').all(is_label)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                let scheme = self.transport();
                match host.contains(':') {
                    true => write!(f, "{scheme}://[{host}]:{port}"),
                    false => write!(f, "{scheme}://{host}:{port}"),
                }
            }
        }
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Address {
        Address::Unix(path)
    }
}

impl From<&PathBuf> for Address {
    fn from(path: &PathBuf) -> Address {
        Address::Unix(path.clone())
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Address {
        Address::Unix(path.to_owned())
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Address {
        address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_addresses_agree() {
        for (text, want) in [
            ("unix:/run/k.sock", "unix:/run/k.sock"),
            ("/run/k.sock", "unix:/run/k.sock"),
            ("k.sock", "unix:k.sock"),
            ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
            ("tcp://cache", "tcp://cache:9478"),
            ("tls://cache-0.cache.prod.svc:65535", "tls://cache-0.cache.prod.svc:65535"),
            ("tls://[::1]", "tls://[::1]:9478"),
            ("tcp://[fe80::1]:0", "tcp://[fe80::1]:0"),
            ("tls://Cache-0.Prod.SVC:7", "tls://cache-0.prod.svc:7"),
            ("tls://[FE80:0::0:1]:7", "tls://[fe80::1]:7"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.to_string(), want);
            assert_eq!(Address::parse(want).unwrap(), address);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "empty"),
            ("unix:", "empty"),
            ("a\0b", "zero byte"),
            ("http://x:1", "kind"),
            ("redis:x", "kind"),
            ("tcp://", "no host"),
            ("tcp://x:", "no port"),
            ("tcp://x:+1", "no port"),
            ("tcp://x:65536", "no port"),
            ("tcp://::1", "without brackets"),
            ("tcp://[::1", "never closes"),
            ("tcp://[x]:1", "brackets around"),
            ("tcp://[::1]1", "after its bracket"),
            ("tcp://300.1.1.1:1", "no host"),
            ("tcp://a..b:1", "no host"),
            ("tcp://user@host:1", "no host"),
            ("tcp://host/path", "no host"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn local_is_what_only_this_machine_can_mean() {
        let is_local = |text| Address::parse(text).unwrap().is_local();
        assert!(is_local("/s") && is_local("tcp://127.9.9.9") && is_local("tls://[::1]:1"));
        assert!(is_local("tcp://localhost") && is_local("tcp://[::ffff:127.0.0.1]"));
        assert!(!is_local("tcp://0.0.0.0") && !is_local("tcp://[::]") && !is_local("tcp://h"));
    }
}
