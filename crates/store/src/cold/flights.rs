//! Blocks on their way back from flash: one read for all who want the same block.
//!
//! ```text
//!  read, prefetch ──join──► Waiting ──start──► Reading ──end──► Done ─the last waiter─► forgotten
//!                             └────────────── end ───────────────┘
//! ```

use std::collections::{HashMap, VecDeque};

use super::queue::TENANT_SHARE;
use crate::types::BlockKey;

/// A namespace's number, that it is still the same namespace, and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlightName {
    /// The namespace's number.
    pub ns: u16,
    /// Arrival of the namespace: a number may go to another.
    pub arrival: u64,
    /// The block's key.
    pub key: BlockKey,
}

/// How a flight ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The block is in memory, or was.
    Landed,
    /// There was no room, or the device was not to be had.
    Throttled,
    /// It is no longer on flash, or its bytes were bad.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Reading,
    Done(Ended),
}

#[derive(Debug)]
struct Flight {
    stage: Stage,
    waiters: u32,
    tenant: usize,
    bytes: u64,
}

/// Flights that nobody waits for leave one part in this many of the bytes to those who do.
const WAITED_SHARE: u64 = 4;

/// All flights; their number is bounded.
#[derive(Debug)]
pub struct Flights {
    by_name: HashMap<FlightName, Flight>,
    waiting: VecDeque<FlightName>,
    by_tenant: Vec<usize>,
    max: usize,
    share: usize,
    /// Bytes of flights that have not ended.
    bytes: u64,
    bytes_max: u64,
}

impl Flights {
    /// None yet; at most `max` at once, of `bytes_max` bytes together.
    pub fn new(max: u32, bytes_max: u64, tenants: usize) -> Flights {
        let parts = if tenants > 1 { TENANT_SHARE } else { 1 };
        Flights {
            by_name: HashMap::new(),
            waiting: VecDeque::new(),
            by_tenant: vec![0; tenants],
            max: max as usize,
            share: (max as usize).div_ceil(parts),
            bytes: 0,
            bytes_max,
        }
    }

    /// Bytes on their way.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Flights that have not ended.
    pub fn under_way(&self) -> usize {
        self.by_tenant.iter().sum()
    }

    /// Begins a flight unless there is one; `waits` says that the caller will `leave` it. False:
    /// there are as many as may be.
    pub fn join(&mut self, name: FlightName, tenant: usize, bytes: u64, waits: bool) -> bool {
        if let Some(flight) = self.by_name.get_mut(&name) {
            flight.waiters += u32::from(waits);
            return true;
        }
        let is_full = self.by_name.len() >= self.max || self.by_tenant[tenant] >= self.share;
        let kept = if waits { 0 } else { self.bytes_max / WAITED_SHARE };
        if is_full || (self.bytes > 0 && self.bytes + bytes > self.bytes_max - kept) {
            return false;
        }
        let waiters = u32::from(waits);
        self.by_name.insert(name, Flight { stage: Stage::Waiting, waiters, tenant, bytes });
        self.waiting.push_back(name);
        self.by_tenant[tenant] += 1;
        self.bytes += bytes;
        true
    }

    /// The next one to be read.
    pub fn start(&mut self) -> Option<FlightName> {
        let name = self.waiting.pop_front()?;
        let flight = self.by_name.get_mut(&name).expect("a waiting flight is known");
        flight.stage = Stage::Reading;
        Some(name)
    }

    /// It is over.
    pub fn end(&mut self, name: FlightName, how: Ended) {
        let flight = self.by_name.get_mut(&name).expect("a flight ends once");
        assert_eq!(flight.stage, Stage::Reading);
        flight.stage = Stage::Done(how);
        self.bytes -= flight.bytes;
        self.by_tenant[flight.tenant] -= 1;
        if flight.waiters == 0 {
            self.by_name.remove(&name);
        }
    }

    /// How it ended, if it has.
    pub fn ended(&self, name: FlightName) -> Option<Ended> {
        match self.by_name.get(&name).map(|flight| flight.stage) {
            Some(Stage::Done(how)) => Some(how),
            _ => None,
        }
    }

    /// A waiter goes, whether it ended or not.
    pub fn leave(&mut self, name: FlightName) {
        let flight = self.by_name.get_mut(&name).expect("a flight stays while one waits");
        flight.waiters -= 1;
        if flight.waiters == 0 && matches!(flight.stage, Stage::Done(_)) {
            self.by_name.remove(&name);
        }
    }

    /// None is left at all, ended ones included.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.bytes == 0 && self.under_way() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u8) -> FlightName {
        FlightName { ns: 1, arrival: 1, key: BlockKey([number; 16]) }
    }

    #[test]
    fn all_who_want_a_block_share_one_flight() {
        let mut flights = Flights::new(4, 100, 1);
        assert!(flights.join(name(1), 0, 10, true) && flights.join(name(1), 0, 10, true));
        assert!(flights.join(name(1), 0, 10, false));
        assert_eq!(flights.start(), Some(name(1)));
        assert_eq!(flights.start(), None);
        assert_eq!(flights.ended(name(1)), None);
        flights.leave(name(1));
        flights.end(name(1), Ended::Landed);
        assert_eq!(flights.ended(name(1)), Some(Ended::Landed));
        flights.leave(name(1));
        assert!(flights.is_empty());
    }

    #[test]
    fn number_and_bytes_are_bounded() {
        let mut flights = Flights::new(8, 100, 2);
        assert!(flights.join(name(1), 0, 500, false), "one may be as large as it likes");
        assert!(!flights.join(name(2), 0, 1, true));
        flights.start();
        flights.end(name(1), Ended::Gone);
        assert!(flights.join(name(2), 0, 50, false));
        assert!(!flights.join(name(3), 0, 50, false), "a quarter is for those who wait");
        assert!(flights.join(name(3), 0, 50, true));
        assert!(!flights.join(name(4), 0, 0, true), "a quarter of them");
        assert!(flights.join(name(4), 1, 0, true) && !flights.join(name(5), 1, 1, true));
    }
}
