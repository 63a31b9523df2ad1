//! What a restart reads from flash: superblock, segment header, records. The first byte says which,
//! and, if it is odd, that the check is mended, which no fuzzer guesses.
#![no_main]

use keepwarm_fuzz::FLASH_SEGMENT;
use keepwarm_store::flash::format::{
    Found, HEADER_PAGES_MAX, PAGE_BYTES, RecordPlace, decode_record, decode_segment,
    decode_superblock, encode_record, encode_segment, encode_superblock, mend_record, mend_segment,
    mend_superblock,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&what, bytes)) = data.split_first() else { return };
    // Whole pages: the rest is zeros, as an encoder would leave it.
    let mut pages = bytes[..bytes.len().min(PAGE_BYTES)].to_vec();
    pages.resize(if what & 64 == 0 { HEADER_PAGES_MAX } else { 1 } * PAGE_BYTES, 0);
    let is_mended = what % 2 == 1;
    match what % 64 / 2 % 3 {
        0 => superblock(&mut pages[..PAGE_BYTES], is_mended),
        1 => segment(&mut pages[..PAGE_BYTES], is_mended),
        _ => record(&mut pages, is_mended),
    }
});

fn superblock(page: &mut [u8], is_mended: bool) {
    if is_mended {
        mend_superblock(page);
    }
    if let Found::Superblock(read) = decode_superblock(page) {
        assert_eq!(encode_superblock(&read), page, "two encodings of one superblock");
        assert!(read.segments() >= 4 && read.segment_bytes <= 256 << 20);
    }
}

fn segment(page: &mut [u8], is_mended: bool) {
    if is_mended {
        mend_segment(page);
    }
    if let Some(read) = decode_segment(page, &FLASH_SEGMENT.device, FLASH_SEGMENT.segment) {
        assert_eq!(encode_segment(&read), page, "two encodings of one segment header");
    }
}

fn record(pages: &mut [u8], is_mended: bool) {
    let place = RecordPlace { segment: &FLASH_SEGMENT, position: 1 };
    if is_mended {
        let count = usize::from(pages[11]).clamp(1, pages.len() / PAGE_BYTES);
        mend_record(&mut pages[..count * PAGE_BYTES], &FLASH_SEGMENT.nonce);
    }
    match decode_record(pages, place) {
        // Not mended it may be right too: a fuzzer sees what its bytes are compared with.
        Ok(Some((read, count))) => {
            assert_eq!(encode_record(&read, place), pages[..count * PAGE_BYTES]);
        }
        Ok(None) => {}
        Err(count) => assert!(count > pages.len() / PAGE_BYTES && count <= HEADER_PAGES_MAX),
    }
}
