//! Factum tasks.
fn main() {}
