//! `cargo xtask conformance`

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::compile::{self, Profile};
use crate::screen::Screen;
use crate::workspace::{Origin, root, stream};
use crate::{Usage, Verdict, prerequisites};

/// The vectors that belong to the project.
const DEFAULT_FILE: &str = "tests/conformance/order-confirmed.json";

/// Decode test vectors against the example's contract order.confirmed.v1
///
/// Each vector is a record as it could lie in a topic, with the verdict that decoding it must give.
#[derive(Args)]
#[command(after_help = "\
Ends with {\"vectors\":N,\"right\":N,\"wrong\":N} on one line with --json.
Exit codes: 0 every vector is right, 1 one is wrong, 2 usage, 130 interrupted.

Example: cargo xtask conformance tests/conformance/order-confirmed.json --json")]
pub(crate) struct Conformance {
    /// Files of vectors [default: tests/conformance/order-confirmed.json]
    files: Vec<PathBuf>,
}

impl Conformance {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        prerequisites::ensure(screen, &[prerequisites::TO_BUILD])?;
        let counts = check(screen, &self.files)?;
        screen.end(&counts.to_json());
        Ok(Verdict::of(counts.all_right()))
    }
}

/// What became of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    vectors: u64,
    right: u64,
    wrong: u64,
}

impl Counts {
    fn parse(line: &str) -> Option<Counts> {
        let told: Value = serde_json::from_str(line).ok()?;
        let number = |key: &str| told[key].as_u64();
        Some(Counts {
            vectors: number("vectors")?,
            right: number("right")?,
            wrong: number("wrong")?,
        })
    }

    /// No vector at all is no success: then nothing was shown.
    pub(crate) fn all_right(self) -> bool {
        self.vectors > 0 && self.right == self.vectors && self.wrong == 0
    }

    fn to_json(self) -> Value {
        serde_json::json!({
            "vectors": self.vectors, "right": self.right, "wrong": self.wrong,
        })
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} right", self.right, self.vectors)
    }
}

/// Runs the example's checker on these files, or on the project's own.
pub(crate) fn check(screen: &Screen, files: &[PathBuf]) -> Result<Counts> {
    let files = match files {
        [] => vec![root().join(DEFAULT_FILE)],
        files => files.to_vec(),
    };
    for file in &files {
        if !file.is_file() {
            bail!(Usage(format!(
                "{}: no such file; give files of the form of {DEFAULT_FILE}",
                file.display()
            )));
        }
    }
    let program = compile::example(screen, "orders", "conformance", Profile::Dev)?;
    let mut command = Command::new(program);
    command.args(&files).arg("--json");
    let mut counts = None;
    let status = stream(&mut command, |from, line| {
        match (from, Counts::parse(line)) {
            (Origin::Stdout, Some(parsed)) => counts = Some(parsed),
            (Origin::Stdout, None) => screen.data(line),
            (Origin::Stderr, _) => screen.note(line),
        }
    })?;
    if status.code() == Some(2) {
        bail!(Usage(
            "the checker can't use what it was given, see above".to_owned()
        ));
    }
    let counts = counts.with_context(|| format!("the checker gave no result ({status})"))?;
    ensure!(
        status.success() == counts.all_right(),
        "the checker's result ({counts}) and its end ({status}) don't fit together"
    );
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_vectors_that_are_all_right_hold() {
        let counts = |line: &str| Counts::parse(line).unwrap();
        assert!(counts(r#"{"vectors":97,"right":97,"wrong":0}"#).all_right());
        assert!(!counts(r#"{"vectors":97,"right":96,"wrong":1}"#).all_right());
        assert!(!counts(r#"{"vectors":97,"right":96,"wrong":0}"#).all_right());
        assert!(!counts(r#"{"vectors":0,"right":0,"wrong":0}"#).all_right());
        assert_eq!(Counts::parse("97 vectors"), None);
        assert_eq!(Counts::parse(r#"{"vectors":97}"#), None);
    }
}
