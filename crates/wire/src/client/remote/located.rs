//! Gets by shared memory: the node says where blocks lie and holds them still, the calling thread
//! copies them out of the map. While one group is copied the next one's places are on their way.

use std::ops::Range;
use std::time::Duration;

use keepwarm_store::SystemClock;
use keepwarm_store::types::{
    Clock, Epoch, Generation, GetOutcome, Instant, MissReason, NamespaceId,
};

use super::link::{Cut, Link};
use crate::channel::Patience;
use crate::client::GetItem;
use crate::client::shm::Arena;
use crate::client::transport::SpaceCore;
use crate::codec::{Body, decode_with};
use crate::deadline::Deadline;
use crate::frame_io::flush;
use crate::frames::{Opcode, Violation, append_frame, flags};
use crate::messages::{
    GetAsk, LOCATED_BLOCKS_MAX, LOCATED_BYTES_MAX, Landed, LocateReply, LocateRequest, Located,
};

/// Share of a hold's time that is relied on.
const HOLD_USED_PERCENT: u32 = 80;

/// Blocks asked for together.
struct Group {
    items: Range<usize>,
    /// The correlation of its request.
    name: u64,
    asked_at: Instant,
}

/// What becomes of one get, group by group.
struct Landing<'a> {
    arena: &'a Arena,
    items: &'a [GetItem],
    outcomes: &'a mut [Option<GetOutcome>],
    until: Deadline,
    /// The reply under way; kept from group to group.
    places: Vec<Result<Located, GetOutcome>>,
    /// Groups that have landed, not yet told.
    landed: Vec<Landed>,
    /// Items that did not match.
    reports: Vec<(usize, Generation)>,
}

impl Link {
    /// As [`Link::get`], out of the node's mapped arena.
    ///
    /// # Safety
    /// As `Space::get_into`.
    pub(super) unsafe fn get_located(
        &mut self,
        space: &SpaceCore,
        arena: &Arena,
        items: &[GetItem],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Cut> {
        let namespace = self.namespace(space, until)?;
        let epoch = Epoch(space.epoch.load(std::sync::atomic::Ordering::Acquire));
        let (places, landed, reports) = (Vec::new(), Vec::new(), Vec::new());
        let mut landing = Landing { arena, items, outcomes, until, places, landed, reports };
        // SAFETY: the caller's promise about `items`.
        let result = unsafe { self.locate_all(&mut landing, (namespace, epoch)) };
        let Landing { landed, reports, .. } = landing;
        result?;
        self.tell_landed(&landed, until)?;
        let reports: Vec<_> = reports.iter().map(|(at, found)| (&items[*at], *found)).collect();
        self.report_all(namespace, &reports, until)
    }

    /// # Safety
    /// As [`Link::get_located`].
    unsafe fn locate_all(
        &mut self,
        landing: &mut Landing<'_>,
        names: (NamespaceId, Epoch),
    ) -> Result<(), Cut> {
        let mut waiting = Some(self.ask_group(landing, 0, names)?);
        while let Some(group) = waiting.take() {
            if group.items.end < landing.items.len() {
                waiting = Some(self.ask_group(landing, group.items.end, names)?);
            }
            let located = self.receive_group(&group, landing);
            if let (Err(Cut::Refused(_) | Cut::Busy { ends: false, .. }), Some(next)) =
                (&located, &waiting)
            {
                // The connection goes on, so the answer under way must not be left in it.
                match self.receive_group(next, landing) {
                    Ok(_) | Err(Cut::Refused(_) | Cut::Busy { ends: false, .. }) => {}
                    Err(cut) => return Err(cut),
                }
            }
            let hold = located?;
            // SAFETY: the caller's promise.
            unsafe { landing.copy(&group, hold, &mut self.corrupt) }?;
        }
        Ok(())
    }

    /// Asks for as many items from `start` on as one group may have.
    fn ask_group(
        &mut self,
        landing: &mut Landing<'_>,
        start: usize,
        names: (NamespaceId, Epoch),
    ) -> Result<Group, Cut> {
        let mut bytes = 0;
        let fitting = landing.items[start..].iter().take(LOCATED_BLOCKS_MAX).take_while(|item| {
            bytes += item.len as u64;
            bytes <= LOCATED_BYTES_MAX
        });
        let items = start..start + fitting.count().max(1);
        let ask = |item: &GetItem| GetAsk {
            key: item.key,
            part: item.part,
            length: crate::codec::length(item.len),
        };
        let asks = landing.items[items.clone()].iter().map(ask);
        let asked_at = SystemClock.now();
        let body = |out: &mut Vec<u8>| {
            LocateRequest::write_parts(out, names, &landing.landed, asks);
        };
        self.send(Opcode::Locate, body, landing.until)?;
        landing.landed.clear();
        Ok(Group { items, name: self.correlation, asked_at })
    }

    /// Receives a group's places; until when they hold.
    fn receive_group(&mut self, group: &Group, landing: &mut Landing<'_>) -> Result<Instant, Cut> {
        // Another request may be under way behind this one.
        let latest = std::mem::replace(&mut self.correlation, group.name);
        let received = self.receive_places(landing);
        self.correlation = latest;
        let hold_ms = received?;
        match landing.places.len() == group.items.len() {
            true => {
                let hold = Duration::from_millis(hold_ms.into()) * HOLD_USED_PERCENT / 100;
                Ok(group.asked_at.after(hold))
            }
            false => Err(Violation::Unexpected("another number of places than asks").into()),
        }
    }

    fn receive_places(&mut self, landing: &mut Landing<'_>) -> Result<u32, Cut> {
        let header = self.receive_header(landing.until)?;
        self.receive_frame(&header, Opcode::Locate, flags::REPLY, landing.until)?;
        let read = |reader: &mut crate::codec::Reader<'_>| {
            LocateReply::read_into(reader, &mut landing.places)
        };
        Ok(decode_with(self.version, &self.body, LocateReply::NAME, read)?)
    }

    /// Tells the node which groups need no pins any more; there is no answer.
    fn tell_landed(&mut self, landed: &[Landed], until: Deadline) -> Result<(), Cut> {
        self.out.clear();
        for landed in landed {
            self.correlation += 1;
            let head = self.head(Opcode::Landed, 0, 0);
            append_frame(&mut self.out, head, |out| landed.write(out))?;
        }
        Ok(flush(&mut self.socket, &mut self.out, &mut Patience::until(until))?)
    }
}

impl Landing<'_> {
    /// Copies a group's blocks, whose pins hold up to `hold`.
    ///
    /// # Safety
    /// As [`Link::get_located`].
    unsafe fn copy(&mut self, group: &Group, hold: Instant, corrupt: &mut u64) -> Result<(), Cut> {
        let mut unused = Vec::new();
        for (index, at) in (0u32..).zip(group.items.clone()) {
            let located = match &self.places[index as usize] {
                Ok(located) => located,
                Err(outcome) => {
                    self.outcomes[at] = Some(*outcome);
                    continue;
                }
            };
            let item = &self.items[at];
            // SAFETY: the caller's promise about `item`.
            let copied =
                unsafe { self.arena.copy(&located.extents, item.ptr, item.len, self.until) }?;
            let Some(digest) = copied else {
                return Err(Violation::Unexpected("extents that do not fit the block").into());
            };
            let outcome = if digest != located.checksum {
                *corrupt += 1;
                self.reports.push((at, located.generation));
                GetOutcome::Miss(MissReason::Corrupt)
            } else if SystemClock.now() > hold {
                // The node may have let go of it, and told somebody that no old bytes are read.
                GetOutcome::Miss(MissReason::Deadline)
            } else {
                GetOutcome::Ok
            };
            if outcome != GetOutcome::Ok {
                unused.push(index);
            }
            self.outcomes[at] = Some(outcome);
        }
        self.landed.push(Landed { group: group.name, unused });
        Ok(())
    }
}
