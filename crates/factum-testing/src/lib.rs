//! Private PostgreSQL servers and brokers for Factum's tests and its demo.
//!
//! The bare crate starts servers ([`postgres`], [`kafka`]) and nothing else, with few dependencies.
//! With the feature `database`, `database()` gives each test a fresh database.

#[cfg(feature = "database")]
mod database;
mod download;
pub mod kafka;
mod keeper;
pub mod postgres;
pub mod tool;
#[cfg(any(feature = "database", feature = "broker"))]
mod wait;

#[cfg(feature = "database")]
pub use database::{DATABASE_URL, TestDatabase, database};
#[cfg(any(feature = "database", feature = "broker"))]
pub use wait::eventually;
