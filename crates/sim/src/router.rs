//! Which replica a request goes to.

use crate::requests::Requests;

/// A queue may be longer than the mean by this factor, and by what the prompt would cost cold.
pub const LOAD_BOUND: f64 = 1.25;

/// How requests are spread over replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Router {
    /// Each to the next one.
    #[default]
    RoundRobin,
    /// A session to one and the same, by its hash. Requests of no known session go round.
    Sticky,
    /// Prompts that begin with the same blocks to one and the same, by these blocks' hash. Prompts
    /// of which no block is known go round.
    PrefixHash {
        /// How many blocks.
        blocks: u32,
    },
    /// To the one that promises the first token soonest: its queue, the restore of what it has or
    /// can get, and the prefill of the rest; no queue longer than the bound. It knows all memories
    /// and queues exactly, as no real router does.
    KvAware,
}

/// What a KV-aware router knows of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// Seconds of prefill before this one's.
    pub queue_s: f64,
    /// Seconds until what it restores is here.
    pub restore_s: f64,
    /// Seconds for what it computes.
    pub prefill_s: f64,
    /// Tokens that it has computed, ever: the fewest win where promises are equal.
    pub computed_tokens: u64,
}

impl Promise {
    /// Seconds to the first token: blocks come while others are prefilled.
    pub fn first_s(&self) -> f64 {
        self.queue_s.max(self.restore_s) + self.prefill_s
    }
}

/// Spreads a 64-bit number's bits over all (`splitmix64`).
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The replica of a hash.
pub fn replica_of(hash: u64, replicas: usize) -> usize {
    ((u128::from(mix(hash)) * replicas as u128) >> 64) as usize
}

/// A prompt's first blocks as one hash; none: none is known.
pub fn prefix_hash(ids: &[u64], blocks: u32) -> Option<u64> {
    let first = &ids[..ids.len().min(blocks as usize)];
    (!first.is_empty()).then(|| first.iter().fold(0, |hash, id| mix(hash ^ id)))
}

/// The replica of a request, where its own facts decide; none: it goes round, or promises decide.
pub fn by_hash(router: Router, requests: &Requests<'_>, at: usize, count: usize) -> Option<usize> {
    let hash = match router {
        Router::RoundRobin | Router::KvAware => None,
        Router::Sticky => Some(requests.sessions[at]).filter(|session| *session != 0),
        Router::PrefixHash { blocks } => prefix_hash(requests.blocks(at), blocks),
    };
    hash.map(|hash| replica_of(hash, count))
}

/// The best promise among the replicas whose queue is within the bound. `cold_s`: what the prompt
/// costs where nothing of it is known.
pub fn best(promises: &[Promise], cold_s: f64) -> usize {
    let mean_s = promises.iter().map(|each| each.queue_s).sum::<f64>() / promises.len() as f64;
    let bound_s = mean_s * LOAD_BOUND + cold_s;
    let within = promises.iter().enumerate().filter(|(_, each)| each.queue_s <= bound_s);
    let by_promise = |(_, a): &(usize, &Promise), (_, b): &(usize, &Promise)| {
        let by_first = a.first_s().total_cmp(&b.first_s());
        by_first.then(a.computed_tokens.cmp(&b.computed_tokens))
    };
    within.min_by(by_promise).map_or(0, |(at, _)| at)
}
