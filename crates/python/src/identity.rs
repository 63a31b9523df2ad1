//! Namespaces and block keys.

use std::path::PathBuf;

use keepwarm_store::identity::{
    ChainKey, DEFAULT_TENANT, Extras, FIELDS, MultimodalItem, NamespaceSpec, RequestFacts,
    TenantSecret, Value,
};
use keepwarm_store::types::BlockKey;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PySequence, PyString, PyTuple};

use crate::buffers::{key_bytes, keys, type_name};
use crate::errors::{IdentityError, argument, detached, fault, identity};
use crate::export::Export;

/// Tokens of one call; bounds the work of one call at about 100 ms.
const TOKENS_MAX: usize = 8 << 20;
/// Bytes of tokens that are copied at once: a multiple of each item's size.
const COPY_BYTES: usize = 4096;
/// Lists inside lists that are followed; the encoding allows fewer, and says so.
const DEPTH_MAX: u32 = 16;

/// A namespace with what its tenant's secret makes of it.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Namespace {
    pub spec: NamespaceSpec,
    chain: ChainKey,
}

/// Facts of one request, checked when they are used.
type Facts<'py> = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, u64, u64)>);

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (fields, secret=None))]
    fn new(fields: Vec<(String, Bound<'_, PyAny>)>, secret: Option<PathBuf>) -> PyResult<Self> {
        let mut typed = Vec::with_capacity(fields.len());
        for (name, object) in fields {
            let value = value(&object, 0).ok_or_else(|| bad_type(&name, &object))?;
            typed.push((name, value));
        }
        let spec = NamespaceSpec::new(typed).map_err(identity)?;
        let secret = secret_of(&spec, secret)?;
        let chain = ChainKey::new(&spec, &secret);
        Ok(Namespace { spec, chain })
    }

    #[getter]
    fn encoding<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.spec.encoding())
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.spec.fingerprint())
    }

    #[getter]
    fn key_check<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.chain.key_check())
    }

    #[getter]
    fn tenant(&self) -> &str {
        self.spec.tenant()
    }

    #[getter]
    fn parts(&self) -> u8 {
        self.spec.parts()
    }

    #[getter]
    fn block_tokens(&self) -> u32 {
        self.spec.block_tokens()
    }

    #[getter]
    fn run_blocks(&self) -> u32 {
        self.spec.run_blocks()
    }

    fn differences(&self, other: &Namespace) -> Vec<String> {
        self.spec.differences(&other.spec)
    }

    #[pyo3(signature = (tokens, previous=None, facts=None, first_token=0))]
    fn block_keys<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        previous: Option<&Bound<'py, PyAny>>,
        facts: Option<Facts<'py>>,
        first_token: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tokens = token_ids(tokens)?;
        let previous = previous.map(previous_key).transpose()?;
        let size = self.spec.block_tokens();
        let blocks = tokens.len() / size as usize;
        let extras = request_extras(facts, first_token, size, blocks)?;
        let work = || key_bytes(&self.chain.chain_tokens(previous, &tokens, size, &extras));
        let made = detached(py, work).map_err(fault)?;
        Ok(PyBytes::new(py, &made))
    }

    #[pyo3(signature = (hashes, group=0, facts=None))]
    fn engine_keys<'py>(
        &self,
        py: Python<'py>,
        hashes: Vec<Vec<u8>>,
        group: u32,
        facts: Option<Facts<'py>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if let Some(i) = hashes.iter().position(|hash| !(1..=1024).contains(&hash.len())) {
            return Err(argument(format!(
                "hashes[{i}] has {} bytes: an engine's hash has 1 to 1024",
                hashes[i].len()
            )));
        }
        let extras = request_extras(facts, 0, 1, 0)?;
        let extras = &extras.into_iter().next().unwrap_or(Extras::NONE);
        let make = |hash: &Vec<u8>| self.chain.key_from_engine_hash(hash, group, extras);
        let work = || key_bytes(&hashes.iter().map(make).collect::<Vec<_>>());
        let made = detached(py, work).map_err(fault)?;
        Ok(PyBytes::new(py, &made))
    }
}

impl Namespace {
    /// What the node compares.
    pub fn key_check_bytes(&self) -> [u8; 8] {
        self.chain.key_check()
    }
}

/// Names of a namespace's fields, each with what to give.
#[pyfunction]
pub fn namespace_fields() -> Vec<(&'static str, &'static str)> {
    FIELDS.iter().map(|field| (field.name, field.what)).collect()
}

fn secret_of(spec: &NamespaceSpec, path: Option<PathBuf>) -> PyResult<TenantSecret> {
    let refuse = |text: String| Err(IdentityError::new_err((text, "secret")));
    match (spec.tenant() == DEFAULT_TENANT, path) {
        (true, None) => Ok(TenantSecret::public_default()),
        (true, Some(_)) => refuse(
            "secret is given, but tenant default has a public one: leave secret out, or name \
             another tenant"
                .into(),
        ),
        (false, Some(path)) => TenantSecret::from_file(&path).map_err(identity),
        (false, None) => refuse(format!(
            "secret of tenant {} is missing: give secret=, the path of its file with 64 hex digits",
            spec.tenant()
        )),
    }
}

fn value(object: &Bound<'_, PyAny>, depth: u32) -> Option<Value> {
    if let Ok(yes) = object.cast::<PyBool>() {
        Some(Value::Bool(yes.is_true()))
    } else if object.is_instance_of::<PyInt>() {
        object.extract().ok().map(Value::Int)
    } else if object.is_instance_of::<PyString>() {
        object.extract().ok().map(Value::Str)
    } else if let Ok(bytes) = object.cast::<PyBytes>() {
        Some(Value::Bytes(bytes.as_bytes().to_vec()))
    } else if depth > DEPTH_MAX {
        None
    } else if let Ok(list) = object.cast::<PyList>() {
        list.iter().map(|item| value(&item, depth + 1)).collect::<Option<_>>().map(Value::List)
    } else if let Ok(tuple) = object.cast::<PyTuple>() {
        tuple.iter().map(|item| value(&item, depth + 1)).collect::<Option<_>>().map(Value::List)
    } else {
        None
    }
}

fn bad_type(name: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let what = FIELDS.iter().find(|field| field.name == name);
    let give = what.map_or_else(String::new, |field| format!(": give {}", field.what));
    let text = if object.is_none() {
        format!("namespace field {name} is None{give}; it is never guessed")
    } else {
        let kind = type_name(object);
        format!("namespace field {name} is a {kind} that cannot be encoded{give}")
    };
    IdentityError::new_err((text, name.to_owned()))
}

fn previous_key(object: &Bound<'_, PyAny>) -> PyResult<BlockKey> {
    match keys(object, "previous")?.as_slice() {
        [key] => Ok(*key),
        several => Err(argument(format!(
            "previous holds {} keys: pass the 16 bytes of the key before the first token",
            several.len()
        ))),
    }
}

fn request_extras(
    facts: Option<Facts<'_>>,
    first_token: u64,
    block_tokens: u32,
    blocks: usize,
) -> PyResult<Vec<Extras>> {
    let Some((lora, cache_salt, items)) = facts else { return Ok(Vec::new()) };
    let item = |(hash, first_token, tokens)| MultimodalItem { hash, first_token, tokens };
    let multimodal = items.into_iter().map(item).collect();
    let facts = RequestFacts { lora, cache_salt, multimodal };
    facts.extras(first_token, block_tokens, blocks).map_err(identity)
}

fn token_ids(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let tokens = match Export::get(object) {
        Ok(buffer) => tokens_of_buffer(&buffer)?,
        Err(_) => tokens_of_sequence(object)?,
    };
    Ok(tokens)
}

fn tokens_of_sequence(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let wrong = || {
        argument(format!(
            "token_ids is {}: pass a sequence of int, or a buffer of uint32 or int64",
            type_name(object)
        ))
    };
    if object.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    let sequence = object.cast::<PySequence>().map_err(|_| wrong())?;
    too_many(sequence.len()?)?;
    let mut tokens = Vec::with_capacity(sequence.len()?);
    for (i, item) in sequence.try_iter()?.take(TOKENS_MAX).enumerate() {
        let item = item?;
        tokens.push(item.extract().map_err(|_| bad_token(i, &item.to_string()))?);
    }
    Ok(tokens)
}

fn tokens_of_buffer(buffer: &Export) -> PyResult<Vec<u32>> {
    let format = buffer.format();
    let kind = match format {
        [b'@' | b'=' | b'<', kind] | [kind] => *kind,
        _ => b'?',
    };
    let size = buffer.item_bytes();
    if !buffer.is_contiguous() || buffer.dimensions() != 1 {
        return Err(argument("token_ids is no contiguous array of one dimension: flatten it"));
    }
    too_many(buffer.len() / size.max(1))?;
    match (kind, size) {
        (b'I' | b'L', 4) => tokens_as(buffer, u32::from_le_bytes),
        (b'i' | b'l', 4) => tokens_as(buffer, i32::from_le_bytes),
        (b'Q' | b'L', 8) => tokens_as(buffer, u64::from_le_bytes),
        (b'q' | b'l', 8) => tokens_as(buffer, i64::from_le_bytes),
        _ => Err(argument(format!(
            "token_ids has items of format {}: pass uint32, int32, int64 or a sequence of int",
            String::from_utf8_lossy(format)
        ))),
    }
}

/// Tokens from a copy of a few at a time: a value is checked and used as it was read, whoever
/// writes the caller's memory meanwhile.
fn tokens_as<const N: usize, T>(buffer: &Export, read: fn([u8; N]) -> T) -> PyResult<Vec<u32>>
where
    T: TryInto<u32> + Copy + std::fmt::Display,
{
    let count = buffer.len() / N;
    let mut tokens = Vec::with_capacity(count);
    let mut copy = [0; COPY_BYTES];
    while tokens.len() < count {
        let bytes = ((count - tokens.len()) * N).min(COPY_BYTES);
        if !buffer.copy_to(tokens.len() * N, &mut copy[..bytes]) {
            return Err(argument("token_ids is no contiguous array: pass a contiguous one"));
        }
        for item in copy[..bytes].as_chunks::<N>().0 {
            let value = read(*item);
            let token = value.try_into();
            tokens.push(token.map_err(|_| bad_token(tokens.len(), &value.to_string()))?);
        }
    }
    Ok(tokens)
}

fn too_many(count: usize) -> PyResult<()> {
    if count <= TOKENS_MAX {
        return Ok(());
    }
    Err(argument(format!(
        "token_ids holds {count} tokens, more than {TOKENS_MAX} for one call: continue with \
         previous= and first_token="
    )))
}

fn bad_token(i: usize, shown: &str) -> PyErr {
    let shown: String = shown.chars().take(40).collect();
    argument(format!("token_ids[{i}] is {shown}: a token is a whole number from 0 to 4294967295"))
}
