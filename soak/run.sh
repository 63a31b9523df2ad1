#!/usr/bin/env bash
# The full sizes: tests at ten times their short size (a million model operations a policy, 200 times
# the capacity, 500 power losses, 20 kills, 64 clients for ten minutes), ten minutes a fuzzer. Appends
# what it saw to soak/RESULTS.md, with the commit.
#
#   SCALE=10 FUZZ_SECONDS=600 JOBS=2 soak/run.sh       JOBS: fuzzers at a time
#   STEPS="workload clients" soak/run.sh               these alone; the result says so
set -euo pipefail
cd "$(dirname "$0")/.."
SCALE=${SCALE:-10}
FUZZ_SECONDS=${FUZZ_SECONDS:-600}
results=soak/RESULTS.md
log=out/soak
mkdir -p "$log" && rm -f "$log"/*.log
commit=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain)" ] || commit="$commit, with changes that are not committed"
started=$(date -u +%Y-%m-%dT%H:%MZ)
rows=""
failed=0

STEPS=${STEPS:-}

step() {
    local name=$1 begun=$SECONDS
    [ -z "$STEPS" ] || [[ " $STEPS " == *" $name "* ]] || return 0
    shift
    printf '== %s\n' "$name"
    if "$@" >"$log/$name.log" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
    printf '   %s after %s s, log in %s\n' "$verdict" "$((SECONDS - begun))" "$log/$name.log"
    rows+="| $name | $verdict | $((SECONDS - begun)) | \`$*\` |"$'\n'
}

export KEEPWARM_TEST_SCALE=$SCALE
export KEEPWARM_TEST_SEED=${KEEPWARM_TEST_SEED:-$(date +%s)}
step build cargo test --workspace --profile checked --no-run
step model cargo test -p keepwarm-store --profile checked --test model -- --nocapture
step bounds cargo test -p keepwarm-store --profile checked --test bounds -- --nocapture
step stress cargo test -p keepwarm-store --profile checked --test stress -- --nocapture
step policies cargo test -p keepwarm-store --profile checked --test policy_conformance --test trace \
    --test default_policy --test tenants -- --nocapture
step flash cargo test -p keepwarm-store --profile checked --test flash -- --nocapture
step flash_tier cargo test -p keepwarm-store --profile checked --test flash_tier --test tier_conformance \
    -- --nocapture
step wire cargo test -p keepwarm-wire --profile checked -- --nocapture
step node make --no-print-directory setup
step fleet .venv/bin/python -m pytest -q -s tests/test_netns.py
step node_bounds .venv/bin/python -m pytest -q -s tests/test_bounds.py
step flash_node .venv/bin/python -m pytest -q -s tests/test_flash.py
step clients .venv/bin/python -m pytest -q -s tests/test_many_clients.py
step sim cargo test -p keepwarm-sim --profile checked -- --nocapture
step proof .venv/bin/python -m pytest -q -s tests/test_curve.py tests/test_layout_lint.py tests/test_layout_fix.py \
    tests/test_twin.py
step workload .venv/bin/python soak/workload.py
step fuzzers env SECONDS_EACH="$FUZZ_SECONDS" JOBS="${JOBS:-2}" fuzz/run.sh

[ -f "$results" ] || printf '# Soak results\n\nAppended by `make soak`; one section a run.\n' >"$results"
{
    printf '\n## %s, commit %s%s\n\n' "$started" "$commit" "${STEPS:+, these steps alone: $STEPS}"
    printf 'Scale %s, seed %s, fuzzers %s s each, %s cores, load at the end %s.\n\n' \
        "$SCALE" "$KEEPWARM_TEST_SEED" "$FUZZ_SECONDS" "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)"
    printf '| step | result | seconds | command |\n| --- | --- | --- | --- |\n%s' "$rows"
    printf '\n```\n'
    grep -hE '^(model|workload:|fleet:|requests/s|bounds|crash|damage|clients|waste|stress|trace|deadline|calls)|ok      Done|^test result' "$log"/*.log || true
    printf '```\n'
} >>"$results"
printf 'written to %s\n' "$results"
exit "$failed"
