//! What holds for every body of a message, and strategies that several of them share.

use keepwarm_store::types::{BlockKey, MissReason};
use keepwarm_wire::codec::{Body, decode};
use keepwarm_wire::frames::VERSION;
use keepwarm_wire::messages::miss_from_code;
use proptest::prelude::*;

pub fn there_and_back<B: Body + PartialEq + std::fmt::Debug>(body: &B) {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    assert_eq!(&decode::<B>(VERSION, &bytes).expect("what was written can be read"), body);
    for end in 0..bytes.len().min(64) {
        assert!(decode::<B>(VERSION, &bytes[..end]).is_err(), "cut at {end}");
    }
    bytes.push(0);
    assert!(decode::<B>(VERSION, &bytes).is_err(), "a byte too many");
}

/// What is accepted is what would be written, save for codes that only a newer node knows: those
/// are written as what they were read as.
pub fn one_encoding<B: Body>(bytes: &[u8]) {
    if let Ok(body) = decode::<B>(VERSION, bytes) {
        let mut again = Vec::new();
        body.write(&mut again);
        assert_eq!(again.len(), bytes.len());
        let mut stable = Vec::new();
        decode::<B>(VERSION, &again).expect("what was written can be read").write(&mut stable);
        assert_eq!(again, stable);
    }
}

pub fn key() -> impl Strategy<Value = BlockKey> {
    any::<[u8; 16]>().prop_map(BlockKey)
}

pub fn miss() -> impl Strategy<Value = MissReason> {
    (1u8..=11).prop_map(|code| miss_from_code(code).expect("a known code"))
}
