//! Who may share bytes with whom: namespaces, tenants' secrets, and the keys of blocks.
//!
//! A namespace is everything that makes two engines' blocks interchangeable. Its canonical encoding
//! is hashed into a fingerprint; the fingerprint and the tenant's secret make the key with which
//! block keys are chained. `docs/identity.md` gives every byte; `tests/vectors/identity.json` holds
//! it still.
//!
//! ```text
//! fields ──encode──► encoding ──BLAKE3──► fingerprint ─┐
//!                                                      ├─BLAKE3 keyed──► chain key ──► key(i)
//!                                     tenant's secret ─┘        └──────► key check
//! ```

mod chain;
mod encoding;
mod extras;
mod fields;
mod secret;
mod spec;
#[cfg(test)]
mod spec_tests;

pub use chain::ChainKey;
pub use encoding::{ENCODING_BYTES_MAX, Value};
pub use extras::{Extras, MultimodalItem, RequestFacts};
pub use fields::{FIELDS, Field, Kind};
pub use secret::TenantSecret;
pub use spec::NamespaceSpec;

/// Tenant of everyone who did not ask for another; its secret is a public constant.
pub const DEFAULT_TENANT: &str = "default";

/// Why an identity was refused. The text names the object and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A required field is not there.
    #[error("namespace field {field} is missing: give {what}; it is never guessed")]
    Missing {
        /// Name of the field.
        field: &'static str,
        /// What the field says.
        what: &'static str,
    },
    /// A field that namespaces do not have.
    #[error("namespace field {field} is unknown: {hint}")]
    Unknown {
        /// Name as given, cut at 64 characters.
        field: String,
        /// The nearest known name, or the list of all.
        hint: String,
    },
    /// A field whose value has the wrong type or range.
    #[error("namespace field {field} is {found}, which does not fit: give {what}")]
    BadValue {
        /// Name of the field.
        field: &'static str,
        /// The value, cut short.
        found: String,
        /// What the field says.
        what: &'static str,
    },
    /// Bytes that are not a canonical encoding.
    #[error("identity encoding is not canonical at byte {offset}: {problem}")]
    Encoding {
        /// Where reading stopped.
        offset: usize,
        /// What is wrong there.
        problem: &'static str,
    },
    /// More than an encoding may hold.
    #[error(
        "identity encoding of {bytes} bytes is larger than {ENCODING_BYTES_MAX}: shorten the \
         longest field, or put a digest in its place"
    )]
    TooLarge {
        /// Bytes it would take.
        bytes: usize,
    },
    /// A tenant's secret could not be used.
    #[error("secret file {path}: {problem}")]
    Secret {
        /// The file.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
}
