//! Which blocks are watched, in bounded memory, and how far a figure from them may be off.
//!
//! ```text
//! id ──mix(seed)──► hash ──► hash < limit: watched, in one of 15 groups; each stands for 1/rate
//!                       └──► more than 0.05 % of all uses: heavy; stands for itself alone
//! ```
//! A block is watched with all of its uses or with none (spatial sampling, as SHARDS does:
//! Waldspurger et al., FAST'15). When too many are watched the limit falls, and those above it are
//! let go of. Heavy blocks would make such a sample a lottery, so they are taken out of it: found
//! by counting (`heavy`), then each use counts once. Errors come from leaving out each group in
//! turn (`jackknife`). While the limit has not fallen, everything is exact.

pub mod heavy;
pub mod jackknife;
pub mod stack;
pub mod watch;

/// Groups of watched blocks that are left out in turn.
pub const GROUPS: usize = 15;

/// A one-to-one mix of an id: equal for equal ids, and as good as drawn at random for each seed.
#[inline]
pub fn mix(id: u64, seed: u64) -> u64 {
    // Two rounds of xor-shift and odd multipliers (a finaliser in MurmurHash3's manner).
    let mut hash = id ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash ^ (hash >> 32)
}

/// The group of a hash, independent of whether it is below a limit.
#[inline]
pub fn group(hash: u64) -> usize {
    let again = hash.wrapping_mul(0xFF51_AFD7_ED55_8CCD) >> 32;
    ((again * GROUPS as u64) >> 32) as usize
}

/// Hashes are mixed already: as a table's hasher, one multiplication spreads what is below a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixed(u64);

impl std::hash::Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.wrapping_mul(0x9FB2_1C65_1E98_DF25).rotate_left(32);
    }
}

/// A table by hash.
pub type ByHash<T> = hashbrown::HashMap<u64, T, std::hash::BuildHasherDefault<Mixed>>;
