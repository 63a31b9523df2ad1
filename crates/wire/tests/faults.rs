//! A bad way between client and node: cut, silenced or changed at every byte of a recorded
//! exchange. The outcome is a miss, a shed or the right bytes; never wrong ones, never a hang.

mod support;

use std::time::{Duration, Instant};

use keepwarm_store::types::{Epoch, GetOutcome, MissReason, PutOutcome, ShedReason};
use keepwarm_wire::{Address, Memory, Space};

use support::net::{NetNode, Over};
use support::proxy::{Fault, Proxy, Way};
use support::{LONG, attach, get, key_check, keys, load_average, put, rounds, spec};

const LENGTH: usize = 300;
const DEADLINE: Duration = Duration::from_millis(250);

struct Setting {
    net: NetNode,
    over: Over,
    proxy: Proxy,
}

impl Setting {
    /// A node whose namespace holds three known blocks, and a proxy before it.
    fn new(over: Over) -> Setting {
        let net = NetNode::with(64, |config| config.stall = DEADLINE);
        let proxy = match net.address(over).host_and_port() {
            None => Proxy::start(net.node.scratch("proxy.sock"), &net.node.path),
            Some((_, port)) => Proxy::before_port(port),
        };
        let space = attach(&net.node.connect(), "m");
        assert_eq!(put(&space, &keys(1, 3), LENGTH, LONG), [PutOutcome::Stored; 3]);
        Setting { net, over, proxy }
    }

    /// A new client through the proxy; `None` when even its greeting is spoilt for good.
    fn space(&self) -> Option<(Memory, Space)> {
        let mut config = self.net.config(self.over);
        config.address = match self.over {
            Over::Unix => Address::from(&self.proxy.path),
            Over::Tcp | Over::Tls => config.address.at_port(self.proxy.port),
        };
        config.deadline = DEADLINE;
        let memory = Memory::connect(config).ok()?;
        let spec = spec("m", 1);
        let check = key_check(&spec);
        let space = memory.attach_within(spec, check, Epoch(0), DEADLINE).ok()?;
        Some((memory, space))
    }

    /// The recorded exchange: a greeting, an attach, a lookup, a get, a put. Panics on wrong bytes.
    fn exchange(&self, round: u64) -> bool {
        let Some((_memory, space)) = self.space() else { return false };
        let known = keys(1, 4);
        let found = space.lookup(&known, 0, None, DEADLINE).expect("no misuse");
        let found = match found.miss {
            Some(MissReason::Absent) => {
                assert_eq!(found.prefix, 3, "a lookup that went through says the truth");
                true
            }
            Some(MissReason::Deadline | MissReason::StoreDown) => false,
            other => panic!("{other:?} from a lookup"),
        };
        let got = get(&space, &known[..3], LENGTH, DEADLINE).iter().all(|outcome| match outcome {
            GetOutcome::Ok => true,
            GetOutcome::Miss(
                MissReason::Deadline | MissReason::StoreDown | MissReason::Corrupt,
            ) => false,
            other => panic!("{other:?} from a get"),
        });
        let fresh = keys(100 + round, 2);
        let stored = put(&space, &fresh, LENGTH, DEADLINE).iter().all(|outcome| match outcome {
            PutOutcome::Stored => true,
            PutOutcome::Shed(
                ShedReason::Deadline | ShedReason::StoreDown | ShedReason::Corrupt,
            ) => false,
            other => panic!("{other:?} from a put"),
        });
        found && got && stored
    }

    /// What the node holds now is right, whatever was said about it.
    fn check(&self, round: u64) {
        let space = attach(&self.net.node.connect(), "m");
        for outcome in get(&space, &keys(100 + round, 2), LENGTH, LONG) {
            // Pending: the cut put's reservation is still with its stalled connection.
            assert_ne!(outcome, GetOutcome::Throttled);
        }
        assert_eq!(get(&space, &keys(1, 3), LENGTH, LONG), [GetOutcome::Ok; 3]);
    }

    /// Runs the exchange with `fault` at every `step`th byte of `way`.
    fn at_every_byte(&self, way: Way, step: u64, fault: impl Fn(u64) -> Fault) {
        for other in [Way::ToNode, Way::ToClient] {
            self.proxy.take_passed(other);
        }
        assert!(self.exchange(way as u64), "without a fault all goes well");
        let bytes = self.proxy.take_passed(way);
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        for at in (0..bytes).step_by(step as usize) {
            self.proxy.fault(fault(at));
            let start = Instant::now();
            let round = (at + 1) * 2 + way as u64;
            self.exchange(round);
            slowest = slowest.max(start.elapsed());
            self.proxy.fault(Fault::None);
            self.check(round);
        }
        println!(
            "{way:?}: {bytes} bytes in steps of {step}, {:?} in all, slowest exchange {slowest:?}, \
             load {}",
            start.elapsed(),
            load_average()
        );
        // Five calls, each with its own deadline, and a second of a busy machine.
        assert!(slowest < DEADLINE * 5 + Duration::from_secs(1), "{slowest:?}");
        self.net.node.store.check().expect("the store adds up");
    }
}

/// At every byte over the socket; over TCP, and under TLS with its handshake, at some.
fn over_each(way: Way, fault: impl Fn(u64) -> Fault) {
    let times = if rounds(1) > 1 { 1 } else { 7 };
    for (over, step) in [(Over::Unix, 1), (Over::Tcp, times), (Over::Tls, 5 * times)] {
        println!("{over:?}");
        Setting::new(over).at_every_byte(way, step, &fault);
    }
}

#[test]
fn cut_at_every_byte_to_the_node() {
    over_each(Way::ToNode, |at| Fault::Cut(Way::ToNode, at));
}

#[test]
fn cut_at_every_byte_to_the_client() {
    over_each(Way::ToClient, |at| Fault::Cut(Way::ToClient, at));
}

#[test]
fn change_every_byte_to_the_node() {
    over_each(Way::ToNode, |at| Fault::Flip(Way::ToNode, at, 1u8 << (at % 8)));
}

#[test]
fn change_every_byte_to_the_client() {
    over_each(Way::ToClient, |at| Fault::Flip(Way::ToClient, at, 0x80u8 >> (at % 8)));
}

#[test]
fn half_open_connections_cost_their_deadline_and_no_more() {
    for (over, step) in [(Over::Unix, 97), (Over::Tcp, 331), (Over::Tls, 997)] {
        let setting = Setting::new(over);
        setting.at_every_byte(Way::ToNode, step, |at| Fault::Silence(Way::ToNode, at));
        setting.at_every_byte(Way::ToClient, step, |at| Fault::Silence(Way::ToClient, at));
    }
}

#[test]
fn bytes_spoilt_on_the_way_are_reported_and_the_connection_given_up() {
    let setting = Setting::new(Over::Unix);
    let (memory, space) = setting.space().expect("a good way so far");
    setting.proxy.take_passed(Way::ToClient);
    let one = &keys(1, 1);
    assert_eq!(get(&space, one, LENGTH, LONG), [GetOutcome::Ok]);
    // The last byte of the same answer, on a connection that starts like the first one.
    let answer = setting.proxy.take_passed(Way::ToClient);
    drop((memory, space));
    // What the node said to the space's leave is not of the next connection.
    setting.proxy.take_passed(Way::ToClient);
    let (memory, space) = setting.space().expect("a good way so far");
    let before = setting.proxy.take_passed(Way::ToClient);
    drop((memory, space));
    let last = before + answer - 1;
    setting.proxy.fault(Fault::Flip(Way::ToClient, last, 1));
    let (memory, space) = setting.space().expect("a good way up to there");
    assert_eq!(get(&space, one, LENGTH, LONG), [GetOutcome::Miss(MissReason::Corrupt)]);
    let stats = memory.stats();
    assert_eq!((stats.corrupt, stats.suspect_connections), (1, 1));
    assert_eq!(setting.net.node.store.stats().counters.reports_intact, 1);
    setting.proxy.fault(Fault::None);
    assert_eq!(get(&space, one, LENGTH, LONG), [GetOutcome::Ok], "over a new connection");
    assert_eq!(memory.stats().connections, stats.connections + 1);
}
