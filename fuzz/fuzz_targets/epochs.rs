//! The file of epochs. An odd first byte mends the checksum, which no fuzzer guesses.
#![no_main]

use keepwarm_store::checksum::xxh3_64;
use keepwarm_store::epochs::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mend, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mend % 2 == 1 && bytes.len() >= 8 {
        let end = bytes.len() - 8;
        let sum = xxh3_64(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
    }
    if let Ok(records) = decode(&bytes) {
        assert_eq!(encode(&records), bytes, "two encodings of one file");
    }
});
