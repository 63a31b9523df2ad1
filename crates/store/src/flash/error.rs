//! Why flash could not be opened. The text names the device and the remedy.

/// A device, or a set of them, that was refused or failed at open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another node has it.
    #[error("{device} is in use by {by}: stop that node, or give this one another device")]
    InUse {
        /// The device.
        device: String,
        /// Who has it, as far as is known.
        by: String,
    },
    /// It holds something that is not ours.
    #[error("{device} holds {what}: give another device, or erase this one with format")]
    Foreign {
        /// The device.
        device: String,
        /// What was found.
        what: &'static str,
    },
    /// It is of another version.
    #[error(
        "{device} has flash format version {version}, this node reads {reads}: use the node that \
         wrote it, or erase it with format"
    )]
    Version {
        /// The device.
        device: String,
        /// What it has.
        version: u16,
        /// What this code reads.
        reads: u16,
    },
    /// Both copies of its superblock are damaged.
    #[error("{device} has a damaged superblock, both copies: erase it with format")]
    Damaged {
        /// The device.
        device: String,
    },
    /// It does not fit the others, or what was asked for.
    #[error("{device} does not fit: {problem}")]
    Mismatch {
        /// The device.
        device: String,
        /// In what, and what to do.
        problem: String,
    },
    /// The system refused.
    #[error("{device} cannot be used, {what}: {error}")]
    Io {
        /// The device.
        device: String,
        /// What failed, and what to do.
        what: &'static str,
        /// What the system said.
        error: String,
    },
}
