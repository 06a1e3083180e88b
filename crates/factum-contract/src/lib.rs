//! The contract of an event beyond the Rust types: its lock file, the gate that tells a compatible change
//! from a breaking one (EVT-3), and its exports for other languages.
//!
//! - [`lock`]: `contracts/<kind>.json`, a contract as canonical text, committed beside the crate.
//! - [`compatibility`]: what changes between two contracts, and who can't read whom any more.
//! - [`document`]: JSON documents of a contract: read as the derived decoder does, and made up.
//! - [`gate`]: the test that `derive(Event)` adds to a crate.
//! - [`text`]: a change in words.
//! - [`TypeScript`], [`JsonSchema`], [`AsyncApi`]: contracts for other languages.

mod asyncapi;
pub mod compatibility;
pub mod document;
mod export;
pub mod gate;
mod json_schema;
mod layout;
pub mod lock;
pub mod text;
mod typescript;

pub use asyncapi::AsyncApi;
pub use export::{ExportError, ExportKind, Exported};
pub use json_schema::JsonSchema;
pub use typescript::{TypeScript, Zod};
