//! Properties of the identity encodings. proptest prints a failing case and keeps its seed; set
//! `PROPTEST_RNG_SEED` to repeat a whole run.

use keepwarm_store::identity::{
    ChainKey, ENCODING_BYTES_MAX, Extras, FIELDS, Kind, NamespaceSpec, RequestFacts, TenantSecret,
    Value,
};
use keepwarm_store::types::BlockKey;
use proptest::collection::vec;
use proptest::prelude::*;

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        ".{1,12}".prop_map(Value::Str),
        vec(any::<u8>(), 0..12).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| vec(inner, 0..4).prop_map(Value::List))
}

fn fitting(kind: Kind) -> BoxedStrategy<Value> {
    match kind {
        Kind::Label => "[A-Za-z0-9._-]{1,64}".prop_map(Value::Str).boxed(),
        Kind::Text => ".{1,20}".prop_map(Value::Str).boxed(),
        Kind::Count(max) => (1..=max).prop_map(Value::Int).boxed(),
        Kind::Geometry => (0..i64::MAX).prop_map(Value::Int).boxed(),
        Kind::Any => any_value().boxed(),
    }
}

fn any_spec() -> impl Strategy<Value = NamespaceSpec> {
    let values: Vec<_> = FIELDS.iter().map(|field| fitting(field.kind)).collect();
    values.prop_map(|values| {
        let named = FIELDS.iter().map(|field| field.name.to_owned()).zip(values);
        NamespaceSpec::new(named).unwrap()
    })
}

fn plain_key() -> ChainKey {
    let plain = |kind| match kind {
        Kind::Count(_) | Kind::Geometry => Value::Int(1),
        _ => Value::from("x"),
    };
    let fields = FIELDS.iter().map(|field| (field.name.to_owned(), plain(field.kind)));
    key_of(&NamespaceSpec::new(fields).unwrap())
}

fn key_of(spec: &NamespaceSpec) -> ChainKey {
    ChainKey::new(spec, &TenantSecret::public_default())
}

proptest! {
    #[test]
    fn decoding_returns_what_was_encoded(spec in any_spec()) {
        let decoded = NamespaceSpec::decode(spec.encoding()).unwrap();
        prop_assert_eq!(&decoded, &spec);
        prop_assert_eq!(decoded.fingerprint(), spec.fingerprint());
    }

    #[test]
    fn reading_is_total(bytes in vec(any::<u8>(), 0..600), good_head in any::<bool>()) {
        let mut bytes = bytes;
        if good_head && bytes.len() >= 5 {
            bytes[..5].copy_from_slice(b"KWNS\x01");
        }
        let _ = NamespaceSpec::decode(&bytes);
    }

    /// Whatever bytes are accepted are the ones that their fields encode to.
    #[test]
    fn only_the_canonical_form_is_accepted(
        spec in any_spec(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        change in 0..3,
    ) {
        let mut bytes = spec.encoding().to_vec();
        let at = at.index(bytes.len());
        match change {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            _ => { bytes.remove(at); }
        }
        if let Ok(read) = NamespaceSpec::decode(&bytes) {
            prop_assert_eq!(read.encoding(), &bytes[..]);
        }
    }

    #[test]
    fn too_long_is_refused_before_reading(more in 1usize..1 << 20) {
        prop_assert!(NamespaceSpec::decode(&vec![0; ENCODING_BYTES_MAX + more]).is_err());
    }

    #[test]
    fn a_change_of_one_field_changes_everything(one in any_spec(), two in any_spec()) {
        let same = one == two;
        prop_assert_eq!(one.fingerprint() == two.fingerprint(), same);
        prop_assert_eq!(one.differences(&two).is_empty(), same);
        prop_assert_eq!(key_of(&one).agrees_with(key_of(&two).key_check()), same);
    }

    #[test]
    fn chaining_in_two_calls_is_chaining_in_one(
        tokens in vec(any::<u32>(), 0..200),
        size in 1u32..20,
        cut in any::<prop::sample::Index>(),
    ) {
        let key = plain_key();
        let whole = key.chain_tokens(None, &tokens, size, &[]);
        prop_assert_eq!(whole.len(), tokens.len() / size as usize);
        let blocks = cut.index(whole.len() + 1);
        let (front, back) = tokens.split_at(blocks * size as usize);
        let mut pieces = key.chain_tokens(None, front, size, &[]);
        pieces.extend(key.chain_tokens(pieces.last().copied(), back, size, &[]));
        prop_assert_eq!(pieces, whole);
    }

    /// Every input of a key counts: previous key, tokens, salt, kind.
    #[test]
    fn each_input_makes_another_key(
        tokens in vec(any::<u32>(), 4),
        prev in any::<[u8; 16]>(),
        salt in vec(any::<u8>(), 0..8),
        flip in 0usize..4,
    ) {
        let key = plain_key();
        let salted = RequestFacts { cache_salt: Some(salt), ..Default::default() };
        let salted = salted.extras(0, 4, 1).unwrap();
        let mut other = tokens.clone();
        other[flip] ^= 1;
        let hash = prev;
        let prev = Some(BlockKey(prev));
        let mut keys = vec![
            key.chain_tokens(None, &tokens, 4, &[])[0],
            key.chain_tokens(prev, &tokens, 4, &[])[0],
            key.chain_tokens(prev, &other, 4, &[])[0],
            key.chain_tokens(prev, &tokens, 4, &salted)[0],
            key.chain_tokens(None, &tokens, 4, &salted)[0],
            key.key_from_engine_hash(&hash, 0, &Extras::NONE),
            key.key_from_engine_hash(&hash, 1, &Extras::NONE),
        ];
        keys.sort();
        keys.dedup();
        prop_assert_eq!(keys.len(), 7);
    }
}
