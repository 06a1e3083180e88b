//! Events between Rust and Node, on real Kafka and PostgreSQL.

mod interop;
mod odd;
mod orders;
mod project;
mod sample;
mod shared;
