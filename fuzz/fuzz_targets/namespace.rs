//! Encodings of namespaces: what is accepted has one encoding, and describes itself.
#![no_main]

use keepwarm_store::identity::NamespaceSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(spec) = NamespaceSpec::decode(data) else { return };
    assert_eq!(spec.encoding(), data, "two encodings of one namespace");
    let again = NamespaceSpec::new(spec.fields().clone()).expect("its own fields make it");
    assert_eq!(again.fingerprint(), spec.fingerprint());
    assert!(spec.differences(&again).is_empty());
    assert!((1..=64).contains(&spec.parts()));
});
