//! Tests of the arena. Seeds come from `KEEPWARM_TEST_SEED` and are printed.

mod mapping;
mod model;
mod sim;
mod waste;
