//! Checked against the published vectors and against xxhash-rust, on every kernel of this CPU.
//! Seed of the random inputs: `KEEPWARM_TEST_SEED`.

use super::{Hasher, Kernel, copy_hash, xxh3_64};

/// SplitMix64: enough randomness for tests, and the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Seeded from `KEEPWARM_TEST_SEED`, else from `default`; prints which.
    pub(crate) fn from_env(test: &str, default: u64) -> Random {
        let text = std::env::var("KEEPWARM_TEST_SEED").ok();
        let seed = text.and_then(|text| text.parse().ok()).unwrap_or(default);
        println!("{test}: KEEPWARM_TEST_SEED={seed}");
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The input of xxHash's own self test.
fn published_input(len: usize) -> Vec<u8> {
    let mut state: u64 = 2_654_435_761;
    let mut bytes = Vec::with_capacity(len);
    for _ in 0..len {
        bytes.push((state >> 56) as u8);
        state = state.wrapping_mul(11_400_714_785_074_694_797);
    }
    bytes
}

#[test]
fn published_vectors_hold() {
    let vectors: [(usize, u64); 14] = [
        (0, 0x2D06_8005_38D3_94C2),
        (1, 0xC44B_DFF4_074E_ECDB),
        (6, 0x27B5_6A84_CD2D_7325),
        (12, 0xA713_DAF0_DFBB_77E7),
        (24, 0xA3FE_70BF_9D35_10EB),
        (48, 0x397D_A259_ECBA_1F11),
        (80, 0xBCDE_FBBB_2C47_C90A),
        (195, 0xCD94_217E_E362_EC3A),
        (403, 0xCDEB_804D_65C6_DEA4),
        (512, 0x617E_4959_9013_CB6B),
        (2048, 0xDD59_E2C3_A5F0_38E0),
        (2099, 0xC6B9_D9B3_FC9A_C765),
        (2240, 0x6E73_A905_39CF_2948),
        (2367, 0xCB37_AEB9_E5D3_61ED),
    ];
    for (len, expected) in vectors {
        let input = published_input(len);
        assert_eq!(xxh3_64(&input), expected, "length {len}");
        for kernel in Kernel::available() {
            let mut hasher = Hasher::with_kernel(kernel);
            hasher.update(&input);
            assert_eq!(hasher.digest(), expected, "length {len} on {}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_matches_the_reference() {
    let mut random = Random::from_env("every_kernel_matches_the_reference", 1);
    let source = random.bytes(1 << 20);
    let mut lengths: Vec<usize> = (0..=4096).collect();
    lengths.extend((0..40).map(|_| random.below(1 << 20) as usize));
    for kernel in Kernel::available() {
        for &len in &lengths {
            let input = &source[..len];
            let mut hasher = Hasher::with_kernel(kernel);
            hasher.update(input);
            let expected = xxhash_rust::xxh3::xxh3_64(input);
            assert_eq!(hasher.digest(), expected, "length {len} on {}", kernel.name());
            assert_eq!(hasher.total_bytes(), len as u64);
        }
    }
}

#[test]
fn pieces_do_not_matter() {
    let mut random = Random::from_env("pieces_do_not_matter", 2);
    for kernel in Kernel::available() {
        for round in 0..60 {
            let piece_max = [3, 70, 600, 5_000, 100_000][round % 5];
            let input_len = random.below((piece_max * 200).min(150_000)) as usize;
            let input = random.bytes(input_len);
            let mut hasher = Hasher::with_kernel(kernel);
            let mut copying = Hasher::with_kernel(kernel);
            let mut copied = vec![0u8; input.len()];
            let mut at = 0;
            while at < input.len() {
                let len = (random.below(piece_max + 1) as usize).min(input.len() - at);
                hasher.update(&input[at..at + len]);
                // SAFETY: both ranges are `len` bytes inside their own vectors; the comparison
                // below catches a wrong place.
                unsafe {
                    copying.update_copy(copied.as_mut_ptr().add(at), input.as_ptr().add(at), len);
                }
                at += len;
                if random.below(40) == 0 {
                    let expected = xxhash_rust::xxh3::xxh3_64(&input[..at]);
                    assert_eq!(hasher.digest(), expected, "midway, on {}", kernel.name());
                }
            }
            let expected = xxhash_rust::xxh3::xxh3_64(&input);
            assert_eq!(hasher.digest(), expected, "round {round} on {}", kernel.name());
            assert_eq!(copying.digest(), expected, "round {round} on {}", kernel.name());
            assert!(copied == input, "round {round} on {}", kernel.name());
        }
    }
}

#[test]
fn copies_land_at_every_alignment() {
    const GUARD: usize = 256;
    let mut random = Random::from_env("copies_land_at_every_alignment", 3);
    let source = random.bytes(200_000);
    for kernel in Kernel::available() {
        for shift in 0..64 {
            for len in [0, 1, 63, 240, 241, 1023, 4096, 9_000, 66_000, 70_001, 131_072, 190_000] {
                let from = random.below(64) as usize;
                let mut landing = vec![0xA5u8; len + 128 + 2 * GUARD];
                let at = GUARD + landing[GUARD..].as_ptr().align_offset(64) + shift;
                let mut hasher = Hasher::with_kernel(kernel);
                if random.below(2) == 0 {
                    hasher = hasher.cached();
                }
                // SAFETY: the buffer has `at + len + GUARD` bytes or more, the source
                // `from + len`; the guards checked below catch a write outside.
                unsafe {
                    let dst = landing.as_mut_ptr().add(at);
                    hasher.update_copy(dst, source.as_ptr().add(from), len);
                }
                let name = kernel.name();
                let expected = xxhash_rust::xxh3::xxh3_64(&source[from..from + len]);
                assert_eq!(hasher.digest(), expected, "{len} bytes at {shift} on {name}");
                assert!(landing[at..at + len] == source[from..from + len], "{len} at {shift}");
                let outside = landing[..at].iter().chain(&landing[at + len..]);
                assert!(outside.into_iter().all(|&byte| byte == 0xA5), "{len} at {shift}, {name}");
            }
        }
    }
}

/// `bytes` readable and writable bytes that end where a page begins that may not be touched.
fn before_a_guard_page(bytes: usize) -> *mut u8 {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    let room = bytes.next_multiple_of(4096);
    let (null, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new private mapping, kept until the process ends; its last page is then closed.
    unsafe {
        let base = mmap_anonymous(null, room + 4096, both, MapFlags::PRIVATE).expect("mmap");
        mprotect(base.add(room), 4096, MprotectFlags::empty()).expect("mprotect");
        base.cast::<u8>().add(room - bytes)
    }
}

#[test]
fn nothing_beyond_the_end_is_touched() {
    const ROOM: usize = 32 << 10;
    let mut random = Random::from_env("nothing_beyond_the_end_is_touched", 5);
    let (source, landing) = (before_a_guard_page(ROOM), before_a_guard_page(ROOM));
    let bytes = random.bytes(ROOM);
    // SAFETY: ROOM bytes each.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), source, ROOM) };
    let lengths = (0..1200).chain([8191, 8192, 8300, 9000, 16_385, 20_000, ROOM]);
    for (len, kernel) in
        lengths.flat_map(|len| Kernel::available().into_iter().map(move |k| (len, k)))
    {
        let mut hasher = Hasher::with_kernel(kernel);
        // SAFETY: `len <= ROOM`, counted from the end; a step too far is a crash of this test.
        let landed = unsafe {
            hasher.update_copy(landing.add(ROOM - len), source.add(ROOM - len), len);
            std::slice::from_raw_parts(landing.add(ROOM - len), len)
        };
        assert!(landed == &bytes[ROOM - len..], "{len} bytes on {}", kernel.name());
        assert_eq!(hasher.digest(), xxhash_rust::xxh3::xxh3_64(landed), "{len}, {}", kernel.name());
    }
}

#[test]
fn copy_hash_is_copy_and_hash() {
    let mut random = Random::from_env("copy_hash_is_copy_and_hash", 4);
    let source = random.bytes((2 << 20) + 17);
    let mut landing = vec![0u8; source.len()];
    // SAFETY: two vectors of the same length.
    let digest = unsafe { copy_hash(landing.as_mut_ptr(), source.as_ptr(), source.len()) };
    assert!(landing == source);
    assert_eq!(digest, xxh3_64(&source));
}
