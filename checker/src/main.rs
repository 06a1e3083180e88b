//! The command `factum-checker`: what a run did wrong, one line each.
//!
//! Anomalies and the summary go to stdout, errors to stderr.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use factum_checker::{Anomaly, Facts, History, HistoryError, Phase, ReadError, check, read};
use serde_json::{Value, json};

/// Nothing is wrong.
const NOTHING_WRONG: u8 = 0;
/// There are anomalies.
const ANOMALIES: u8 = 1;
/// Wrong usage, or the history can't be read or isn't valid; also clap's own code.
const USAGE: u8 = 2;
/// The database or the broker didn't answer, or no longer has what a verdict needs.
const AWAY: u8 = 3;

/// Decides whether a run lost, doubled or reordered anything.
///
/// Compares the list of what went in with the effect tables, the dead letters, the topics and the
/// committed offsets. Reads only.
#[derive(Debug, Parser)]
#[command(
    name = "factum-checker",
    version,
    after_help = "\
Environment:
  DATABASE_URL   the database's URL (it holds a password, so it is no argument)
  KAFKA_BROKERS  host:port of the brokers, separated by commas; without encryption

The history, in JSON; \"derived\" may be left out, and a partition that \"begin\" does not name begins at 0:
  {\"consumer\": \"billing\", \"effects\": [\"debit\", \"credit\"],
   \"source\":  {\"topic\": \"orders\",   \"begin\": {\"0\": 120}},
   \"derived\": {\"topic\": \"invoices\", \"begin\": {}},
   \"input\": [{\"id\": \"<uuid>\", \"key\": \"account-1\", \"seq\": 1, \"fate\": \"effect\"},
             {\"id\": \"<uuid>\", \"key\": \"account-1\", \"fate\": \"dead-letter\"}]}
A fate may also be \"replayed\" (a dead letter, then its effects by a replay), \"parked\" (it waits to the end),
\"rolled-back\" (it is nowhere) or \"unknown\" (the table \"business\" tells, into which each event's transaction
wrote a row with event_id, account and seq; with it, an outbox row that is unsent at the end is stuck).
\"calls\": {\"steps\": [\"\"], \"book\": {\"<idempotency key>\": 1}} has the calls of each event checked against the
other system's book.
Records that must become dead letters carry their id in the header input-id.

Anomalies: lost, duplicate, phantom, inversion, premature-commit, half-effect, stuck.
While the run goes on, lost and stuck are not decided. With --json the last line is
{\"anomalies\":[{\"kind\":…,\"text\":…}],\"counts\":{\"input\":N,\"effects\":N,\"dead_letters\":N,\
\"parked\":N,\"calls\":N,\"business\":N,\"source_records\":N,\"derived_records\":N}}.

Exit codes: 0 nothing wrong; 1 anomalies; 2 wrong usage, or the history is unreadable or invalid;
3 the database or the broker didn't answer, or no longer has what a verdict needs.

Example:
  DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9092 \\
    factum-checker --history run-17.json --phase ended --json"
)]
struct Options {
    /// The file that lists what went in
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
    /// Whether the run may still be at work
    #[arg(long, value_enum)]
    phase: When,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum When {
    /// Things may be unfinished: report only what no time can mend
    Running,
    /// All is done: report also what is missing
    Ended,
}

impl From<When> for Phase {
    fn from(when: When) -> Phase {
        match when {
            When::Running => Phase::Running,
            When::Ended => Phase::Ended,
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command speaks to its user")]
fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(code_of(&error))
        }
    }
}

fn run(options: &Options) -> Result<u8> {
    let history = history(&options.history)?;
    let database_url = setting("DATABASE_URL")?;
    let brokers = setting("KAFKA_BROKERS")?;
    let facts = read(&history, &database_url, &brokers)?;
    let anomalies = check(&history, &facts, options.phase.into());
    print(&history, &facts, &anomalies, options.json);
    Ok(if anomalies.is_empty() {
        NOTHING_WRONG
    } else {
        ANOMALIES
    })
}

fn history(path: &Path) -> Result<History> {
    let file = || format!("the history {}", path.display());
    let text = std::fs::read_to_string(path).with_context(file)?;
    History::parse(&text).with_context(file)
}

fn setting(name: &str) -> Result<String, ReadError> {
    std::env::var(name)
        .ok()
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| ReadError::Setting(format!("{name} is not set; see --help")))
}

fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<ReadError>() {
        Some(ReadError::Unavailable(_)) => AWAY,
        Some(ReadError::History(_) | ReadError::Setting(_)) => USAGE,
        // What is left is the history: it can't be read, or it isn't one.
        None => {
            debug_assert!(error.is::<std::io::Error>() || error.is::<HistoryError>());
            USAGE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a command speaks to its user")]
fn print(history: &History, facts: &Facts, anomalies: &[Anomaly], json: bool) {
    for anomaly in anomalies {
        println!("{anomaly}");
    }
    let counts = json!({
        "input": history.input.len(),
        "effects": facts.effects.iter().map(Vec::len).sum::<usize>(),
        "dead_letters": facts.dead_letters.len(),
        "parked": facts.parked.len(),
        "calls": facts.calls.len(),
        "business": facts.business.len(),
        "source_records": facts.source.records.len(),
        "derived_records": facts.derived.records.len(),
    });
    println!(
        "{} anomalies; {} inputs, {} effects, {} dead letters, {} parked, {} calls, {} source records, \
         {} derived records",
        anomalies.len(),
        counts["input"],
        counts["effects"],
        counts["dead_letters"],
        counts["parked"],
        counts["calls"],
        counts["source_records"],
        counts["derived_records"],
    );
    if json {
        let anomalies: Vec<Value> = anomalies
            .iter()
            .map(|anomaly| json!({ "kind": anomaly.kind.as_str(), "text": anomaly.text }))
            .collect();
        println!("{}", json!({ "anomalies": anomalies, "counts": counts }));
    }
}
