//! Tests of the arena. Seeds come from `KEEPWARM_TEST_SEED` and are printed.

mod ground;
mod mapping;
mod model;
mod sim;
mod waste;
