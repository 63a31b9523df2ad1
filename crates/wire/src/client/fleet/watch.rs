//! Keeps a fleet's view of itself fresh: asks each node how it is, and names for their nodes.
//!
//! Two threads at most, neither of which any call waits for: a resolver may hang for as long as it
//! likes.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::config::{FleetConfig, Seed};
use super::members::Roster;
use super::{Legs, names};
use crate::address::Address;
use crate::client::stats::Counts;
use crate::deadline::Deadline;

/// How often nodes are asked how they are.
const PERIOD: Duration = Duration::from_secs(1);
/// How long they may take to say so.
const ANSWER: Duration = Duration::from_secs(1);
/// How often names are asked for.
const NAMES_PERIOD: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;

/// The threads' end.
#[derive(Default)]
pub(super) struct Watch {
    stopped: Arc<(Mutex<bool>, Condvar)>,
}

impl Watch {
    /// Starts what the system has threads for; without them nodes are known by their answers to
    /// calls alone, and names by their first answer.
    pub(super) fn start(
        roster: &Arc<Roster>,
        legs: &Arc<Legs>,
        config: &FleetConfig,
        counts: &Arc<Counts>,
    ) -> Watch {
        let watch = Watch::default();
        let (weak, legs) = (Arc::downgrade(roster), legs.clone());
        watch.spawn("keepwarm-watch", PERIOD, move || ask_nodes(&weak, &legs));
        if config.seeds.iter().any(|seed| matches!(seed, Seed::Name { .. })) {
            let (weak, config, counts) = (Arc::downgrade(roster), config.clone(), counts.clone());
            watch.spawn("keepwarm-names", NAMES_PERIOD, move || ask_names(&weak, &config, &counts));
        }
        watch
    }

    /// Runs `round` at once and then every `period`, until it says that nobody wants to know.
    fn spawn(&self, name: &str, period: Duration, round: impl Fn() -> bool + Send + 'static) {
        let stopped = self.stopped.clone();
        let run = move || {
            while round() {
                let until = Deadline::after(period);
                let mut told = stopped.0.lock().unwrap_or_else(PoisonError::into_inner);
                while !*told && let Some(left) = until.left() {
                    let waited = stopped.1.wait_timeout(told, left);
                    told = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                if *told {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name(name.to_owned());
        let _ = builder.stack_size(STACK_BYTES).spawn(run);
    }

    pub(super) fn stop(&self) {
        *self.stopped.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.1.notify_all();
    }
}

fn ask_nodes(roster: &Weak<Roster>, legs: &Legs) -> bool {
    let Some(roster) = roster.upgrade() else { return false };
    let members = roster.members();
    let until = Deadline::after(ANSWER);
    let up = members.iter().filter(|member| member.transport.is_up());
    legs.run(up.map(|member| move || _ = member.transport.ping(until)).collect());
    // Notes who came and who went, whether or not anybody calls.
    roster.seated();
    true
}

fn ask_names(roster: &Weak<Roster>, config: &FleetConfig, counts: &Arc<Counts>) -> bool {
    let listed = names::all(&config.seeds, &names::resolve);
    let Some(roster) = roster.upgrade() else { return false };
    if let Some(listed) = listed {
        roster.set(&listed, |name| config.transport(Address::parse(name).ok()?, counts, None).ok());
    }
    true
}
