//! Code that must not compile, and what the compiler says to the person who wrote it.
//!
//! After a change of the expected texts: `TRYBUILD=overwrite cargo test -p factum --test misuse`,
//! then read the difference aloud.

#![cfg(feature = "service")]

#[test]
fn a_misused_handler_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
