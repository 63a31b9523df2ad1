//! What a node tells its operator: events from a closed list, with named fields.
//!
//! ```text
//!  say ──level──► limiter (per kind) ──► journal: a bounded ring ──► whoever listens (the node)
//!        nobody listens: nothing is done      full or contended: lost, counted
//! ```
//! A place that says something never waits: not for a lock, not for memory beyond one record, not
//! for whoever reads standard error. That is why lines are not written here: the node's own thread
//! takes records with [`Journal::next`] and formats them. An engine that embeds a store listens to
//! nothing, and there `say` costs one load.
//!
//! ```
//! use keepwarm_store::log::{self, Event};
//! log::say(Event::DeviceFenced, |line| {
//!     line.text("device", "/dev/nvme0n1").text("reason", "EIO").number("errors", 3);
//! });
//! ```
//! Fields never hold a secret, a token, a key or what a prompt says. `events.rs` is the list,
//! `record.rs` one record, `about.rs` the fields of a thread, `journal.rs` the ring and its limits.

mod about;
mod events;
mod journal;
mod record;

pub use about::{About, about};
pub use events::{Event, Level};
pub use journal::{BURST, INTERVAL, Journal};
pub use record::{Field, Line, Record};

/// The journal of this process.
static JOURNAL: Journal = Journal::new();

/// The journal of this process.
pub fn journal() -> &'static Journal {
    &JOURNAL
}

/// Says that something happened, if somebody listens at its level and its kind has not been said
/// too often lately. Never waits; `fields` is called only when the record is kept.
pub fn say(event: Event, fields: impl FnOnce(&mut Line)) {
    JOURNAL.say(event, fields);
}
