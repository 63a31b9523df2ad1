//! What computing and bringing back cost, in seconds. A model, not a measurement: see each field.

use crate::memory::{Found, Tier};

/// How blocks come from a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds before the first byte.
    pub latency_s: f64,
    /// Bytes a second, for all transfers that share it.
    pub bytes_per_s: f64,
}

/// The cost model. A prefill costs `fixed_s`, and for its token at position `p` `token_s +
/// attention_s * p`: what every token costs in weights, and what it costs to attend to all before
/// it. What a prompt's answer costs is left out: it is the same whatever was restored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds of one replica for a request, whatever its length.
    pub fixed_s: f64,
    /// Seconds of one replica for a token at position 0.
    pub token_s: f64,
    /// Seconds more for each token before it.
    pub attention_s: f64,
    /// Bytes of KV that a token needs.
    pub token_bytes: f64,
    /// The way from each tier, by `Tier as usize`. Device memory needs none.
    pub links: [Link; Tier::ALL.len()],
}

impl Costs {
    /// Seconds to compute the tokens at positions `from..to`, those before it being there: the sum
    /// of what each costs, and what a request costs. None: nothing.
    pub fn prefill_s(&self, from: u32, to: u32) -> f64 {
        if from >= to {
            return 0.0;
        }
        let (from, to) = (f64::from(from), f64::from(to));
        let positions = (to * (to - 1.0) - from * (from - 1.0)) / 2.0;
        self.fixed_s + self.token_s * (to - from) + self.attention_s * positions
    }

    /// Seconds on the wire, without waiting and latency, of so many tokens.
    pub fn wire_s(&self, tier: usize, tokens: u32) -> f64 {
        f64::from(tokens) * self.token_bytes / self.links[tier].bytes_per_s
    }
}

/// When each tier's link is free again. Transfers on one link follow each other, so that who shares
/// it shares its bandwidth; links run beside each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links([f64; Tier::ALL.len()]);

impl Links {
    /// When so many tokens would be here if they were asked for now, with nothing else in between;
    /// `now_s` for none, and for those in device memory.
    pub fn arrival_s(&self, costs: &Costs, tier: usize, tokens: u32, now_s: f64) -> f64 {
        if tokens == 0 || tier == Tier::Device as usize {
            return now_s;
        }
        let begin = self.0[tier].max(now_s);
        begin + costs.links[tier].latency_s + costs.wire_s(tier, tokens)
    }

    /// Asks for them; returns when they are here.
    pub fn bring(&mut self, costs: &Costs, tier: usize, tokens: u32, now_s: f64) -> f64 {
        let arrival_s = self.arrival_s(costs, tier, tokens, now_s);
        if tokens > 0 && tier != Tier::Device as usize {
            self.0[tier] = self.0[tier].max(now_s) + costs.wire_s(tier, tokens);
        }
        arrival_s
    }
}

/// Tokens of so many whole blocks by tier, the nearest tier's first; together no more than the
/// prompt has: its last block may be partial.
pub fn tokens_by_tier(found: &Found, block_tokens: u32, input_tokens: u32) -> Found {
    let mut left = input_tokens;
    found.map(|blocks| {
        let tokens = blocks.saturating_mul(block_tokens).min(left);
        left -= tokens;
        tokens
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        let link = Link { latency_s: 0.5, bytes_per_s: 100.0 };
        let (fixed_s, token_s, attention_s) = (1.0, 2.0, 0.25);
        Costs { fixed_s, token_s, attention_s, token_bytes: 10.0, links: [link; 5] }
    }

    #[test]
    fn a_token_costs_more_the_later_it_stands() {
        // The request's own second, and positions 0, 1, 2: 1 + 2.00 + 2.25 + 2.50.
        assert_eq!(costs().prefill_s(0, 3), 7.75);
        // Position 2 alone, and none.
        assert_eq!(costs().prefill_s(2, 3), 3.5);
        assert_eq!(costs().prefill_s(3, 3), 0.0);
    }

    #[test]
    fn transfers_on_one_link_follow_each_other() {
        let (costs, mut links) = (costs(), Links::default());
        let (host, flash) = (Tier::Host as usize, Tier::Flash as usize);
        // 20 tokens are 200 bytes: 2 s on the wire, half a second before.
        assert_eq!(links.bring(&costs, host, 20, 1.0), 3.5);
        // The next begins when the wire is free at 3.0.
        assert_eq!(links.bring(&costs, host, 10, 1.0), 4.5);
        // Another link, and a wire that has been idle.
        assert_eq!(links.bring(&costs, flash, 10, 1.0), 2.5);
        assert_eq!(links.bring(&costs, host, 10, 9.0), 10.5);
        assert_eq!(links.bring(&costs, Tier::Device as usize, 10, 9.0), 9.0);
    }

    #[test]
    fn the_last_block_may_be_partial() {
        assert_eq!(tokens_by_tier(&[1, 0, 2, 0, 0], 16, 40), [16, 0, 24, 0, 0]);
        assert_eq!(tokens_by_tier(&[1, 0, 1, 0, 0], 16, 40), [16, 0, 16, 0, 0]);
    }
}
