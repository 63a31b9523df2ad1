//! Over TCP: who may listen where, who is let in, and that a node is found by name.

mod support;

use keepwarm_store::types::{GetOutcome, PutOutcome};
use keepwarm_wire::{
    Address, ConnectConfig, HealthState, Memory, Server, ServerConfig, ServerError,
};
use support::{LONG, Node, SECOND, Scratch, attach, get, keys, put};

fn listening(text: &str) -> (Node, Address) {
    let address = Address::parse(text).unwrap();
    let node = Node::with(32, |config| config.listen = vec![address]);
    let address = node.server.as_ref().unwrap().addresses()[1].clone();
    (node, address)
}

#[test]
fn blocks_travel_over_loopback_by_address_and_by_name() {
    for text in ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:0"] {
        let (_node, address) = listening(text);
        let memory = Memory::connect(ConnectConfig::new(&address)).unwrap();
        let space = attach(&memory, "m");
        let keys = keys(1, 4);
        assert!(put(&space, &keys, 100_000, LONG).iter().all(|put| *put == PutOutcome::Stored));
        assert!(get(&space, &keys, 100_000, LONG).iter().all(|got| *got == GetOutcome::Ok));
        let health = memory.health();
        assert_eq!((health.state, health.transport), (HealthState::Up, "tcp"), "{text}");
        assert_eq!(health.last_error, None);
    }
}

#[test]
fn plain_text_is_for_loopback_alone() {
    let scratch = Scratch::new();
    for text in ["tcp://0.0.0.0:0", "tcp://[::]:0"] {
        let mut config = ServerConfig::new(scratch.path("s"));
        config.listen = vec![Address::parse(text).unwrap()];
        let refused = Server::start(support::store(16), config).err().unwrap();
        assert!(matches!(refused, ServerError::Exposed { .. }), "{refused}");
        assert!(refused.to_string().contains("listen on tls://"), "{refused}");
    }
    assert!(!scratch.path("s").exists(), "the socket of a node that did not start");
}

#[test]
fn a_port_in_use_is_named() {
    let (_node, address) = listening("tcp://127.0.0.1:0");
    let scratch = Scratch::new();
    let mut config = ServerConfig::new(scratch.path("s"));
    config.listen = vec![address.clone()];
    let refused = Server::start(support::store(16), config).err().unwrap().to_string();
    assert!(refused.contains(&address.to_string()) && refused.contains("in use"), "{refused}");
}

#[test]
fn nobody_there_is_a_miss_and_a_reason() {
    let (node, address) = listening("tcp://127.0.0.1:0");
    drop(node);
    for address in [address, Address::parse("tcp://no-such-host.invalid:1").unwrap()] {
        let memory = Memory::connect(ConnectConfig::new(address)).unwrap();
        let health = memory.health();
        assert_eq!(health.state, HealthState::Down);
        assert!(health.last_error.unwrap().contains("cannot connect"));
        assert!(memory.stat(SECOND).is_err());
    }
}
