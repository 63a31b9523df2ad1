//! The nodes of a fleet as this client has them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use keepwarm_store::checksum::Hasher;

use super::placement::{NodeId, Seat};
use super::standing::{FleetTiming, View, seats, states};
use crate::client::transport::Transport;
use crate::client::{HealthState, NodeHealth};

/// One node: its name, the way to it, and how it stands.
pub(super) struct Member {
    /// As configured or resolved: what placement goes by.
    pub(super) name: String,
    pub(super) transport: Box<dyn Transport>,
    /// Locked for moments only.
    view: Mutex<View>,
}

impl Member {
    pub(super) fn new(
        name: String,
        transport: Box<dyn Transport>,
        joins: bool,
        now: Instant,
    ) -> Member {
        let view = View::new(NodeId::of(&name), joins, now);
        Member { name, transport, view: Mutex::new(view) }
    }

    /// How it stands now.
    fn look(&self, timing: &FleetTiming, now: Instant) -> View {
        let (answers, announced) = (self.transport.is_up(), self.transport.announced());
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.saw(answers, announced, timing, now);
        *view
    }

    fn leave(&self, leaving: bool) {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).leaving = leaving;
    }
}

/// The members at one moment.
pub(super) type Members = Arc<Vec<Arc<Member>>>;

/// Members come and go on the list alone; a call works with the list as it was when it began.
pub(super) struct Roster {
    list: RwLock<Members>,
    pub(super) timing: FleetTiming,
}

impl Roster {
    pub(super) fn new(members: Vec<Arc<Member>>, timing: FleetTiming) -> Roster {
        Roster { list: RwLock::new(Arc::new(members)), timing }
    }

    pub(super) fn members(&self) -> Members {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The members and their claims to runs.
    pub(super) fn seated(&self) -> (Members, Vec<Seat>) {
        let (members, now) = (self.members(), Instant::now());
        let views: Vec<View> =
            members.iter().map(|member| member.look(&self.timing, now)).collect();
        let seats = seats(&views, &self.timing, now);
        (members, seats)
    }

    /// How each stands, for people.
    pub(super) fn health(&self) -> Vec<NodeHealth> {
        let (members, now) = (self.members(), Instant::now());
        let views: Vec<View> =
            members.iter().map(|member| member.look(&self.timing, now)).collect();
        let states = states(&views, &self.timing, now);
        let of = |((member, view), (state, share)): ((&Arc<Member>, View), _)| NodeHealth {
            name: member.name.clone(),
            health: member.transport.health(),
            state,
            share,
            weight: view.announced.map_or(1.0, |said| f64::from(said.weight_permille) / 1e3),
        };
        members.iter().zip(views).zip(states).map(of).collect()
    }

    /// Stands for the lives of all nodes: another number after any restart.
    pub(super) fn incarnation(&self) -> u64 {
        let mut lives: Vec<(String, u64)> = Vec::new();
        for member in self.members().iter() {
            let life = member.transport.announced().map_or(0, |said| said.incarnation);
            lives.push((member.name.clone(), life));
        }
        lives.sort();
        let mut hasher = Hasher::new();
        for (name, life) in lives {
            hasher.update(name.as_bytes());
            hasher.update(&life.to_le_bytes());
        }
        hasher.digest()
    }

    /// Makes the list `names`: new ones are made by `make` and join; those that are gone take no
    /// new runs, and go for good once they do not answer. True: something changed.
    pub(super) fn set(
        &self,
        names: &[String],
        mut make: impl FnMut(&str) -> Option<Box<dyn Transport>>,
    ) -> bool {
        let (wanted, before): (HashSet<&String>, _) = (names.iter().collect(), self.members());
        let mut after: Vec<Arc<Member>> = Vec::new();
        for member in before.iter() {
            let stays = wanted.contains(&member.name);
            member.leave(!stays);
            if stays || member.transport.is_up() {
                after.push(member.clone());
            } else {
                member.transport.close();
            }
        }
        let known: HashSet<&String> = before.iter().map(|member| &member.name).collect();
        let joins = !before.is_empty();
        for name in names.iter().filter(|name| !known.contains(name)) {
            if let Some(transport) = make(name) {
                let member = Member::new(name.clone(), transport, joins, Instant::now());
                after.push(Arc::new(member));
            }
        }
        let same = |a: &Vec<Arc<Member>>, b: &Vec<Arc<Member>>| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let changed = !same(&before, &after);
        if changed {
            *self.list.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
        }
        changed
    }

    /// Whether any node answers, and what failed last at one that does not.
    pub(super) fn state(&self) -> (HealthState, Option<String>) {
        let (mut state, mut problem) = (HealthState::Down, None);
        for member in self.members().iter() {
            let health = member.transport.health();
            match (health.state, health.last_error) {
                (HealthState::Up, _) => state = HealthState::Up,
                (_, Some(error)) => problem = Some(format!("{}: {error}", member.name)),
                (_, None) => {}
            }
        }
        (state, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::gone::Gone;

    fn names(roster: &Roster) -> Vec<String> {
        roster.members().iter().map(|member| member.name.clone()).collect()
    }

    fn roster(listed: &[&str]) -> Roster {
        let member = |name: &&str| {
            let way = Box::new(Gone::new("never there"));
            Arc::new(Member::new(String::from(*name), way, false, Instant::now()))
        };
        Roster::new(listed.iter().map(member).collect(), FleetTiming::default())
    }

    fn set(roster: &Roster, listed: &[&str]) -> bool {
        let listed: Vec<String> = listed.iter().map(|name| String::from(*name)).collect();
        roster.set(&listed, |name| {
            (name != "bad").then(|| -> Box<dyn Transport> { Box::new(Gone::new("new")) })
        })
    }

    #[test]
    fn nodes_join_and_leave_with_the_list() {
        let roster = roster(&["a", "b"]);
        assert!(!set(&roster, &["b", "a"]), "the order does not matter");
        let kept = roster.members()[1].clone();
        assert!(set(&roster, &["b", "c", "bad"]));
        assert_eq!(names(&roster), ["b", "c"]);
        assert!(Arc::ptr_eq(&kept, &roster.members()[0]), "who stays is not made anew");
        let (members, seats) = roster.seated();
        assert_eq!((members.len(), seats.len()), (2, 2));
        let life = roster.incarnation();
        set(&roster, &["c"]);
        assert_ne!(roster.incarnation(), life);
    }
}
