//! Bodies, byte by byte: little-endian integers, counted lists, nothing implicit.
//!
//! Readers are total: any input gives a value or a [`Malformed`], never a panic, and a count is
//! checked against the bytes that are left before anything is allocated for it.

use keepwarm_store::types::BlockKey;

use crate::frames::KEYS_MAX;

/// A body that does not say what its opcode promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {message}: {problem}")]
pub struct Malformed {
    /// The message, for instance `lookup request`.
    pub message: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// What travels as the body of one opcode.
pub trait Body: Sized {
    /// Its name in errors.
    const NAME: &'static str;
    /// Appends the body.
    fn write(&self, out: &mut Vec<u8>);
    /// Reads the body; [`decode`] checks that nothing is left over.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Reads a whole body as spoken in wire version `version`.
pub fn decode<B: Body>(version: u16, bytes: &[u8]) -> Result<B, Malformed> {
    decode_with(version, bytes, B::NAME, B::read)
}

/// As [`decode`], by a reader of the caller's.
///
/// # Errors
/// As `read`, and for bytes that it left over.
pub fn decode_with<T>(
    version: u16,
    bytes: &[u8],
    message: &'static str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let mut reader = Reader { rest: bytes, version, message };
    let body = read(&mut reader)?;
    match reader.rest {
        [] => Ok(body),
        _ => Err(reader.malformed("bytes are left over")),
    }
}

/// The unread rest of a body.
pub struct Reader<'a> {
    rest: &'a [u8],
    version: u16,
    message: &'static str,
}

impl<'a> Reader<'a> {
    /// The version this body is spoken in: a body that changed between versions asks.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// An error about this body.
    pub fn malformed(&self, problem: &'static str) -> Malformed {
        Malformed { message: self.message, problem }
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(count) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(self.malformed("it ends too early")),
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(*head)
            }
            None => Err(self.malformed("it ends too early")),
        }
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// 0 or 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("a truth value is neither 0 nor 1")),
        }
    }

    /// An optional number: a truth value, then the number (zero if absent).
    pub fn option_u64(&mut self) -> Result<Option<u64>, Malformed> {
        let (present, value) = (self.bool()?, self.u64()?);
        match (present, value) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err(self.malformed("an absent number is not zero")),
        }
    }

    /// A count of at most `max` things of at least `least_bytes` each, all of which must be here.
    pub fn count(&mut self, max: usize, least_bytes: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(self.malformed("a count is above its limit"));
        }
        match count.checked_mul(least_bytes) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(self.malformed("a count promises more than is here")),
        }
    }

    /// A counted list of at most [`KEYS_MAX`] things of at least `least_bytes` each.
    pub fn list<T>(
        &mut self,
        least_bytes: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(KEYS_MAX, least_bytes)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }

    /// A counted list of keys.
    pub fn keys(&mut self) -> Result<Vec<BlockKey>, Malformed> {
        let count = self.count(KEYS_MAX, size_of::<BlockKey>())?;
        let (keys, _) = self.bytes(count * size_of::<BlockKey>())?.as_chunks();
        Ok(keys.iter().copied().map(BlockKey).collect())
    }

    /// A block key.
    pub fn key(&mut self) -> Result<BlockKey, Malformed> {
        self.array().map(BlockKey)
    }

    /// A counted run of at most `max` bytes.
    pub fn counted_bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let count = self.count(max, 1)?;
        self.bytes(count)
    }

    /// A counted UTF-8 text of at most `max` bytes.
    pub fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let bytes = self.counted_bytes(max)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.malformed("a text is not utf-8")),
        }
    }
}

/// Appends little-endian fields; the twin of [`Reader`].
pub trait Write {
    /// One byte.
    fn put_u8(&mut self, value: u8);
    /// Two bytes.
    fn put_u16(&mut self, value: u16);
    /// Four bytes.
    fn put_u32(&mut self, value: u32);
    /// Eight bytes.
    fn put_u64(&mut self, value: u64);
    /// As read by [`Reader::option_u64`].
    fn put_option_u64(&mut self, value: Option<u64>);
    /// As read by [`Reader::counted_bytes`].
    fn put_counted(&mut self, bytes: &[u8]);
    /// As read by [`Reader::keys`].
    fn put_keys(&mut self, keys: &[BlockKey]);
}

impl Write for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_option_u64(&mut self, value: Option<u64>) {
        self.put_u8(value.is_some().into());
        self.put_u64(value.unwrap_or(0));
    }

    fn put_counted(&mut self, bytes: &[u8]) {
        self.put_u32(length(bytes.len()));
        self.extend_from_slice(bytes);
    }

    fn put_keys(&mut self, keys: &[BlockKey]) {
        self.put_u32(length(keys.len()));
        self.reserve(size_of_val(keys));
        keys.iter().for_each(|key| self.extend_from_slice(&key.0));
    }
}

/// A count on the wire. Callers hold the limits of `frames`, so saturation is never seen; were it,
/// the receiver would refuse the body.
pub fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Cuts a text to at most `max` bytes at a character boundary.
pub fn clipped(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}
