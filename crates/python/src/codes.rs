//! Outcomes as one byte each: status in the high four bits, reason in the low four. Python turns
//! them into interned `Outcome`s by table.

use keepwarm_store::types::{GetOutcome, MissReason, PutOutcome, ShedReason};
use pyo3::prelude::*;

/// Statuses; `keepwarm.Status` has the same numbers.
const OK: u8 = 1;
const PENDING: u8 = 2;
const THROTTLED: u8 = 3;
const MISS: u8 = 4;
const STORED: u8 = 5;
const PRESENT: u8 = 6;
const SHED: u8 = 7;

const MISS_REASONS: [MissReason; 11] = [
    MissReason::Absent,
    MissReason::Evicted,
    MissReason::Expired,
    MissReason::Epoch,
    MissReason::Quota,
    MissReason::Pending,
    MissReason::Corrupt,
    MissReason::Throttled,
    MissReason::Deadline,
    MissReason::StoreDown,
    MissReason::Identity,
];

const SHED_REASONS: [ShedReason; 11] = [
    ShedReason::Leased,
    ShedReason::Quota,
    ShedReason::Watermark,
    ShedReason::TooLarge,
    ShedReason::Epoch,
    ShedReason::Corrupt,
    ShedReason::Busy,
    ShedReason::Deadline,
    ShedReason::StoreDown,
    ShedReason::Identity,
    ShedReason::Invalid,
];

/// A reason's name, as in `keepwarm.Reason`.
pub fn miss_name(reason: MissReason) -> &'static str {
    match reason {
        MissReason::Absent => "absent",
        MissReason::Evicted => "evicted",
        MissReason::Expired => "expired",
        MissReason::Epoch => "epoch",
        MissReason::Quota => "quota",
        MissReason::Pending => "pending",
        MissReason::Corrupt => "corrupt",
        MissReason::Throttled => "throttled",
        MissReason::Deadline => "deadline",
        MissReason::StoreDown => "store_down",
        MissReason::Identity => "identity",
    }
}

fn shed_name(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::Leased => "leased",
        ShedReason::Quota => "quota",
        ShedReason::Watermark => "watermark",
        ShedReason::TooLarge => "too_large",
        ShedReason::Epoch => "epoch",
        ShedReason::Corrupt => "corrupt",
        ShedReason::Busy => "busy",
        ShedReason::Deadline => "deadline",
        ShedReason::StoreDown => "store_down",
        ShedReason::Identity => "identity",
        ShedReason::Invalid => "invalid",
    }
}

/// Every code that a get or put can answer, with its status and reason.
#[pyfunction]
pub fn outcome_codes() -> Vec<(u8, &'static str, Option<&'static str>)> {
    let plain = [
        (OK << 4, "ok", None),
        (PENDING << 4, "pending", None),
        (THROTTLED << 4, "throttled", None),
        (STORED << 4, "stored", None),
        (PRESENT << 4, "present", None),
    ];
    let misses =
        MISS_REASONS.map(|why| (get_code(GetOutcome::Miss(why)), "miss", Some(miss_name(why))));
    let sheds =
        SHED_REASONS.map(|why| (put_code(PutOutcome::Shed(why)), "shed", Some(shed_name(why))));
    plain.into_iter().chain(misses).chain(sheds).collect()
}

/// Names of the reasons for misses by their wire codes.
pub fn miss_names() -> [(usize, &'static str); 11] {
    MISS_REASONS.map(|why| (why as usize, miss_name(why)))
}

/// Names of the reasons for shed puts by their wire codes.
pub fn shed_names() -> [(usize, &'static str); 11] {
    SHED_REASONS.map(|why| (why as usize, shed_name(why)))
}

pub fn get_code(outcome: GetOutcome) -> u8 {
    match outcome {
        GetOutcome::Ok => OK << 4,
        GetOutcome::Pending => PENDING << 4,
        GetOutcome::Throttled => THROTTLED << 4,
        GetOutcome::Miss(reason) => MISS << 4 | reason as u8,
    }
}

pub fn put_code(outcome: PutOutcome) -> u8 {
    match outcome {
        PutOutcome::Stored => STORED << 4,
        PutOutcome::Present => PRESENT << 4,
        PutOutcome::Pending => PENDING << 4,
        PutOutcome::Shed(reason) => SHED << 4 | reason as u8,
    }
}

/// The code of a miss, for a lookup's first one.
pub fn miss_code(reason: MissReason) -> u8 {
    get_code(GetOutcome::Miss(reason))
}
