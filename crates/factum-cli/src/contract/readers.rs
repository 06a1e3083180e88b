//! `factum contract readers`: who takes which version of an event, and which old version can go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use factum_event::EventType;
use factum_runtime::{Database, DatabaseError, EventReader, event_readers};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::list::moment;
use crate::outcome::{Exit, Failure, Report};
use crate::target::{Done, Target, unusable};

const SCHEMA: &str = "factum.contract.readers/1";
/// Code that a consumer ran before is taken for gone when newer code has said its word this much later. A running
/// consumer says it every 30 s.
const SILENT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
#[command(after_help = "\
Each consumer says in the table event_reader of its own database what it takes, when it starts and every 30 s.
A consumer needs an old version as long as its code knows nothing newer. Run this against the database of every
service that consumes the event: each shows its own consumers alone.

Exit codes: 0 told; with --event, nobody here needs that version. 1 with --event: somebody needs it, or nothing
newer is known here. 2 wrong usage. 3 the database is away.

Example:
  DATABASE_URL=postgres://billing:…@localhost:5432/billing factum contract readers --event order.confirmed.v1")]
pub(crate) struct Options {
    /// Only this version of an event, such as order.confirmed.v1: exit code 1 while somebody needs it
    #[arg(long, value_name = "KIND", value_parser = kind)]
    event: Option<String>,
    #[command(flatten)]
    target: Target,
}

fn kind(text: &str) -> Result<String, String> {
    match text.parse::<EventType>() {
        Ok(kind) => Ok(kind.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    options.target.with_database(
        SCHEMA,
        async |db: &Database| {
            let readers = event_readers(db).await?;
            Ok::<_, DatabaseError>(tell(&readers, options.event.as_deref()))
        },
        mend,
    )
}

fn mend(error: &DatabaseError, variable: &str) -> (Exit, String) {
    unusable(error, variable).unwrap_or_else(|| {
        let mend = "if the table event_reader is missing, run `factum migrate up`";
        (Exit::Failed, mend.to_owned())
    })
}

/// What is known of one version of an event.
struct Version<'a> {
    event_type: &'a str,
    /// Whether a newer one is known here.
    superseded: bool,
    /// Who takes it, whatever code it runs.
    readers: Vec<&'a EventReader>,
    /// Who runs code that takes it and knows nothing newer.
    dependent: Vec<&'a EventReader>,
    /// When such code was last seen, of consumers that have newer code now.
    left_at: Option<OffsetDateTime>,
}

impl Version<'_> {
    fn verdict(&self) -> String {
        let kind = self.event_type;
        if self.readers.is_empty() && self.dependent.is_empty() {
            return format!("{kind}: no consumer of this database takes it");
        }
        if !self.superseded {
            return format!("{kind} is the newest version known here");
        }
        if !self.dependent.is_empty() {
            let names: BTreeSet<String> = self
                .dependent
                .iter()
                .map(|reader| format!("{} (last seen {})", reader.consumer, moment(reader.seen_at)))
                .collect();
            let names: Vec<String> = names.into_iter().collect();
            return format!(
                "{kind} can't go yet: code that knows nothing newer runs in {}",
                names.join(", ")
            );
        }
        let since = match self.left_at {
            Some(at) => format!(
                "nobody has declared it as their newest since {}",
                moment(at)
            ),
            None => "nobody here has ever declared it as their newest".to_owned(),
        };
        let upcasts = self.readers.iter().filter(|r| r.taken_as != kind);
        let alone = match upcasts.filter_map(|r| r.last_taken_at).max() {
            Some(at) => format!(
                ". The last event that took effect from it was made into a newer version at {}: see that no \
                 producer writes it alone any more",
                moment(at)
            ),
            None => String::new(),
        };
        format!("{kind} can go, as far as this database's consumers are concerned: {since}{alone}")
    }

    fn json(&self) -> Value {
        json!({
            "event_type": self.event_type,
            "newest": !self.superseded,
            "can_go": self.can_go(),
            "needed_by": self.dependent.iter().map(|r| &r.consumer).collect::<BTreeSet<_>>(),
            "nobody_since": self.left_at.filter(|_| self.dependent.is_empty()).map(moment),
            "readers": self.readers.iter().map(|r| json!({
                "consumer": r.consumer,
                "consumer_group": r.consumer_group,
                "taken_as": r.taken_as,
                "newest": r.newest,
                "topic": r.topic,
                "taken": r.taken,
                "duplicates": r.duplicates,
                "last_taken_at": r.last_taken_at.map(moment),
                "declared_at": moment(r.declared_at),
                "seen_at": moment(r.seen_at),
            })).collect::<Vec<_>>(),
        })
    }

    fn can_go(&self) -> bool {
        self.dependent.is_empty() && (self.superseded || self.readers.is_empty())
    }
}

/// Pure, so that every state of the table can be tried.
fn tell(all: &[EventReader], only: Option<&str>) -> Done {
    let versions: Vec<Version<'_>> = kinds(all)
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only == *kind))
        .map(|kind| version(kind, all))
        .collect();
    let mut text = String::new();
    if versions.iter().any(|version| !version.readers.is_empty()) {
        // The preset sets a blank before and behind each column.
        for line in table(&versions).lines() {
            let _ = writeln!(text, "{}", line.trim());
        }
        text.push('\n');
    }
    for version in &versions {
        let _ = writeln!(text, "{}", version.verdict());
    }
    if versions.is_empty() {
        text.push_str(match only {
            Some(_) => "no consumer of this database takes it",
            None => "no consumer of this database has said yet what it takes",
        });
    }
    let needed = only.is_some() && versions.iter().any(|version| !version.can_go());
    let exit = if needed { Exit::Failed } else { Exit::Done };
    let fields = json!({
        "events": versions.iter().map(Version::json).collect::<Vec<_>>(),
    });
    (text.trim_end().to_owned(), exit, fields)
}

/// Every type that somebody takes or knows, by event and version.
fn kinds(all: &[EventReader]) -> BTreeSet<&str> {
    all.iter()
        .flat_map(|r| [r.event_type.as_str(), r.newest.as_str()])
        .collect::<BTreeSet<_>>()
}

/// `order.confirmed` and 1 of `order.confirmed.v1`. A type of another form is a version 0 of itself.
fn parts(kind: &str) -> (&str, u32) {
    let parsed = kind.parse::<EventType>();
    match (parsed, kind.rsplit_once('.')) {
        (Ok(parsed), Some((event, _))) => (event, parsed.version()),
        _ => (kind, 0),
    }
}

fn version<'a>(kind: &'a str, all: &'a [EventReader]) -> Version<'a> {
    let (event, number) = parts(kind);
    let of_event = |r: &&EventReader| parts(&r.newest).0 == event;
    let newest_of = |r: &EventReader| parts(&r.newest).1;
    let superseded = kinds(all)
        .into_iter()
        .any(|other| parts(other).0 == event && parts(other).1 > number);
    // When each consumer's newest code last said its word, by the newest version that the code knows.
    let mut seen = BTreeMap::<&str, BTreeMap<u32, OffsetDateTime>>::new();
    for reader in all.iter().filter(of_event) {
        let of_consumer = seen.entry(&reader.consumer).or_default();
        let at = of_consumer
            .entry(newest_of(reader))
            .or_insert(reader.seen_at);
        *at = reader.seen_at.max(*at);
    }
    let replaced = |reader: &EventReader| {
        let newer = seen[reader.consumer.as_str()].range(newest_of(reader) + 1..);
        newer
            .max_by_key(|(_, at)| **at)
            .is_some_and(|(_, at)| *at > reader.seen_at + SILENT)
    };
    let old_code = all
        .iter()
        .filter(of_event)
        .filter(|reader| newest_of(reader) == number);
    let (gone, dependent): (Vec<_>, Vec<_>) = old_code.partition(|reader| replaced(reader));
    Version {
        event_type: kind,
        superseded,
        readers: all
            .iter()
            .filter(|r| r.event_type == kind && !(replaced(r) && r.taken_as == kind))
            .collect(),
        dependent,
        left_at: gone.iter().map(|reader| reader.seen_at).max(),
    }
}

fn table(versions: &[Version<'_>]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "event type",
        "consumer",
        "taken",
        "effects",
        "duplicates",
        "last effect",
        "last seen",
    ]);
    for reader in versions.iter().flat_map(|version| &version.readers) {
        let taken = if reader.taken_as == reader.event_type {
            "itself".to_owned()
        } else {
            format!("as {} (upcast)", reader.taken_as)
        };
        table.add_row([
            reader.event_type.clone(),
            reader.consumer.clone(),
            taken,
            reader.taken.to_string(),
            reader.duplicates.to_string(),
            reader
                .last_taken_at
                .map_or_else(|| "never".to_owned(), moment),
            moment(reader.seen_at),
        ]);
    }
    for column in [3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
