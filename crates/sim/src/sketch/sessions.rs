//! What sessions look like: each is watched from its first request to its last, or not at all.

use super::histogram::{Grouped, Told};
use crate::sample::jackknife::{Estimate, Sum, estimate};
use crate::sample::{ByHash, group, mix};

/// Sessions watched at most.
pub const SESSIONS_MAX: usize = 131_072;

#[derive(Clone, Copy, Debug)]
struct Session {
    requests: u32,
    input_tokens: u32,
    end_tokens: u64,
    latest_s: f64,
}

/// The watched sessions.
#[derive(Debug)]
pub struct Sessions {
    seed: u64,
    limit: u64,
    sessions_max: usize,
    held: ByHash<Session>,
    unknown: u64,
    tokens_added: Grouped,
    gap_s: Grouped,
}

/// What is told of them.
#[derive(Clone, Debug)]
pub struct SessionShape {
    /// Sessions in all.
    pub sessions: Estimate,
    /// Of one request.
    pub single_share: Estimate,
    /// Requests without a session.
    pub unknown: u64,
    /// Requests of each.
    pub requests: Told,
    /// From a prompt to its session's next one.
    pub tokens_added: Told,
    /// Between two requests.
    pub gap_s: Told,
    /// Input and output of the last request.
    pub tokens_at_end: Told,
}

impl Sessions {
    /// None yet.
    pub fn new(seed: u64, sessions_max: usize) -> Sessions {
        Sessions {
            // Another choice than among block ids.
            seed: seed ^ 0x5E55_1045,
            limit: u64::MAX,
            sessions_max,
            held: ByHash::default(),
            unknown: 0,
            tokens_added: Grouped::default(),
            gap_s: Grouped::default(),
        }
    }

    fn rate(&self) -> f64 {
        if self.limit == u64::MAX { 1.0 } else { self.limit as f64 / 2.0_f64.powi(64) }
    }

    /// Counts a request; `session` 0: it names none.
    #[inline]
    pub fn request(&mut self, session: u64, time_s: f64, input_tokens: u32, output_tokens: u32) {
        if session == 0 {
            self.unknown += 1;
            return;
        }
        let hash = mix(session, self.seed);
        if hash > self.limit {
            return;
        }
        let weight = 1.0 / self.rate();
        let end_tokens = u64::from(input_tokens) + u64::from(output_tokens);
        let now = Session { requests: 1, input_tokens, end_tokens, latest_s: time_s };
        match self.held.get_mut(&hash) {
            Some(held) => {
                let added = input_tokens.saturating_sub(held.input_tokens);
                self.tokens_added.add(group(hash), f64::from(added), weight);
                self.gap_s.add(group(hash), (time_s - held.latest_s).max(0.0), weight);
                *held = Session { requests: held.requests.saturating_add(1), ..now };
            }
            None => {
                self.held.insert(hash, now);
                if self.held.len() > self.sessions_max {
                    self.lower();
                }
            }
        }
    }

    fn lower(&mut self) {
        let mut hashes: Vec<u64> = self.held.keys().copied().collect();
        let kept = self.sessions_max / 4 * 3;
        let (_, &mut limit, _) = hashes.select_nth_unstable(kept);
        self.limit = limit;
        self.held.retain(|&hash, _| hash <= limit);
    }

    /// What is told of them.
    pub fn shape(&self) -> SessionShape {
        let rate = self.rate();
        let (mut all, mut single) = (Sum::default(), Sum::default());
        let (mut requests, mut tokens_at_end) = (Grouped::default(), Grouped::default());
        for (&hash, session) in &self.held {
            let group = group(hash);
            all.add(group, 1.0);
            single.add(group, f64::from(u8::from(session.requests == 1)));
            requests.add(group, f64::from(session.requests), 1.0);
            tokens_at_end.add(group, session.end_tokens as f64, 1.0);
        }
        let mut single_share =
            estimate(rate, |without| single.plain(without) / all.plain(without).max(1.0));
        if rate < 1.0 {
            single_share.error = single_share.error.max(4.6 / self.held.len().max(5) as f64);
        }
        SessionShape {
            sessions: estimate(rate, |without| all.plain(without) / rate),
            single_share,
            unknown: self.unknown,
            requests: requests.told(rate),
            tokens_added: self.tokens_added.told(rate),
            gap_s: self.gap_s.told(rate),
            tokens_at_end: tokens_at_end.told(rate),
        }
    }
}
