//! The bindings.
