//! What records of the journal say about connections.

use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use keepwarm_store::log::{self, About, Event, Line};

use super::ending::Ending;

/// From now on this thread's records name who is at the other end of a socket: the address, or on
/// this machine the process and user.
pub(super) fn about_peer(peer: impl AsFd) -> About {
    log::about(|line| {
        let address = rustix::net::getpeername(&peer).ok().flatten();
        if let Some(Ok(address)) = address.map(SocketAddr::try_from) {
            line.text("peer", address);
        } else if let Ok(theirs) = rustix::net::sockopt::socket_peercred(&peer) {
            line.number("peer_pid", theirs.pid.as_raw_nonzero().get().unsigned_abs().into());
            line.number("peer_uid", theirs.uid.as_raw().into());
        }
    })
}

/// A peer was not given what it asked for.
pub(super) fn say_refused(event: Event, reason: &dyn Display) {
    log::say(event, |line| reason_of(line, reason));
}

/// A connection ended.
pub(super) fn say_ending(ending: &Ending) {
    match ending {
        Ending::Violated(violation) => say_refused(Event::Violation, violation),
        Ending::Stalled => log::say(Event::Stalled, |_| {}),
        // Who refused it has said why.
        Ending::Refused(_) => say_refused(Event::Disconnected, &"refused"),
        Ending::Failed(error) => say_refused(Event::Disconnected, error),
        Ending::Closed => say_refused(Event::Disconnected, &"closed"),
        Ending::Idle => say_refused(Event::Disconnected, &"idle"),
    }
}

fn reason_of(line: &mut Line, reason: &dyn Display) {
    line.text("reason", reason);
}
