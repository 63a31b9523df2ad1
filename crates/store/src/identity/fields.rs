//! The fields of a namespace: each required, each with its type. A field that cannot be determined
//! is an error that names it, never a default: a wrong guess gives one model's bytes to another.

use super::Value;

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Letters, digits, `.`, `_` and `-`; 1 to 64 of them. Becomes a metric label.
    Label,
    /// Text, not empty.
    Text,
    /// A whole number from 1 to the given one.
    Count(i64),
    /// A whole number from 0, or a list that is not empty, where layers differ.
    Geometry,
    /// Any value but empty text.
    Any,
}

/// One required field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as in the encoding and in Python.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What to give, in words for an error line.
    pub what: &'static str,
}

impl Field {
    /// Whether `value` fits this field.
    pub fn accepts(&self, value: &Value) -> bool {
        match (self.kind, value) {
            (Kind::Label, Value::Str(text)) => {
                let is_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                (1..=64).contains(&text.len()) && text.chars().all(is_ok)
            }
            (Kind::Count(max), Value::Int(number)) => (1..=max).contains(number),
            (Kind::Geometry, Value::Int(number)) => *number >= 0,
            (Kind::Geometry, Value::List(values)) => !values.is_empty(),
            (Kind::Text | Kind::Any, Value::Str(text)) => !text.is_empty(),
            (Kind::Any, _) => true,
            _ => false,
        }
    }
}

const fn field(name: &'static str, kind: Kind, what: &'static str) -> Field {
    Field { name, kind, what }
}

/// Every field, sorted by name.
pub const FIELDS: [Field; 20] = [
    field("attention_backend", Kind::Text, "the attention kernels' name, such as FLASH_ATTN"),
    field(
        "block_tokens",
        Kind::Count(65_536),
        "the tokens of one block, a whole number from 1 to 65536",
    ),
    field("connector", Kind::Text, "the adapter and its version, such as vllm-tier/1"),
    field("engine", Kind::Text, "the engine and its version, such as vllm/0.11.0"),
    field(
        "head_dim",
        Kind::Geometry,
        "the size of a KV head, a whole number, or a list with one entry per kind of layer",
    ),
    field(
        "isa",
        Kind::Text,
        "the instruction set or device kind that shaped the bytes, such as sm_90 or avx512",
    ),
    field("kv_dtype", Kind::Text, "the element type of the KV cache, such as bf16 or fp8_e4m3"),
    field(
        "kv_heads",
        Kind::Geometry,
        "the number of KV heads, a whole number, or a list with one entry per kind of layer",
    ),
    field(
        "kv_options",
        Kind::Any,
        "the options that change KV, such as a list of rope scaling and sliding window (an empty \
         list says that there are none)",
    ),
    field(
        "kv_scales",
        Kind::Any,
        "the scale format of a quantised KV cache, or the word none for an unquantised one",
    ),
    field(
        "layers",
        Kind::Geometry,
        "the number of layers with KV, a whole number, or a list with one entry per kind of layer",
    ),
    field(
        "layout",
        Kind::Text,
        "the order of a block's inside and its K/V packing, such as NHD/KV",
    ),
    field("load", Kind::Any, "how weights were loaded, such as auto or dummy"),
    field("model", Kind::Text, "the model's name, such as meta-llama/Llama-3.1-8B"),
    field(
        "parallel",
        Kind::Any,
        "the parallel shape, such as tp=2,pp=1 (tp=1,pp=1 for a single device)",
    ),
    field("parts", Kind::Count(64), "the parts of one block, a whole number from 1 to 64"),
    field(
        "quantisation",
        Kind::Any,
        "the quantisation of the weights on load, or the word none for none",
    ),
    field(
        "run_blocks",
        Kind::Count(1 << 20),
        "the blocks that are placed together, a whole number from 1 to 1048576 (about 32 MiB of \
         KV)",
    ),
    field(
        "tenant",
        Kind::Label,
        "the tenant's name, 1 to 64 of letters, digits and . _ - (default where nobody shares \
         the node)",
    ),
    field("weights", Kind::Text, "the content name of the weights, such as sha256:0123abcd"),
];
