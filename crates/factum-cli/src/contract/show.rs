//! `factum contract list` and `show`.

use std::fmt::Write as _;

use clap::Args;
use factum_contract::{lock, text};
use factum_event::FieldShape;
use serde_json::{Value, json};

use super::locks::{self, Lock};
use super::source::{Crates, Declaration};
use super::{Place, Trouble, unknown_event};
use crate::outcome::{self, Exit, Failure, Report};

const LIST: &str = "factum.contract.list/1";
const SHOW: &str = "factum.contract.show/1";

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The event, such as order.confirmed.v1
    kind: String,
    #[command(flatten)]
    place: Place,
}

pub(super) fn list(options: &List) -> Result<Report, Failure> {
    let place = &options.place;
    let schema = place.json.then_some(LIST);
    let locks = locks::in_folder(&place.folder).map_err(|t| t.into_failure(schema))?;
    let width = |of: fn(&Lock) -> &str| locks.iter().map(|lock| of(lock).len()).max().unwrap_or(0);
    let kinds = width(Lock::kind).max("event".len());
    let topics = width(|lock| &lock.contract.topic).max("topic".len());
    let mut table = format!(
        "{:<kinds$}  {:<topics$}  fields  lock file",
        "event", "topic"
    );
    let crates = Crates::of(&place.folder, locks.iter().map(|lock| &*lock.crate_folder));
    let declaration = |lock: &Lock| crates.declaration(&lock.crate_folder, lock.kind());
    for lock in &locks {
        let warning = match declaration(lock) {
            Declaration::Missing => "  (nothing declares it: `factum contract check` fails)",
            Declaration::Unlocked => "  (its struct is `unlocked`: `factum contract check` fails)",
            Declaration::Locked | Declaration::Unknown => "",
        };
        let _ = write!(
            table,
            "\n{:<kinds$}  {:<topics$}  {:>6}  {}{warning}",
            lock.kind(),
            lock.contract.topic,
            lock.contract.fields.len(),
            lock.path().display()
        );
    }
    if locks.is_empty() {
        table = "no lock files: `FACTUM_CONTRACTS=update cargo test` writes them".to_owned();
    }
    Ok(Report {
        text: table,
        exit: Exit::Done,
        json: place.json.then(|| {
            let mut fields = outcome::json(LIST, Exit::Done);
            let events: Vec<Value> = locks
                .iter()
                .map(|lock| {
                    json!({
                        "event": lock.kind(),
                        "aggregate": lock.contract.aggregate_type,
                        "topic": lock.contract.topic,
                        "restricted": lock.contract.restricted,
                        "supersedes": lock.contract.supersedes,
                        "fields": lock.contract.fields.len(),
                        "file": lock.path(),
                        "declared": declaration(lock).as_str(),
                    })
                })
                .collect();
            fields.insert("events".to_owned(), events.into());
            fields
        }),
    })
}

pub(super) fn show(options: &Show) -> Result<Report, Failure> {
    let schema = options.place.json.then_some(SHOW);
    show_one(options).map_err(|trouble| trouble.into_failure(schema))
}

fn show_one(options: &Show) -> Result<Report, Trouble> {
    let place = &options.place;
    let locks = locks::in_folder(&place.folder)?;
    let found: Vec<&Lock> = locks
        .iter()
        .filter(|lock| lock.kind() == options.kind)
        .collect();
    if found.is_empty() {
        let folder = place.folder.display().to_string();
        return Err(unknown_event(&options.kind, locks.iter(), &folder));
    }
    let described: Vec<String> = found.iter().map(|lock| describe(lock)).collect();
    Ok(Report {
        text: described.join("\n\n"),
        exit: Exit::Done,
        json: place.json.then(|| {
            let mut fields = outcome::json(SHOW, Exit::Done);
            let contracts: Vec<Value> = found
                .iter()
                .map(|of| {
                    let contract: Option<Value> =
                        serde_json::from_str(&lock::to_text(&of.contract)).ok();
                    json!({ "file": of.path(), "contract": contract })
                })
                .collect();
            fields.insert("contracts".to_owned(), contracts.into());
            fields
        }),
    })
}

fn describe(lock: &Lock) -> String {
    let contract = &lock.contract;
    let restricted = if contract.restricted {
        ", restricted"
    } else {
        ""
    };
    let mut text = format!(
        "{} ({})\n  topic:      {}{restricted}\n  aggregate:  {}, its id is {}\n",
        contract.event_type,
        contract.name,
        contract.topic,
        contract.aggregate_type,
        contract.aggregate_id
    );
    if let Some(kind) = &contract.supersedes {
        let _ = writeln!(text, "  supersedes: {kind}");
    }
    let _ = write!(text, "  lock file:  {}", lock.path().display());
    list_fields(&contract.fields, &mut text);
    for (name, fields) in &contract.definitions {
        let _ = write!(text, "\n\n{name}");
        list_fields(fields, &mut text);
    }
    text
}

fn list_fields(fields: &[FieldShape], text: &mut String) {
    let width = fields.iter().map(|field| field.name.len()).max();
    let width = width.unwrap_or(0);
    for field in fields {
        let optional = if field.optional {
            ", may be absent"
        } else {
            ""
        };
        let form = text::shape(&field.shape);
        let _ = write!(text, "\n  {:<width$}  {form}{optional}", field.name);
    }
}
