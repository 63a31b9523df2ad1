//! What can go wrong outside of a call's ordinary outcomes.

use std::io;
use std::path::PathBuf;

use crate::arena::ArenaError;
use crate::identity::IdentityError;

/// A store that cannot open, or an epoch that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A setting that no store can have.
    #[error("{setting} is {found}: give {want}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        want: String,
    },
    /// The arena's memory could not be had.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The file of epochs cannot be read or written.
    #[error("epoch file {path}: {problem}")]
    Epochs {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
        /// What the system said, if it did.
        #[source]
        source: Option<io::Error>,
    },
    /// Flash cannot be used, or does not keep something.
    #[error("flash: {problem}")]
    Flash {
        /// What is wrong and what to do.
        problem: String,
        /// What the system said, if it did.
        #[source]
        source: Option<io::Error>,
    },
    /// The session did not attach this namespace.
    #[error("namespace {0} is not attached to the session: attach it first")]
    NotAttached(u16),
    /// No such tenant.
    #[error("tenant {0} is unknown here: add it to the node's configuration")]
    UnknownTenant(String),
}

/// Why a namespace was refused.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The encoding is not one of a namespace.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No such tenant here.
    #[error("tenant {0} is unknown here: add it to the node's configuration")]
    UnknownTenant(String),
    /// The two ends hash with different secrets.
    #[error(
        "key check of tenant {tenant} differs: node and client hold different secrets; give both \
         the same file"
    )]
    KeyCheck {
        /// The tenant.
        tenant: String,
    },
    /// All places are taken.
    #[error(
        "all {max} namespaces are in use by sessions: let go of spaces that are not needed, or \
         stop engines that hold them"
    )]
    TooMany {
        /// The limit.
        max: u16,
    },
    /// The tenant's share of the places is taken.
    #[error(
        "tenant {tenant} has {max} namespaces in use, its share of the node's: let go of spaces \
         that are not needed, or stop engines that hold them"
    )]
    TooManyOfTenant {
        /// The tenant.
        tenant: String,
        /// Its share.
        max: usize,
    },
    /// The larger epoch could not be made durable.
    #[error(transparent)]
    Store(#[from] StoreError),
}
