//! One record: an event, when, and its fields.

use std::borrow::Cow;
use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::events::Event;

/// Bytes that a text field keeps: what a peer says about itself must not fill the journal.
const TEXT_BYTES_MAX: usize = 1024;

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Words; may hold anything that a peer said, so a writer escapes it.
    Text(String),
    /// A count, bytes, a number of a process.
    Number(u64),
    /// Seconds, shares.
    Ratio(f64),
}

/// An event that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What happened.
    pub event: Event,
    /// When, by the wall clock.
    pub unix_ms: u64,
    /// About what, in the order said.
    pub fields: Vec<(Cow<'static, str>, Field)>,
}

/// The fields of a record that is being made.
#[derive(Debug, Default)]
pub struct Line(pub(super) Vec<(Cow<'static, str>, Field)>);

impl Line {
    /// Adds words, cut to a kibibyte.
    pub fn text(&mut self, name: impl Into<Cow<'static, str>>, value: impl Display) -> &mut Line {
        let mut kept = Cut(String::new());
        // It refuses what is beyond its length, which is what is wanted.
        let _ = write!(kept, "{value}");
        self.0.push((name.into(), Field::Text(kept.0)));
        self
    }

    /// Adds a whole number.
    pub fn number(&mut self, name: impl Into<Cow<'static, str>>, value: u64) -> &mut Line {
        self.0.push((name.into(), Field::Number(value)));
        self
    }

    /// Adds a number with a fraction.
    pub fn ratio(&mut self, name: impl Into<Cow<'static, str>>, value: f64) -> &mut Line {
        self.0.push((name.into(), Field::Ratio(value)));
        self
    }

    pub(super) fn into_record(self, event: Event) -> Record {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Record { event, unix_ms: since.as_millis() as u64, fields: self.0 }
    }
}

/// Keeps the first bytes, whole characters.
struct Cut(String);

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            if self.0.len() + letter.len_utf8() > TEXT_BYTES_MAX {
                return Err(std::fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut line = Line::default();
        line.text("name", "é".repeat(10_000)).number("pid", 7).ratio("rate", 0.5);
        let record = line.into_record(Event::Connected);
        let Field::Text(text) = &record.fields[0].1 else { panic!("{record:?}") };
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        assert_eq!(record.fields[1], ("pid".into(), Field::Number(7)));
        assert!(record.unix_ms > 0);
    }
}
