//! The handshake. Its layout is the same in every version, so that two builds that share none can
//! still tell each other so.

use super::Announcement;
use crate::codec::{Body, Malformed, Reader, Write, clipped};
use crate::credentials::TOKEN_BYTES_MAX;

/// Most bytes of a name or a transport's name.
const NAME_BYTES_MAX: usize = 256;
/// Most transports or capabilities in a greeting.
const NAMES_MAX: usize = 16;

/// Chosen at random by a client; its connections share one session by it, so that a lease taken
/// over one can be released over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

/// First frame of a connection, from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Oldest version the client speaks.
    pub version_oldest: u16,
    /// Newest version the client speaks.
    pub version: u16,
    /// See [`Token`].
    pub token: Token,
    /// The client's process.
    pub pid: u32,
    /// For logs: what the client is.
    pub name: String,
    /// A bearer token, from a client that has one. A node keeps its hash alone.
    pub credential: Option<Vec<u8>>,
}

impl Body for Greeting {
    const NAME: &'static str = "hello request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.version_oldest);
        out.put_u16(self.version);
        out.extend_from_slice(&self.token.0);
        out.put_u32(self.pid);
        out.put_counted(clipped(&self.name, NAME_BYTES_MAX).as_bytes());
        out.put_counted(self.credential.as_deref().unwrap_or_default());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Greeting {
            version_oldest: reader.u16()?,
            version: reader.u16()?,
            token: Token(reader.array()?),
            pid: reader.u32()?,
            name: reader.text(NAME_BYTES_MAX)?,
            credential: match reader.counted_bytes(TOKEN_BYTES_MAX)? {
                [] => None,
                token => Some(token.to_vec()),
            },
        })
    }
}

/// The node's answer: the version of every further frame, and who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreetingReply {
    /// Agreed on.
    pub version: u16,
    /// Random per start of the node; leases and namespace numbers of another one are void.
    pub incarnation: u64,
    /// The node's process.
    pub pid: u32,
    /// The node's name.
    pub node: String,
    /// Its share.
    pub announcement: Announcement,
    /// Ways to move bytes that this node offers, best first; `unix` is what this one is.
    pub transports: Vec<String>,
    /// What else the node can do; unknown names are ignored.
    pub capabilities: Vec<String>,
}

impl Body for GreetingReply {
    const NAME: &'static str = "hello reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.version);
        out.put_u64(self.incarnation);
        out.put_u32(self.pid);
        out.put_counted(clipped(&self.node, NAME_BYTES_MAX).as_bytes());
        self.announcement.write(out);
        write_names(out, &self.transports);
        write_names(out, &self.capabilities);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(GreetingReply {
            version: reader.u16()?,
            incarnation: reader.u64()?,
            pid: reader.u32()?,
            node: reader.text(NAME_BYTES_MAX)?,
            announcement: Announcement::read(reader)?,
            transports: read_names(reader)?,
            capabilities: read_names(reader)?,
        })
    }
}

fn write_names(out: &mut Vec<u8>, names: &[String]) {
    let names = &names[..names.len().min(NAMES_MAX)];
    out.put_u32(crate::codec::length(names.len()));
    names.iter().for_each(|name| out.put_counted(clipped(name, NAME_BYTES_MAX).as_bytes()));
}

fn read_names(reader: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    let count = reader.count(NAMES_MAX, 4)?;
    (0..count).map(|_| reader.text(NAME_BYTES_MAX)).collect()
}
