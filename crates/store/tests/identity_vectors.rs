//! Holds both encodings to `tests/vectors/identity.json`, which an independent implementation in
//! Python made (`tests/identity_reference.py`).

use std::path::Path;

use keepwarm_store::identity::{
    ChainKey, Extras, MultimodalItem, NamespaceSpec, RequestFacts, TenantSecret, Value,
};
use keepwarm_store::types::BlockKey;
use serde_json::Value as Json;

fn vectors() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/identity.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(hex: &Json) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn value(typed: &Json) -> Value {
    let (kind, inner) = typed.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "bool" => Value::Bool(inner.as_bool().unwrap()),
        "int" => Value::Int(inner.as_i64().unwrap()),
        "str" => Value::from(inner.as_str().unwrap()),
        "bytes" => Value::Bytes(bytes(inner)),
        _ => Value::List(inner.as_array().unwrap().iter().map(value).collect()),
    }
}

fn spec(vector: &Json) -> NamespaceSpec {
    let fields = vector["fields"].as_object().unwrap();
    NamespaceSpec::new(fields.iter().map(|(name, typed)| (name.clone(), value(typed)))).unwrap()
}

fn secret(vector: &Json) -> TenantSecret {
    TenantSecret::from_bytes(bytes(&vector["secret"]).try_into().unwrap())
}

fn chain_key(vectors: &Json, name: &Json) -> (NamespaceSpec, ChainKey) {
    let all = vectors["namespaces"].as_array().unwrap();
    let vector = all.iter().find(|vector| vector["name"] == *name).unwrap();
    let spec = spec(vector);
    let key = ChainKey::new(&spec, &secret(vector));
    (spec, key)
}

fn facts(vector: &Json) -> RequestFacts {
    let get = |name: &str| vector["facts"].get(name).map(|typed| bytes(&typed["bytes"]));
    let items = vector["facts"].get("multimodal").map(value);
    let item = |entry: Value| {
        let Value::List(entry) = entry else { panic!("not an item") };
        let [Value::Bytes(hash), Value::Int(first), Value::Int(tokens)] = entry.as_slice() else {
            panic!("not an item")
        };
        let (first_token, tokens) = (*first as u64, *tokens as u64);
        MultimodalItem { hash: hash.clone(), first_token, tokens }
    };
    let multimodal = match items {
        Some(Value::List(items)) => items.into_iter().map(item).collect(),
        _ => Vec::new(),
    };
    RequestFacts { lora: get("lora"), cache_salt: get("cache_salt"), multimodal }
}

#[test]
fn namespaces_encode_as_published() {
    let vectors = vectors();
    let default = TenantSecret::from_bytes(bytes(&vectors["default_secret"]).try_into().unwrap());
    assert_eq!(default, TenantSecret::public_default());
    for vector in vectors["namespaces"].as_array().unwrap() {
        let spec = spec(vector);
        assert_eq!(spec.encoding(), bytes(&vector["encoding"]), "{}", vector["name"]);
        assert_eq!(spec.fingerprint()[..], bytes(&vector["fingerprint"]), "{}", vector["name"]);
        let check = ChainKey::new(&spec, &secret(vector)).key_check();
        assert_eq!(check[..], bytes(&vector["key_check"]), "{}", vector["name"]);
        assert_eq!(NamespaceSpec::decode(spec.encoding()).unwrap(), spec);
    }
}

#[test]
fn everything_else_is_refused() {
    for vector in vectors()["rejected"].as_array().unwrap() {
        let result = NamespaceSpec::decode(&bytes(&vector["encoding"]));
        assert!(result.is_err(), "{} was accepted", vector["name"]);
    }
}

#[test]
fn keys_chain_as_published() {
    let vectors = vectors();
    for vector in vectors["chains"].as_array().unwrap() {
        let name = &vector["name"];
        let (spec, key) = chain_key(&vectors, &vector["namespace"]);
        let tokens: Vec<u32> = vector["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_u64().unwrap() as u32)
            .collect();
        let prev = vector["previous"]
            .as_str()
            .map(|_| BlockKey(bytes(&vector["previous"]).try_into().unwrap()));
        let size = spec.block_tokens();
        let blocks = tokens.len() / size as usize;
        let first = vector["first_token"].as_u64().unwrap();
        let extras = facts(vector).extras(first, size, blocks).unwrap();
        for (i, published) in vector["extras"].as_array().unwrap().iter().enumerate() {
            let extras = if extras.len() == 1 { &extras[0] } else { &extras[i] };
            assert_eq!(extras.encoding(), bytes(published), "{name}, block {i}");
        }
        let keys = key.chain_tokens(prev, &tokens, size, &extras);
        let published: Vec<_> = vector["keys"].as_array().unwrap().iter().map(bytes).collect();
        assert_eq!(keys.iter().map(|key| key.0.to_vec()).collect::<Vec<_>>(), published, "{name}");
    }
}

#[test]
fn engine_hashes_become_keys_as_published() {
    let vectors = vectors();
    for vector in vectors["engine_hashes"].as_array().unwrap() {
        let (_, key) = chain_key(&vectors, &vector["namespace"]);
        let extras = if vector["extras"] == "" {
            Extras::NONE
        } else {
            let salt = RequestFacts { cache_salt: Some(b"s".to_vec()), ..Default::default() };
            salt.extras(0, 16, 1).unwrap().remove(0)
        };
        assert_eq!(extras.encoding(), bytes(&vector["extras"]));
        let group = vector["group"].as_u64().unwrap() as u32;
        let made = key.key_from_engine_hash(&bytes(&vector["hash"]), group, &extras);
        assert_eq!(made.0[..], bytes(&vector["key"]));
    }
}
