//! `factum dlq show`: what is wrong with one letter, and where.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use factum_event::Contract;
use factum_runtime::dead_letter_list::{self, LetterDetail, SHOWN_BYTES};
use factum_runtime::{Database, audit};
use serde_json::json;

use super::list::{letter_json, place_of};
use super::payload::{self, Excerpt, Values};
use super::{Who, json_line, key_text, letter_id, reason};
use crate::list::{moment, note};
use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::screen::Screen;
use crate::target::{Target, Trouble};

pub(super) const HELP: &str = "Of the payload the shape is shown: names of fields, and of values their kind, with the fault marked. \
    At most the first 64 KiB are read.\n\n\
    --values shows the values of fields that the event's lock file knows. Personal data stands only in events of \
    restricted topics, and their values are never shown. It is audited.\n\n\
    Exit codes: 0 shown; 2 wrong usage; 3 the database is away; 4 no such letter, or its values can't be shown.\n\n\
    Example:\n  factum dlq show 48213\n  factum dlq show 48213 --values --contracts . --reason '#4411'";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The letter's id
    #[arg(value_name = "ID", value_parser = letter_id)]
    id: i64,
    /// Show the values of fields that the contract knows
    #[arg(long, requires = "reason")]
    values: bool,
    /// The folder to look for lock files in, with all folders below it: that of the service's workspace
    #[arg(long, value_name = "FOLDER", requires = "values")]
    contracts: Option<PathBuf>,
    /// Why you look at values, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason, requires = "values")]
    reason: Option<String>,
    #[command(flatten)]
    who: WhoLooks,
    #[command(flatten)]
    target: Target,
}

/// Who looks at values: nobody else is asked for a name.
#[derive(Debug, Args)]
struct WhoLooks {
    /// Your name for the audit, with --values [default: the environment's USER]
    #[arg(
        long,
        env = "USER",
        hide_env = true,
        value_name = "NAME",
        required_if_eq("values", "true")
    )]
    actor: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    options
        .target
        .report("factum.dlq.show/1", async |db| show(db, options).await)
}

async fn show(db: &Database, options: &Options) -> Result<Report, Trouble> {
    let Some(detail) = dead_letter_list::letter(db, options.id).await? else {
        return Err(Trouble::Refused {
            exit: Exit::Refused,
            code: "DLQ-NO-LETTER",
            what: "no dead letter has this id".to_owned(),
            place: format!("letter {}", options.id),
            why: "it was never there, or its time is over".to_owned(),
            mend: "take an id that `factum dlq list --group …` shows".to_owned(),
        });
    };
    let contract = match options.values {
        true => Some(contract(options, &detail)?),
        false => None,
    };
    if contract.is_some() {
        let who = Who {
            actor: options.who.actor.clone().unwrap_or_default(),
        };
        let why = options.reason.as_deref().unwrap_or_default();
        audit::record_reveal(db, who.because(why), &detail.letter.consumer, options.id).await?;
    }
    let values = contract.as_ref().map_or(Values::Hidden, Values::Known);
    let letter = &detail.letter;
    let size = usize::try_from(letter.payload_bytes).unwrap_or(usize::MAX);
    let excerpt = detail.payload.as_deref().map(|bytes| {
        let size = size.max(bytes.len());
        payload::excerpt(bytes, size, letter.path.as_deref(), values)
    });
    let beside = match options.values {
        true => "shown are values of fields that the contract knows (audited)",
        false => "values hidden; --values shows those not personal (audited)",
    };
    let text = if options.target.json() {
        json_text(&detail, excerpt.as_ref())
    } else {
        let mut told = told(&detail, excerpt.as_ref());
        match Screen::stdout().width {
            // For a person it stands below what it is about.
            Some(_) => told.push_str(&format!("\n{beside}")),
            None => note(beside),
        }
        told
    };
    Ok(Report {
        text,
        exit: Exit::Done,
        json: None,
    })
}

/// The contract of the letter's event, if its values may be shown.
fn contract(options: &Options, detail: &LetterDetail) -> Result<Contract, Trouble> {
    let refused = |code, what: String, why: &str, mend: &str| Trouble::Refused {
        exit: Exit::Refused,
        code,
        what,
        place: format!("letter {}", options.id),
        why: why.to_owned(),
        mend: mend.to_owned(),
    };
    let Some(folder) = &options.contracts else {
        return Err(refused(
            "DLQ-NO-CONTRACTS",
            "the values can't be shown without the event's contract".to_owned(),
            "only a contract says which fields are known and free of personal data",
            "give the folder of the service's workspace with --contracts, where `contracts/<kind>.json` lie",
        ));
    };
    let kind = detail.letter.event_type.as_deref().unwrap_or_default();
    let found = crate::contract::contract_of(folder, kind).map_err(|what| {
        refused(
            "DLQ-NO-CONTRACTS",
            what,
            "only a contract says which fields are known and free of personal data",
            "mend what the text above says, or give another folder with --contracts",
        )
    })?;
    match found {
        None => Err(refused(
            "DLQ-NO-CONTRACTS",
            format!("no lock file of the event {} is there", plain::line(kind)),
            "only a contract says which fields are known and free of personal data",
            "give the folder of the service's workspace with --contracts, where `contracts/<kind>.json` lie",
        )),
        Some(contract) if contract.restricted => Err(refused(
            "DLQ-RESTRICTED",
            format!("{kind} is an event of a restricted topic"),
            "it may hold personal data, and its contract doesn't say where",
            "work with the shape; who may read the topic finds the record at its offset",
        )),
        Some(contract) => Ok(contract),
    }
}

fn told(detail: &LetterDetail, excerpt: Option<&Excerpt>) -> String {
    let letter = &detail.letter;
    let mut text = String::new();
    let kind = letter.event_type.as_deref().unwrap_or("type unknown");
    let _ = writeln!(
        text,
        "{}  {}  {}  {}",
        letter.id,
        letter.state,
        plain::line(&letter.consumer),
        plain::line(kind)
    );
    let _ = writeln!(text, "reason  {}", plain::line(&reason_text(detail)));
    let key = key_text(letter.key.as_deref());
    let attempt = match letter.attempts {
        1 => "attempt 1".to_owned(),
        n => format!("{n} attempts"),
    };
    let parked = if detail.key_is_parked {
        ", its key is parked"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "from    {}, key {}{parked}, {}, {attempt}",
        plain::line(&place_of(letter)),
        plain::line(&key),
        bytes(letter.payload_bytes),
    );
    let (first, last) = (moment(letter.first_seen), moment(letter.last_seen));
    let seen = if first == last {
        first
    } else {
        format!("{first} to {last}")
    };
    let _ = writeln!(text, "seen    {seen}");
    if let Some(at) = letter.state_at.filter(|_| letter.state != "open") {
        let _ = writeln!(text, "since   {} {}", letter.state, moment(at));
    }
    let failed_on = match letter.build.as_str() {
        // A person's doing, so no build failed.
        "" if letter.reason == "set_aside" => "set aside by a person".to_owned(),
        "" => "failed on a build that didn't say its name".to_owned(),
        build => format!("failed on {}", plain::line(build)),
    };
    let running = match &detail.running {
        Some(build) => format!("running {}", plain::line(&super::plan::build_name(build))),
        None => "no process of it runs".to_owned(),
    };
    let _ = writeln!(text, "builds  {failed_on}; {running}");
    if !detail.headers.is_empty() {
        let headers: Vec<String> = detail
            .headers
            .iter()
            .map(|(name, size)| match size {
                Some(size) => format!("{} {size} B", plain::line(name)),
                None => format!("{} null", plain::line(name)),
            })
            .collect();
        let _ = writeln!(text, "headers {}", headers.join(", "));
    }
    match excerpt {
        Some(excerpt) => text.push_str(&excerpt.lines.join("\n")),
        None => text.push_str("  (no value: a tombstone)"),
    }
    text
}

/// `missing_field at $.total.currency: expected string, ISO 4217`.
fn reason_text(detail: &LetterDetail) -> String {
    let letter = &detail.letter;
    match letter.error.as_deref() {
        None | Some("") => letter.reason.clone(),
        Some(error) if error.starts_with(&letter.reason) => error.to_owned(),
        Some(error) => format!("{}: {error}", letter.reason),
    }
}

/// `1.9 kB`.
fn bytes(n: i64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{}.{} kB", n / 1_000, n % 1_000 / 100),
        _ => format!("{}.{} MB", n / 1_000_000, n % 1_000_000 / 100_000),
    }
}

fn json_text(detail: &LetterDetail, excerpt: Option<&Excerpt>) -> String {
    let mut fields = letter_json(&detail.letter);
    let more = json!({
        "schema": "factum.dlq.show/1",
        "ok": true,
        "headers": detail.headers.iter().map(|(name, size)| json!({
            "name": name, "bytes": size.map(|size| size.to_string()),
        })).collect::<Vec<_>>(),
        "key_parked": detail.key_is_parked,
        "running": detail.running.as_ref().map(|build| json!({
            "service": build.service, "build": build.build,
        })),
        "excerpt": excerpt.map(|excerpt| &excerpt.lines),
        "bytes_read_at_most": SHOWN_BYTES,
    });
    if let (Some(fields), serde_json::Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    json_line(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_953), "1.9 kB");
        assert_eq!(bytes(20_480_000), "20.4 MB");
    }
}
