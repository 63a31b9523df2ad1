//! Namespaces: what is accepted, what is refused and in which words.

use super::{ENCODING_BYTES_MAX, FIELDS, Field, IdentityError, Kind, NamespaceSpec, Value};

fn fields() -> Vec<(String, Value)> {
    let value = |field: &Field| match field.kind {
        Kind::Count(_) => Value::Int(16),
        Kind::Geometry => Value::Int(8),
        _ => Value::from(field.name),
    };
    FIELDS.iter().map(|field| (field.name.to_owned(), value(field))).collect()
}

fn with(name: &str, value: Value) -> Result<NamespaceSpec, IdentityError> {
    let rest = fields().into_iter().filter(|(other, _)| other != name);
    NamespaceSpec::new(rest.chain([(name.to_owned(), value)]))
}

#[test]
fn the_table_is_sorted_and_a_full_set_is_accepted() {
    assert!(FIELDS.windows(2).all(|pair| pair[0].name < pair[1].name));
    let spec = NamespaceSpec::new(fields()).unwrap();
    assert_eq!((spec.tenant(), spec.parts(), spec.block_tokens()), ("tenant", 16, 16));
    assert_eq!(NamespaceSpec::decode(spec.encoding()).unwrap(), spec);
}

#[test]
fn order_of_fields_does_not_matter() {
    let back: Vec<_> = fields().into_iter().rev().collect();
    let (one, two) = (NamespaceSpec::new(fields()).unwrap(), NamespaceSpec::new(back).unwrap());
    assert_eq!(one.fingerprint(), two.fingerprint());
}

#[test]
fn every_field_is_required_by_name() {
    for field in &FIELDS {
        let rest = fields().into_iter().filter(|(name, _)| name != field.name);
        let text = NamespaceSpec::new(rest).unwrap_err().to_string();
        assert!(text.contains(field.name) && text.contains(field.what), "{text}");
    }
}

#[test]
fn unknown_and_doubled_names_are_refused() {
    let more = |name: &str| {
        let more = fields().into_iter().chain([(name.to_owned(), Value::Int(1))]);
        NamespaceSpec::new(more).unwrap_err().to_string()
    };
    assert!(more("kv_dtyp").contains("did you mean kv_dtype"));
    assert!(more("colour").contains("the fields are attention_backend"));
    assert!(more("kv_dtype").contains("given twice"));
    assert!(more(&"x".repeat(1000)).len() < 1000);
}

#[test]
fn ranges_are_checked() {
    let bad = [
        ("parts", Value::Int(0)),
        ("parts", Value::Int(65)),
        ("parts", Value::from("1")),
        ("block_tokens", Value::Int(65_537)),
        ("run_blocks", Value::Int(0)),
        ("layers", Value::Int(-1)),
        ("layers", Value::List(vec![])),
        ("tenant", Value::from("a b")),
        ("tenant", Value::from("")),
        ("model", Value::from("")),
        ("model", Value::Int(3)),
        ("load", Value::from("")),
    ];
    for (name, value) in bad {
        let text = with(name, value.clone()).unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
        assert!(text.contains(&value.to_string()), "{text}");
    }
    assert!(with("parts", Value::Int(64)).is_ok());
    assert!(with("layers", Value::List(vec![Value::Int(3)])).is_ok());
    assert!(with("kv_options", Value::List(vec![])).is_ok());
}

#[test]
fn too_much_and_too_deep_are_refused() {
    let long = "x".repeat(ENCODING_BYTES_MAX);
    assert!(matches!(with("model", Value::Str(long)), Err(IdentityError::TooLarge { .. })));
    let deep = |lists| (0..lists).fold(Value::Int(1), |inner, _| Value::List(vec![inner]));
    assert!(with("load", deep(8)).is_ok());
    assert!(matches!(with("load", deep(9)), Err(IdentityError::BadValue { field: "load", .. })));
    let wide = Value::List(vec![Value::Bool(true); 1 << 20]);
    assert!(matches!(with("load", wide), Err(IdentityError::TooLarge { .. })));
}

#[test]
fn differences_name_the_field_and_both_values() {
    let here = with("kv_dtype", Value::from("fp8")).unwrap();
    let there = with("kv_dtype", Value::from("bf16")).unwrap();
    assert_eq!(here.differences(&there), [r#"kv_dtype: "fp8" here, "bf16" there"#]);
    assert!(here.differences(&here).is_empty());
}

#[test]
fn a_long_value_is_cut_in_messages() {
    let text = with("tenant", Value::Str("é".repeat(5000))).unwrap_err().to_string();
    assert!(text.len() < 1000, "{} bytes", text.len());
    let bytes = Value::Bytes(vec![7; 5000]).to_string();
    assert!(bytes.len() < 100, "{bytes}");
}
