//! Test vectors against the contract of `order.confirmed.v1`.
//!
//! A file of vectors is a JSON object with `cases`, each of them
//!
//! ```json
//! {
//!   "name": "orderId 0",
//!   "value_base64": "eyJldmVudElkIjo…",
//!   "expect": "poison",
//!   "reason": ["invalid_field"]
//! }
//! ```
//!
//! `value_base64` is the value of a Kafka record, `null` for a record without one. `expect` is
//! `event`, `unknown`, `poison` or `tombstone`; `reason` lists the reasons that are right for a
//! poison, any if it is left out. Other fields are ignored.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use factum::{Decoded, PoisonReason, Registry};
use serde::Deserialize;

use crate::events::OrderConfirmed;

/// A record's value, and what decoding it must say.
#[derive(Debug)]
pub struct Vector {
    name: String,
    value: Option<Vec<u8>>,
    expected: Expected,
}

#[derive(Debug)]
struct Expected {
    verdict: Verdict,
    reasons: Vec<PoisonReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Event,
    Unknown,
    Poison,
    Tombstone,
}

/// A vector whose record was decoded to something else than expected.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The vector.
    pub name: String,
    /// What is right.
    pub expected: String,
    /// What decoding said.
    pub got: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, got {}",
            self.name, self.expected, self.got
        )
    }
}

/// Reads the vectors of a file.
///
/// # Errors
///
/// The file can't be read, is not of that form, or holds no vector; the text names the file and the
/// case.
pub fn read_file(path: &Path) -> Result<Vec<Vector>> {
    let read = || -> Result<Vec<Vector>> { parse(&std::fs::read(path)?) };
    read().with_context(|| format!("{} is no file of vectors", path.display()))
}

fn parse(text: &[u8]) -> Result<Vec<Vector>> {
    #[derive(Deserialize)]
    struct File {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        // Without this, a case that lacks its value would pass for a tombstone.
        #[serde(deserialize_with = "present")]
        value_base64: Option<String>,
        expect: Verdict,
        #[serde(default)]
        reason: Vec<String>,
    }

    fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
        Option::deserialize(from)
    }

    let file: File = serde_json::from_slice(text)?;
    ensure!(
        !file.cases.is_empty(),
        "`cases` is empty: nothing would be shown"
    );
    let vector = |case: Case| -> Result<Vector> {
        let value = case
            .value_base64
            .map(|text| STANDARD.decode(text))
            .transpose();
        let reasons: Result<Vec<PoisonReason>, _> = case.reason.iter().map(|r| r.parse()).collect();
        Ok(Vector {
            value: value.context("`value_base64` is not base 64")?,
            expected: Expected {
                verdict: case.expect,
                reasons: reasons.context("`reason` names no reason that there is")?,
            },
            name: case.name,
        })
    };
    file.cases
        .into_iter()
        .map(|case| {
            let name = case.name.clone();
            vector(case).with_context(|| format!("case `{name}`"))
        })
        .collect()
}

/// Decodes the vectors as a consumer of `order.confirmed.v1` would, and returns those that came out
/// wrong.
pub fn check(vectors: &[Vector]) -> Vec<Wrong> {
    let registry = Registry::new().with::<OrderConfirmed>();
    vectors
        .iter()
        .filter_map(|vector| {
            let decoded = registry.decode(vector.value.as_deref());
            let (verdict, reason) = match &decoded {
                Decoded::Event(_) => (Verdict::Event, None),
                Decoded::Unknown { .. } => (Verdict::Unknown, None),
                Decoded::Poison(poison) => (Verdict::Poison, Some(poison.reason())),
                Decoded::Tombstone => (Verdict::Tombstone, None),
            };
            let expected = &vector.expected;
            let reason_is_right = expected.reasons.is_empty()
                || reason.is_some_and(|reason| expected.reasons.contains(&reason));
            let is_right = verdict == expected.verdict && reason_is_right;
            (!is_right).then(|| Wrong {
                name: vector.name.clone(),
                expected: in_words(expected.verdict, &expected.reasons),
                got: in_words(verdict, reason.as_slice()),
            })
        })
        .collect()
}

fn in_words(verdict: Verdict, reasons: &[PoisonReason]) -> String {
    let name = match verdict {
        Verdict::Event => "event",
        Verdict::Unknown => "unknown",
        Verdict::Poison => "poison",
        Verdict::Tombstone => "tombstone",
    };
    let reasons: Vec<&str> = reasons.iter().map(|reason| reason.as_str()).collect();
    if reasons.is_empty() {
        name.to_owned()
    } else {
        format!("{name} ({})", reasons.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(cases: &str) -> Vec<Vector> {
        parse(format!("{{\"cases\":[{cases}]}}").as_bytes()).unwrap()
    }

    #[test]
    fn a_wrong_verdict_and_a_wrong_reason_are_found() {
        // W10= is `[]`.
        let right =
            r#"{"name":"a","value_base64":"W10=","expect":"poison","reason":["not_object"]}"#;
        let any_reason = r#"{"name":"b","value_base64":"W10=","expect":"poison"}"#;
        let tombstone = r#"{"name":"c","value_base64":null,"expect":"tombstone"}"#;
        assert_eq!(
            check(&vectors(&[right, any_reason, tombstone].join(","))),
            []
        );

        let reason =
            r#"{"name":"d","value_base64":"W10=","expect":"poison","reason":["empty","nul"]}"#;
        let verdict = r#"{"name":"e","value_base64":"W10=","expect":"event"}"#;
        let null = r#"{"name":"f","value_base64":null,"expect":"poison"}"#;
        let wrong = check(&vectors(&[right, reason, verdict, null].join(",")));
        let told: Vec<String> = wrong.iter().map(Wrong::to_string).collect();
        assert_eq!(
            told,
            [
                "d: expected poison (empty or nul), got poison (not_object)",
                "e: expected event, got poison (not_object)",
                "f: expected poison, got tombstone",
            ]
        );
    }

    #[test]
    fn a_bad_file_is_an_error_that_names_the_place() {
        for (text, part) in [
            ("", "EOF"),
            ("{}", "missing field `cases`"),
            (r#"{"cases":[]}"#, "`cases` is empty"),
            (
                r#"{"cases":[{"name":"a","expect":"tombstone"}]}"#,
                "missing field `value_base64`",
            ),
            (
                r#"{"cases":[{"name":"a","value_base64":null,"expect":"fine"}]}"#,
                "unknown variant",
            ),
            (
                r#"{"cases":[{"name":"a","value_base64":"!","expect":"event"}]}"#,
                "case `a`",
            ),
            (
                r#"{"cases":[{"name":"a","value_base64":"","expect":"poison","reason":["x"]}]}"#,
                "`reason` names no reason",
            ),
        ] {
            let error = format!("{:#}", parse(text.as_bytes()).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
