//! What the tests share: a namespace, keys, a small random generator whose seed is printed.
#![allow(dead_code)] // each test file uses its own part of this

pub mod traces;

use std::sync::Arc;

use keepwarm_store::identity::{ChainKey, NamespaceSpec, TenantSecret, Value};
use keepwarm_store::tiers::Tier;
use keepwarm_store::types::{BlockKey, Clock, Epoch, NamespaceId, PutOutcome};
use keepwarm_store::{BlockPut, ManualClock, Reserve, Session, Store, StoreConfig};

/// A namespace that differs from others in `tenant`, `model` and `parts`.
pub fn spec(tenant: &str, model: &str, parts: u8) -> NamespaceSpec {
    let text = |value: &str| Value::Str(value.into());
    let fields = [
        ("tenant", text(tenant)),
        ("model", text(model)),
        ("weights", text("sha256:0123abcd")),
        ("load", text("auto")),
        ("quantisation", text("none")),
        ("kv_dtype", text("bf16")),
        ("kv_scales", text("none")),
        ("layers", Value::Int(32)),
        ("kv_heads", Value::Int(8)),
        ("head_dim", Value::Int(128)),
        ("layout", text("NHD/KV")),
        ("engine", text("test/1")),
        ("attention_backend", text("NONE")),
        ("isa", text("any")),
        ("block_tokens", Value::Int(16)),
        ("kv_options", Value::List(Vec::new())),
        ("parallel", text("tp=1,pp=1")),
        ("connector", text("test/1")),
        ("parts", Value::Int(parts.into())),
        ("run_blocks", Value::Int(16)),
    ];
    NamespaceSpec::new(fields.map(|(name, value)| (name.to_string(), value))).expect("a namespace")
}

pub fn attach_with(session: &Session, spec: &NamespaceSpec, secret: &TenantSecret) -> NamespaceId {
    let check = ChainKey::new(spec, secret).key_check();
    session.attach(spec.encoding(), check, Epoch(0)).expect("an attached namespace").id
}

/// Attaches with the public default secret, which all tenants of these tests have.
pub fn attach(session: &Session, spec: &NamespaceSpec) -> NamespaceId {
    attach_with(session, spec, &TenantSecret::public_default())
}

/// A store on a clock of its own.
pub fn open(config: StoreConfig) -> (Arc<Store>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let store = Store::open(config, clock.clone() as Arc<dyn Clock>).expect("a store");
    (store, clock)
}

/// The same over this tier.
pub fn open_over(config: StoreConfig, tier: Arc<dyn Tier>) -> (Arc<Store>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let store = Store::open_over(config, clock.clone() as Arc<dyn Clock>, Some(tier));
    (store.expect("a store"), clock)
}

/// Spreads a number over 128 bits.
pub fn key(number: u64) -> BlockKey {
    let mixed = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    BlockKey((mixed ^ (mixed >> 64)).to_le_bytes())
}

/// Bytes that name their block: any mix-up shows.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ 0x5bd1_e995);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Puts one part in one go.
pub fn put(
    session: &Session,
    ns: NamespaceId,
    epoch: Epoch,
    key: BlockKey,
    part: u8,
    bytes: &[u8],
) -> PutOutcome {
    let put = BlockPut { key, part, len: bytes.len() as u32, engine_hash: None };
    match session.reserve(ns, epoch, put) {
        Reserve::Granted(mut grant) => {
            let checksum = grant.write_from(bytes);
            grant.commit(checksum)
        }
        Reserve::Present => PutOutcome::Present,
        Reserve::Pending => PutOutcome::Pending,
        Reserve::Shed(reason) => PutOutcome::Shed(reason),
    }
}

/// SplitMix64: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// The seed of a random test: `KEEPWARM_TEST_SEED`, else always the same one.
pub fn seed(test: &str) -> u64 {
    let seed = from_environment("KEEPWARM_TEST_SEED").unwrap_or(20_261_201);
    println!("{test}: KEEPWARM_TEST_SEED={seed}");
    seed
}

/// How much of something a test does: `few`, times `KEEPWARM_TEST_SCALE` (1).
pub fn scaled(few: u64) -> u64 {
    few * from_environment("KEEPWARM_TEST_SCALE").unwrap_or(1)
}

fn from_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
