//! Facts of one request that change its KV. They go into block keys, never into the namespace.

use std::collections::BTreeMap;

use super::IdentityError;
use super::encoding::{self, Value};

const MAGIC: [u8; 4] = *b"KWEX";
const DIGEST_BYTES_MAX: usize = 64;

/// The canonical encoding of what one block's key must know beyond its tokens; empty for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras(Vec<u8>);

impl Extras {
    /// Nothing beyond the tokens.
    pub const NONE: Extras = Extras(Vec::new());

    /// The bytes that enter the key's message; none for [`Extras::NONE`].
    pub fn encoding(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is nothing beyond the tokens.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    fn new(fields: &BTreeMap<String, Value>) -> Result<Extras, IdentityError> {
        if fields.is_empty() {
            return Ok(Extras::NONE);
        }
        encoding::encode(MAGIC, fields).map(Extras)
    }
}

/// A picture, a sound or a video whose embeddings stand at some of a prompt's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultimodalItem {
    /// Digest of the content as the engine computes it, 1 to 64 bytes.
    pub hash: Vec<u8>,
    /// Its first token, counted from the prompt's first.
    pub first_token: u64,
    /// Its tokens, 1 or more.
    pub tokens: u64,
}

impl MultimodalItem {
    fn end(&self) -> u64 {
        self.first_token + self.tokens
    }
}

/// What one request adds to its blocks' keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// Digest of the LoRA adapter's content, 1 to 64 bytes; its name is not enough.
    pub lora: Option<Vec<u8>>,
    /// What keeps this request's blocks apart from those of other salts.
    pub cache_salt: Option<Vec<u8>>,
    /// Contents other than text.
    pub multimodal: Vec<MultimodalItem>,
}

impl RequestFacts {
    /// The extras of `blocks` blocks of `block_tokens` tokens from token `first_token` on: one for
    /// all where no content other than text touches them, else one per block.
    ///
    /// An item belongs to every block that it overlaps, with its offset from that block's first
    /// token (negative where it began earlier), so that a block's key says where in the item it
    /// stands.
    ///
    /// # Errors
    /// A digest that is empty or longer than 64 bytes, an item without tokens or beyond 2^62, more
    /// than an encoding holds.
    pub fn extras(
        &self,
        first_token: u64,
        block_tokens: u32,
        blocks: usize,
    ) -> Result<Vec<Extras>, IdentityError> {
        self.check()?;
        let mut common = BTreeMap::new();
        let mut set = |name: &str, value: &Option<Vec<u8>>| {
            if let Some(bytes) = value {
                common.insert(name.to_owned(), Value::Bytes(bytes.clone()));
            }
        };
        set("cache_salt", &self.cache_salt);
        set("lora", &self.lora);
        if self.multimodal.is_empty() {
            return Ok(vec![Extras::new(&common)?]);
        }
        let plain = Extras::new(&common)?;
        let mut items: Vec<_> = self.multimodal.iter().collect();
        items.sort_by(|a, b| (a.first_token, &a.hash).cmp(&(b.first_token, &b.hash)));
        let mut all = Vec::with_capacity(blocks);
        let mut start = first_token;
        let mut rest = items.as_slice();
        for _ in 0..blocks {
            let end = start.saturating_add(u64::from(block_tokens));
            // Items are sorted: those in front that have ended need no second look.
            let ended = rest.iter().take_while(|item| item.end() <= start).count();
            rest = &rest[ended..];
            let here: Vec<_> = rest
                .iter()
                .take_while(|item| item.first_token < end)
                .filter(|item| item.end() > start)
                .map(|item| entry(item, start))
                .collect();
            if here.is_empty() {
                all.push(plain.clone());
            } else {
                let mut fields = common.clone();
                fields.insert("multimodal".to_owned(), Value::List(here));
                all.push(Extras::new(&fields)?);
            }
            start = end;
        }
        Ok(all)
    }

    fn check(&self) -> Result<(), IdentityError> {
        const WHAT: &str = "a digest of 1 to 64 bytes";
        let fits = |digest: &[u8]| (1..=DIGEST_BYTES_MAX).contains(&digest.len());
        let bad = |field, found: String, what| Err(IdentityError::BadValue { field, found, what });
        if let Some(lora) = self.lora.as_ref().filter(|lora| !fits(lora)) {
            return bad("lora (of the request)", format!("{} bytes long", lora.len()), WHAT);
        }
        for item in &self.multimodal {
            if !fits(&item.hash) {
                let found = format!("{} bytes long", item.hash.len());
                return bad("multimodal hash (of the request)", found, WHAT);
            }
            let limit = 1 << 62;
            if item.tokens == 0 || item.tokens > limit || item.first_token > limit {
                let found = format!("{} tokens from token {}", item.tokens, item.first_token);
                let what = "1 or more tokens, and numbers below 2^62";
                return bad("multimodal range (of the request)", found, what);
            }
        }
        Ok(())
    }
}

fn entry(item: &MultimodalItem, block_start: u64) -> Value {
    // Both are below 2^62 where they overlap, so that the difference fits.
    let offset = item.first_token as i64 - block_start as i64;
    Value::List(vec![
        Value::Bytes(item.hash.clone()),
        Value::Int(offset),
        Value::Int(item.tokens as i64),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(hash: u8, first_token: u64, tokens: u64) -> MultimodalItem {
        MultimodalItem { hash: vec![hash], first_token, tokens }
    }

    #[test]
    fn nothing_is_none() {
        let extras = RequestFacts::default().extras(0, 16, 5).unwrap();
        assert_eq!(extras, [Extras::NONE]);
    }

    #[test]
    fn an_item_marks_exactly_the_blocks_it_overlaps() {
        let facts = RequestFacts { multimodal: vec![item(7, 20, 12)], ..Default::default() };
        let extras = facts.extras(0, 16, 4).unwrap();
        let marked: Vec<_> = extras.iter().map(|extras| !extras.is_none()).collect();
        assert_eq!(marked, [false, true, false, false]);
        let facts = RequestFacts { multimodal: vec![item(7, 20, 13)], ..Default::default() };
        let extras = facts.extras(0, 16, 4).unwrap();
        assert!(!extras[2].is_none());
        assert_ne!(extras[1], extras[2], "the offset tells the item's blocks apart");
        // The same blocks, asked for from the second one on.
        assert_eq!(facts.extras(16, 16, 3).unwrap(), extras[1..]);
    }

    #[test]
    fn order_of_items_does_not_matter() {
        let one =
            RequestFacts { multimodal: vec![item(1, 0, 4), item(2, 4, 4)], ..Default::default() };
        let two =
            RequestFacts { multimodal: vec![item(2, 4, 4), item(1, 0, 4)], ..Default::default() };
        assert_eq!(one.extras(0, 16, 1).unwrap(), two.extras(0, 16, 1).unwrap());
    }

    #[test]
    fn an_empty_salt_is_not_no_salt() {
        let salted = RequestFacts { cache_salt: Some(vec![]), ..Default::default() };
        assert!(!salted.extras(0, 16, 1).unwrap()[0].is_none());
    }

    #[test]
    fn bad_digests_and_ranges_are_named() {
        let lora = RequestFacts { lora: Some(vec![0; 65]), ..Default::default() };
        let hash = RequestFacts {
            multimodal: vec![MultimodalItem { hash: vec![], first_token: 0, tokens: 1 }],
            ..Default::default()
        };
        let range = RequestFacts { multimodal: vec![item(1, 0, 0)], ..Default::default() };
        let far = RequestFacts { multimodal: vec![item(1, u64::MAX, 1)], ..Default::default() };
        for (facts, name) in
            [(lora, "lora"), (hash, "multimodal hash"), (range, "range"), (far, "range")]
        {
            let text = facts.extras(0, 16, 1).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}
