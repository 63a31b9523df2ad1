//! What a name stands for.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use super::config::{NODES_MAX, Seed};
use crate::address::Address;

/// The nodes at the addresses of a name, in an order of their own. Of a name with addresses of both
/// kinds those of IPv4 count: one node has both, and would be there twice.
///
/// # Errors
/// The system's resolver does not know, or does not answer. Takes as long as that takes.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<Address>> {
    let found = (host, port).to_socket_addrs()?.map(|address| address.ip());
    Ok(nodes(found.collect(), port))
}

fn nodes(mut found: Vec<IpAddr>, port: u16) -> Vec<Address> {
    if found.iter().any(IpAddr::is_ipv4) {
        found.retain(IpAddr::is_ipv4);
    }
    found.sort();
    found.dedup();
    let address = |ip: IpAddr| Address::Tcp { host: ip.to_string(), port };
    found.into_iter().take(NODES_MAX).map(address).collect()
}

/// The nodes of all seeds, by name; `None` if a name could not be asked for, or stands for nothing:
/// then the last list holds.
pub(super) fn all(
    seeds: &[Seed],
    resolve: &dyn Fn(&str, u16) -> io::Result<Vec<Address>>,
) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for seed in seeds {
        match seed {
            Seed::Node(address) => names.push(address.to_string()),
            Seed::Name { host, port } => {
                let found = resolve(host, *port).ok().filter(|found| !found.is_empty())?;
                names.extend(found.iter().map(Address::to_string));
            }
        }
    }
    names.sort();
    names.dedup();
    names.truncate(NODES_MAX);
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_of_address_in_an_order_of_its_own() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let names = |texts: &[&str]| -> Vec<String> {
            nodes(ips(texts), 7).iter().map(Address::to_string).collect()
        };
        let both = names(&["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(both, ["tcp://10.0.0.1:7", "tcp://10.0.0.2:7"]);
        assert_eq!(names(&["fd00::2", "fd00::1"]), ["tcp://[fd00::1]:7", "tcp://[fd00::2]:7"]);
    }

    #[test]
    fn a_resolver_that_fails_or_knows_nothing_changes_nothing() {
        let seeds = [Seed::parse("tcp://a:1").unwrap(), Seed::parse("dns://b:2").unwrap()];
        let fails = |_: &str, _| Err(io::Error::other("no resolver"));
        assert_eq!(all(&seeds, &fails), None);
        assert_eq!(all(&seeds, &|_, _| Ok(Vec::new())), None);
        let knows = |host: &str, port| Address::parse(&format!("tcp://{host}-1:{port}"));
        let knows = |host: &str, port| Ok(vec![knows(host, port).unwrap()]);
        let names = all(&seeds, &knows).unwrap();
        assert_eq!(names, ["tcp://a:1", "tcp://b-1:2"]);
    }
}
