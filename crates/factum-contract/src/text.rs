//! A finding in words: the same in the gate's test and in the command.

use std::fmt::Write as _;

use factum_event::Shape;

use crate::compatibility::{Finding, Rule, Successor};
use crate::document::expectation;

/// The most characters of a document that are shown; the rest is left out, in sight.
pub const MAX_SHOWN_CHARS: usize = 2_000;

/// A finding as a block of lines, without a line break at the end:
///
/// ```text
/// FIELD_REMOVED (EVT-3): `note` was removed: old consumers require it
///   where: src/events.rs:12
///   who:   old consumers, reading what new producers write
///   proof: {"eventId":…}
///          refused: expected text at $.note
///   mend:  put `note` back; or …
/// ```
///
/// `successor` is the version to add, see [`Report::successor`](crate::compatibility::Report::successor).
#[must_use]
pub fn block(finding: &Finding, place: &str, successor: &Successor) -> String {
    let mut text = format!(
        "{} ({}): {}\n  where: {place}",
        finding.rule,
        finding.rule.standard(),
        finding.why
    );
    if let Some(side) = finding.side {
        let _ = write!(
            text,
            "\n  who:   {side}, reading what {} write",
            side.writers()
        );
    }
    if let Some(example) = &finding.counterexample {
        let _ = write!(text, "\n  proof: {}", shortened(&example.document));
        match &example.refused {
            Some(expected) => {
                let _ = write!(text, "\n         is refused: expected {expected}");
            }
            None if finding.rule == Rule::EventRemoved => {
                text.push_str("\n         is what consumers wait for");
            }
            None => text.push_str("\n         is read by every reader of Factum; the standard forbids the change all the same"),
        }
    }
    if finding.is_breaking() {
        let _ = write!(text, "\n  mend:  {}", finding.mend(successor));
    }
    text
}

/// The form of a value as a phrase, such as `a list of OrderItem` or `text of at most 40 characters`.
#[must_use]
pub fn shape(shape: &Shape) -> String {
    match shape {
        Shape::Array { items, .. } => {
            let count = expectation(shape).replacen("an array", "a list", 1);
            format!("{count}, each {}", self::shape(items))
        }
        Shape::Map { values } => format!("a map, each value {}", self::shape(values)),
        Shape::Nullable(inner) => format!("{} or null", self::shape(inner)),
        Shape::Object(name) => name.clone(),
        Shape::Choice { values, open } => {
            let more = if *open { ", or another text" } else { "" };
            format!("one of {}{more}", values.join(", "))
        }
        other => expectation(other),
    }
}

/// The text, cut where it is very long: a list of thousands of items proves no more to a reader.
#[must_use]
pub fn shortened(document: &str) -> String {
    match document.char_indices().nth(MAX_SHOWN_CHARS) {
        None => document.to_owned(),
        Some((at, _)) => format!("{}… ({} bytes)", &document[..at], document.len()),
    }
}
