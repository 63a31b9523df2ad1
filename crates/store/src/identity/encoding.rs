//! The canonical encoding: typed values under sorted names. One set of fields has one encoding, and
//! only that one is accepted.
//!
//! ```text
//! magic 4 | version u8 | fields u16 | { name length u8 | name | value } sorted by name
//! value: 1 bool u8 · 2 int i64 · 3 str u32+bytes · 4 bytes u32+bytes · 5 list u32+values
//! ```
//! Numbers are little-endian.

use std::collections::BTreeMap;
use std::fmt;

use super::IdentityError;

/// No encoding is longer; checked before anything is read or allocated.
pub const ENCODING_BYTES_MAX: usize = 16 * 1024;
/// Lists inside lists, at most; bounds the recursion of the reader.
pub(super) const DEPTH_MAX: u32 = 8;
const NAME_BYTES_MAX: usize = 64;
const VERSION: u8 = 1;

/// One typed value of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Text, compared byte for byte; no Unicode normalisation.
    Str(String),
    /// Raw bytes, such as digests.
    Bytes(Vec<u8>),
    /// Values in an order that matters.
    List(Vec<Value>),
}

impl Value {
    /// Lists inside lists: 0 for a value that is none.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Value::List(values) => 1 + values.iter().map(Value::depth).max().unwrap_or(0),
            _ => 0,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Str(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

/// As an operator reads it; long values are cut, since this goes into error lines.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match self {
            Value::Bool(yes) => write!(f, "{yes}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Str(text) if text.chars().count() > SHOWN => {
                write!(f, "{:?}…", text.chars().take(SHOWN).collect::<String>())
            }
            Value::Str(text) => write!(f, "{text:?}"),
            Value::Bytes(bytes) => {
                f.write_str("0x")?;
                bytes.iter().take(SHOWN / 2).try_for_each(|byte| write!(f, "{byte:02x}"))?;
                if bytes.len() > SHOWN / 2 { f.write_str("…") } else { Ok(()) }
            }
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().take(16).enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(if values.len() > 16 { ", …]" } else { "]" })
            }
        }
    }
}

pub(super) fn encode(
    magic: [u8; 4],
    fields: &BTreeMap<String, Value>,
) -> Result<Vec<u8>, IdentityError> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&magic);
    out.push(VERSION);
    let count = u16::try_from(fields.len()).map_err(|_| too_large(fields.len()))?;
    out.extend_from_slice(&count.to_le_bytes());
    for (name, value) in fields {
        if !is_name(name.as_bytes()) {
            return Err(IdentityError::Unknown {
                field: name.chars().take(NAME_BYTES_MAX).collect(),
                hint: "names are 1 to 64 of a-z, 0-9 and _".into(),
            });
        }
        // A name is at most 64 bytes, so that its length fits.
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        write_value(&mut out, value, 0)?;
    }
    if out.len() > ENCODING_BYTES_MAX { Err(too_large(out.len())) } else { Ok(out) }
}

fn write_value(out: &mut Vec<u8>, value: &Value, depth: u32) -> Result<(), IdentityError> {
    match value {
        Value::Bool(yes) => out.extend_from_slice(&[1, u8::from(*yes)]),
        Value::Int(number) => {
            out.push(2);
            out.extend_from_slice(&number.to_le_bytes());
        }
        Value::Str(text) => write_bytes(out, 3, text.as_bytes())?,
        Value::Bytes(bytes) => write_bytes(out, 4, bytes)?,
        Value::List(_) if depth == DEPTH_MAX => {
            let problem = "lists are nested more than eight deep";
            return Err(IdentityError::Encoding { offset: out.len(), problem });
        }
        Value::List(values) => {
            // A value takes two bytes or more: this many cannot fit.
            if values.len() > ENCODING_BYTES_MAX {
                return Err(too_large(values.len()));
            }
            out.push(5);
            out.extend_from_slice(&(values.len() as u32).to_le_bytes());
            for value in values {
                write_value(out, value, depth + 1)?;
            }
        }
    }
    Ok(())
}

fn write_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) -> Result<(), IdentityError> {
    if bytes.len() > ENCODING_BYTES_MAX {
        return Err(too_large(bytes.len()));
    }
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

fn too_large(bytes: usize) -> IdentityError {
    IdentityError::TooLarge { bytes }
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'_')
}

/// Total on arbitrary bytes; allocates no more than the bytes justify.
pub(super) fn decode(
    magic: [u8; 4],
    bytes: &[u8],
) -> Result<BTreeMap<String, Value>, IdentityError> {
    if bytes.len() > ENCODING_BYTES_MAX {
        return Err(too_large(bytes.len()));
    }
    let mut reader = Reader { bytes, at: 0 };
    if reader.take::<4>()? != magic {
        return Err(IdentityError::Encoding { offset: 0, problem: "magic is another one" });
    }
    let [version] = reader.take::<1>()?;
    if version != VERSION {
        return Err(IdentityError::Encoding { offset: 4, problem: "version is not 1" });
    }
    let count = u16::from_le_bytes(reader.take()?);
    let mut fields = BTreeMap::new();
    for _ in 0..count {
        let start = reader.at;
        let name = reader.name()?;
        if fields.last_key_value().is_some_and(|(last, _): (&String, _)| *last >= name) {
            return Err(IdentityError::Encoding {
                offset: start,
                problem: "names are not sorted, or one appears twice",
            });
        }
        let value = reader.value(0)?;
        fields.insert(name, value);
    }
    if reader.at == bytes.len() { Ok(fields) } else { Err(reader.bad("bytes are left over")) }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bad(&self, problem: &'static str) -> IdentityError {
        IdentityError::Encoding { offset: self.at, problem }
    }

    fn slice(&mut self, len: usize) -> Result<&'a [u8], IdentityError> {
        match self.bytes[self.at..].get(..len) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => Err(self.bad("bytes end too early")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], IdentityError> {
        let mut taken = [0; N];
        taken.copy_from_slice(self.slice(N)?);
        Ok(taken)
    }

    fn length(&mut self) -> Result<usize, IdentityError> {
        Ok(u32::from_le_bytes(self.take()?) as usize)
    }

    fn name(&mut self) -> Result<String, IdentityError> {
        let [len] = self.take::<1>()?;
        let name = self.slice(usize::from(len))?;
        if !is_name(name) {
            return Err(self.bad("a name is not 1 to 64 of a-z, 0-9 and _"));
        }
        Ok(name.iter().map(|&byte| char::from(byte)).collect())
    }

    fn value(&mut self, depth: u32) -> Result<Value, IdentityError> {
        let [tag] = self.take::<1>()?;
        match tag {
            1 => match self.take()? {
                [0] => Ok(Value::Bool(false)),
                [1] => Ok(Value::Bool(true)),
                _ => Err(self.bad("a bool is neither 0 nor 1")),
            },
            2 => Ok(Value::Int(i64::from_le_bytes(self.take()?))),
            3 => {
                let len = self.length()?;
                let text = std::str::from_utf8(self.slice(len)?);
                text.map(Value::from).map_err(|_| self.bad("text is not UTF-8"))
            }
            4 => {
                let len = self.length()?;
                Ok(Value::Bytes(self.slice(len)?.to_vec()))
            }
            5 if depth == DEPTH_MAX => Err(self.bad("lists are nested more than eight deep")),
            5 => {
                let count = self.length()?;
                // Grows by what is really there: a count is only a claim.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(depth + 1)?);
                }
                Ok(Value::List(values))
            }
            _ => Err(self.bad("a value's type is none of the five")),
        }
    }
}
