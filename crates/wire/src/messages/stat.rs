//! The node's figures as names and values: a reader takes the names it knows, so that figures can
//! be added without a new version.

use super::{Announcement, TEXT_BYTES_MAX};
use crate::codec::{Body, Malformed, Reader, Write, clipped, length};

/// Most bytes of a figure's name.
const NAME_BYTES_MAX: usize = 256;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub enum StatValue {
    /// A count, bytes, or nanoseconds, as the name says.
    Number(u64),
    /// A ratio.
    Ratio(f64),
    /// A name.
    Text(String),
}

/// Asks for the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatRequest;

impl Body for StatRequest {
    const NAME: &'static str = "stat request";

    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(StatRequest)
    }
}

/// The figures, in the node's order; names are dotted, units last. Where they are too many for one
/// frame, further ones follow: all but the last are flagged `MORE`.
#[derive(Clone, Debug, PartialEq)]
pub struct StatReply(pub Vec<(String, StatValue)>);

impl StatReply {
    /// Cuts the figures into what fits a frame; at least one.
    pub fn pages(self) -> Vec<StatReply> {
        let (mut pages, mut page, mut bytes) = (Vec::new(), Vec::new(), 0);
        for figure in self.0 {
            let more = figure_bytes(&figure);
            if bytes + more > PAGE_BYTES {
                pages.push(StatReply(std::mem::take(&mut page)));
                bytes = 0;
            }
            bytes += more;
            page.push(figure);
        }
        pages.push(StatReply(page));
        pages
    }
}

/// Most bytes of a page's figures: a quarter of what a body may have, and far fewer than
/// `KEYS_MAX` figures.
const PAGE_BYTES: usize = 1 << 20;

/// At least as many bytes as the figure takes in a body, and never few.
fn figure_bytes((name, value): &(String, StatValue)) -> usize {
    let text = match value {
        StatValue::Text(text) => text.len().min(TEXT_BYTES_MAX),
        StatValue::Number(_) | StatValue::Ratio(_) => 0,
    };
    FIGURE_BYTES_MOST + name.len().min(NAME_BYTES_MAX) + text
}

/// Two counts, a kind and a number, rounded up.
const FIGURE_BYTES_MOST: usize = 20;

impl Body for StatReply {
    const NAME: &'static str = "stat reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(length(self.0.len()));
        for (name, value) in &self.0 {
            out.put_counted(clipped(name, NAME_BYTES_MAX).as_bytes());
            match value {
                StatValue::Number(number) => {
                    out.put_u8(0);
                    out.put_u64(*number);
                }
                StatValue::Ratio(ratio) => {
                    out.put_u8(1);
                    out.put_u64(ratio.to_bits());
                }
                StatValue::Text(text) => {
                    out.put_u8(2);
                    out.put_counted(clipped(text, TEXT_BYTES_MAX).as_bytes());
                }
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let figures = reader.list(9, |reader| {
            let name = reader.text(NAME_BYTES_MAX)?;
            let value = match reader.u8()? {
                0 => StatValue::Number(reader.u64()?),
                1 => StatValue::Ratio(f64::from_bits(reader.u64()?)),
                2 => StatValue::Text(reader.text(TEXT_BYTES_MAX)?),
                _ => return Err(reader.malformed("unknown kind of figure")),
            };
            Ok((name, value))
        })?;
        Ok(StatReply(figures))
    }
}

/// Asks whether anybody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingRequest;

impl Body for PingRequest {
    const NAME: &'static str = "ping request";

    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(PingRequest)
    }
}

/// Somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// The node's incarnation.
    pub incarnation: u64,
    /// Its share.
    pub announcement: Announcement,
}

impl Body for PingReply {
    const NAME: &'static str = "ping reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        self.announcement.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(PingReply { incarnation: reader.u64()?, announcement: Announcement::read(reader)? })
    }
}
