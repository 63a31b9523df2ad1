//! XXH3's accumulators, constants and final mix. The published algorithm, in its own names where
//! that helps to compare: <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.

/// Bytes hashed by one step of the eight accumulators.
pub(super) const STRIPE_BYTES: usize = 64;
/// Stripes between two scrambles; a block of 1 KiB with the default secret.
pub(super) const BLOCK_STRIPES: usize = 16;
/// The secret moves on by this much with each stripe.
pub(super) const SECRET_STEP: usize = 8;
/// Where the scramble's secret begins.
pub(super) const SECRET_SCRAMBLE: usize = SECRET.len() - STRIPE_BYTES;
/// Where the last stripe's secret begins.
pub(super) const SECRET_LAST: usize = SECRET_SCRAMBLE - 7;
const SECRET_MERGE: usize = 11;

pub(super) const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;

/// The default secret of XXH3.
#[rustfmt::skip]
pub(super) static SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The eight accumulators and how many stripes of the current block they have taken.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Lanes {
    pub(super) acc: [u64; 8],
    /// Always below [`BLOCK_STRIPES`]: the scramble happens with a block's last stripe.
    pub(super) position: usize,
}

impl Lanes {
    pub(super) const fn new() -> Lanes {
        Lanes {
            acc: [
                PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5,
                PRIME32_1,
            ],
            position: 0,
        }
    }

    /// Splits off what fits the current block: how many of `stripes`, and whether a scramble is
    /// due after them.
    #[inline(always)]
    pub(super) fn run(position: usize, stripes: usize) -> (usize, bool) {
        let room = BLOCK_STRIPES - position;
        (stripes.min(room), stripes >= room)
    }

    #[inline(always)]
    pub(super) fn take(&mut self, stripe: &[u8; STRIPE_BYTES], secret_at: usize) {
        for lane in 0..8 {
            let value = word(stripe, lane * 8);
            let keyed = value ^ word(&SECRET, secret_at + lane * 8);
            self.acc[lane ^ 1] = self.acc[lane ^ 1].wrapping_add(value);
            self.acc[lane] = self.acc[lane].wrapping_add((keyed & 0xFFFF_FFFF) * (keyed >> 32));
        }
    }

    #[inline(always)]
    pub(super) fn scramble(&mut self) {
        for (lane, acc) in self.acc.iter_mut().enumerate() {
            let mixed = *acc ^ (*acc >> 47) ^ word(&SECRET, SECRET_SCRAMBLE + lane * 8);
            *acc = mixed.wrapping_mul(PRIME32_1);
        }
    }

    /// The digest of a long input (more than 240 bytes) of `total_bytes`.
    pub(super) fn merge(&self, total_bytes: u64) -> u64 {
        let mut sum = total_bytes.wrapping_mul(PRIME64_1);
        for pair in 0..4 {
            let left = self.acc[2 * pair] ^ word(&SECRET, SECRET_MERGE + 16 * pair);
            let right = self.acc[2 * pair + 1] ^ word(&SECRET, SECRET_MERGE + 16 * pair + 8);
            let product = u128::from(left) * u128::from(right);
            sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        sum ^= sum >> 37;
        sum = sum.wrapping_mul(0x1656_6791_9E37_79F9);
        sum ^ (sum >> 32)
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
