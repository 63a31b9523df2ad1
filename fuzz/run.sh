#!/bin/sh
# Builds the fuzzers on stable Rust and runs each for SECONDS_EACH seconds (30), JOBS (2) at a time.
#
#   fuzz/run.sh                    all targets
#   fuzz/run.sh session client     some of them
#   SECONDS_EACH=3600 SEED=7 fuzz/run.sh session
#
# A finding ends the run with a failure; the input that led to it lies in fuzz/artifacts/<target>/
# and is run again with  fuzz/run.sh --again <target> <file>.
set -eu
cd "$(dirname "$0")"

SECONDS_EACH=${SECONDS_EACH:-30}
SEED=${SEED:-$(date +%s)}
RSS_LIMIT_MB=${RSS_LIMIT_MB:-1024}
MAX_LEN=${MAX_LEN:-4096}
TARGET_TRIPLE=x86_64-unknown-linux-gnu
ALL="requests replies session client namespace epochs flash"

# What cargo-fuzz would pass, less what needs a nightly compiler. With --target the flags reach only
# the code under test, not build scripts.
coverage='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
coverage="$coverage -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-trace-compares"
coverage="$coverage -Ccodegen-units=1 -Cdebug-assertions"
export CARGO_TARGET_DIR="${FUZZ_TARGET_DIR:-$PWD/target}"

bins="$CARGO_TARGET_DIR/$TARGET_TRIPLE/release"

fuzz_one() {
    mkdir -p "artifacts/$1"
    if "$bins/$1" "corpus/$1" -seed="$SEED" -max_total_time="$SECONDS_EACH" \
        -rss_limit_mb="$RSS_LIMIT_MB" -max_len="$MAX_LEN" -timeout=10 \
        -artifact_prefix="artifacts/$1/" -print_final_stats=1 >"artifacts/$1.log" 2>&1; then
        printf '%-10s ok      %s\n' "$1" "$(grep -E '^Done|^stat::number_of_executed' \
            "artifacts/$1.log" | tr '\n' ' ')"
    else
        printf '%-10s FAILED  seed %s\n' "$1" "$SEED"
        tail -n 40 "artifacts/$1.log"
        return 1
    fi
}

if [ "${1:-}" = --one ]; then
    fuzz_one "$2"
    exit
fi

RUSTFLAGS=$coverage cargo build --release --locked --target "$TARGET_TRIPLE" \
    --features targets --bins

if [ "${1:-}" = --again ]; then
    exec "$bins/$2" "$3"
fi

# Not a fuzzer: built without their flags.
cargo run --quiet --locked --example seeds -- corpus
printf 'seed %s, %s s each, %s MB at most\n' "$SEED" "$SECONDS_EACH" "$RSS_LIMIT_MB"

export SEED SECONDS_EACH
printf '%s\n' ${*:-$ALL} | xargs -P "${JOBS:-2}" -I{} "$PWD/run.sh" --one {}
