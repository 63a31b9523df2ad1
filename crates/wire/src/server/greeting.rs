//! The first frames of a connection: which version is spoken, and who the peer is.

use std::sync::Arc;

use keepwarm_store::log::Event;

use super::access::Guest;
use super::counts::add;
use super::ending::Ending;
use super::node::Node;
use super::principals::{Principal, Right, Shown};
use super::sessions::{Owner, Seat};
use super::shared::offers_memory;
use super::told::say_refused;
use crate::channel::{Channel, Patience};
use crate::codec::{Body, decode};
use crate::credentials::TokenHash;
use crate::deadline::Deadline;
use crate::frame_io::{expect, flush, receive_body, receive_header};
use crate::frames::{self, FrameHead, Header, Opcode, VERSION, Violation, append_frame, flags};
use crate::messages::{Greeting, GreetingReply, Refusal, RefusalCode};

/// Most bytes of a greeting that could be meant well, whatever its version.
const GREETING_BYTES_MAX: u32 = 4096;

/// A peer that was let in.
pub(super) struct Greeted<'a> {
    pub(super) session: Seat<'a>,
    pub(super) version: u16,
    pub(super) principal: Arc<Principal>,
}

/// Frame of a refusal that ends a connection, in the version agreed on if there is one.
pub(super) fn refusal(version: u16, correlation: u64, code: RefusalCode, text: String) -> Vec<u8> {
    let mut out = Vec::new();
    let flags = flags::REPLY | flags::REFUSED;
    let code_of_hello = Opcode::Hello as u8;
    let head = FrameHead { version, code: code_of_hello, flags, correlation, payload_bytes: 0 };
    // Its text is cut to what fits.
    let _ = append_frame(&mut out, head, |out| Refusal { code, text }.write(out));
    out
}

pub(super) fn no_payload(header: &Header) -> Result<(), Violation> {
    match header.payload_bytes {
        0 => Ok(()),
        bytes => Err(Violation::Payload { bytes, allowed: 0 }),
    }
}

/// The handshake, within its own time.
pub(super) fn greet<'a>(
    node: &'a Node,
    channel: &mut impl Channel,
    guest: &Guest,
) -> Result<Greeted<'a>, Ending> {
    let mut patience = Patience::until(Deadline::after(node.config.handshake));
    let header = receive_header(channel, None, &mut patience)?;
    expect(&header, Opcode::Hello, 0)?;
    no_payload(&header)?;
    if header.body_bytes > GREETING_BYTES_MAX {
        return Err(Violation::Unexpected("a greeting larger than any").into());
    }
    let mut body = Vec::new();
    receive_body(channel, &header, &mut body, &mut patience)?;
    let greeting: Greeting = decode(VERSION, &body)?;
    let mut refuse = |code, text: String| -> Result<Greeted<'a>, Ending> {
        say_refused(Event::ConnectionRefused, &text);
        let mut out = refusal(VERSION, header.correlation, code, text);
        flush(channel, &mut out, &mut patience)?;
        Err(Ending::Refused(code))
    };
    let Some(version) = frames::agree(greeting.version_oldest, greeting.version) else {
        let text = format!(
            "client {} speaks wire versions {} to {}, this node {} to {VERSION}: upgrade the older",
            greeting.name,
            greeting.version_oldest,
            greeting.version,
            frames::VERSION_OLDEST
        );
        return refuse(RefusalCode::Version, text);
    };
    let token = greeting.credential.as_deref().map(|token| Shown::Token(TokenHash::of(token)));
    let principal = match guest.admit(node, token) {
        Ok(principal) => principal,
        Err(text) => {
            add(&node.counts.refused_peers, 1);
            return refuse(RefusalCode::Peer, text);
        }
    };
    welcome(node, channel, guest, &principal, (version, header.correlation), &mut patience)?;
    node.counts.request(Opcode::Hello);
    let session = node.sessions.seat(&node.store, Owner::new(&principal, greeting.token));
    if !principal.rights.has(Right::Write) {
        session.keep_epochs();
    }
    Ok(Greeted { session, version, principal })
}

/// The node's answer to a greeting.
fn welcome(
    node: &Node,
    channel: &mut impl Channel,
    guest: &Guest,
    principal: &Principal,
    (version, correlation): (u16, u64),
    patience: &mut Patience,
) -> Result<(), Ending> {
    let mut capabilities = vec![String::from("events")];
    if principal.rights.has(Right::Arena) && offers_memory(node, channel) {
        capabilities.push(String::from("shm"));
    }
    let reply = GreetingReply {
        version,
        incarnation: node.store.incarnation(),
        pid: std::process::id(),
        node: node.config.node.clone(),
        announcement: node.announcement(),
        transports: vec![guest.transport.to_owned()],
        capabilities,
    };
    let head = FrameHead {
        version,
        code: Opcode::Hello as u8,
        flags: flags::REPLY,
        correlation,
        payload_bytes: 0,
    };
    let mut out = Vec::new();
    append_frame(&mut out, head, |out| reply.write(out))?;
    flush(channel, &mut out, patience)?;
    Ok(())
}
