//! A tenant's secret: 32 bytes without which nobody can compute or probe the tenant's block keys.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::IdentityError;

const DEFAULT_CONTEXT: &str = "keepwarm v1 public secret of tenant default";
const HEX_DIGITS: usize = 64;

/// The key of a tenant's key hash.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantSecret([u8; 32]);

impl TenantSecret {
    /// The secret of tenant `default`: a constant that everyone knows.
    pub fn public_default() -> Self {
        TenantSecret(blake3::derive_key(DEFAULT_CONTEXT, b""))
    }

    /// A secret from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        TenantSecret(bytes)
    }

    /// Reads 64 hex digits, with or without one line end, from a file that only its owner (this
    /// process's user, or root) can read.
    ///
    /// # Errors
    /// The file's name with what is wrong: unreadable, not a plain file, readable by others,
    /// another owner, not 64 hex digits. Never the content.
    pub fn from_file(path: &Path) -> Result<Self, IdentityError> {
        let refuse =
            |problem: String| IdentityError::Secret { path: path.display().to_string(), problem };
        // Opening a FIFO for reading would wait for a writer: look before, and again at what was
        // opened, since only that says whose bytes are read.
        let looked = std::fs::metadata(path).map_err(|e| refuse(format!("cannot be read: {e}")))?;
        if !looked.is_file() {
            return Err(refuse("is not a plain file: name a file with 64 hex digits".into()));
        }
        let mut file = File::open(path).map_err(|e| refuse(format!("cannot be read: {e}")))?;
        let meta = file.metadata().map_err(|e| refuse(format!("cannot be read: {e}")))?;
        if !meta.is_file() {
            return Err(refuse("is not a plain file: name a file with 64 hex digits".into()));
        }
        if meta.mode() & 0o077 != 0 {
            let mode = meta.mode() & 0o777;
            return Err(refuse(format!(
                "mode {mode:04o} lets others at it: run chmod 600 on it and make a new secret"
            )));
        }
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user && meta.uid() != 0 {
            let owner = meta.uid();
            return Err(refuse(format!(
                "belongs to user {owner}, neither to this user ({user}) nor to root: chown it"
            )));
        }
        let mut text = Vec::with_capacity(HEX_DIGITS + 3);
        let limit = (HEX_DIGITS + 3) as u64;
        file.by_ref().take(limit).read_to_end(&mut text).map_err(|e| refuse(e.to_string()))?;
        let digits = text.strip_suffix(b"\n").unwrap_or(&text);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        unhex(digits).map(TenantSecret).ok_or_else(|| {
            refuse("does not hold 64 hex digits: make one with openssl rand -hex 32".into())
        })
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for TenantSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantSecret(not shown)")
    }
}

fn unhex(digits: &[u8]) -> Option<[u8; 32]> {
    if digits.len() != HEX_DIGITS {
        return None;
    }
    let nibble = |c: u8| char::from(c).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    struct TempFile(PathBuf);

    impl TempFile {
        fn new(name: &str, text: &str, mode: u32) -> TempFile {
            let name = format!("keepwarm-secret-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            TempFile(path)
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_private_file_with_hex_is_read() {
        for (i, end) in ["", "\n", "\r\n"].iter().enumerate() {
            let text = format!("{}{end}", "0aF".repeat(21) + "9");
            let file = TempFile::new(&format!("good{i}"), &text, 0o600);
            let secret = TenantSecret::from_file(&file.0).unwrap();
            assert_eq!(secret.0[..3], [0x0a, 0xf0, 0xaf]);
        }
    }

    #[test]
    fn readable_by_others_is_refused_and_never_shown() {
        for mode in [0o640, 0o604, 0o620, 0o660, 0o666] {
            let file = TempFile::new(&format!("mode{mode:o}"), &"ab".repeat(32), mode);
            let text = TenantSecret::from_file(&file.0).unwrap_err().to_string();
            assert!(text.contains("chmod 600"), "{text}");
            assert!(text.contains(&format!("{mode:04o}")), "{text}");
            assert!(!text.contains("abab"), "{text}");
        }
    }

    #[test]
    fn anything_but_64_digits_is_refused() {
        let short = "ab".repeat(31);
        let long = "ab".repeat(33);
        let wrong = "zz".repeat(32);
        for (i, text) in [short.as_str(), &long, &wrong, "", "\n"].iter().enumerate() {
            let file = TempFile::new(&format!("bad{i}"), text, 0o600);
            let error = TenantSecret::from_file(&file.0).unwrap_err().to_string();
            assert!(error.contains("64 hex digits"), "{error}");
        }
    }

    #[test]
    fn a_folder_a_device_and_nothing_are_refused_by_name() {
        let folder = std::env::temp_dir();
        for path in [folder.as_path(), Path::new("/dev/zero")] {
            let text = TenantSecret::from_file(path).unwrap_err().to_string();
            assert!(text.contains("not a plain file"), "{text}");
        }
        let text = TenantSecret::from_file(Path::new("/nonexistent/s")).unwrap_err().to_string();
        assert!(text.contains("/nonexistent/s"), "{text}");
    }

    #[test]
    fn debug_does_not_show_it() {
        let shown = format!("{:?}", TenantSecret::from_bytes([0xab; 32]));
        assert!(!shown.contains("ab,") && !shown.contains("171"), "{shown}");
    }
}
