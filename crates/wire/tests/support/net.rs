//! A node that listens on its socket, on TCP and on TLS, and memories over each.

use keepwarm_wire::credentials::Credentials;
use keepwarm_wire::server::{Principal, Principals, Rights, ServerConfig, Tenants};
use keepwarm_wire::{Address, ConnectConfig, Memory, TransportChoice};

use super::pki::{Ca, Term, with_files};
use super::{LONG, Node, Scratch};

/// How a node is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Unix,
    Tcp,
    Tls,
}

impl Over {
    pub const ALL: [Over; 3] = [Over::Unix, Over::Tcp, Over::Tls];
}

pub struct NetNode {
    pub node: Node,
    pub credentials: Credentials,
    _scratch: Scratch,
}

impl NetNode {
    pub fn start(mebibytes: u64) -> NetNode {
        NetNode::with(mebibytes, |_| {})
    }

    pub fn with(mebibytes: u64, change: impl FnOnce(&mut ServerConfig)) -> NetNode {
        let scratch = Scratch::new();
        let ca = Ca::new(&scratch.path(""), "ours");
        let files = ca.issue(&["localhost"], 1, Term::Now);
        let client = Principal {
            name: String::from("client"),
            tenants: Tenants::All,
            rights: Rights::ALL,
            certificates: vec![String::from("client.test")],
            tokens: Vec::new(),
            uids: Vec::new(),
        };
        let node = Node::with(mebibytes, |config| {
            let listen = ["tcp://localhost:0", "tls://localhost:0"];
            config.listen = listen.map(|text| Address::parse(text).unwrap()).to_vec();
            config.tls = Some(files);
            config.principals = Principals::new(vec![client]).unwrap();
            change(config);
        });
        let credentials = with_files(ca.issue(&["client.test"], 2, Term::Now));
        NetNode { node, credentials, _scratch: scratch }
    }

    pub fn address(&self, over: Over) -> Address {
        self.node.server.as_ref().unwrap().addresses()[over as usize].clone()
    }

    pub fn config(&self, over: Over) -> ConnectConfig {
        let mut config = ConnectConfig::new(self.address(over));
        config.credentials = self.credentials.clone();
        config.transport =
            if over == Over::Unix { TransportChoice::Unix } else { config.transport };
        config
    }

    pub fn connect(&self, over: Over) -> Memory {
        let mut config = self.config(over);
        config.deadline = LONG;
        Memory::connect(config).expect("an address that can work")
    }
}
