//! Block keys: a chain of keyed hashes over a prompt's tokens.
//!
//! ```text
//! tokens:       kind 1 | flags | 0 u16 | tokens u32 | previous key 16 | token u32 … | extras …
//! engine hash:  kind 2 | flags | length u16 | group u32 | hash … | extras …
//! flags: bit 0 a previous key is there, bit 1 extras are there
//! ```
//! Kind, flags and counts fix where each part ends, so that two different inputs never make one
//! message. 16 tokens without extras take 88 bytes: two compressions.

use crate::types::BlockKey;

use super::{Extras, NamespaceSpec, TenantSecret};

const CHAIN_DOMAIN: &[u8] = b"keepwarm v1 chain key\0";
const CHECK_DOMAIN: &[u8] = b"keepwarm v1 key check\0";
const KIND_TOKENS: u8 = 1;
const KIND_ENGINE_HASH: u8 = 2;
const HAS_PREVIOUS: u8 = 1;
const HAS_EXTRAS: u8 = 2;
/// Longest engine hash that a key can be made of.
const ENGINE_HASH_BYTES_MAX: usize = u16::MAX as usize;

/// The key with which one namespace's block keys are hashed.
#[derive(Clone)]
pub struct ChainKey {
    key: [u8; 32],
    key_check: [u8; 8],
}

impl ChainKey {
    /// Derives it from the namespace and its tenant's secret.
    pub fn new(spec: &NamespaceSpec, secret: &TenantSecret) -> ChainKey {
        let derive = |domain: &[u8]| {
            let mut message = Vec::with_capacity(64);
            message.extend_from_slice(domain);
            message.extend_from_slice(&spec.fingerprint());
            *blake3::keyed_hash(secret.bytes(), &message).as_bytes()
        };
        let [a, b, c, d, e, f, g, h, ..] = derive(CHECK_DOMAIN);
        ChainKey { key: derive(CHAIN_DOMAIN), key_check: [a, b, c, d, e, f, g, h] }
    }

    /// Proves, without giving anything away, that both ends hold one namespace and one secret.
    pub fn key_check(&self) -> [u8; 8] {
        self.key_check
    }

    /// Whether the other end's check value is this one; takes the same time wherever they differ.
    pub fn agrees_with(&self, other: [u8; 8]) -> bool {
        self.key_check.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }

    /// Keys of the complete blocks of `tokens`; a shorter rest at the end has none. `prev` is the
    /// key of the block before the first token, if the prompt began earlier. `extras` holds none,
    /// one for all blocks, or one per complete block.
    ///
    /// # Panics
    /// If `block_tokens` is zero, or `extras` is neither of the three.
    pub fn chain_tokens(
        &self,
        prev: Option<BlockKey>,
        tokens: &[u32],
        block_tokens: u32,
        extras: &[Extras],
    ) -> Vec<BlockKey> {
        assert!(block_tokens > 0, "a block holds one token or more");
        let blocks = tokens.chunks_exact(block_tokens as usize);
        assert!(
            extras.len() <= 1 || extras.len() == blocks.len(),
            "{} extras for {} blocks: give none, one, or one per block",
            extras.len(),
            blocks.len()
        );
        let mut keys = Vec::with_capacity(blocks.len());
        let mut message = Vec::with_capacity(64 + 4 * block_tokens as usize);
        let mut prev = prev;
        for (i, block) in blocks.enumerate() {
            let extras = match extras {
                [] => &Extras::NONE,
                [one] => one,
                many => &many[i],
            };
            let key = self.token_key(&mut message, prev, block, extras);
            keys.push(key);
            prev = Some(key);
        }
        keys
    }

    fn token_key(
        &self,
        message: &mut Vec<u8>,
        prev: Option<BlockKey>,
        block: &[u32],
        extras: &Extras,
    ) -> BlockKey {
        let has_previous = if prev.is_some() { HAS_PREVIOUS } else { 0 };
        message.clear();
        message.extend_from_slice(&[KIND_TOKENS, has_previous | extras_flag(extras), 0, 0]);
        // At most 65,536 tokens, or what a u32 of the caller said.
        message.extend_from_slice(&(block.len() as u32).to_le_bytes());
        message.extend_from_slice(&prev.unwrap_or_default().0);
        message.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        message.extend_from_slice(extras.encoding());
        self.hash(message)
    }

    /// The key of a block that the engine has hashed itself; such hashes are chained already.
    /// `group` tells an engine's cache groups apart, which may share hashes.
    ///
    /// # Panics
    /// If `hash` is longer than 65,535 bytes.
    pub fn key_from_engine_hash(&self, hash: &[u8], group: u32, extras: &Extras) -> BlockKey {
        assert!(hash.len() <= ENGINE_HASH_BYTES_MAX, "an engine hash is at most 65,535 bytes");
        let mut message = Vec::with_capacity(8 + hash.len() + extras.encoding().len());
        message.extend_from_slice(&[KIND_ENGINE_HASH, extras_flag(extras)]);
        message.extend_from_slice(&(hash.len() as u16).to_le_bytes());
        message.extend_from_slice(&group.to_le_bytes());
        message.extend_from_slice(hash);
        message.extend_from_slice(extras.encoding());
        self.hash(&message)
    }

    #[inline]
    fn hash(&self, message: &[u8]) -> BlockKey {
        let mut key = [0; 16];
        key.copy_from_slice(&blake3::keyed_hash(&self.key, message).as_bytes()[..16]);
        BlockKey(key)
    }
}

impl std::fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainKey").field("key_check", &self.key_check).finish_non_exhaustive()
    }
}

fn extras_flag(extras: &Extras) -> u8 {
    if extras.is_none() { 0 } else { HAS_EXTRAS }
}
