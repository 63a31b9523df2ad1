//! Which field keeps a record of an earlier life of its segment from being claimed after a crash?
//!
//! Runs seeds of puts, drops, flushes, reuse of segments and power failures over a device that
//! tears writes, and holds what recovery claims against everything that was ever written. Half of
//! the seeds use one block size, so that old headers lie exactly where new ones would. One writer
//! in eight is hostile: its payloads are images of records, made with the next generations, that
//! name another tenant's key.
//!
//! `cargo run --release -p keepwarm-prototypes --bin segment_log [seeds] [first seed]`

mod device;
mod format;
mod log;

use std::collections::HashMap;

use device::Device;
use format::{BLOCK, Identity, Kind, Record, SEGMENT_BYTES, Segment, Tie, encode_record};
use keepwarm_prototypes::{Random, argument};
use keepwarm_store::checksum::xxh3_64;
use log::{Claim, Log};

const SEGMENTS: usize = 6;
const CRASHES: usize = 6;
const NODE: u64 = 7;

/// What the test knows of one put.
struct Written {
    segment: usize,
    generation: u64,
    position: u32,
    payload_hash: u64,
    flushed: bool,
    dropped: bool,
    /// Header claimed, payload not: gone for good, and so is what it overrode.
    torn: bool,
}

#[derive(Default, Debug)]
struct Tally {
    claimed: u64,
    verified: u64,
    /// Header there, payload torn: gone at the first read.
    torn: u64,
    /// Claimed although its segment has begun another life, or it was dropped.
    stale: u64,
    /// Claimed under an identity that nobody ever put.
    forged: u64,
    /// Verified, but not the bytes that this identity was put with.
    wrong_bytes: u64,
    /// Flushed, not reclaimed, not dropped, and not there.
    lost: u64,
    headers: u64,
}

struct Run {
    random: Random,
    log: Log,
    written: HashMap<Identity, Vec<Written>>,
    uniform: bool,
    tie: Tie,
    tally: Tally,
}

fn main() {
    let (seeds, first) = (argument(0, 600), argument(1, 1));
    println!("seeds {first}..{}, {CRASHES} crashes each", first + seeds);
    println!(
        "{:<8} {:>8} {:>9} {:>6} {:>6} {:>7} {:>6} {:>5} {:>8}",
        "tie", "claimed", "verified", "torn", "stale", "forged", "wrong", "lost", "headers"
    );
    for tie in [Tie::Nothing, Tie::Counter, Tie::Nonce] {
        let mut sum = Tally::default();
        for seed in first..first + seeds {
            sum.add(&Run::new(seed, tie).run());
        }
        println!(
            "{:<8} {:>8} {:>9} {:>6} {:>6} {:>7} {:>6} {:>5} {:>8}",
            format!("{tie:?}"),
            sum.claimed,
            sum.verified,
            sum.torn,
            sum.stale,
            sum.forged,
            sum.wrong_bytes,
            sum.lost,
            sum.headers
        );
        if tie == Tie::Nonce {
            let bad = sum.stale + sum.forged + sum.wrong_bytes + sum.lost;
            assert_eq!(bad, 0, "the format with a nonce: {sum:?}");
        }
    }
}

impl Run {
    fn new(seed: u64, tie: Tie) -> Run {
        let device = Device::new(SEGMENTS * SEGMENT_BYTES);
        Run {
            random: Random(seed),
            log: Log::recover(device, NODE, tie),
            written: HashMap::new(),
            uniform: seed.is_multiple_of(2),
            tie,
            tally: Tally::default(),
        }
    }

    fn run(mut self) -> Tally {
        for _ in 0..CRASHES {
            for _ in 0..20 + self.random.below(120) {
                self.step();
            }
            let mut device = self.log.device;
            device.crash(&mut self.random);
            self.log = Log::recover(device, NODE, self.tie);
            self.tally.headers += self.log.headers_read;
            self.judge();
        }
        self.tally
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0 => {
                self.log.device.flush();
                self.all_flushed();
            }
            1 => {
                let identity = identity(self.random.below(200));
                self.log.drop_block(identity, &mut self.random);
                self.all_flushed();
                for written in self.written.entry(identity).or_default() {
                    written.dropped = true;
                }
            }
            _ => self.put(),
        }
    }

    fn put(&mut self) {
        let identity = identity(self.random.below(200));
        let length = if self.uniform { 3 * BLOCK as u64 } else { 1 + self.random.below(30_000) };
        let payload = if self.random.below(8) == 0 {
            self.hostile(length as usize)
        } else {
            self.random.bytes(length as usize)
        };
        let lives = self.log.lives.clone();
        let Claim { segment, generation, position, .. } =
            self.log.put(identity, &payload, &mut self.random);
        if lives[segment] != self.log.lives[segment] {
            // Beginning a life flushes what came before.
            self.all_flushed();
        }
        self.written.entry(identity).or_default().push(Written {
            segment,
            generation,
            position,
            payload_hash: xxh3_64(&payload),
            flushed: false,
            dropped: false,
            torn: false,
        });
    }

    /// Record images for a key of another tenant, with all that an outsider can know or guess: the
    /// format, the generation of this segment's next life, a likely position; not the nonce.
    fn hostile(&mut self, length: usize) -> Vec<u8> {
        let newest = self.log.lives.iter().flatten().map(|life| life.generation).max();
        let mut payload = vec![0; length.next_multiple_of(BLOCK)];
        for block in payload.chunks_exact_mut(BLOCK) {
            let life = Segment {
                node: NODE,
                device: 0,
                devices: 1,
                generation: newest.unwrap_or(0) + SEGMENTS as u64,
                nonce: [0; 32],
            };
            let record = Record {
                kind: Kind::Block,
                identity: identity(1_000_000 + self.random.below(50)),
                length: BLOCK as u32,
                position: self.random.below(12) as u32,
                payload_checksum: xxh3_64(&[0; BLOCK]),
            };
            block.copy_from_slice(&encode_record(&record, &life, self.tie));
        }
        payload.truncate(length);
        payload
    }

    fn all_flushed(&mut self) {
        self.written.values_mut().flatten().for_each(|written| written.flushed = true);
    }

    /// Holds every claim, and every put, against the other side; then the world is what survived.
    fn judge(&mut self) {
        let claims: Vec<(Identity, Claim)> =
            self.log.index.iter().map(|(&identity, &claim)| (identity, claim)).collect();
        for (identity, claim) in &claims {
            self.tally.claimed += 1;
            let puts = self.written.get_mut(identity);
            let known = puts.is_some();
            let put = puts.into_iter().flatten().find(|put| put.is(claim));
            let bytes = self.log.read(identity);
            match (put, bytes) {
                (None, _) if !known => self.tally.forged += 1,
                (None, _) => self.tally.stale += 1,
                (Some(put), _) if put.dropped => self.tally.stale += 1,
                (Some(put), None) => {
                    put.torn = true;
                    self.tally.torn += 1;
                }
                (Some(put), Some(bytes)) if xxh3_64(&bytes) == put.payload_hash => {
                    self.tally.verified += 1;
                }
                _ => self.tally.wrong_bytes += 1,
            }
        }
        self.expect(&claims.into_iter().collect());
    }

    /// Counts what should be there and is not; from here on, what survived is durable and what did
    /// not is forgotten.
    fn expect(&mut self, claims: &HashMap<Identity, Claim>) {
        for (identity, puts) in &mut self.written {
            let claim = claims.get(identity);
            let newest = puts.last().filter(|put| {
                let life = self.log.lives[put.segment].map(|life| life.generation);
                put.flushed && !put.dropped && !put.torn && life == Some(put.generation)
            });
            self.tally.lost +=
                u64::from(newest.is_some() && !self.log.index.contains_key(identity));
            puts.retain(|put| put.flushed || claim.is_some_and(|claim| put.is(claim)));
            puts.iter_mut().for_each(|put| put.flushed = true);
        }
    }
}

impl Written {
    fn is(&self, claim: &Claim) -> bool {
        (self.segment, self.generation, self.position)
            == (claim.segment, claim.generation, claim.position)
    }
}

fn identity(number: u64) -> Identity {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&xxh3_64(&number.to_le_bytes()).to_le_bytes());
    Identity { namespace: [number as u8 % 3; 32], epoch: 1, key, part: (number % 2) as u8 }
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.claimed += other.claimed;
        self.verified += other.verified;
        self.torn += other.torn;
        self.stale += other.stale;
        self.forged += other.forged;
        self.wrong_bytes += other.wrong_bytes;
        self.lost += other.lost;
        self.headers += other.headers;
    }
}
