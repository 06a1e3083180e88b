//! The contract of an event beyond the Rust types: its lock file, the gate that tells a compatible change
//! from a breaking one (EVT-3), and its exports for other languages.

mod asyncapi;
mod code_list;
mod export;
mod json_schema;
mod layout;
pub mod lock;
mod typescript;

pub use asyncapi::AsyncApi;
pub use export::{ExportError, ExportKind, Exported};
pub use json_schema::JsonSchema;
pub use typescript::{TypeScript, Zod};
