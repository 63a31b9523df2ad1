//! Several replicas behind a router, with memory of their own and memory below, and what requests
//! wait for.
//!
//! ```text
//!   arrival ── router ──► replica: device, host ──► below: shared by all, or each its own
//!                │            what is here              what of the rest is there
//!                ▼
//!      restore (a link: one transfer after the other) ──► prefill (one after the other) ──► ttft
//! ```
//! A request's blocks are there for the next one from its arrival on: that its prefill takes a
//! while is not seen by memories. Answers are not modelled.

use crate::cache::SLOTS_MAX;
use crate::costs::{Costs, Links, tokens_by_tier};
use crate::hierarchy::Hierarchy;
use crate::interner::Interner;
use crate::memory::{Found, Memory, Tier};
use crate::outcomes::Outcomes;
use crate::replica::{Replica, Waiting};
use crate::requests::Requests;
use crate::router::{Promise, Router, best, by_hash};

/// What is below the replicas' own levels.
pub enum Below {
    /// Nothing.
    Nothing,
    /// Each replica has one to itself, behind links of its own.
    Local(Vec<Box<dyn Memory + Send>>),
    /// All have one together, behind links that they share.
    Shared(Box<dyn Memory + Send>),
}

/// What a fleet is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetSettings {
    /// How requests are spread.
    pub router: Router,
    /// What computing and restoring cost.
    pub costs: Costs,
    /// Restore only as much of a prefix as brings the first token sooner.
    pub is_planned: bool,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// More distinct blocks than a cache has slots for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBlocks;

/// What one request gets at one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    blocks: Found,
    tokens: Found,
    ready_s: f64,
    prefill_s: f64,
}

/// A fleet at work.
pub struct Fleet {
    settings: FleetSettings,
    replicas: Vec<Replica>,
    shared: Option<Box<dyn Memory + Send>>,
    shared_links: Links,
    interner: Interner,
    outcomes: Outcomes,
    /// Requests that went round so far.
    rounds: usize,
    numbers: Vec<u32>,
    promises: Vec<Promise>,
}

impl Fleet {
    /// An idle one: a replica for each of `own`, at least one.
    pub fn new(settings: FleetSettings, own: Vec<Hierarchy>, below: Below) -> Fleet {
        assert!(!own.is_empty(), "a fleet has a replica");
        let (mut locals, shared) = match below {
            Below::Nothing => (Vec::new(), None),
            Below::Shared(memory) => (Vec::new(), Some(memory)),
            Below::Local(memories) => {
                assert_eq!(memories.len(), own.len(), "a memory for each replica");
                (memories, None)
            }
        };
        let mut local = locals.drain(..);
        let replicas = own.into_iter().map(|own| Replica::new(own, local.next())).collect();
        Fleet {
            settings,
            replicas,
            shared,
            shared_links: Links::default(),
            interner: Interner::default(),
            outcomes: Outcomes::default(),
            rounds: 0,
            numbers: Vec::new(),
            promises: Vec::new(),
        }
    }

    /// Serves requests, in order of arrival.
    pub fn serve(&mut self, requests: &Requests<'_>) -> Result<(), TooManyBlocks> {
        for at in 0..requests.len() {
            self.number(requests.blocks(at))?;
            let (now_s, input_tokens) = (requests.times_s[at], requests.input_tokens[at]);
            let replica = match by_hash(self.settings.router, requests, at, self.replicas.len()) {
                Some(replica) => replica,
                None if self.settings.router == Router::KvAware => {
                    self.promised(now_s, input_tokens)
                }
                None => {
                    self.rounds += 1;
                    (self.rounds - 1) % self.replicas.len()
                }
            };
            self.serve_at(replica, now_s, input_tokens);
        }
        Ok(())
    }

    /// What became of all requests.
    pub fn finish(mut self) -> Outcomes {
        (0..self.replicas.len()).for_each(|replica| self.advance(replica, f64::INFINITY));
        self.outcomes
    }

    /// Distinct blocks so far.
    pub fn distinct_blocks(&self) -> usize {
        self.interner.len()
    }

    fn number(&mut self, ids: &[u64]) -> Result<(), TooManyBlocks> {
        self.numbers.clear();
        for id in ids {
            let number = self.interner.number(*id).filter(|number| *number < SLOTS_MAX);
            self.numbers.push(number.ok_or(TooManyBlocks)?);
        }
        Ok(())
    }

    fn advance(&mut self, replica: usize, now_s: f64) {
        let wait_s = &mut self.outcomes.wait_s;
        self.replicas[replica].advance(now_s, |began, start_s| {
            wait_s[began.request] = start_s - began.ready_s;
        });
    }

    /// The replica that promises the first token soonest.
    fn promised(&mut self, now_s: f64, input_tokens: u32) -> usize {
        self.promises.clear();
        for at in 0..self.replicas.len() {
            self.advance(at, now_s);
            let replica = &self.replicas[at];
            let mut found = replica.own.peek(&self.numbers, now_s);
            let rest = &self.numbers[found.iter().sum::<u32>() as usize..];
            let below = replica.local.as_deref().or(self.shared.as_deref());
            if let Some(memory) = below.filter(|_| !rest.is_empty()) {
                add(&mut found, &memory.peek(rest, now_s));
            }
            let plan = self.plan(at, found, now_s, input_tokens);
            let replica = &self.replicas[at];
            self.promises.push(Promise {
                queue_s: replica.queue_s(now_s),
                restore_s: plan.ready_s - now_s,
                prefill_s: plan.prefill_s,
                computed_tokens: replica.computed_tokens,
            });
        }
        best(&self.promises, self.settings.costs.prefill_s(0, input_tokens))
    }

    fn serve_at(&mut self, at: usize, now_s: f64, input_tokens: u32) {
        self.advance(at, now_s);
        let replica = &mut self.replicas[at];
        let mut found = replica.own.serve(&self.numbers, now_s);
        let rest = &self.numbers[found.iter().sum::<u32>() as usize..];
        if let Some(memory) = replica.local.as_deref_mut().or(self.shared.as_deref_mut()) {
            if !rest.is_empty() {
                add(&mut found, &memory.serve(rest, now_s));
            }
            if !replica.own.leavers().is_empty() {
                memory.offer(replica.own.leavers(), now_s);
            }
        }
        let plan = self.plan(at, found, now_s, input_tokens);
        for (tier, &tokens) in plan.tokens.iter().enumerate() {
            let links = match self.is_shared(tier) {
                true => &mut self.shared_links,
                false => &mut self.replicas[at].links,
            };
            links.bring(&self.settings.costs, tier, tokens, now_s);
        }
        self.record(at, &plan, now_s, input_tokens);
    }

    fn record(&mut self, at: usize, plan: &Plan, now_s: f64, input_tokens: u32) {
        let request = self.outcomes.len();
        let outcomes = &mut self.outcomes;
        outcomes.replica.push(at as u32);
        outcomes.input_tokens.push(input_tokens);
        outcomes.blocks.push(self.numbers.len() as u32);
        for tier in 0..Tier::ALL.len() {
            outcomes.hit_blocks[tier].push(plan.blocks[tier]);
            outcomes.hit_tokens[tier].push(plan.tokens[tier]);
        }
        outcomes.restore_s.push(plan.ready_s - now_s);
        outcomes.wait_s.push(0.0);
        outcomes.prefill_s.push(plan.prefill_s);
        let replica = &mut self.replicas[at];
        replica.computed_tokens += u64::from(input_tokens - plan.tokens.iter().sum::<u32>());
        replica.push(Waiting { ready_s: plan.ready_s, request, prefill_s: plan.prefill_s });
    }

    /// The links that lead from a tier to a replica.
    fn links(&self, at: usize, tier: usize) -> &Links {
        match self.is_shared(tier) {
            true => &self.shared_links,
            false => &self.replicas[at].links,
        }
    }

    fn is_shared(&self, tier: usize) -> bool {
        self.shared.is_some() && tier > Tier::Host as usize
    }

    /// What of what was found is used, and when it is here.
    fn plan(&self, at: usize, found: Found, now_s: f64, input_tokens: u32) -> Plan {
        let whole = self.cost(at, found, now_s, input_tokens);
        if !self.settings.is_planned {
            return whole;
        }
        // Less of the prefix, from device memory's alone upwards; of equal ones the longest.
        let mut kept = Found::default();
        kept[Tier::Device as usize] = found[Tier::Device as usize];
        let mut best = self.cost(at, kept, now_s, input_tokens);
        for tier in Tier::Host as usize..Tier::ALL.len() {
            for _ in 0..found[tier] {
                kept[tier] += 1;
                let plan = self.cost(at, kept, now_s, input_tokens);
                if plan.ready_s + plan.prefill_s <= best.ready_s + best.prefill_s {
                    best = plan;
                }
            }
        }
        best
    }

    /// What it takes to use these blocks and compute the rest.
    fn cost(&self, at: usize, blocks: Found, now_s: f64, input_tokens: u32) -> Plan {
        let costs = &self.settings.costs;
        let tokens = tokens_by_tier(&blocks, self.settings.block_tokens, input_tokens);
        let arrival_s =
            |tier: usize| self.links(at, tier).arrival_s(costs, tier, tokens[tier], now_s);
        let ready_s = (0..Tier::ALL.len()).map(arrival_s).fold(now_s, f64::max);
        // An engine computes a prompt's last token in any case: that is where its answer begins.
        let hit = tokens.iter().sum::<u32>().min(input_tokens.saturating_sub(1));
        let prefill_s = costs.prefill_s(hit, input_tokens);
        Plan { blocks, tokens, ready_s, prefill_s }
    }
}

fn add(found: &mut Found, more: &Found) {
    found.iter_mut().zip(more).for_each(|(found, more)| *found += more);
}
