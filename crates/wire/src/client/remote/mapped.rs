//! What a node offers beyond its socket to a client on its machine, for `client/shm`.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use keepwarm_store::types::{GetOutcome, PutOutcome};

use super::link::{Cut, Link};
use super::way::Way;
use super::{Remote, writes};
use crate::channel::Channel;
use crate::client::shm::Arena;
use crate::client::transport::{SpaceCore, Transport, Unserved, keys_here};
use crate::client::{GetItem, PutItem};
use crate::codec::{Body, decode};
use crate::deadline::Deadline;
use crate::frames::{Opcode, Violation, flags};
use crate::messages::{CARRIER_BYTES, MapReply, MapRequest};

/// Why there is no map.
#[derive(Debug)]
pub(in crate::client) enum NotMapped {
    /// The node cannot be reached just now.
    Later,
    /// It can, and this is why it stays with the socket.
    Never(String),
}

impl From<Cut> for NotMapped {
    fn from(cut: Cut) -> NotMapped {
        match cut {
            Cut::Refused(refusal) => NotMapped::Never(refusal.text),
            _ => NotMapped::Later,
        }
    }
}

/// The connection over which an arena was given out. It lives as long as the map, so that each side
/// sees the other's end.
pub(in crate::client) struct MapLine(Way);

impl MapLine {
    /// For others to end it.
    pub(in crate::client) fn shared(&self) -> Arc<OwnedFd> {
        self.0.shared()
    }
}

impl Remote {
    /// Asks for the node's arena and maps it, over a connection of its own.
    pub(in crate::client) fn map(&self, until: Deadline) -> Result<(Arena, MapLine), NotMapped> {
        let mut link = self.node.open(until)?;
        if !link.peer.offers_memory {
            let text = "the node does not give its arena to this client: give its principal the \
                        arena right, or upgrade the node";
            return Err(NotMapped::Never(String::from(text)));
        }
        let arena = link.map(until)?;
        Ok((arena, MapLine(link.socket)))
    }

    /// Of the node that answered last; 0 before the first.
    pub(in crate::client) fn node_incarnation(&self) -> u64 {
        self.incarnation()
    }

    /// Gets out of a mapped arena, or over the socket if the node has another one by now. False:
    /// what was copied from the map did not match, although the node's own bytes are good.
    ///
    /// # Safety
    /// As `Space::get_into`.
    pub(in crate::client) unsafe fn get_mapped(
        &self,
        space: &SpaceCore,
        arena: &Arena,
        items: &[GetItem],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<bool, Unserved> {
        let work = |link: &mut Link| {
            if link.peer.incarnation != arena.incarnation() {
                // SAFETY: the caller's promise about `items`.
                unsafe { link.get(space, items, outcomes, until) }?;
                return Ok(true);
            }
            // SAFETY: as above.
            unsafe { link.get_located(space, arena, items, outcomes, until) }?;
            Ok(!link.suspect)
        };
        Ok(self.node.with_link(until, work)?)
    }

    /// Puts through a staging; over the socket where the node takes none.
    ///
    /// # Safety
    /// As `Space::put_from`.
    pub(in crate::client) unsafe fn put_mapped(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let groups = writes::groups(items);
        let is_one = groups.len() == 1;
        let work = |link: &mut Link| {
            let staged = link.has_staging(until)?;
            groups.into_iter().try_for_each(|group: Range<usize>| {
                let (items, outcomes) = (&items[group.clone()], &mut outcomes[group]);
                // SAFETY: the caller's promise about `items`.
                unsafe {
                    match staged {
                        true => link.put_staged(space, items, outcomes, until),
                        false => link.put(space, items, outcomes, until),
                    }
                }
            })
        };
        self.node.with_link(until, work)?;
        if !is_one {
            // As with a put over the socket.
            let _ = self.touch(space, &keys_here(items, outcomes), &[], until);
        }
        Ok(())
    }
}

impl Link {
    fn map(&mut self, until: Deadline) -> Result<Arena, NotMapped> {
        let send = self.send(Opcode::Map, |out| MapRequest.write(out), until);
        let header = send.and_then(|()| self.receive_header(until))?;
        if header.flags == flags::REPLY | flags::REFUSED {
            self.receive_reply::<MapReply>(&header, Opcode::Map, until)?;
        }
        if header.payload_bytes != CARRIER_BYTES {
            return Err(Cut::from(Violation::Unexpected("a map without its carrier")).into());
        }
        self.receive_frame(&header, Opcode::Map, flags::REPLY, until)?;
        let reply: MapReply = decode(self.version, &self.body).map_err(Cut::from)?;
        let received = self.socket.receive_descriptor(until).map_err(Cut::from)?;
        let Some(memfd) = received else {
            let text = "the arena's descriptor did not arrive: something between this process and \
                        the node passes bytes only";
            return Err(NotMapped::Never(String::from(text)));
        };
        let failed =
            |error: io::Error| NotMapped::Never(format!("the arena is not mapped: {error}"));
        Arena::map(&memfd, reply).map_err(failed)
    }
}
