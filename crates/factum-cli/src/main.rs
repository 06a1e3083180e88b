//! The `factum` command.
fn main() {}
