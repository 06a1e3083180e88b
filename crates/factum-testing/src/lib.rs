//! Private PostgreSQL servers and brokers for Factum's tests and its demo.
//!
//! The bare crate starts servers ([`postgres`], [`kafka`]) and nothing else, with few dependencies.

mod download;
pub mod kafka;
mod keeper;
pub mod postgres;
