//! What the derives accept, and what they say about a mistake: one fixture per error.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test -p factum-macros --test derives`, and
//! read the difference.

#[test]
fn every_mistake_has_its_error() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/pass/*.rs");
    cases.compile_fail("tests/ui/*.rs");
}
