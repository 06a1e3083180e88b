//! Events between Rust and Node, on real Kafka and PostgreSQL.

mod interop;
mod orders;
mod project;
mod sample;
mod shared;
