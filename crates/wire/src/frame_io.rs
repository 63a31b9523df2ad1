//! Frames on a channel: what both ends share.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use keepwarm_store::checksum::Hasher;

use crate::channel::{Channel, Patience, receive_all, receive_some, send_all};
use crate::frames::{HEADER_BYTES, Header, Opcode, Violation};

/// A body's buffer grows by as much as has arrived, at least this: a promise of megabytes costs
/// nothing until they come.
pub const GROWTH_BYTES: usize = 64 << 10;

/// A buffer kept for the next frame is cut back to this.
const KEPT_BYTES: usize = 64 << 10;

/// Empties a buffer and gives back what is not kept for the next frame.
pub fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(KEPT_BYTES);
}

/// Why a frame did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The stream ended, stalled or failed.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// The frame cannot be believed.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl From<crate::codec::Malformed> for Broken {
    fn from(malformed: crate::codec::Malformed) -> Broken {
        Broken::Violation(malformed.into())
    }
}

/// Receives a header; `version` is the one agreed on, `None` within the handshake.
///
/// # Errors
/// The stream breaks, or the header is a violation.
pub fn receive_header(
    channel: &mut impl Channel,
    version: Option<u16>,
    patience: &mut Patience,
) -> Result<Header, Broken> {
    let mut bytes = [0; HEADER_BYTES];
    receive_all(channel, &mut bytes, patience)?;
    parse_header(&bytes, version)
}

/// Reads a header that has arrived.
///
/// # Errors
/// The header is a violation.
pub fn parse_header(bytes: &[u8; HEADER_BYTES], version: Option<u16>) -> Result<Header, Broken> {
    let header = Header::parse(bytes)?;
    match version {
        Some(agreed) if header.version != agreed => {
            Err(Violation::Version { found: header.version, agreed }.into())
        }
        _ => Ok(header),
    }
}

/// Receives the body of `header` into `body` and checks both.
///
/// # Errors
/// The stream breaks, or header and body do not match their checksum.
pub fn receive_body(
    channel: &mut impl Channel,
    header: &Header,
    body: &mut Vec<u8>,
    patience: &mut Patience,
) -> Result<(), Broken> {
    receive_body_within(channel, header, body, patience, |_| true).map(drop)
}

/// As [`receive_body`], asking `room` before each growth of the buffer whether there may be as many
/// bytes. False: no; then the body was checked, but is not kept. The first [`GROWTH_BYTES`] are
/// always there.
///
/// # Errors
/// As [`receive_body`].
pub fn receive_body_within(
    channel: &mut impl Channel,
    header: &Header,
    body: &mut Vec<u8>,
    patience: &mut Patience,
    mut room: impl FnMut(usize) -> bool,
) -> Result<bool, Broken> {
    empty(body);
    let bytes = header.body_bytes as usize;
    while body.len() < bytes {
        let start = body.len();
        let end = bytes.min(start + start.max(GROWTH_BYTES));
        if start > 0 && !room(end) {
            skip_rest(channel, header, body, patience)?;
            return Ok(false);
        }
        body.resize(end, 0);
        receive_all(channel, &mut body[start..], patience)?;
    }
    header.check(body)?;
    Ok(true)
}

/// Receives what is left of a body whose beginning is in `body`, and keeps nothing of it.
fn skip_rest(
    channel: &mut impl Channel,
    header: &Header,
    body: &mut Vec<u8>,
    patience: &mut Patience,
) -> Result<(), Broken> {
    let mut hash = header.hasher();
    hash.update(body);
    let mut left = header.body_bytes as usize - body.len();
    body.truncate(GROWTH_BYTES);
    body.shrink_to_fit();
    while left > 0 {
        let step = left.min(body.len());
        receive_all(channel, &mut body[..step], patience)?;
        hash.update(&body[..step]);
        left -= step;
    }
    empty(body);
    Ok(header.check_digest(&hash)?)
}

/// Sends what `out` holds and empties it.
///
/// # Errors
/// The stream breaks.
pub fn flush(
    channel: &mut impl Channel,
    out: &mut Vec<u8>,
    patience: &mut Patience,
) -> io::Result<()> {
    send_all(channel, &mut [IoSlice::new(out)], patience)?;
    empty(out);
    Ok(())
}

/// Receives into `slices` in order until at least `least` bytes are in, and hashes those of
/// `hashed` while they are hot. What is behind `least` may come along: the next frame's head.
/// Returns the digest and how many bytes came.
///
/// # Errors
/// The stream breaks.
pub(crate) fn receive_hashed(
    channel: &mut impl Channel,
    mut slices: &mut [IoSliceMut<'_>],
    hashed: Range<usize>,
    least: usize,
    patience: &mut Patience,
) -> io::Result<(u64, usize)> {
    let mut hash = Hasher::new();
    let mut have = 0;
    IoSliceMut::advance_slices(&mut slices, 0);
    while have < least {
        channel.owed(least - have);
        let received = receive_some(channel, slices, patience)?;
        let mut at = have;
        have += received;
        for slice in slices.iter() {
            let end = have.min(at + slice.len());
            let (from, to) = (at.max(hashed.start), end.min(hashed.end));
            if from < to {
                hash.update(&slice[from - at..to - at]);
            }
            at = end;
            if at == have {
                break;
            }
        }
        IoSliceMut::advance_slices(&mut slices, received);
    }
    channel.owed(0);
    Ok((hash.digest(), have))
}

/// Fails unless `header` is of this opcode, with exactly these flags.
///
/// # Errors
/// It is not.
pub fn expect(header: &Header, opcode: Opcode, flags: u8) -> Result<(), Violation> {
    match header.code == opcode as u8 && header.flags == flags {
        true => Ok(()),
        false => Err(Violation::Unexpected("another opcode or other flags than now belong here")),
    }
}
