//! Small runs of the prototypes that check themselves; the figures in `README.md` are from larger
//! ones. `KEEPWARM_TEST_SEED` chooses the first seed.

use std::process::Command;

fn run(program: &str, size: &str) {
    let seed = std::env::var("KEEPWARM_TEST_SEED").unwrap_or_else(|_| "1".into());
    println!("{program} {size} {seed} (KEEPWARM_TEST_SEED={seed})");
    let output = Command::new(program).args([size, &seed]).output().expect("start");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {size} {seed}\n{text}\n{errors}");
}

#[test]
fn the_log_never_claims_what_is_not_there() {
    run(env!("CARGO_BIN_EXE_segment_log"), "6");
}

#[test]
fn the_checksum_of_the_reply_catches_every_case() {
    run(env!("CARGO_BIN_EXE_lease_race"), "2");
}
