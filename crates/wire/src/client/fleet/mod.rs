//! Several nodes as one memory: each call becomes one call a node, all at once, and one answer.
//!
//! `placement.rs` says which node has a run, `standing.rs` how a node that fails, drains or comes
//! back changes that, `members.rs` keeps the nodes. `lookups.rs`, `transfers.rs`, `leases.rs`,
//! `figures.rs` and `events.rs` cut calls into parts and merge answers; `watch.rs` asks nodes how
//! they are, `names.rs` what a name stands for, each on a thread of its own.
//!
//! Nodes know nothing of each other. A node's death costs its share of hits: its part of a call
//! misses, the other parts are served as if it were not there.

mod config;
mod events;
mod figures;
mod leases;
mod lookups;
mod members;
mod names;
mod placement;
#[cfg(test)]
mod placement_tests;
mod standing;
mod transfers;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome,
};
use keepwarm_store::{Lookup, Reported};

use self::leases::Leases;
use self::lookups::{Merged, merge, parts, reason_of};
use self::members::{Member, Members, Roster};
use self::placement::Seat;
use self::transfers::{Share, elsewhere, homes_of, shares};
use self::watch::Watch;
use super::legs::Legs;
use super::positions::Run;
use super::stats::{Counts, add};
use super::transport::{LookupAsk, SpaceCore, Transport, Unserved, get_rest, put_rest};
use super::{EpochOutcome, EventStream, GetItem, Health, NodeHealth, NodeStat, PutItem};
use crate::deadline::Deadline;
use crate::messages::Since;
use crate::process::ProcessId;

pub use self::config::{FleetConfig, Seed};
pub use self::standing::{FleetTiming, NodeState};

/// The way to a fleet from one process.
pub(super) struct Fleet {
    process: ProcessId,
    roster: Arc<Roster>,
    legs: Arc<Legs>,
    leases: Leases,
    counts: Arc<Counts>,
    watch: Watch,
}

/// What a leg came to, with the node that it went to.
type Answer<T> = (usize, Result<T, Unserved>);

impl Fleet {
    /// Asks all of `nodes` at once; those that are known to be down first, which takes no time.
    fn ask<T: Send>(
        &self,
        members: &Members,
        nodes: impl Iterator<Item = usize>,
        call: impl Fn(usize, &dyn Transport) -> Result<T, Unserved> + Sync,
    ) -> Vec<Answer<T>> {
        let call = &call;
        let work = |node: usize| {
            let member = &members[node];
            move || (node, call(node, &*member.transport))
        };
        let (up, down): (Vec<_>, Vec<_>) = nodes.partition(|node| members[*node].transport.is_up());
        let mut answers: Vec<Answer<T>> = down.into_iter().map(|node| work(node)()).collect();
        answers.extend(self.legs.run(up.into_iter().map(work).collect()));
        answers
    }

    /// Asks every node.
    fn ask_all<T: Send>(
        &self,
        call: impl Fn(usize, &dyn Transport) -> Result<T, Unserved> + Sync,
    ) -> (Members, Vec<Answer<T>>) {
        let members = self.roster.members();
        let answers = self.ask(&members, 0..members.len(), call);
        (members, answers)
    }

    /// One pass of gets, each node its share; what was not served gets its reason.
    ///
    /// # Safety
    /// As `Space::get_into`.
    unsafe fn get_shares(
        &self,
        space: &SpaceCore,
        members: &Members,
        shares: Vec<Share<GetItem>>,
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) {
        let work = |share: Share<GetItem>| {
            let transport = &members[share.node].transport;
            move || {
                let mut own = vec![None; share.items().len()];
                // SAFETY: the caller's promise; the shares of a pass have no item in common.
                let served =
                    unsafe { transport.get_into(space, share.items(), &[], &mut own, until) };
                (share.into_places(), own, served.err())
            }
        };
        for (places, own, unserved) in self.legs.run(shares.into_iter().map(work).collect()) {
            let rest = unserved.as_ref().map_or(MissReason::StoreDown, |e| self.count(e));
            for (place, outcome) in places.into_iter().zip(own) {
                outcomes[place] = Some(outcome.unwrap_or(get_rest(rest)));
            }
        }
    }

    /// Counts a cut leg; returns its reason as a miss.
    fn count(&self, unserved: &Unserved) -> MissReason {
        let reason = reason_of(unserved);
        if reason == MissReason::Deadline {
            add(&self.counts.deadlines, 1);
        }
        reason
    }

    /// Gives back leases that nothing rests on; unheard, they end by their time.
    fn give_back(&self, members: &Members, leases: Vec<(usize, LeaseId)>, until: Deadline) {
        let of = |node: usize| leases.iter().find(|(of, _)| *of == node).map(|(_, lease)| *lease);
        let nodes = leases.iter().map(|(node, _)| *node);
        self.ask(members, nodes, |node, transport| match of(node) {
            Some(lease) => transport.release(lease, until),
            None => Ok(()),
        });
    }

    fn seated(&self) -> Result<(Members, Vec<Seat>), Unserved> {
        let (members, seats) = self.roster.seated();
        match members.is_empty() {
            true => Err(Unserved::Missed(MissReason::StoreDown)),
            false => Ok((members, seats)),
        }
    }
}

impl Transport for Fleet {
    fn name(&self) -> &'static str {
        "fleet"
    }

    fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    fn health(&self) -> Health {
        let (state, last_error) = self.roster.state();
        let incarnation = Some(self.roster.incarnation());
        Health {
            state,
            last_error,
            transport: self.name(),
            fallback: None,
            incarnation,
            node: None,
        }
    }

    fn nodes(&self) -> Vec<NodeHealth> {
        self.roster.health()
    }

    fn wants_runs(&self) -> bool {
        true
    }

    fn attach(&self, space: &SpaceCore, until: Deadline) -> Result<(), Unserved> {
        let until = answer_by(until);
        let (members, answers) = self.ask_all(|_, transport| transport.attach(space, until));
        let mut missed = None;
        let mut joined = false;
        for (node, answer) in answers {
            match answer {
                Ok(()) => joined = true,
                Err(Unserved::Refused(text)) => {
                    return Err(Unserved::Refused(format!("{}: {text}", members[node].name)));
                }
                Err(Unserved::Missed(MissReason::Identity)) => {
                    return Err(Unserved::Missed(MissReason::Identity));
                }
                Err(missed_it) => missed = Some(missed_it),
            }
        }
        match (joined, missed) {
            (true, _) | (false, None) => Ok(()),
            (false, Some(missed)) => Err(missed),
        }
    }

    fn detach(&self, space: &SpaceCore) {
        self.roster.members().iter().for_each(|member| member.transport.detach(space));
    }

    fn lookup(
        &self,
        space: &SpaceCore,
        ask: &LookupAsk<'_>,
        until: Deadline,
    ) -> Result<Lookup, Unserved> {
        let (members, seats) = self.seated()?;
        let parts = parts(ask.keys, ask.runs, &seats);
        let legs_until = answer_by(until);
        let call = |part: &lookups::Part| {
            let (first_position, lease) = (ask.first_position, ask.lease);
            let ask = LookupAsk { keys: &part.keys, first_position, runs: &[], lease };
            members[part.node].transport.lookup(space, &ask, legs_until)
        };
        let call = &call;
        let answers = self.legs.run(parts.iter().map(|part| move || call(part)).collect());
        answers.iter().for_each(|answer| _ = answer.as_ref().map_err(|e| self.count(e)));
        let epoch = Epoch(space.epoch.load(std::sync::atomic::Ordering::Acquire));
        let incarnation = self.roster.incarnation();
        let Merged { mut lookup, leases, unused } =
            merge(ask.keys.len(), epoch, incarnation, &parts, answers)?;
        let of = |(node, lease): &(usize, LeaseId)| (members[*node].clone(), *lease);
        if !leases.is_empty() {
            let held = leases.iter().map(of).collect();
            lookup.lease = self.leases.keep(held, Instant::now());
            if lookup.lease.is_none() {
                lookup.lease_ms = 0;
                self.give_back(&members, leases, legs_until);
            }
        }
        self.give_back(&members, unused, legs_until);
        Ok(lookup)
    }

    unsafe fn get_into(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        runs: &[Run],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let (members, seats) = self.seated()?;
        let homes = homes_of(runs, &seats);
        let first = |run: usize, _| homes[run].map(|homes| homes.put);
        let pass = shares(items, runs, members.len(), first);
        // SAFETY: the caller's promise.
        unsafe { self.get_shares(space, &members, pass, outcomes, until) };
        let also = |run: usize, place: usize| match elsewhere(outcomes[place]) {
            true => homes[run].and_then(|homes| homes.also),
            false => None,
        };
        let pass = shares(items, runs, members.len(), also);
        if !pass.is_empty() && !until.passed() {
            // SAFETY: the caller's promise; the first pass is over.
            unsafe { self.get_shares(space, &members, pass, outcomes, until) };
        }
        Ok(())
    }

    unsafe fn put_from(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        runs: &[Run],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let (members, seats) = self.seated()?;
        let homes = homes_of(runs, &seats);
        let home = |run: usize, _| homes[run].map(|homes| homes.put);
        let work = |share: Share<PutItem>| {
            let transport = &members[share.node].transport;
            move || {
                let mut own = vec![None; share.items().len()];
                // SAFETY: the caller's promise about `items`.
                let served =
                    unsafe { transport.put_from(space, share.items(), &[], &mut own, until) };
                (share.into_places(), own, served.err())
            }
        };
        let shares = shares(items, runs, members.len(), home);
        for (places, own, unserved) in self.legs.run(shares.into_iter().map(work).collect()) {
            let rest = unserved.as_ref().map_or(MissReason::StoreDown, |e| self.count(e));
            for (place, outcome) in places.into_iter().zip(own) {
                outcomes[place] = Some(outcome.unwrap_or(PutOutcome::Shed(put_rest(rest))));
            }
        }
        Ok(())
    }

    fn touch(
        &self,
        space: &SpaceCore,
        keys: &[BlockKey],
        runs: &[Run],
        until: Deadline,
    ) -> Result<u32, Unserved> {
        let (members, seats) = self.seated()?;
        let (parts, until) = (parts(keys, runs, &seats), answer_by(until));
        let call = |part: &lookups::Part| {
            members[part.node].transport.touch(space, &part.keys, &[], until)
        };
        let call = &call;
        let answers = self.legs.run(parts.iter().map(|part| move || call(part)).collect());
        let sum = any(answers)?.into_iter().fold(0u32, u32::saturating_add);
        // A block that lies on two nodes is one.
        Ok(sum.min(u32::try_from(keys.len()).unwrap_or(u32::MAX)))
    }

    fn renew(&self, lease: LeaseId, hold: Duration, until: Deadline) -> Result<bool, Unserved> {
        let Some(parts) = self.leases.of(lease) else { return Ok(false) };
        let until = answer_by(until);
        let renew =
            |(member, lease): &(Arc<Member>, LeaseId)| member.transport.renew(*lease, hold, until);
        let renew = &renew;
        let answers = self.legs.run(parts.iter().map(|part| move || renew(part)).collect());
        // What holds nothing together is no lease: one that ended ends it.
        answers.into_iter().try_fold(true, |held, answer| Ok(held & answer?))
    }

    fn release(&self, lease: LeaseId, until: Deadline) -> Result<(), Unserved> {
        let Some(parts) = self.leases.forget(lease) else { return Ok(()) };
        let until = answer_by(until);
        let release =
            |(member, lease): &(Arc<Member>, LeaseId)| member.transport.release(*lease, until);
        let release = &release;
        let answers = self.legs.run(parts.iter().map(|part| move || release(part)).collect());
        answers.into_iter().collect()
    }

    /// To whoever served it: each node knows its own generations.
    fn report(
        &self,
        space: &SpaceCore,
        key: BlockKey,
        part: u8,
        generation: Generation,
        until: Deadline,
    ) -> Result<Reported, Unserved> {
        let until = answer_by(until);
        let report =
            |_, transport: &dyn Transport| transport.report(space, key, part, generation, until);
        let (_, answers) = self.ask_all(report);
        let found = any(answers.into_iter().map(|(_, answer)| answer).collect())?;
        let had = |reported| found.contains(&reported).then_some(reported);
        Ok(had(Reported::Removed).or_else(|| had(Reported::Intact)).unwrap_or(Reported::Gone))
    }

    /// On every node, wherever the blocks once belonged.
    fn drop_blocks(
        &self,
        space: &SpaceCore,
        keys: Option<&[BlockKey]>,
        until: Deadline,
    ) -> Result<u64, Unserved> {
        let (members, answers) =
            self.ask_all(|_, transport| transport.drop_blocks(space, keys, until));
        every(&members, answers, "dropped everywhere else").map(|counts| counts.iter().sum())
    }

    fn bump_epoch(
        &self,
        space: &SpaceCore,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<EpochOutcome, Unserved> {
        let (members, answers) =
            self.ask_all(|_, transport| transport.bump_epoch(space, epoch, until));
        let mut outcome = EpochOutcome::Acknowledged;
        let mut behind = Vec::new();
        for (node, answer) in answers {
            match answer {
                Ok(EpochOutcome::Acknowledged) => continue,
                Ok(worse) if outcome == EpochOutcome::Acknowledged => outcome = worse,
                Ok(_) => {}
                Err(Unserved::Refused(text)) => {
                    return Err(Unserved::Refused(format!("{}: {text}", members[node].name)));
                }
                Err(Unserved::Missed(_)) => outcome = EpochOutcome::NotReached,
            }
            behind.push(members[node].name.clone());
        }
        behind.sort();
        space.left_behind(behind);
        Ok(outcome)
    }

    fn stat(&self, until: Deadline) -> Result<NodeStat, Unserved> {
        let until = answer_by(until);
        let (_, answers) = self.ask_all(|_, transport| transport.stat(until));
        let mut stats: Vec<(usize, NodeStat)> = Vec::new();
        let mut failed = None;
        for (node, answer) in answers {
            match answer {
                Ok(stat) => stats.push((node, stat)),
                Err(unserved) => failed = Some(unserved),
            }
        }
        match failed {
            Some(unserved) if stats.is_empty() => Err(unserved),
            _ => Ok(figures::merge(&self.roster.health(), stats)),
        }
    }

    fn subscribe(
        &self,
        space: &SpaceCore,
        since: &[(String, Since)],
        until: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved> {
        events::follow(&self.roster.members(), space, since, until)
    }

    fn close(&self) {
        self.watch.stop();
        self.legs.close();
        self.roster.members().iter().for_each(|member| member.transport.close());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.process == ProcessId::here() {
            self.close();
        } else {
            // In a forked child locks and threads are the parent's; each node's way sees to itself.
            std::mem::forget((self.roster.clone(), self.legs.clone()));
        }
    }
}

/// When a node that has not answered counts as missed: early enough for the rest of the call.
fn answer_by(until: Deadline) -> Deadline {
    Deadline::after(until.left().unwrap_or_default() * 3 / 4)
}

/// What those who answered said; an error if nobody did.
fn any<T>(answers: Vec<Result<T, Unserved>>) -> Result<Vec<T>, Unserved> {
    let (mut said, mut failed) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(answer) => said.push(answer),
            Err(unserved) => failed = Some(unserved),
        }
    }
    match failed {
        Some(unserved) if said.is_empty() => Err(unserved),
        _ => Ok(said),
    }
}

/// What all said; an error that names those who did not answer.
fn every<T>(
    members: &Members,
    answers: Vec<Answer<T>>,
    otherwise: &str,
) -> Result<Vec<T>, Unserved> {
    let (mut said, mut missing, mut refused) = (Vec::new(), Vec::new(), None);
    let alone = members.len() < 2;
    for (node, answer) in answers {
        match answer {
            Ok(answer) => said.push(answer),
            Err(unserved) if alone => return Err(unserved),
            Err(Unserved::Refused(text)) => {
                refused = Some(format!("{}: {text}", members[node].name));
            }
            Err(Unserved::Missed(_)) => missing.push(members[node].name.clone()),
        }
    }
    missing.sort();
    match refused {
        Some(text) => Err(Unserved::Refused(text)),
        None if missing.is_empty() => Ok(said),
        None if said.is_empty() => Err(Unserved::Missed(MissReason::StoreDown)),
        None => Err(Unserved::Refused(format!(
            "not reached: {}; {otherwise}: do it again once they are back",
            missing.join(", ")
        ))),
    }
}
