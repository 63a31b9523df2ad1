//! What happens on all nodes, as one stream: each batch is one node's.
//!
//! A thread a node waits for its events and hands them on, one batch at a time. The stream ends
//! with an error when a node's does, since what that node holds is unknown from then on: who goes
//! on from [`EventStream::places`] misses nothing of the others. A node that was not there when it
//! began is followed by the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use keepwarm_store::EventBatch;
use keepwarm_store::types::MissReason;

use super::members::Members;
use crate::client::transport::{SpaceCore, Unserved};
use crate::client::{ClientError, EventStream};
use crate::deadline::Deadline;
use crate::messages::Since;
use crate::process::ProcessId;

/// Batches of all nodes that wait to be taken.
const WAITING_MAX: usize = 16;
/// How soon a thread notices that nobody follows any more.
const LOOK_UP: Duration = Duration::from_millis(250);
const STACK_BYTES: usize = 256 << 10;

/// A node's batch, where it stands after it, and which node.
type Said = (usize, Result<EventBatch, ClientError>, Option<(u64, u64)>);

struct Merged {
    process: ProcessId,
    /// Taken only to be forgotten in a forked child.
    said: Option<Receiver<Said>>,
    over: Arc<AtomicBool>,
    /// By node: its name, and where it stands.
    nodes: Vec<(String, Option<(u64, u64)>)>,
    last: Option<usize>,
    ended: bool,
}

/// Follows every node that can be followed now.
///
/// # Errors
/// None can, or one does not answer in time.
pub(super) fn follow(
    members: &Members,
    space: &SpaceCore,
    since: &[(String, Since)],
    until: Deadline,
) -> Result<Box<dyn EventStream>, Unserved> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let mut merged = Merged {
        process: ProcessId::here(),
        said: Some(receiver),
        over: Arc::default(),
        nodes: Vec::new(),
        last: None,
        ended: false,
    };
    for member in members.iter().filter(|member| member.transport.is_up()) {
        let place: Vec<_> =
            since.iter().filter(|(name, _)| *name == member.name).cloned().collect();
        let stream = match member.transport.subscribe(space, &place, until) {
            Ok(stream) => stream,
            Err(refused @ Unserved::Refused(_)) => return Err(refused),
            Err(Unserved::Missed(MissReason::StoreDown)) => continue,
            Err(missed) => return Err(missed),
        };
        let (number, start) = (merged.nodes.len(), stream.since());
        merged.nodes.push((member.name.clone(), start));
        let (sender, over) = (sender.clone(), merged.over.clone());
        let builder = std::thread::Builder::new().name(String::from("keepwarm-events"));
        let hand_on = move || hand_on(number, stream, &sender, &over);
        if builder.stack_size(STACK_BYTES).spawn(hand_on).is_err() {
            return Err(Unserved::Refused(String::from("no thread to follow a node's events")));
        }
    }
    match merged.nodes.is_empty() {
        true => Err(Unserved::Missed(MissReason::StoreDown)),
        false => Ok(Box::new(merged)),
    }
}

fn hand_on(
    node: usize,
    mut stream: Box<dyn EventStream>,
    to: &SyncSender<Said>,
    over: &AtomicBool,
) {
    let mut told = None;
    while !over.load(Ordering::Acquire) {
        let batch = stream.next_batch(LOOK_UP);
        let (ended, place) = (batch.is_err(), stream.since());
        let nothing = is_nothing(&batch) && place == told;
        told = place;
        // Fails when the follower is gone; full, it waits for him, and the node for us.
        if !nothing && to.send((node, batch, place)).is_err() || ended {
            return;
        }
    }
}

/// Whether it only says where the node stands.
fn is_nothing(batch: &Result<EventBatch, ClientError>) -> bool {
    matches!(batch, Ok(EventBatch::Events { events, .. }) if events.is_empty())
}

impl EventStream for Merged {
    fn next_batch(&mut self, wait: Duration) -> Result<EventBatch, ClientError> {
        let gone = Err(ClientError::NotDone(MissReason::StoreDown));
        let (Some(said), false) = (&self.said, self.ended) else { return gone };
        if self.process != ProcessId::here() {
            return gone;
        }
        let until = Deadline::after(wait);
        loop {
            match said.recv_timeout(until.left().unwrap_or_default()) {
                Ok((node, batch, place)) if is_nothing(&batch) => self.nodes[node].1 = place,
                Ok((node, batch, place)) => {
                    self.last = Some(node);
                    self.ended = batch.is_err();
                    if !self.ended {
                        self.nodes[node].1 = place;
                    }
                    return batch;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.last = None;
                    return Ok(EventBatch::Events { events: Vec::new(), next: 0 });
                }
                Err(RecvTimeoutError::Disconnected) => return gone,
            }
        }
    }

    /// Of one node alone; see `places`.
    fn since(&self) -> Option<(u64, u64)> {
        None
    }

    fn node(&self) -> Option<&str> {
        self.last.map(|last| self.nodes[last].0.as_str())
    }

    fn places(&self) -> Vec<(String, u64, u64)> {
        let place = |(name, place): &(String, Option<(u64, u64)>)| {
            place.map(|(incarnation, sequence)| (name.clone(), incarnation, sequence))
        };
        self.nodes.iter().filter_map(place).collect()
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if self.process != ProcessId::here() {
            // The other end is with threads of the parent.
            std::mem::forget(self.said.take());
        }
    }
}
