//! What a client shows a node, and how a node keeps what it compares that with.

use std::fmt;

use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

use crate::tls::TlsFiles;

/// Fewest bytes of a token: what is shorter could be guessed.
pub const TOKEN_BYTES_MIN: usize = 32;
/// Most bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 256;

/// A bearer token: whoever has it is its principal. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A token as it was given out.
    ///
    /// # Errors
    /// What is wrong with it; never the token itself.
    pub fn new(text: &str) -> Result<Secret, &'static str> {
        let text = text.trim();
        match text.len() {
            0..TOKEN_BYTES_MIN => Err("is shorter than 32 characters: make one with a tool"),
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX if text.bytes().all(|b| b.is_ascii_graphic()) => {
                Ok(Secret(text.to_owned()))
            }
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX => Err("has other characters than printable ASCII"),
            _ => Err("is longer than 256 characters"),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// How a node keeps a token: its SHA-256. A token has at least 128 random bits, so that no salt
/// and no slow hash is needed to keep it from being found.
#[derive(Clone, Copy, Debug, Eq)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Of a token's bytes.
    pub fn of(token: &[u8]) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        TokenHash(hash)
    }

    /// From `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<TokenHash> {
        let digits = text.strip_prefix("sha256:")?;
        let mut hash = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (place, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).ok()?;
        }
        Some(TokenHash(hash))
    }
}

/// Takes the same time wherever the two differ.
impl PartialEq for TokenHash {
    fn eq(&self, other: &TokenHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a client shows a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Certificates, for `tls://`.
    pub files: TlsFiles,
    /// A token. Shown under TLS, over the socket and over loopback, and nowhere else.
    pub token: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_kept_as_its_hash_and_never_printed() {
        let token = Secret::new(" 0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(format!("{token:?}"), "Secret");
        let hash = TokenHash::of(token.bytes());
        assert_eq!(TokenHash::parse(&hash.to_string()), Some(hash));
        assert_ne!(hash, TokenHash::of(b"0123456789abcdef0123456789abcdee"));
        for bad in ["", "short", "0123456789abcdef 0123456789abcdef", &"x".repeat(257)] {
            assert!(Secret::new(bad).is_err());
        }
        assert!(TokenHash::parse("sha256:00").is_none());
        assert!(TokenHash::parse(&format!("sha256:+{}", "0".repeat(63))).is_none());
    }
}
