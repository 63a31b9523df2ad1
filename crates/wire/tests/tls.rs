//! TLS: who trusts whom, what each side says when it does not, and that rights end at once when
//! they are taken away.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use keepwarm_store::types::{GetOutcome, PutOutcome};
use keepwarm_wire::channel::{Patience, Socket};
use keepwarm_wire::codec::Body;
use keepwarm_wire::credentials::{Credentials, Secret, TokenHash};
use keepwarm_wire::deadline::Deadline;
use keepwarm_wire::frame_io::{flush, receive_header};
use keepwarm_wire::frames::{FrameHead, Opcode, VERSION, append_frame, flags};
use keepwarm_wire::server::{Principal, Principals, Right, Rights, Tenants};
use keepwarm_wire::tls::{TlsFiles, TlsStream};
use keepwarm_wire::{
    Address, ConnectConfig, ConnectError, HealthState, Memory, Server, ServerConfig, ServerError,
};
use support::peer::{Peer, greeting};
use support::pki::{Ca, Term, with_files};
use support::{LONG, Node, SECOND, Scratch, attach, eventually, get, keys, put};

const TOKEN: &str = "kw_0123456789abcdef0123456789abcdef";

fn principal(name: &str) -> Principal {
    Principal {
        name: name.to_owned(),
        tenants: Tenants::Of(vec![String::from("default")]),
        rights: [Right::Read, Right::Write].into_iter().collect(),
        certificates: Vec::new(),
        tokens: Vec::new(),
        uids: Vec::new(),
    }
}

fn by_certificate() -> Vec<Principal> {
    vec![Principal { certificates: vec![String::from("replica.test")], ..principal("replica") }]
}

fn by_token() -> Vec<Principal> {
    let tokens = vec![TokenHash::of(TOKEN.as_bytes())];
    vec![Principal { tokens, ..principal("tokened") }]
}

struct Secured {
    node: Node,
    address: Address,
    ca: Ca,
    _scratch: Scratch,
}

fn secured(principals: Vec<Principal>, change: impl FnOnce(&Ca, &mut TlsFiles)) -> Secured {
    secured_with(principals, change, |_| {})
}

fn secured_with(
    principals: Vec<Principal>,
    change: impl FnOnce(&Ca, &mut TlsFiles),
    also: impl FnOnce(&mut ServerConfig),
) -> Secured {
    let scratch = Scratch::new();
    let ca = Ca::new(&scratch.path(""), "ours");
    let mut files = ca.issue(&["localhost", "127.0.0.1"], 1, Term::Now);
    change(&ca, &mut files);
    let node = Node::with(64, |config| {
        config.listen = vec![Address::parse("tls://localhost:0").unwrap()];
        config.tls = Some(files);
        config.principals = Principals::new(principals).unwrap();
        also(config);
    });
    let address = node.server.as_ref().unwrap().addresses()[1].clone();
    Secured { node, address, ca, _scratch: scratch }
}

impl Secured {
    fn connect(&self, credentials: Credentials) -> Result<Memory, ConnectError> {
        let mut config = ConnectConfig::new(&self.address);
        config.credentials = credentials;
        config.deadline = LONG;
        Memory::connect(config)
    }

    fn replica(&self) -> TlsFiles {
        self.ca.issue(&["replica.test"], 7, Term::Now)
    }

    fn refused(&self, credentials: Credentials) -> String {
        self.connect(credentials).err().expect("a refusal").to_string()
    }

    fn count(&self, name: &str) -> u64 {
        self.node.server.as_ref().unwrap().stat().number(name).unwrap()
    }
}

fn travels(memory: &Memory) {
    let space = attach(memory, "m");
    let keys = keys(1, 5);
    // More than one record, and not a whole number of them.
    for length in [1, 100_000, 3 << 20] {
        let keys: Vec<_> = keys.iter().map(|key| support::key(key.low_bits(), length)).collect();
        let length = usize::try_from(length).unwrap();
        assert!(put(&space, &keys, length, LONG).iter().all(|put| *put == PutOutcome::Stored));
        assert!(get(&space, &keys, length, LONG).iter().all(|got| *got == GetOutcome::Ok));
    }
    assert_eq!(memory.health().transport, "tls");
}

#[test]
fn a_certificate_opens_what_its_principal_may() {
    let node = secured(by_certificate(), |_, _| {});
    travels(&node.connect(with_files(node.replica())).unwrap());
}

#[test]
fn a_token_opens_what_its_principal_may() {
    let node = secured(by_token(), |_, _| {});
    let files = TlsFiles { ca: Some(node.ca.file()), ..TlsFiles::default() };
    let with = |token: &str| {
        let token = Some(Secret::new(token).unwrap());
        Credentials { files: files.clone(), token }
    };
    travels(&node.connect(with(TOKEN)).unwrap());
    let wrong = node.refused(with("kw_0123456789abcdef0123456789abcdee"));
    assert!(wrong.contains("token is not known"), "{wrong}");
    let none = node.refused(with_files(files.clone()));
    assert!(none.contains("certificate or a token"), "{none}");
    assert_eq!(node.count("server.refused_peers"), 2);
}

#[test]
fn each_side_says_what_it_does_not_trust() {
    let node = secured(by_certificate(), |_, _| {});
    let other = Ca::new(&node._scratch.path(""), "other");
    let of_other = other.issue(&["replica.test"], 3, Term::Now);
    let ours = |term, serial| node.ca.issue(&["replica.test"], serial, term);
    let no_ca = TlsFiles { ca: Some(other.file()), ..node.replica() };
    let not_theirs = TlsFiles { ca: Some(node.ca.file()), ..of_other };
    let bare = TlsFiles { ca: Some(node.ca.file()), ..TlsFiles::default() };
    let revoking = TlsFiles { revoked: Some(node.ca.revoke(&[1])), ..node.replica() };
    for (files, reason) in [
        (no_ca, "the node's certificate is not signed by the CA that this client trusts"),
        (not_theirs, "does not trust the CA of this client's certificate"),
        (ours(Term::Over, 4), "finds this client's certificate expired"),
        (ours(Term::NotYet, 5), "finds this client's certificate expired or not valid yet"),
        (bare, "the node wants a certificate"),
        (revoking, "the node's certificate is revoked"),
        (node.ca.issue(&["somebody.test"], 6, Term::Now), "certificate for somebody.test"),
    ] {
        let refused = node.refused(with_files(files));
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
    eventually("all were counted", LONG, || {
        node.count("server.refused_tls") + node.count("server.refused_peers") == 7
    });
    travels(&node.connect(with_files(node.replica())).unwrap());
}

#[test]
fn a_bad_certificate_of_the_node_is_named() {
    for (names, term, reason) in [
        (["localhost"], Term::Over, "has expired 9 days ago by this client's clock"),
        (["localhost"], Term::NotYet, "is not valid yet, for "),
        (["elsewhere.test"], Term::Now, "is not for localhost, only for"),
    ] {
        let node = secured(by_certificate(), |ca, files| *files = ca.issue(&names, 9, term));
        let refused = node.refused(with_files(node.replica()));
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
    let node = secured(by_certificate(), |ca, files| files.revoked = Some(ca.revoke(&[7])));
    let refused = node.refused(with_files(node.replica()));
    assert!(refused.contains("refuses this client's certificate as revoked"), "{refused}");
}

#[test]
fn who_loses_trust_later_misses_with_the_reason_and_comes_back() {
    let node = secured(by_certificate(), |_, _| {});
    let server = node.node.server.as_ref().unwrap();
    let memory = node.connect(with_files(node.replica())).unwrap();
    let space = attach(&memory, "m");
    let keys = keys(1, 1);
    assert_eq!(put(&space, &keys, 1000, LONG), [PutOutcome::Stored]);
    server.reload_access(Principals::new(by_token()).unwrap()).unwrap();
    eventually("it is down", LONG, || {
        assert_ne!(get(&space, &keys, 1000, SECOND), [GetOutcome::Ok], "let in after its end");
        memory.health().state == HealthState::Down
    });
    let error = memory.health().last_error.unwrap();
    assert!(error.contains("certificate for replica.test"), "{error}");
    server.reload_access(Principals::new(by_certificate()).unwrap()).unwrap();
    eventually("it is back", LONG, || get(&space, &keys, 1000, SECOND) == [GetOutcome::Ok]);
}

#[test]
fn a_revoked_certificate_ends_its_connections_and_others_go_on() {
    let scratch = Scratch::new();
    let list = scratch.path("list.pem");
    let principals = || {
        let of = |name: &str| Principal {
            certificates: vec![format!("{name}.test")],
            ..principal(name)
        };
        Principals::new(vec![of("replica"), of("other")]).unwrap()
    };
    let node = secured(vec![by_certificate().remove(0)], |ca, files| {
        std::fs::copy(ca.revoke(&[]), &list).unwrap();
        files.revoked = Some(list.clone());
    });
    let server = node.node.server.as_ref().unwrap();
    server.reload_access(principals()).unwrap();
    let revoked = node.connect(with_files(node.replica())).unwrap();
    let other = node.ca.issue(&["other.test"], 8, Term::Now);
    let other = attach(&node.connect(with_files(other)).unwrap(), "m");
    let space = attach(&revoked, "m");
    let (mine, theirs) = (keys(1, 1), keys(2, 1));
    assert_eq!(put(&space, &mine, 1000, LONG), [PutOutcome::Stored]);
    assert_eq!(put(&other, &theirs, 1000, LONG), [PutOutcome::Stored]);
    std::fs::copy(node.ca.revoke(&[7]), &list).unwrap();
    server.reload_access(principals()).unwrap();
    eventually("its connection is over", LONG, || server.connections() == 1);
    assert_eq!(get(&other, &theirs, 1000, LONG), [GetOutcome::Ok]);
    assert_ne!(get(&space, &mine, 1000, SECOND), [GetOutcome::Ok]);
    let error = revoked.health().last_error.unwrap_or_default();
    assert!(error.contains("as revoked"), "{error}");
    std::fs::write(&list, "rubbish").unwrap();
    let cut_short = server.reload_access(principals());
    assert!(matches!(cut_short, Err(ServerError::Tls(_))), "it would let in who was revoked");
    assert!(node.refused(with_files(node.replica())).contains("as revoked"));
    std::fs::remove_file(&list).unwrap();
    assert!(matches!(server.reload_access(principals()), Err(ServerError::Tls(_))));
    assert_eq!(get(&other, &theirs, 1000, LONG), [GetOutcome::Ok], "nothing changed");
}

/// A handshake by hand: nothing is said inside of it yet.
fn under_tls(node: &Secured, files: &TlsFiles) -> TlsStream {
    let (host, port) = node.address.host_and_port().unwrap();
    let socket = Socket::tcp(TcpStream::connect((host, port)).unwrap().into()).unwrap();
    TlsStream::connect(socket, &files.client().unwrap(), host, Deadline::after(LONG)).unwrap()
}

#[test]
fn a_certificate_revoked_between_handshake_and_greeting_opens_nothing() {
    let mut list = std::path::PathBuf::new();
    let node = secured(by_certificate(), |ca, files| {
        list = files.ca.as_ref().unwrap().with_file_name("list.pem");
        std::fs::copy(ca.revoke(&[]), &list).unwrap();
        files.revoked = Some(list.clone());
    });
    let mut stream = under_tls(&node, &node.replica());
    std::fs::copy(node.ca.revoke(&[7]), &list).unwrap();
    let server = node.node.server.as_ref().unwrap();
    server.reload_access(Principals::new(by_certificate()).unwrap()).unwrap();
    let (mut out, mut patience) = (Vec::new(), Patience::until(Deadline::after(LONG)));
    let head = FrameHead {
        version: VERSION,
        code: Opcode::Hello as u8,
        flags: 0,
        correlation: 1,
        payload_bytes: 0,
    };
    append_frame(&mut out, head, |out| greeting(1, VERSION).write(out)).unwrap();
    flush(&mut stream, &mut out, &mut patience).unwrap();
    let header = receive_header(&mut stream, None, &mut patience).unwrap();
    assert!(header.has(flags::REFUSED), "it was let in");
    assert_eq!(node.count("server.refused_peers"), 1);
}

#[test]
fn who_never_says_who_it_is_keeps_nobody_out() {
    let places = 4;
    let node = secured_with(
        by_certificate(),
        |_, _| {},
        |config| {
            (config.clients_max, config.handshake) = (places, LONG);
        },
    );
    let (_, port) = node.address.host_and_port().unwrap();
    let dial = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let held: Vec<_> = (0..places).map(|_| dial()).collect();
    let server = node.node.server.as_ref().unwrap();
    eventually("all places are taken", LONG, || server.connections() == places);
    let memory = node.connect(with_files(node.replica())).unwrap();
    assert_eq!(memory.health().state, HealthState::Up);
    let own = Memory::connect(ConnectConfig::new(&node.node.path)).unwrap();
    assert_eq!(own.health().state, HealthState::Up, "the node's own user");
    assert!(server.connections() <= places);
    assert!(node.count("server.refused_clients") >= 2);
    drop(held);
}

#[test]
fn a_node_without_a_place_is_one_that_is_not_there_yet() {
    let node = secured_with(by_certificate(), |_, _| {}, |config| config.clients_max = 1);
    let own = Peer::greeted(&node.node.path);
    let memory = node.connect(with_files(node.replica())).expect("no distrust");
    assert_eq!(memory.health().state, HealthState::Down);
    drop(own);
    eventually("it is asked for again", LONG, || memory.health().state == HealthState::Up);
}

#[test]
fn tls_and_plain_text_do_not_meet() {
    let node = secured(by_certificate(), |_, _| {});
    let (_, port) = node.address.host_and_port().unwrap();
    let plain = Address::Tcp { host: String::from("localhost"), port };
    let error = Memory::connect(ConnectConfig::new(plain)).err().unwrap().to_string();
    assert!(error.contains("the node speaks TLS there: use tls://"), "{error}");
    let open = Node::with(16, |config| {
        config.listen = vec![Address::parse("tcp://127.0.0.1:0").unwrap()];
    });
    let address = &open.server.as_ref().unwrap().addresses()[1];
    let (_, port) = address.host_and_port().unwrap();
    let mut config = ConnectConfig::new(Address::Tls { host: String::from("localhost"), port });
    config.credentials = with_files(node.replica());
    let health = Memory::connect(config).unwrap().health();
    assert_eq!(health.state, HealthState::Down);
    let error = health.last_error.unwrap();
    assert!(error.contains("does it speak TLS there?"), "{error}");
}

#[test]
fn rubbish_and_silence_before_tls_cost_a_place_for_the_handshake_alone() {
    let node = secured(by_certificate(), |_, _| {});
    let (_, port) = node.address.host_and_port().unwrap();
    let dial = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (mut rubbish, mut slow, silent) = (dial(), dial(), dial());
    rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let server = node.node.server.as_ref().unwrap();
    let mut answer = Vec::new();
    let _ = rubbish.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&21), "an alert of TLS: {answer:?}");
    eventually("the slow and the silent are let go", LONG, || {
        // A byte now and then does not prolong a handshake.
        let _ = slow.write_all(&[22]);
        server.connections() == 0
    });
    drop(silent);
    travels(&node.connect(with_files(node.replica())).unwrap());
}

#[test]
fn a_node_that_nobody_could_enter_or_that_shows_nothing_does_not_start() {
    let scratch = Scratch::new();
    let ca = Ca::new(&scratch.path(""), "ours");
    let files = ca.issue(&["localhost"], 1, Term::Now);
    let start = |tls: Option<TlsFiles>, principals: Vec<Principal>| {
        let mut config = ServerConfig::new(scratch.path("s"));
        config.listen = vec![Address::parse("tls://0.0.0.0:0").unwrap()];
        (config.tls, config.principals) = (tls, Principals::new(principals).unwrap());
        Server::start(support::store(16), config).err().map(|error| error.to_string())
    };
    let refused = |tls, principals, reason: &str| {
        let error = start(tls, principals).expect("a refusal");
        assert!(error.contains(reason), "{reason}: {error}");
    };
    refused(Some(files.clone()), vec![], "would let nobody in");
    refused(None, by_token(), "the node's certificate and key");
    let no_ca = TlsFiles { ca: None, ..files.clone() };
    refused(Some(no_ca.clone()), by_certificate(), "the CA that vouches for clients");
    let open = scratch.path("open.key");
    std::fs::copy(files.key.as_ref().unwrap(), &open).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = TlsFiles { key: Some(open), ..files.clone() };
    refused(Some(exposed), by_certificate(), "can be read by others: run chmod 600");
    let other = ca.issue(&["localhost"], 2, Term::Now);
    let mixed = TlsFiles { key: other.key, ..files.clone() };
    refused(Some(mixed), by_certificate(), "cannot be used");
    let swapped = TlsFiles { certificate: files.key.clone(), ..files.clone() };
    refused(Some(swapped), by_certificate(), "holds no certificate");
    assert!(start(Some(no_ca), by_token()).is_none(), "tokens alone need no CA");
    assert!(start(Some(files), by_certificate()).is_none());
}

#[test]
fn no_two_principals_can_be_taken_for_each_other() {
    let with = |change: fn(&mut Principal)| {
        let (mut one, mut other) = (principal("one"), principal("other"));
        change(&mut one);
        change(&mut other);
        Principals::new(vec![one, other]).err().map(|error| error.to_string())
    };
    let refused = |change: fn(&mut Principal), reason: &str| {
        let error = with(change).expect("a refusal");
        assert!(error.contains(reason), "{reason}: {error}");
    };
    refused(|_| {}, "cannot show who it is");
    refused(|one| one.uids = vec![5], "a user id that one has too");
    refused(|one| one.tokens = vec![TokenHash([1; 32])], "a token that one has too");
    refused(|one| one.certificates = vec![String::from("a")], "a certificate's name that one");
    assert_eq!(Rights::ALL, Right::ALL.into_iter().collect());
}

#[test]
fn a_token_is_shown_to_no_other_machine_in_plain_text() {
    // Nobody is asked: no packet leaves for an address of documentation.
    let mut config = ConnectConfig::new(Address::parse("tcp://192.0.2.1:9478").unwrap());
    config.credentials.token = Some(Secret::new(TOKEN).unwrap());
    let error = Memory::connect(config).err().unwrap().to_string();
    assert!(error.contains("in plain text: use tls://"), "{error}");
}
