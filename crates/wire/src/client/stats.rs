//! What a client has seen, and how its bytes travelled.

use std::sync::atomic::{AtomicU64, Ordering};

use keepwarm_store::types::{GetOutcome, PutOutcome};

/// Reasons are counted in arrays indexed by their wire codes.
const CODES: usize = 16;

/// Facts about the way of the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataPath {
    /// `inproc`, `unix`, `shm`, `tcp`, `tls`.
    pub transport: &'static str,
    /// Copies in user space that each byte of a block made, both ends together, so far: with `shm`
    /// one for a get and two for a put.
    pub copies_per_byte: f64,
    /// The client's system calls per MiB of blocks so far; 0 before the first.
    pub system_calls_per_mib: f64,
    /// Whether received bytes are verified. Always.
    pub checksum: bool,
}

/// Counts since the memory was opened (in this process).
#[derive(Clone, Debug, PartialEq)]
pub struct ClientStats {
    /// Calls of each kind.
    pub lookups: u64,
    /// See `lookups`.
    pub gets: u64,
    /// See `lookups`.
    pub puts: u64,
    /// All other calls.
    pub others: u64,
    /// Calls cut at their deadline.
    pub deadlines: u64,
    /// Blocks got whose bytes matched.
    pub blocks_ok: u64,
    /// Blocks not got, by `MissReason` code; pending and throttled among them.
    pub blocks_missed: [u64; CODES],
    /// Blocks stored.
    pub blocks_stored: u64,
    /// Blocks that were there already.
    pub blocks_present: u64,
    /// Blocks that another writer was at.
    pub blocks_pending: u64,
    /// Blocks not stored, by `ShedReason` code.
    pub blocks_shed: [u64; CODES],
    /// Bytes of blocks got.
    pub bytes_got: u64,
    /// Bytes of blocks sent.
    pub bytes_put: u64,
    /// Connections opened.
    pub connections: u64,
    /// Times the node was found again, restarted or only silent meanwhile.
    pub reconnects: u64,
    /// Blocks whose bytes did not match their checksum.
    pub corrupt: u64,
    /// Connections given up because the node's own bytes were good.
    pub suspect_connections: u64,
    /// The way of the bytes.
    pub data_path: DataPath,
}

/// The live counts behind [`ClientStats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lookups: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) others: AtomicU64,
    pub(crate) deadlines: AtomicU64,
    blocks_ok: AtomicU64,
    blocks_missed: [AtomicU64; CODES],
    blocks_stored: AtomicU64,
    blocks_present: AtomicU64,
    blocks_pending: AtomicU64,
    blocks_shed: [AtomicU64; CODES],
    pub(crate) bytes_got: AtomicU64,
    pub(crate) bytes_put: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) suspect_connections: AtomicU64,
    pub(crate) system_calls: AtomicU64,
    /// Bytes that were copied in user space, each copy of one counted.
    pub(crate) bytes_copied: AtomicU64,
}

/// Adds to a count.
pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn got(&self, outcomes: &[GetOutcome]) {
        use keepwarm_store::types::MissReason::{Pending, Throttled};
        for outcome in outcomes {
            match outcome {
                GetOutcome::Ok => add(&self.blocks_ok, 1),
                GetOutcome::Pending => add(&self.blocks_missed[Pending as usize], 1),
                GetOutcome::Throttled => add(&self.blocks_missed[Throttled as usize], 1),
                GetOutcome::Miss(reason) => add(&self.blocks_missed[*reason as usize], 1),
            }
        }
    }

    pub(crate) fn put(&self, outcomes: &[PutOutcome]) {
        for outcome in outcomes {
            match outcome {
                PutOutcome::Stored => add(&self.blocks_stored, 1),
                PutOutcome::Present => add(&self.blocks_present, 1),
                PutOutcome::Pending => add(&self.blocks_pending, 1),
                PutOutcome::Shed(reason) => add(&self.blocks_shed[*reason as usize], 1),
            }
        }
    }

    pub(crate) fn read(&self, transport: &'static str) -> ClientStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let all = |counts: &[AtomicU64; CODES]| std::array::from_fn(|code| of(&counts[code]));
        let (bytes_got, bytes_put) = (of(&self.bytes_got), of(&self.bytes_put));
        let mib = (bytes_got + bytes_put) as f64 / f64::from(1 << 20);
        let system_calls = of(&self.system_calls) as f64;
        ClientStats {
            lookups: of(&self.lookups),
            gets: of(&self.gets),
            puts: of(&self.puts),
            others: of(&self.others),
            deadlines: of(&self.deadlines),
            blocks_ok: of(&self.blocks_ok),
            blocks_missed: all(&self.blocks_missed),
            blocks_stored: of(&self.blocks_stored),
            blocks_present: of(&self.blocks_present),
            blocks_pending: of(&self.blocks_pending),
            blocks_shed: all(&self.blocks_shed),
            bytes_got,
            bytes_put,
            connections: of(&self.connections),
            reconnects: of(&self.reconnects),
            corrupt: of(&self.corrupt),
            suspect_connections: of(&self.suspect_connections),
            data_path: DataPath {
                transport,
                copies_per_byte: match transport {
                    "inproc" => 1.0,
                    _ if mib > 0.0 => of(&self.bytes_copied) as f64 / f64::from(1 << 20) / mib,
                    _ => 0.0,
                },
                system_calls_per_mib: if mib > 0.0 { system_calls / mib } else { 0.0 },
                checksum: true,
            },
        }
    }
}
