//! `factum contract check | list | show | diff | export | readers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
    #[command(after_help = "Example:\n  factum contract list --json")]
    List(show::List),
    /// Show the contract of an event
    #[command(after_help = "Example:\n  factum contract show order.confirmed.v1")]
    Show(show::Show),
    /// Show what changed in the contract of an event; exit code 1 when it is broken
    #[command(
        after_help = "Example:\n  factum contract diff order.confirmed.v1 --against origin/main"
    )]
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
        }
    }
}

/// The trouble of a kind that isn't there, with those that look like it.
fn unknown_kind<'k>(kind: &str, known: impl Iterator<Item = &'k str>, place: &str) -> Trouble {
    /// More typing errors make another word.
    const MAX_DISTANCE: usize = 4;
    let nearest = known
        .map(|known| (strsim::damerau_levenshtein(kind, known), known))
        .min()
        .filter(|(distance, _)| *distance <= MAX_DISTANCE);
    let mend = match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => "`factum contract list` shows the events that there are".to_owned(),
    };
    Trouble::new(format!("no event is called `{kind}`"), place, mend)
}
