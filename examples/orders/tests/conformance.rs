//! The conformance runner as a program.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

fn conformance(args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn file(contents: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(contents.as_bytes()).unwrap();
    file
}

#[test]
fn all_published_vectors_are_right() {
    let vectors =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/order-confirmed.json");
    let (code, stdout, stderr) = conformance(&[vectors.to_str().unwrap(), "--json"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "conformance: 97 of 97 vectors are right",
            r#"{"right":97,"vectors":97,"wrong":0}"#
        ]
    );
}

#[test]
fn a_wrong_vector_is_named_and_fails() {
    let file = file(r#"{"cases":[{"name":"an array","value_base64":"W10=","expect":"event"}]}"#);
    let (code, stdout, _) = conformance(&[file.path().to_str().unwrap(), "--json"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        stdout,
        "wrong: an array: expected event, got poison (not_object)\n\
         conformance: 0 of 1 vectors are right\n\
         {\"right\":0,\"vectors\":1,\"wrong\":1}\n"
    );
}

#[test]
fn a_file_that_is_none_is_an_error_of_its_own() {
    let bad = file("cases: none");
    for path in ["/there/is/no/such/file.json", bad.path().to_str().unwrap()] {
        let (code, stdout, stderr) = conformance(&[path]);
        assert_eq!(code, Some(2), "{stderr}");
        assert_eq!(stdout, "");
        assert!(stderr.contains(path), "{stderr}");
    }
    assert_eq!(conformance(&[]).0, Some(2), "no file is a wrong use");
}
