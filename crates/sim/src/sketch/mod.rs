//! The structure of a trace in one pass and bounded memory: what repeats, how soon, between whom.

pub mod figures;
pub mod histogram;
pub mod sessions;

use histogram::{Grouped, Histogram};
use sessions::Sessions;

use crate::requests::Requests;
use crate::sample::jackknife::Sum;
use crate::sample::stack::HEAVY_LANE;
use crate::sample::watch::{Met, Watch};

/// Sums over blocks, and over their tokens.
pub type Sums = [Sum; 2];

/// From when on a reusable prefix counts as long: both must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongPrefix {
    /// Tokens of it.
    pub tokens: u32,
    /// Its share of the prompt.
    pub share: f64,
}

/// Whose the last use of a block was.
#[derive(Debug, Default)]
struct Previous {
    same: Sums,
    other: Sums,
    unknown: Sums,
}

impl Previous {
    /// 0 names nobody.
    #[inline]
    fn add(&mut self, before: u64, now: u64, lane: usize, weight: f64, tokens: f64) {
        let sums = match (before, now) {
            (0, _) | (_, 0) => &mut self.unknown,
            (before, now) if before == now => &mut self.same,
            _ => &mut self.other,
        };
        add(sums, lane, weight, tokens);
    }
}

#[inline]
fn add(sums: &mut Sums, lane: usize, weight: f64, tokens: f64) {
    sums[0].add(lane, weight);
    sums[1].add(lane, weight * tokens);
}

/// What is known of a watched block's last use.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    time_s: f64,
    session: u64,
    tenant: u64,
    is_reused: bool,
    /// Since it is heavy: uses, and those after which the prompt went on with a heavy block.
    heavy_uses: u32,
    continued: u32,
}

/// Requests counted whole.
#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    without_blocks: u64,
    input_tokens: u64,
    output_tokens: u64,
    uses: u64,
    block_tokens: u64,
    first_s: Option<f64>,
    latest_s: f64,
    input_length: Histogram,
    output_length: Histogram,
    /// Requests that are long enough to have a long reusable prefix.
    eligible: u64,
}

/// One pass over a trace.
#[derive(Debug)]
pub struct TraceSketch {
    block_tokens: u32,
    long: LongPrefix,
    watch: Watch,
    last: Vec<Last>,
    totals: Totals,
    sessions: Sessions,
    used: Sums,
    in_prefix: Sums,
    anywhere: Sums,
    by_session: Previous,
    by_tenant: Previous,
    tested: Sum,
    tested_long: Sum,
    distance: Grouped,
    time_s: Grouped,
    met: Vec<Met>,
}

/// What a request brings along, for each of its blocks.
#[derive(Clone, Copy)]
struct Asker {
    time_s: f64,
    session: u64,
    tenant: u64,
    input_tokens: u32,
    /// The position whose block decides whether the reusable prefix is long.
    test: Option<usize>,
}

impl TraceSketch {
    /// Nothing has been fed.
    pub fn new(
        block_tokens: u32,
        long: LongPrefix,
        seed: u64,
        watched_max: usize,
        sessions_max: usize,
    ) -> TraceSketch {
        TraceSketch {
            block_tokens,
            long,
            watch: Watch::new(seed, watched_max),
            last: Vec::new(),
            totals: Totals::default(),
            sessions: Sessions::new(seed, sessions_max),
            used: Sums::default(),
            in_prefix: Sums::default(),
            anywhere: Sums::default(),
            by_session: Previous::default(),
            by_tenant: Previous::default(),
            tested: Sum::default(),
            tested_long: Sum::default(),
            distance: Grouped::default(),
            time_s: Grouped::default(),
            met: Vec::new(),
        }
    }

    /// Takes requests in order of arrival.
    pub fn feed(&mut self, requests: &Requests<'_>) {
        for request in 0..requests.len() {
            let ids = requests.blocks(request);
            let (input, output) = (requests.input_tokens[request], requests.output_tokens[request]);
            let time_s = requests.times_s[request];
            let session = requests.sessions[request];
            self.count(time_s, input, output, ids.len());
            self.sessions.request(session, time_s, input, output);
            let tenant = requests.tenants[request];
            let test = self.test(input, ids.len());
            self.request(ids, Asker { time_s, session, tenant, input_tokens: input, test });
        }
    }

    fn count(&mut self, time_s: f64, input: u32, output: u32, blocks: usize) {
        let totals = &mut self.totals;
        totals.requests += 1;
        totals.without_blocks += u64::from(blocks == 0);
        totals.input_tokens += u64::from(input);
        totals.output_tokens += u64::from(output);
        totals.uses += blocks as u64;
        totals.block_tokens +=
            u64::from(input).min((blocks as u64).saturating_mul(u64::from(self.block_tokens)));
        totals.first_s.get_or_insert(time_s);
        totals.latest_s = time_s;
        totals.input_length.add(f64::from(input), 1.0);
        totals.output_length.add(f64::from(output), 1.0);
    }

    /// A prefix is reusable up to a block if that block was used before, since ids name all that
    /// lies before them: one block decides. None: the prompt is too short, or its blocks unknown.
    fn test(&mut self, input_tokens: u32, blocks: usize) -> Option<usize> {
        if input_tokens < self.long.tokens {
            return None;
        }
        let share = (self.long.share * f64::from(input_tokens)).ceil() as u64;
        let tokens = share.max(u64::from(self.long.tokens)).max(1);
        let needed = tokens.div_ceil(u64::from(self.block_tokens)) as usize;
        if needed > blocks {
            return None;
        }
        self.totals.eligible += 1;
        Some(needed - 1)
    }

    fn request(&mut self, ids: &[u64], asker: Asker) {
        self.met.clear();
        let (mut is_unbroken, mut heavy_before) = (true, None);
        for (position, &id) in ids.iter().enumerate() {
            let Some(met) = self.watch.meet(id, position as u32) else {
                heavy_before = None;
                continue;
            };
            self.met.push(met);
            // A block without weight has only just become heavy: it was used before.
            is_unbroken &= !(met.is_new && met.weight > 0.0);
            if met.weight > 0.0 {
                self.used(met, position, is_unbroken, &asker);
            }
            heavy_before = self.chain(met, heavy_before);
        }
        for at in (0..self.met.len()).rev() {
            let met = self.met[at];
            self.remember(met, &asker);
            self.watch.touch(met.block);
        }
        self.watch.settle();
    }

    fn used(&mut self, met: Met, position: usize, is_unbroken: bool, asker: &Asker) {
        let size = u64::from(self.block_tokens);
        let before = position as u64 * size;
        let tokens = size.min(u64::from(asker.input_tokens).saturating_sub(before)) as f64;
        let Met { block, lane, weight, is_new } = met;
        add(&mut self.used, lane, weight, tokens);
        if asker.test == Some(position) {
            self.tested.add(lane, weight);
            let is_long = is_unbroken && !is_new;
            self.tested_long.add(lane, if is_long { weight } else { 0.0 });
        }
        if is_new {
            return;
        }
        add(&mut self.anywhere, lane, weight, tokens);
        if is_unbroken {
            add(&mut self.in_prefix, lane, weight, tokens);
        }
        let last = self.last[block as usize];
        self.by_session.add(last.session, asker.session, lane, weight, tokens);
        self.by_tenant.add(last.tenant, asker.tenant, lane, weight, tokens);
        self.time_s.add(lane, (asker.time_s - last.time_s).max(0.0), weight);
        self.distance.add(lane, self.watch.ranks(block).all - 1.0, weight);
    }

    /// Notes that a heavy block follows another; the block that the next one may follow.
    fn chain(&mut self, met: Met, before: Option<u32>) -> Option<u32> {
        if met.lane != HEAVY_LANE || met.is_new {
            return None;
        }
        self.last[met.block as usize].heavy_uses += 1;
        if let Some(before) = before {
            self.last[before as usize].continued += 1;
        }
        Some(met.block)
    }

    fn remember(&mut self, met: Met, asker: &Asker) {
        let at = met.block as usize;
        if self.last.len() <= at {
            self.last.resize(at + 1, Last::default());
        }
        let before = if met.is_new { Last::default() } else { self.last[at] };
        self.last[at] = Last {
            time_s: asker.time_s,
            session: asker.session,
            tenant: asker.tenant,
            is_reused: !met.is_new,
            ..before
        };
    }
}
