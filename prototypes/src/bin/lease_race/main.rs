//! A reader is stopped between learning where a block lies and having read it, and meanwhile the
//! node does its worst. Which check lets wrong bytes through?
//!
//! The node process owns an arena (memfd, mapped read-write, then sealed) and a control page with a
//! generation word a place; the reader process maps both read-only. Per trial the node replies
//! (place, length, checksum, generation); the reader stops itself before, amid or after its copy;
//! the node sees that by waitpid, acts, and continues it. Nothing sleeps.
//!
//! `cargo run --release -p keepwarm-prototypes --bin lease_race [trials a case] [seed]`

mod reader;
mod shared;

use std::io::{BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

use keepwarm_prototypes::{Random, argument};
use keepwarm_store::checksum::xxh3_64;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::ProtFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use shared::{
    ARENA_BYTES, CONTROL_BYTES, Map, PAYLOAD_BYTES_MAX, PLACES, STOPS, bump_generation, numbers,
};

/// What the node does while the reader stands still.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Nothing,
    /// Evicted; another key's block of the same length written over it.
    Overwritten,
    /// As above, but the node wrote the bytes first and the generation after the reader was done.
    BumpedTooLate,
    /// Evicted; the first half overwritten so far.
    HalfWritten,
    /// The namespace's epoch went up: the block is withdrawn, its bytes still lie there.
    EpochBumped,
    /// As above, and the new epoch's block of the same key lies in the same place.
    EpochReplaced,
    /// Evicted, the same key stored elsewhere, another key's block in the old place.
    PutElsewhere,
    /// Evicted, and the same key's same bytes stored in the same place again.
    PutAgain,
    /// The node restarted with a new arena; the reader still maps the old one.
    Restarted,
    /// The node restarted over the same memory, counts generations from the start again, and
    /// another key's block got the same place and number.
    RestartedInPlace,
}

const EVENTS: [Event; 10] = [
    Event::Nothing,
    Event::Overwritten,
    Event::BumpedTooLate,
    Event::HalfWritten,
    Event::EpochBumped,
    Event::EpochReplaced,
    Event::PutElsewhere,
    Event::PutAgain,
    Event::Restarted,
    Event::RestartedInPlace,
];

const SEAL_CHECKS: [&str; 9] = [
    "map read-write: refused",
    "reopen by /proc and map read-write: refused",
    "write to the descriptor: refused",
    "shrink: refused",
    "grow: refused",
    "punch a hole: refused",
    "add a seal: refused",
    "make a read-only map writable, remove its pages: refused",
    "map read-only: allowed",
];

/// The checks that a reader could rely on.
const GUARDS: [&str; 5] = ["none", "header", "generation", "checksum", "both"];

/// What a guard did, per event: accepted wrong bytes, accepted a block that was withdrawn, refused
/// one that was right.
type Mistakes = [[u32; 3]; GUARDS.len()];

struct Node {
    arena: Map,
    control: Map,
    reader: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    random: Random,
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("reader") {
        return reader::run();
    }
    let (trials, seed) = (argument(0, 40), argument(1, 1));
    let mut node = Node::start(Random(seed));
    node.seals();
    println!("{trials} trials a case and place to stop, seed {seed}");
    println!("per check: wrong accepted / withdrawn accepted, right refused");
    println!(
        "{:<18} {:>6} {:>6}  {}",
        "event",
        "trials",
        "wrong",
        GUARDS.map(|g| format!("{g:>12}")).join("")
    );
    let mut failures = 0;
    for event in EVENTS {
        let mut mistakes = Mistakes::default();
        let mut wrong = 0;
        for trial in 0..trials * STOPS.len() as u64 {
            wrong += u64::from(node.trial(event, trial as usize % STOPS.len(), &mut mistakes));
        }
        let cells =
            mistakes.map(|[bad, old, good]| format!("{:>12}", format!("{bad}/{old},{good}")));
        let trials = trials * STOPS.len() as u64;
        println!("{:<18} {trials:>6} {wrong:>6}  {}", format!("{event:?}"), cells.join(""));
        failures += mistakes[3][0] + mistakes[4][0];
    }
    drop(node.requests);
    node.reader.wait().expect("the reader ends with its input");
    assert_eq!(failures, 0, "the checksum of the reply let wrong bytes through");
}

impl Node {
    fn start(random: Random) -> Node {
        let arena_fd = memory("arena", ARENA_BYTES);
        let control_fd = memory("control", CONTROL_BYTES);
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let arena = Map::new(&arena_fd, ARENA_BYTES, both).expect("map the arena");
        let control = Map::new(&control_fd, CONTROL_BYTES, both).expect("map the control page");
        // Mapped first, sealed second: from here on nobody maps it writable, the node included.
        for fd in [&arena_fd, &control_fd] {
            let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW;
            fcntl_add_seals(fd, seals | SealFlags::SEAL).expect("seal");
        }
        let mut reader = Command::new(std::env::current_exe().expect("my own path"))
            .arg("reader")
            .args([&arena_fd, &control_fd].map(|fd| fd.as_raw_fd().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the reader");
        let requests = reader.stdin.take().expect("piped");
        let answers = BufReader::new(reader.stdout.take().expect("piped"));
        Node { arena, control, reader, requests, answers, random }
    }

    fn seals(&mut self) {
        writeln!(self.requests, "0").expect("the reader listens");
        let went_well = numbers(&mut self.answers).expect("an answer");
        for (check, ok) in SEAL_CHECKS.iter().zip(&went_well) {
            println!("{}  {check}", if *ok == 1 { "ok  " } else { "FAIL" });
        }
        self.write(0, &[7; 4096]);
        println!("ok    the node still writes through its own map\n");
        assert!(went_well.len() == SEAL_CHECKS.len() && went_well.iter().all(|&ok| ok == 1));
    }

    /// One block, one reply, one stop, one event; true if wrong bytes arrived.
    fn trial(&mut self, event: Event, stop: usize, mistakes: &mut Mistakes) -> bool {
        let place = self.random.below(PLACES as u64 / 2) as usize;
        let length = 4096 + self.random.below((PAYLOAD_BYTES_MAX - 4096) as u64) as usize;
        let block = self.random.bytes(length);
        if event == Event::RestartedInPlace {
            self.control.generation(place).store(1, Ordering::SeqCst);
        }
        self.replace(place, &block);
        let generation = self.control.generation(place).load(Ordering::SeqCst);
        writeln!(self.requests, "{stop} {place} {length} {} {generation}", xxh3_64(&block))
            .expect("the reader listens");
        let pid = Pid::from_child(&self.reader);
        let (_, status) =
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("wait").expect("a state change");
        assert!(status.stopped(), "{status:?}");
        self.act(event, place, &block);
        kill_process(pid, Signal::CONT).expect("continue the reader");
        let answer = numbers(&mut self.answers).expect("an answer");
        if event == Event::BumpedTooLate {
            bump_generation(self.control, place);
        }
        let (header, word, checksum) = (answer[0] == 1, answer[1] == 1, answer[2] == 1);
        let right = answer[3] == xxh3_64(&block);
        let withdrawn = matches!(event, Event::EpochBumped | Event::EpochReplaced);
        let accepted = [true, header, word, checksum, word && checksum];
        for (accepts, mistake) in accepted.into_iter().zip(mistakes) {
            mistake[0] += u32::from(accepts && !right);
            mistake[1] += u32::from(accepts && right && withdrawn);
            mistake[2] += u32::from(!accepts && right && !withdrawn);
        }
        !right
    }

    fn act(&mut self, event: Event, place: usize, block: &[u8]) {
        let other = self.random.bytes(block.len());
        match event {
            Event::Nothing => {}
            Event::Overwritten => self.replace(place, &other),
            Event::BumpedTooLate => self.write(place, &other),
            Event::HalfWritten => {
                bump_generation(self.control, place);
                self.write_bytes(place, &other[..block.len() / 2]);
            }
            Event::EpochBumped => bump_generation(self.control, place),
            Event::EpochReplaced => self.replace(place, &other),
            Event::PutElsewhere => {
                self.replace(place + PLACES / 2, block);
                self.replace(place, &other);
            }
            Event::PutAgain => self.replace(place, block),
            Event::Restarted => {
                // The old memory stays as it is for whoever maps it; the new one is other memory.
                let both = ProtFlags::READ | ProtFlags::WRITE;
                let new = memory("arena after a restart", ARENA_BYTES);
                let new = Map::new(&new, ARENA_BYTES, both).expect("map the new arena");
                let old = std::mem::replace(&mut self.arena, new);
                self.write(place, &other);
                new.unmap(ARENA_BYTES);
                self.arena = old;
            }
            Event::RestartedInPlace => {
                let generation = self.control.generation(place).load(Ordering::SeqCst);
                self.control.generation(place).store(1, Ordering::SeqCst);
                self.replace(place, &other);
                assert_eq!(generation, self.control.generation(place).load(Ordering::SeqCst));
            }
        }
    }

    /// A new block in a place, in the order that readers rely on: generation, fence, bytes.
    fn replace(&mut self, place: usize, block: &[u8]) {
        bump_generation(self.control, place);
        self.write(place, block);
    }

    fn write(&mut self, place: usize, block: &[u8]) {
        self.arena.header(place).store(xxh3_64(block), Ordering::Release);
        self.write_bytes(place, block);
    }

    fn write_bytes(&mut self, place: usize, block: &[u8]) {
        assert!(block.len() <= PAYLOAD_BYTES_MAX && place < PLACES);
        // SAFETY: within the place; the node is the only writer.
        unsafe {
            std::ptr::copy_nonoverlapping(block.as_ptr(), self.arena.payload(place), block.len());
        }
    }
}

/// A memfd that a child inherits.
fn memory(name: &str, bytes: usize) -> OwnedFd {
    let memfd = memfd_create(name, MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(memfd.as_fd(), bytes as u64).expect("size");
    memfd
}
