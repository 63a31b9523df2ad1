//! A namespace: the facts that stay fixed while an engine runs.

use std::collections::BTreeMap;
use std::fmt;

use super::encoding::{self, DEPTH_MAX, Value};
use super::fields::{FIELDS, Field};
use super::{ENCODING_BYTES_MAX, IdentityError};

const MAGIC: [u8; 4] = *b"KWNS";

/// Everything that makes two engines' bytes interchangeable, checked and encoded once.
#[derive(Clone, PartialEq, Eq)]
pub struct NamespaceSpec {
    fields: BTreeMap<String, Value>,
    encoding: Vec<u8>,
    fingerprint: [u8; 32],
}

impl NamespaceSpec {
    /// Checks that every field is there, known and in range.
    ///
    /// # Errors
    /// The first field that is missing, unknown or does not fit; a name given twice; an encoding
    /// beyond [`ENCODING_BYTES_MAX`].
    pub fn new(fields: impl IntoIterator<Item = (String, Value)>) -> Result<Self, IdentityError> {
        let mut map = BTreeMap::new();
        for (name, value) in fields {
            if map.len() > FIELDS.len() {
                break; // one of them is unknown already
            }
            if map.insert(name.clone(), value).is_some() {
                let hint = "it is given twice; give it once".into();
                return Err(IdentityError::Unknown { field: cut(&name), hint });
            }
        }
        Self::checked(map)
    }

    fn checked(fields: BTreeMap<String, Value>) -> Result<Self, IdentityError> {
        if let Some(name) = fields.keys().find(|name| find(name).is_none()) {
            return Err(IdentityError::Unknown { field: cut(name), hint: hint(name) });
        }
        for field in &FIELDS {
            let Field { name, what, .. } = *field;
            let Some(value) = fields.get(name) else {
                return Err(IdentityError::Missing { field: name, what });
            };
            if !field.accepts(value) {
                let found = value.to_string();
                return Err(IdentityError::BadValue { field: name, found, what });
            }
            if value.depth() > DEPTH_MAX {
                let found = format!("a list more than {DEPTH_MAX} lists deep");
                return Err(IdentityError::BadValue { field: name, found, what });
            }
        }
        let encoding = encoding::encode(MAGIC, &fields)?;
        let fingerprint = *blake3::hash(&encoding).as_bytes();
        Ok(NamespaceSpec { fields, encoding, fingerprint })
    }

    /// Reads an encoding. Accepts exactly what [`encoding`](Self::encoding) returns for some
    /// namespace, so that equal fingerprints mean equal fields and the other way round.
    ///
    /// # Errors
    /// Anything else, at most [`ENCODING_BYTES_MAX`] of it being read.
    pub fn decode(encoding: &[u8]) -> Result<Self, IdentityError> {
        let spec = Self::checked(encoding::decode(MAGIC, encoding)?)?;
        if spec.encoding != encoding {
            // The reader is strict, so this cannot be; the next reader may err, this line does not.
            let problem = "another encoding of the same fields is the canonical one";
            return Err(IdentityError::Encoding { offset: 0, problem });
        }
        Ok(spec)
    }

    /// The canonical bytes, at most [`ENCODING_BYTES_MAX`].
    pub fn encoding(&self) -> &[u8] {
        debug_assert!(self.encoding.len() <= ENCODING_BYTES_MAX);
        &self.encoding
    }

    /// BLAKE3 of the encoding.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The tenant that owns the bytes.
    pub fn tenant(&self) -> &str {
        match self.fields.get("tenant") {
            Some(Value::Str(tenant)) => tenant,
            _ => unreachable!("checked at construction"),
        }
    }

    /// Parts of one block, 1 to 64.
    pub fn parts(&self) -> u8 {
        self.count("parts") as u8
    }

    /// Tokens of one block, 1 to 65,536.
    pub fn block_tokens(&self) -> u32 {
        self.count("block_tokens")
    }

    /// Blocks that are placed together, 1 to 1,048,576.
    pub fn run_blocks(&self) -> u32 {
        self.count("run_blocks")
    }

    fn count(&self, name: &str) -> u32 {
        match self.fields.get(name) {
            // Ranges were checked at construction and fit.
            Some(Value::Int(number)) => *number as u32,
            _ => unreachable!("checked at construction"),
        }
    }

    /// The fields by name.
    pub fn fields(&self) -> &BTreeMap<String, Value> {
        &self.fields
    }

    /// Each field in which the two differ, as `kv_dtype: "fp8" here, "bf16" there`; `self` is here.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let differ = |(name, here): (&String, &Value)| {
            let there = other.fields.get(name)?;
            (here != there).then(|| format!("{name}: {here} here, {there} there"))
        };
        self.fields.iter().filter_map(differ).collect()
    }
}

impl fmt::Debug for NamespaceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.fields.iter().map(|(k, v)| (k, v.to_string()))).finish()
    }
}

fn find(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}

fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}

fn hint(name: &str) -> String {
    let nearest = FIELDS.iter().map(|field| (distance(name, field.name), field.name)).min();
    match nearest {
        Some((steps, nearest)) if steps <= 3 => format!("did you mean {nearest}"),
        _ => {
            let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
            format!("leave it out; the fields are {}", names.join(", "))
        }
    }
}

/// Edits between two short names (Levenshtein); long ones are far from everything.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
