//! Clients that mean no good with memory that is shared: they can neither write the arena, nor make
//! the node die of their staging, nor have bytes stored that are not what they said.

mod support;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use keepwarm_store::checksum::xxh3_64;
use keepwarm_store::types::{BlockKey, GetOutcome, PutOutcome, ShedReason};
use keepwarm_wire::credentials::{Secret, TokenHash};
use keepwarm_wire::frames::{Opcode, VERSION};
use keepwarm_wire::messages::{
    AttachReply, GetAsk, Grant, Greeting, GreetingReply, Landed, LocateRequest, MapRequest, Piece,
    PutAsk, PutDone, PutGrants, PutRequest, StagedData, StagedTaken,
};
use keepwarm_wire::server::{Principal, Principals, Right, Rights, Tenants};
use keepwarm_wire::{ConnectConfig, Memory, TransportChoice};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate, ftruncate, open};
use rustix::io::{Errno, pwrite};
use rustix::mm::{Advice, MprotectFlags, ProtFlags, madvise, mprotect};

use support::passing::{Memfd, map};
use support::peer::{Peer, greeting};
use support::{Chance, LONG, Node, attach, content, get, key, keys, put, rounds};

const STAGING: usize = 1 << 20;

#[test]
fn a_mapped_client_cannot_write_the_arena() {
    let node = Node::start(4);
    let space = attach(&node.connect(), "m");
    put(&space, &keys(1, 4), 300_000, LONG);
    let (mut peer, _) = Peer::attached(&node.path);
    let (memfd, reply) = peer.map();
    assert_eq!((reply.incarnation, reply.bytes), (node.store.incarnation(), 4 << 20));
    let bytes = reply.bytes as usize;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    assert_eq!(map(&memfd, bytes, both), Err(Errno::PERM), "map it writable");
    writes_are_refused(&memfd, bytes);
    // By another descriptor of the same memory, opened read-write.
    let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
    let again = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("it opens");
    assert_eq!(map(&again, bytes, both), Err(Errno::PERM), "map it writable, reopened");
    writes_are_refused(&again, bytes);
    // By the read-only map.
    let base = map(&memfd, bytes, ProtFlags::READ).expect("to read is allowed");
    let (at, read_write) = (base.cast(), MprotectFlags::READ | MprotectFlags::WRITE);
    // SAFETY: changes the access of a mapping of this test's own, which it never undoes.
    assert_eq!(unsafe { mprotect(at, bytes, read_write) }, Err(Errno::ACCESS), "make it writable");
    // SAFETY: as above; it would remove pages of the arena.
    let removed = unsafe { madvise(at, bytes, Advice::LinuxRemove) };
    assert_eq!(removed, Err(Errno::ACCESS), "remove its pages");
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").expect("own");
    assert!(memory.write_all_at(&[1; 64], base as u64).is_err(), "write behind the map's back");
    assert_eq!(get(&space, &keys(1, 4), 300_000, LONG), [GetOutcome::Ok; 4]);
    node.store.check().expect("the store adds up");
}

/// By no call does a principal without the right come to the descriptor, or learn where blocks lie.
#[test]
fn without_the_arena_right_there_is_no_arena() {
    const TOKEN: &str = "a-token-of-32-characters-or-more!";
    let reader = Principal {
        name: String::from("reader"),
        tenants: Tenants::All,
        rights: Rights::from_iter([Right::Read, Right::Write]),
        certificates: Vec::new(),
        tokens: vec![TokenHash::of(TOKEN.as_bytes())],
        uids: Vec::new(),
    };
    let principals = Principals::new(vec![reader]).expect("principals");
    let node = Node::with(16, |config| config.principals = principals);
    let mut config = ConnectConfig::new(&*node.path);
    config.credentials.token = Some(Secret::new(TOKEN).expect("a token"));
    let memory = Memory::connect(config.clone()).expect("it may read and write");
    let space = attach(&memory, "m");
    assert_eq!(put(&space, &keys(1, 2), 5000, LONG), [PutOutcome::Stored; 2]);
    assert_eq!(get(&space, &keys(1, 2), 5000, LONG), [GetOutcome::Ok; 2]);
    let health = memory.health();
    assert_eq!(health.transport, "unix");
    assert!(health.fallback.is_some_and(|text| text.contains("arena right")));
    config.transport = TransportChoice::Shm;
    let refused = Memory::connect(config).err().expect("insisted on").to_string();
    assert!(refused.contains("arena right"), "{refused}");

    let mut peer = Peer::connect(&node.path);
    let credential = Some(TOKEN.as_bytes().to_vec());
    let greeted: GreetingReply =
        peer.ask(Opcode::Hello, &Greeting { credential, ..greeting(1, VERSION) });
    assert!(!greeted.capabilities.iter().any(|name| name == "shm"));
    let attached = peer.attach();
    let ask = GetAsk { key: key(1, 0), part: 0, length: 5000 };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    let locate = LocateRequest { namespace, epoch, landed: vec![], asks: vec![ask] };
    let memory = Memfd::staging(STAGING);
    for _ in 0..2 {
        peer.send(Opcode::Map, &MapRequest);
        assert!(peer.refusal().text.contains("no right to arena"));
        assert!(peer.came_with_nothing());
        peer.send(Opcode::Locate, &locate);
        assert!(peer.refusal().text.contains("no right to arena"));
        peer.offer(Some(&memory.fd), STAGING as u64);
        assert!(peer.refusal().text.contains("no right to arena"));
        peer.send(Opcode::PutStaged, &request(&attached, &[key(1, 9)], 5000));
        assert!(peer.refusal().text.contains("no right to arena"));
        peer.send(Opcode::Landed, &Landed { group: 1, unused: vec![] });
    }
    assert_eq!(number(&node, "server.arena_maps") + number(&node, "server.stagings_bytes"), 0);
}

fn writes_are_refused(memfd: &OwnedFd, bytes: usize) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    assert_eq!(pwrite(memfd, &[1], 0), Err(Errno::PERM), "write");
    assert_eq!(ftruncate(memfd, 4096), Err(Errno::PERM), "shrink");
    assert_eq!(ftruncate(memfd, 2 * bytes as u64), Err(Errno::PERM), "grow");
    assert_eq!(fallocate(memfd, punch, 0, 4096), Err(Errno::PERM), "punch a hole");
    assert!(fallocate(memfd, zero, 0, 4096).is_err(), "zero a range");
    let sealed = rustix::fs::fcntl_add_seals(memfd, SealFlags::WRITE);
    assert_eq!(sealed, Err(Errno::PERM), "add a seal");
}

#[test]
fn only_a_staging_that_cannot_shrink_is_taken() {
    let node = Node::start(4);
    let (mut peer, attached) = Peer::attached(&node.path);
    let refused = |peer: &mut Peer, fd: Option<&OwnedFd>, bytes: usize, want: &str| {
        peer.offer(fd, bytes as u64);
        let text = peer.refusal().text;
        assert!(text.contains(want), "{text}");
    };
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE] {
        let memory = Memfd::new(STAGING, seals);
        refused(&mut peer, Some(&memory.fd), STAGING, "sealed against changes of its size");
    }
    let memory = Memfd::staging(STAGING);
    refused(&mut peer, Some(&memory.fd), STAGING - 4096, "another size");
    refused(&mut peer, Some(&memory.fd), STAGING + 4096, "another size");
    refused(&mut peer, Some(&memory.fd), 0, "give 1 to");
    refused(&mut peer, Some(&memory.fd), 1 << 40, "give 1 to");
    refused(&mut peer, None, STAGING, "no descriptor");
    let scratch = node.scratch("file");
    std::fs::write(&scratch, vec![0; STAGING]).expect("a file");
    let file = OwnedFd::from(std::fs::File::open(&scratch).expect("a file"));
    refused(&mut peer, Some(&file), STAGING, "sealed against changes of its size");
    peer.send(Opcode::PutStaged, &request(&attached, &[key(1, 0)], 5000));
    assert!(peer.refusal().text.contains("no staging"), "none was taken");
    peer.stage(&memory);
    assert_eq!(number(&node, "server.stagings_bytes"), STAGING as u64);
    assert_eq!(ftruncate(&memory.fd, 4096), Err(Errno::PERM), "it stays as it is");
    drop(peer);
    support::eventually("it is let go", LONG, || number(&node, "server.stagings_bytes") == 0);
}

#[test]
fn stagings_are_bounded_in_all() {
    const EACH: usize = 8 << 20;
    let node = Node::start(4);
    let memory = Memfd::staging(EACH);
    let mut peers: Vec<Peer> = (0..128).map(|_| Peer::greeted(&node.path)).collect();
    peers.iter_mut().for_each(|peer| peer.stage(&memory));
    assert_eq!(number(&node, "server.stagings_bytes"), 1 << 30);
    let mut more = Peer::greeted(&node.path);
    more.offer(Some(&memory.fd), EACH as u64);
    assert!(more.refusal().text.contains("all 1073741824 bytes"));
    // A second one takes the place of the first.
    peers[0].stage(&memory);
    peers.truncate(100);
    support::eventually("places are free again", LONG, || {
        number(&node, "server.stagings_bytes") == 100 * EACH as u64
    });
    more.stage(&memory);
}

/// The staging changes while the node copies: what is stored is what was promised, or nothing.
#[test]
fn a_scribbled_staging_stores_nothing_else() {
    const LENGTH: usize = 300_000;
    let mut chance = Chance::new("scribbled staging");
    let node = Node::start(64);
    let space = attach(&node.connect(), "m");
    let (mut peer, attached) = Peer::attached(&node.path);
    let memory = Memfd::staging(STAGING);
    peer.stage(&memory);
    let (mut stored, over) = (0, AtomicBool::new(false));
    let rounds = rounds(60);
    std::thread::scope(|scope| {
        let (memory, over, mut child) = (&memory, &over, chance.child());
        scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                let at = child.below(LENGTH as u64) as usize;
                memory.scribble(at, child.below(256) as u8);
                if child.below(1000) == 0 {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&memory.fd, punch, at as u64 / 4096 * 4096, 8192).expect("a hole");
                }
                std::thread::yield_now();
            }
        });
        for n in 0..rounds {
            let block = key(2, n);
            let bytes = content(block, LENGTH);
            memory.write(0, &bytes);
            let outcome = put_one(&mut peer, &attached, block, &bytes);
            match outcome {
                PutOutcome::Stored => stored += 1,
                other => assert_eq!(other, PutOutcome::Shed(ShedReason::Corrupt)),
            }
            // Checks every byte.
            let ok = get(&space, &[block], LENGTH, LONG) == [GetOutcome::Ok];
            assert_eq!(ok, outcome == PutOutcome::Stored);
        }
        over.store(true, Ordering::Release);
    });
    println!("{stored} of {rounds} blocks were as promised when the node copied them");
    assert!(stored < rounds, "nothing was scribbled in time");
    assert_eq!(number(&node, "server.puts_corrupt"), rounds - stored);
    let block = key(3, 0);
    let bytes = content(block, LENGTH);
    memory.write(0, &bytes);
    assert_eq!(put_one(&mut peer, &attached, block, &bytes), PutOutcome::Stored, "left alone");
    assert_eq!(get(&space, &[block], LENGTH, LONG), [GetOutcome::Ok]);
    node.store.check().expect("the store adds up");
}

#[test]
fn pieces_that_cannot_be_end_the_connection_and_free_its_grants() {
    let node = Node::start(16);
    let piece = |index, length| Piece { index, length, checksum: 1 };
    let (first, length) = (0, 5000);
    for (offset, pieces, problem) in [
        (STAGING as u32 - 100, vec![piece(first, length)], "beyond the staging"),
        (u32::MAX, vec![piece(first, length)], "beyond the staging"),
        (0, vec![piece(first, u32::MAX)], "beyond the staging"),
        (0, vec![piece(first, length + 1)], "longer than what is left"),
        (0, vec![piece(first, 0)], "longer than what is left"),
        (0, vec![piece(1, length)], "not due"),
        (0, vec![piece(first, length), piece(1, length), piece(2, 1)], "not due"),
        (0, vec![], "without a piece"),
    ] {
        let (mut peer, attached) = Peer::attached(&node.path);
        peer.stage(&Memfd::staging(STAGING));
        let PutGrants(grants) =
            peer.ask(Opcode::PutStaged, &request(&attached, &keys(4, 2), length));
        assert_eq!(grants, [Grant::Granted; 2]);
        peer.correlation -= 1;
        peer.send(Opcode::StagedData, &StagedData { offset, pieces });
        let text = peer.refusal().text;
        assert!(text.contains(problem), "{text}");
        assert!(peer.is_ended());
        support::eventually("its grants are free", LONG, || node.store.stats().writing_bytes == 0);
    }
    node.store.check().expect("the store adds up");
}

fn request(attached: &AttachReply, keys: &[BlockKey], length: u32) -> PutRequest {
    let ask = |key: &BlockKey| PutAsk { key: *key, part: 0, length, engine_hash: None };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    PutRequest { namespace, epoch, asks: keys.iter().map(ask).collect() }
}

/// Puts what lies at the staging's start as a block of these bytes, in two pieces.
fn put_one(peer: &mut Peer, attached: &AttachReply, key: BlockKey, bytes: &[u8]) -> PutOutcome {
    let request = request(attached, &[key], bytes.len() as u32);
    let PutGrants(grants) = peer.ask(Opcode::PutStaged, &request);
    assert_eq!(grants, [Grant::Granted]);
    let half = bytes.len() / 2 / 64 * 64;
    for (offset, length, checksum) in [(0, half, 0), (half, bytes.len() - half, xxh3_64(bytes))] {
        let (index, offset, length) = (0, offset as u32, length as u32);
        // All of a put goes under one correlation.
        peer.correlation -= 1;
        let pieces = vec![Piece { index, length, checksum }];
        let taken: StagedTaken = peer.ask(Opcode::StagedData, &StagedData { offset, pieces });
        assert_eq!(taken.offset, offset);
    }
    let PutDone(outcomes) = peer.receive_body();
    outcomes[0]
}

fn number(node: &Node, name: &str) -> u64 {
    node.server.as_ref().expect("a server").stat().number(name).expect(name)
}
