//! What the fuzz targets share: how fuzzer bytes become frames, a store to feed them to, and the
//! seeds they start from.
//!
//! Header and body carry a checksum that no fuzzer guesses. So the targets for whole streams read
//! their input as a list of frames to be written properly ([`stream`]); a first byte of 0 means
//! that the rest is the stream itself.

pub mod seeds;

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};

use keepwarm_store::flash::format::SegmentHeader;
use keepwarm_store::identity::{NamespaceSpec, Value};
use keepwarm_wire::channel::Channel;
use keepwarm_wire::codec::{Body, decode};
use keepwarm_wire::deadline::Deadline;
use keepwarm_wire::frames::{FrameHead, VERSION, append_frame};

/// The segment whose header and records are fuzzed.
pub const FLASH_SEGMENT: SegmentHeader =
    SegmentHeader { device: [7; 16], segment: 3, life: 5, nonce: [9; 32] };

/// Reads `bytes` as `B`; what is accepted must be what would be written, save for codes that only a
/// newer node knows: those are written as what they were read as.
pub fn one_encoding<B: Body>(bytes: &[u8]) {
    if let Ok(body) = decode::<B>(VERSION, bytes) {
        let mut again = Vec::new();
        body.write(&mut again);
        assert_eq!(again.len(), bytes.len(), "{} has two encodings", B::NAME);
        let mut stable = Vec::new();
        decode::<B>(VERSION, &again).expect("what was written can be read").write(&mut stable);
        assert_eq!(again, stable, "{} has two encodings", B::NAME);
    }
}

/// The stream that fuzzer bytes describe. Frame by frame: code, flags, version, correlation (one
/// byte each), body length (2), payload length (2), trailer is right (1), body, payload.
pub fn stream(input: &[u8]) -> Vec<u8> {
    let Some((kind, mut rest)) = input.split_first() else { return Vec::new() };
    if *kind == 0 {
        return rest.to_vec();
    }
    let mut out = Vec::new();
    while let Some((head, more)) = rest.split_first_chunk::<9>() {
        let [code, flags, version, correlation, b0, b1, p0, p1, trailer] = *head;
        let body = usize::from(u16::from_le_bytes([b0, b1])).min(more.len());
        let (body, more) = more.split_at(body);
        let payload = usize::from(u16::from_le_bytes([p0, p1])).min(more.len());
        let (payload, more) = more.split_at(payload);
        let head = FrameHead {
            version: u16::from(version),
            code,
            flags,
            correlation: u64::from(correlation),
            payload_bytes: payload.len() as u64,
        };
        append_frame(&mut out, head, |out| out.extend_from_slice(body)).expect("a body that fits");
        out.extend_from_slice(payload);
        if flags & keepwarm_wire::frames::flags::TRAILER != 0 {
            let sum = keepwarm_store::checksum::xxh3_64(payload) ^ u64::from(trailer);
            out.extend_from_slice(&sum.to_le_bytes());
        }
        rest = more;
    }
    out
}

/// A peer that has said all it will say and takes whatever it is told.
pub struct Script<'a> {
    pub rest: &'a [u8],
    pub heard_bytes: u64,
    /// Looks until it has left: a follower of events must not be followed for ever.
    pub looks_left: Cell<u32>,
}

impl<'a> Script<'a> {
    pub fn new(rest: &'a [u8]) -> Script<'a> {
        Script { rest, heard_bytes: 0, looks_left: Cell::new(3) }
    }
}

impl Channel for Script<'_> {
    fn receive(&mut self, to: &mut [IoSliceMut<'_>], _: Deadline) -> io::Result<usize> {
        let mut received = 0;
        for slice in to {
            let step = slice.len().min(self.rest.len());
            slice[..step].copy_from_slice(&self.rest[..step]);
            self.rest = &self.rest[step..];
            received += step;
        }
        Ok(received)
    }

    fn send(&mut self, from: &[IoSlice<'_>], _: Deadline) -> io::Result<usize> {
        let bytes = from.iter().map(|slice| slice.len()).sum();
        self.heard_bytes += bytes as u64;
        Ok(bytes)
    }

    fn peer_is_there(&self) -> bool {
        self.looks_left.replace(self.looks_left.get().saturating_sub(1)) > 0
    }

    fn wait_for_bytes(&mut self, _: Deadline) -> io::Result<bool> {
        Ok(true)
    }
}

/// A namespace that seeds and targets agree on.
pub fn namespace() -> NamespaceSpec {
    let text = |name: &str| (name.to_owned(), Value::Str(String::from("x")));
    let number = |name: &str| (name.to_owned(), Value::Int(1));
    let texts = [
        "model",
        "weights",
        "load",
        "quantisation",
        "kv_dtype",
        "kv_scales",
        "layout",
        "engine",
        "attention_backend",
        "isa",
        "kv_options",
        "parallel",
        "connector",
    ];
    let numbers = ["layers", "kv_heads", "head_dim", "block_tokens", "parts", "run_blocks"];
    let tenant = (String::from("tenant"), Value::Str(String::from("default")));
    let fields = texts.map(text).into_iter().chain(numbers.map(number)).chain([tenant]);
    NamespaceSpec::new(fields).expect("a complete namespace")
}
