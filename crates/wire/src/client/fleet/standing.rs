//! How a node stands with one client, and what that makes of its share. Pure: moments come from
//! outside.
//!
//! ```text
//!  steady ──calls fail──► away ──`grace` has passed──► out ──answers again──► growing ──► steady
//!    ▲                      │                                                    ▲
//!    ├──── answers again ───┘             a node that joins a running fleet ─────┤
//!    │                                    a node that started anew ──────────────┘
//!    └── draining: takes no new runs, is read until it is gone
//! ```
//!
//! - *away*: its runs miss and are not put elsewhere, so that a short break moves nothing.
//! - *out*: its runs go to the next node in each run's order, for puts and for reads.
//! - *growing*: its share grows in [`RAMP_STEPS`] equal steps, so that what it does not have yet is
//!   asked of it little by little. Reads ask, besides the run's node of the moment, the one that
//!   will have it in the end: what it still holds is found.
//!
//! A restart is seen by the node's age, which is the same for all clients: so they grow its share
//! in step. A whole fleet that starts within `ramp` grows nothing: there is nobody to lean on.

use std::time::{Duration, Instant};

use super::placement::{NodeId, Seat};
use crate::client::transport::Announced;

/// Steps in which a share grows.
pub(super) const RAMP_STEPS: u32 = 16;

/// How long what takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetTiming {
    /// How long a node may be silent before its runs go elsewhere. Too short: a restart moves them
    /// twice; too long: they miss for longer.
    pub grace: Duration,
    /// How long the share of a node that came anew takes to grow. Too short: it is asked for much
    /// that it does not have; too long: the others carry its share.
    pub ramp: Duration,
}

impl Default for FleetTiming {
    fn default() -> FleetTiming {
        FleetTiming { grace: Duration::from_secs(10), ramp: Duration::from_secs(60) }
    }
}

/// One node, as one client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answers; its share grows from the moment given, if any.
    Here { grows_from: Option<Instant> },
    /// It does not, since then; its share grew from the other moment, if any.
    Away { since: Instant, grows_from: Option<Instant> },
}

/// What people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It has its whole share.
    Steady,
    /// Its share grows.
    Growing,
    /// It takes no new runs.
    Draining,
    /// It does not answer; its runs miss.
    Away,
    /// It has not answered for long; its runs are elsewhere.
    Out,
}

impl NodeState {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Steady => "steady",
            NodeState::Growing => "growing",
            NodeState::Draining => "draining",
            NodeState::Away => "away",
            NodeState::Out => "out",
        }
    }
}

/// A node's standing and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) id: NodeId,
    pub(super) standing: Standing,
    pub(super) announced: Option<Announced>,
    /// Whether it is no longer on the list of nodes.
    pub(super) leaving: bool,
}

impl View {
    /// A node that is tried. `joins`: the others were there before it.
    pub(super) fn new(id: NodeId, joins: bool, now: Instant) -> View {
        let standing = Standing::Here { grows_from: joins.then_some(now) };
        View { id, standing, announced: None, leaving: false }
    }

    /// Whether calls are tried now, and what the node said last.
    pub(super) fn saw(
        &mut self,
        answers: bool,
        announced: Option<Announced>,
        timing: &FleetTiming,
        now: Instant,
    ) {
        self.standing = match (self.standing, answers) {
            (Standing::Here { grows_from }, false) => Standing::Away { since: now, grows_from },
            (Standing::Away { since, grows_from }, true) => {
                let out = now.saturating_duration_since(since) >= timing.grace;
                Standing::Here { grows_from: if out { Some(now) } else { grows_from } }
            }
            (same, _) => same,
        };
        if announced.is_some() {
            self.announced = announced;
        }
    }

    fn weight(&self) -> f64 {
        self.announced.map_or(1.0, |said| f64::from(said.weight_permille) / 1e3)
    }

    fn drains(&self) -> bool {
        self.leaving || self.announced.is_some_and(|said| said.draining)
    }

    /// Whether its runs are elsewhere. Who said that it goes is not waited for.
    fn is_out(&self, timing: &FleetTiming, now: Instant) -> bool {
        match self.standing {
            Standing::Here { .. } => false,
            Standing::Away { since, .. } => {
                self.drains() || now.saturating_duration_since(since) >= timing.grace
            }
        }
    }

    /// When its share began to grow, if it still does; `oldest` is when the oldest node began.
    fn grows_from(&self, oldest: Option<Instant>, timing: &FleetTiming) -> Option<Instant> {
        let (Standing::Here { grows_from: seen } | Standing::Away { grows_from: seen, .. }) =
            self.standing;
        let began = self.announced.map(|said| said.began);
        let anew = began.filter(|began| {
            oldest.is_some_and(|oldest| began.saturating_duration_since(oldest) >= timing.ramp)
        });
        seen.max(anew)
    }

    fn grown(&self, oldest: Option<Instant>, timing: &FleetTiming, now: Instant) -> f64 {
        let Some(from) = self.grows_from(oldest, timing) else { return 1.0 };
        let passed = now.saturating_duration_since(from);
        if passed >= timing.ramp {
            return 1.0;
        }
        let step = passed.as_secs_f64() / timing.ramp.as_secs_f64() * f64::from(RAMP_STEPS);
        (step.floor() + 1.0) / f64::from(RAMP_STEPS)
    }

    fn seat(&self, oldest: Option<Instant>, timing: &FleetTiming, now: Instant) -> Seat {
        let weight = if self.is_out(timing, now) { 0.0 } else { self.weight() };
        let puts = if self.drains() { 0.0 } else { weight * self.grown(oldest, timing, now) };
        Seat { id: self.id, puts, settled: weight }
    }

    fn state(&self, oldest: Option<Instant>, timing: &FleetTiming, now: Instant) -> NodeState {
        match self.standing {
            Standing::Away { .. } if self.is_out(timing, now) => NodeState::Out,
            Standing::Away { .. } => NodeState::Away,
            _ if self.drains() => NodeState::Draining,
            _ if self.grown(oldest, timing, now) < 1.0 => NodeState::Growing,
            _ => NodeState::Steady,
        }
    }
}

/// The nodes' claims at this moment.
pub(super) fn seats(views: &[View], timing: &FleetTiming, now: Instant) -> Vec<Seat> {
    let oldest = oldest(views);
    views.iter().map(|view| view.seat(oldest, timing, now)).collect()
}

/// How each stands at this moment, and the part of new runs that is its.
pub(super) fn states(views: &[View], timing: &FleetTiming, now: Instant) -> Vec<(NodeState, f64)> {
    let (oldest, seats) = (oldest(views), seats(views, timing, now));
    let sum: f64 = seats.iter().map(|seat| seat.puts).sum();
    let share = |seat: &Seat| if sum > 0.0 { seat.puts / sum } else { 0.0 };
    let state = |view: &View| view.state(oldest, timing, now);
    views.iter().map(state).zip(seats.iter().map(share)).collect()
}

fn oldest(views: &[View]) -> Option<Instant> {
    views.iter().filter_map(|view| view.announced.map(|said| said.began)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: FleetTiming =
        FleetTiming { grace: Duration::from_secs(10), ramp: Duration::from_secs(64) };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn said(incarnation: u64, began: Instant) -> Option<Announced> {
        Some(Announced { incarnation, began, weight_permille: 1000, draining: false })
    }

    /// Two nodes that have been there for an hour.
    fn pair(now: Instant) -> [View; 2] {
        ["a", "b"].map(|name| {
            let mut view = View::new(NodeId::of(name), false, now);
            view.saw(true, said(1, now), &TIMING, now);
            view
        })
    }

    fn puts(views: &[View], now: Instant) -> Vec<f64> {
        seats(views, &TIMING, now).iter().map(|seat| seat.puts).collect()
    }

    #[test]
    fn a_short_break_moves_nothing() {
        let start = Instant::now();
        let mut views = pair(start);
        views[0].saw(false, None, &TIMING, start + seconds(100));
        assert_eq!(puts(&views, start + seconds(109)), [1.0, 1.0]);
        views[0].saw(true, None, &TIMING, start + seconds(109));
        assert_eq!(puts(&views, start + seconds(109)), [1.0, 1.0]);
    }

    #[test]
    fn after_its_grace_a_node_is_out_and_comes_back_in_steps() {
        let start = Instant::now();
        let mut views = pair(start);
        views[0].saw(false, None, &TIMING, start + seconds(100));
        views[0].saw(false, None, &TIMING, start + seconds(105));
        let out = start + seconds(110);
        assert_eq!(puts(&views, out), [0.0, 1.0]);
        assert_eq!(states(&views, &TIMING, out)[0], (NodeState::Out, 0.0));
        let back = start + seconds(200);
        views[0].saw(true, said(1, start), &TIMING, back);
        let steps: Vec<f64> = (0..17).map(|n| puts(&views, back + seconds(4 * n))[0]).collect();
        let wanted: Vec<f64> = (1..=16).chain([16]).map(|n| f64::from(n) / 16.0).collect();
        assert_eq!(steps, wanted);
        let seat = seats(&views, &TIMING, back)[0];
        assert_eq!((seat.puts, seat.settled), (1.0 / 16.0, 1.0), "what it holds is still found");
        assert_eq!(states(&views, &TIMING, back)[0].0, NodeState::Growing);
        assert_eq!(states(&views, &TIMING, back + seconds(64))[0].0, NodeState::Steady);
    }

    #[test]
    fn all_clients_grow_a_restarted_node_in_step() {
        let start = Instant::now();
        let restarted = start + seconds(1000);
        let mut seen = pair(start);
        seen[0].saw(false, None, &TIMING, restarted);
        let mut missed = seen;
        missed[0] = pair(start)[0];
        seen[0].saw(true, said(2, restarted), &TIMING, restarted + seconds(3));
        missed[0].saw(true, said(2, restarted), &TIMING, restarted + seconds(7));
        for after in [8, 30, 63, 64, 100] {
            let now = restarted + seconds(after);
            assert_eq!(puts(&seen, now), puts(&missed, now));
        }
        assert_eq!(puts(&seen, restarted + seconds(8))[0], 3.0 / 16.0);
    }

    #[test]
    fn a_fleet_that_starts_together_grows_nothing() {
        let start = Instant::now();
        let mut views = pair(start);
        views[0].saw(true, said(2, start + seconds(5000)), &TIMING, start + seconds(5001));
        views[1].saw(true, said(2, start + seconds(5063)), &TIMING, start + seconds(5064));
        assert_eq!(puts(&views, start + seconds(5064)), [1.0, 1.0]);
    }

    #[test]
    fn who_drains_takes_nothing_new_and_is_out_as_soon_as_it_is_gone() {
        let start = Instant::now();
        let mut views = pair(start);
        let drains = said(1, start).map(|said| Announced { draining: true, ..said });
        views[0].saw(true, drains, &TIMING, start);
        let seat = seats(&views, &TIMING, start)[0];
        assert_eq!((seat.puts, seat.settled), (0.0, 1.0));
        assert_eq!(states(&views, &TIMING, start)[0].0, NodeState::Draining);
        views[0].saw(false, None, &TIMING, start);
        assert_eq!(seats(&views, &TIMING, start)[0].settled, 0.0);
    }
}
