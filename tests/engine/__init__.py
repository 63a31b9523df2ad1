"""Tests with a real vLLM on the CPU. `make test-engine` runs them in the engine's environment."""
