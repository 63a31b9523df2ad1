//! What a sketch tells.

use super::histogram::Told;
use super::sessions::SessionShape;
use super::{Sums, TraceSketch};
use crate::sample::GROUPS;
use crate::sample::jackknife::{Estimate, Sum, estimate};

/// Hot prefixes told.
const HOTTEST: usize = 20;

/// A share of blocks, and of input tokens.
pub type Shares = [Estimate; 2];

/// A prefix that many requests begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// Its length.
    pub blocks: u32,
    /// Uses that were counted.
    pub uses: u32,
    /// Uses that may have been missed, at most.
    pub missed_max: u32,
}

/// Everything that a sketch tells.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Requests.
    pub requests: u64,
    /// Of these, without a block's id.
    pub without_blocks: u64,
    /// From the first to the last.
    pub span_s: f64,
    /// Of all prompts.
    pub input_tokens: u64,
    /// Of all answers.
    pub output_tokens: u64,
    /// Of a prompt.
    pub input_length: Told,
    /// Of an answer.
    pub output_length: Told,
    /// Uses of blocks.
    pub uses: u64,
    /// Distinct blocks.
    pub distinct: Estimate,
    /// Of these, used once.
    pub never_reused: Estimate,
    /// In the longest prefix that was asked for before.
    pub in_prefix: Shares,
    /// Asked for before, wherever.
    pub anywhere: Shares,
    /// Asked for before, by the same session the last time.
    pub sticky: Shares,
    /// Requests with a long reusable prefix.
    pub long: Estimate,
    /// Distinct blocks since the last use.
    pub distance: Told,
    /// Seconds since the last use.
    pub time_s: Told,
    /// Reuse after the same, another, an unknown session.
    pub by_session: [Estimate; 3],
    /// Reuse after the same, another, an unknown tenant.
    pub by_tenant: [Estimate; 3],
    /// What sessions look like.
    pub sessions: SessionShape,
    /// The most used prefixes.
    pub hottest: Vec<Hot>,
    /// Blocks watched at the end.
    pub watched: usize,
    /// Their share of all distinct blocks.
    pub rate: f64,
}

impl TraceSketch {
    /// What is told of all that was fed.
    pub fn figures(&self) -> Figures {
        let totals = &self.totals;
        let (plain, heavy) = self.watch.len();
        let rate = self.watch.rate();
        let counts = self.watch.plain_by_group(|_| true);
        let reused = self.watch.plain_by_group(|block| self.last[block as usize].is_reused);
        let [counts, reused] = [counts, reused].map(|groups| Sum {
            heavy: heavy as f64,
            groups: groups.map(|count| f64::from(count) / rate),
        });
        let distinct = |without| counts.heavy + counts.plain(without);
        Figures {
            requests: totals.requests,
            without_blocks: totals.without_blocks,
            span_s: totals.latest_s - totals.first_s.unwrap_or_default(),
            input_tokens: totals.input_tokens,
            output_tokens: totals.output_tokens,
            input_length: totals.input_length.told(),
            output_length: totals.output_length.told(),
            uses: totals.uses,
            distinct: estimate(rate, distinct),
            never_reused: self.share(|without| {
                ratio(counts.plain(without) - reused.plain(without), distinct(without))
            }),
            in_prefix: self.shares(&self.in_prefix),
            anywhere: self.shares(&self.anywhere),
            sticky: self.shares(&self.by_session.same),
            long: self.long_share(),
            distance: self.distance.told(rate),
            time_s: self.time_s.told(rate),
            by_session: self.thirds([
                &self.by_session.same,
                &self.by_session.other,
                &self.by_session.unknown,
            ]),
            by_tenant: self.thirds([
                &self.by_tenant.same,
                &self.by_tenant.other,
                &self.by_tenant.unknown,
            ]),
            sessions: self.sessions.shape(),
            hottest: self.hottest(),
            watched: plain + heavy,
            rate,
        }
    }

    /// A share with its error. Where all groups agree by chance some doubt remains: with 99 %
    /// confidence, what none of n blocks shows is no more often than in one of n / 4.6.
    fn share(&self, figure: impl Fn(Option<usize>) -> f64) -> Estimate {
        let mut share = estimate(self.watch.rate(), figure);
        if self.watch.rate() < 1.0 {
            share.error = share.error.max(4.6 / self.watch.len().0.max(5) as f64);
        }
        share
    }

    /// Uses of this kind: heavy ones are counted; of the others a share is known, and how many
    /// there are.
    fn total(&self, sums: &Sums, by: usize, without: Option<usize>) -> f64 {
        let all = [self.totals.uses, self.totals.block_tokens][by] as f64;
        let plain = all - self.used[by].heavy;
        sums[by].heavy + plain * ratio(sums[by].plain(without), self.used[by].plain(without))
    }

    fn shares(&self, sums: &Sums) -> Shares {
        let asked = [self.totals.uses as f64, self.totals.input_tokens as f64];
        [0, 1].map(|by| self.share(|without| ratio(self.total(sums, by, without), asked[by])))
    }

    fn thirds(&self, parts: [&Sums; 3]) -> [Estimate; 3] {
        parts.map(|part| {
            self.share(|without| {
                let all: f64 = parts.iter().map(|each| self.total(each, 0, without)).sum();
                ratio(self.total(part, 0, without), all)
            })
        })
    }

    fn long_share(&self) -> Estimate {
        let requests = self.totals.requests as f64;
        let plain = self.totals.eligible as f64 - self.tested.heavy;
        let mut share = self.share(|without| {
            let long = ratio(self.tested_long.plain(without), self.tested.plain(without));
            ratio(self.tested_long.heavy + plain * long, requests)
        });
        if self.tested.groups == [0.0; GROUPS] {
            share.error = share.error.max(ratio(plain, requests)); // nobody was tested
        }
        share
    }

    /// Heavy blocks at which prompts part: fewer than nine of ten go on with one heavy block.
    fn hottest(&self) -> Vec<Hot> {
        let parts = |block: u32| {
            let last = self.last[block as usize];
            u64::from(last.continued) * 10 < u64::from(last.heavy_uses) * 9
        };
        let heavies = self.watch.heavies().filter(|each| parts(each.tag()));
        let mut hottest: Vec<Hot> = heavies
            .map(|each| Hot {
                blocks: each.position + 1,
                uses: each.uses,
                missed_max: each.missed_max,
            })
            .collect();
        hottest.sort_unstable_by_key(|hot| std::cmp::Reverse((hot.uses, hot.blocks)));
        hottest.truncate(HOTTEST);
        hottest
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
