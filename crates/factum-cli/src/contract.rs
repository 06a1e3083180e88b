//! `factum contract check | list | show | diff | export | readers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use factum_event::EventType;

use locks::Lock;

use crate::outcome::{Exit, Failure, Hint, Report};

mod annotation;
mod check;
mod export;
mod locks;
mod readers;
mod revision;
mod show;
mod source;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done, or compatible; 1 broken, or (`readers --event`) still needed, or (`export`) a file can't \
                  be read or written; 2 wrong usage, or a lock file can't be read; 3 the database is away (`readers`).\n\n\
                  Example:\n  factum contract check --against origin/main"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the lock files of a workspace with those that are published; exit code 1 when one is broken
    #[command(after_help = check::HELP)]
    Check(check::Options),
    /// List the events that have a lock file
    #[command(
        after_help = "Exit codes: 0 listed, also when there are none; 2 wrong usage, or a lock file can't be read.\n\n\
                      Example:\n  factum contract list --json"
    )]
    List(show::List),
    /// Show the contract of an event
    #[command(
        after_help = "Exit codes: 0 shown; 2 wrong usage, no such event, or a lock file can't be read.\n\n\
                      Example:\n  factum contract show order.confirmed.v1"
    )]
    Show(show::Show),
    /// Show what changed in the contract of an event; exit code 1 when it is broken
    #[command(after_help = check::DIFF_HELP)]
    Diff(check::Diff),
    /// Write the contracts for other languages: TypeScript with zod, JSON Schema, AsyncAPI
    Export(export::Options),
    /// Say which consumers take which version of an event, and which old version can go
    Readers(readers::Options),
}

/// What every command on contracts takes.
#[derive(Debug, Args)]
struct Place {
    /// The folder to look in, with all folders below it: `contracts` beside a Cargo.toml holds lock files
    #[arg(long = "in", value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::Check(options) => check::run(options),
        Command::Export(options) => export::run(options),
        Command::List(options) => show::list(options),
        Command::Show(options) => show::show(options),
        Command::Diff(options) => check::diff(options),
        Command::Readers(options) => readers::run(options),
    }
}

/// Why a command can't begin, or can't end: always exit code 2. 1 is for broken contracts alone.
#[derive(Debug)]
struct Trouble {
    what: String,
    /// Where and what to do; `None` where `what` is a list that says it.
    hint: Option<(String, String)>,
}

impl Trouble {
    fn new(what: impl Into<String>, place: impl Into<String>, mend: impl Into<String>) -> Trouble {
        Trouble {
            what: what.into(),
            hint: Some((place.into(), mend.into())),
        }
    }

    fn into_failure(self, schema: Option<&'static str>) -> Failure {
        Failure {
            what: self.what,
            hint: self.hint.map(|(place, mend)| Hint { place, mend }),
            exit: Exit::Usage,
            schema,
            refusal: None,
        }
    }
}

/// The trouble of a kind that isn't there, with the one that was meant: that of a struct of this name, or one that looks
/// like it.
fn unknown_event<'l>(kind: &str, known: impl Iterator<Item = &'l Lock>, place: &str) -> Trouble {
    let known: Vec<&Lock> = known.collect();
    let of_struct = known.iter().filter(|lock| lock.contract.name == kind);
    match of_struct.map(|lock| lock.kind()).max() {
        Some(meant) => meant_kind(kind, meant, place),
        None => unknown_kind(kind, known.iter().map(|lock| lock.kind()), place),
    }
}

/// The trouble of a kind that isn't there, with the one that was meant: another version of the same event, or one that
/// looks like it.
fn unknown_kind<'k>(kind: &str, known: impl Iterator<Item = &'k str>, place: &str) -> Trouble {
    let known: Vec<&str> = known.collect();
    match version_beside(kind, &known).or_else(|| alike(kind, &known)) {
        Some(meant) => meant_kind(kind, meant, place),
        None => Trouble::new(
            no_event(kind),
            place,
            "`factum contract list` shows the events that there are",
        ),
    }
}

fn meant_kind(kind: &str, meant: &str, place: &str) -> Trouble {
    Trouble::new(no_event(kind), place, format!("did you mean `{meant}`?"))
}

fn no_event(kind: &str) -> String {
    format!("no event is called `{kind}`")
}

/// The version of the same event that is next to it.
fn version_beside<'k>(kind: &str, known: &[&'k str]) -> Option<&'k str> {
    let asked = kind.parse::<EventType>().ok()?;
    known
        .iter()
        .filter_map(|known| Some((known.parse::<EventType>().ok()?, *known)))
        .filter(|(known, _)| {
            (known.aggregate(), known.event()) == (asked.aggregate(), asked.event())
        })
        .min_by_key(|(known, _)| known.version().abs_diff(asked.version()))
        .map(|(_, known)| known)
}

fn alike<'k>(kind: &str, known: &[&'k str]) -> Option<&'k str> {
    /// More typing errors make another word.
    const MAX_DISTANCE: usize = 4;
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(kind, known), *known))
        .min()
        .filter(|(distance, _)| *distance <= MAX_DISTANCE)
        .map(|(_, known)| known)
}
