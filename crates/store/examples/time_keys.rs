//! Prints how long the keys of a 128 Ki-token prompt take on one core.
//!
//! ```sh
//! cargo run --release -p keepwarm-store --example time_keys
//! ```

use std::time::Instant;

use keepwarm_store::identity::{ChainKey, FIELDS, Kind, NamespaceSpec, TenantSecret, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fields = FIELDS.iter().map(|field| {
        let value = match field.kind {
            Kind::Count(_) | Kind::Geometry => Value::Int(16),
            Kind::Label | Kind::Text | Kind::Any => Value::from(field.name),
        };
        (field.name.to_owned(), value)
    });
    let key = ChainKey::new(&NamespaceSpec::new(fields)?, &TenantSecret::public_default());
    let tokens: Vec<u32> = (0..128 * 1024).collect();
    let mut runs: Vec<_> = (0..21)
        .map(|_| {
            let start = Instant::now();
            let keys = key.chain_tokens(None, &tokens, 16, &[]);
            assert_eq!(std::hint::black_box(keys).len(), 8192);
            start.elapsed()
        })
        .collect();
    runs.sort();
    let (min, median, max) = (runs[0], runs[10], runs[20]);
    println!("128 Ki tokens in blocks of 16: median {median:?} of 21 (min {min:?}, max {max:?})");
    Ok(())
}
