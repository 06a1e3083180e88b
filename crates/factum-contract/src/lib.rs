//! The contract of an event beyond the Rust types: its lock file, the gate that tells a compatible change
//! from a breaking one (EVT-3), and its exports for other languages.
