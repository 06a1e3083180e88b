//! The gate: the test that `derive(Event)` adds to a crate, so that `cargo test` fails when an event's contract and
//! its lock file differ (EVT-3).
//!
//! | what is found | without `FACTUM_CONTRACTS` | with `FACTUM_CONTRACTS=update` |
//! |---|---|---|
//! | no lock file | fails, and says how to make it | writes it |
//! | the same contract | passes | passes |
//! | a compatible change | fails, and says what changed | writes it |
//! | a breaking change | fails with the report | fails with the report, **and never overwrites** |
//! | an unreadable lock file | fails | fails, and leaves it |
//!
//! In CI (`CI` is set, and not to `false`), `update` is refused: what is not committed would pass unseen there.
//!
//! The test sees events that exist. That one was removed or is `unlocked` now, its lock file left behind, or that the lock
//! file was deleted and written anew, sees `factum contract check --against`, which compares with what is published.

use std::fmt;
use std::path::{Path, PathBuf};

use factum_event::{Contract, Event};

use crate::compatibility::{Finding, Report, Successor, compare};
use crate::lock::{self, LockError};
use crate::text;

/// The environment variable that makes the gate write: `FACTUM_CONTRACTS=update`.
pub const VARIABLE: &str = "FACTUM_CONTRACTS";

/// Where an event is declared.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The folder of the crate's `Cargo.toml`, as Cargo gives it while compiling.
    pub crate_folder: Option<&'static str>,
    /// The source file.
    pub file: &'static str,
    /// The line of the struct.
    pub line: u32,
    /// The fields' names on the wire and their lines.
    pub fields: &'static [(&'static str, u32)],
}

impl Place {
    /// The crate's folder: where it was compiled, or, when the test was carried to another machine (as an archive of
    /// cargo-nextest is), where its runner says that it lies.
    fn folder(&self) -> Option<PathBuf> {
        let compiled = self.crate_folder.map(PathBuf::from);
        compiled
            .filter(|folder| folder.is_dir())
            .or_else(|| std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from))
    }

    /// `src/events.rs:12`; that of the struct for a field that is no more.
    fn of(&self, field: &str) -> String {
        let line = self
            .fields
            .iter()
            .find(|(name, _)| *name == field)
            .map_or(self.line, |(_, line)| *line);
        format!("{}:{line}", self.file)
    }
}

/// What the gate does with a compatible change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It fails.
    Compare,
    /// It writes the lock file.
    Update,
}

impl Mode {
    /// What the environment asks for.
    ///
    /// # Errors
    ///
    /// [`GateError`] for a value other than `update`, and for `update` in CI.
    pub fn from_env() -> Result<Mode, GateError> {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        let ci = std::env::var_os("CI").unwrap_or_default();
        Mode::new(&value.to_string_lossy(), &ci.to_string_lossy())
    }

    fn new(value: &str, ci: &str) -> Result<Mode, GateError> {
        match value {
            "" => Ok(Mode::Compare),
            "update" if ci.is_empty() || ci == "false" || ci == "0" => Ok(Mode::Update),
            "update" => Err(GateError::UpdateInCi),
            other => Err(GateError::UnknownMode {
                value: other.to_owned(),
            }),
        }
    }
}

/// The body of the test that `derive(Event)` adds.
///
/// # Panics
///
/// With the whole report when the event's contract and its lock file differ.
#[track_caller]
pub fn check<E: Event>(place: &Place) {
    if let Err(error) =
        Mode::from_env().and_then(|mode| compare_with_lock(&E::contract(), place, mode))
    {
        panic!("\n\n{error}\n");
    }
}

/// Compares a contract with its lock file; writes the file where `mode` and the change allow it.
///
/// # Errors
///
/// [`GateError`]: its text is the whole report.
pub fn compare_with_lock(contract: &Contract, place: &Place, mode: Mode) -> Result<(), GateError> {
    let Some(folder) = place.folder() else {
        return Err(GateError::NoFolder {
            event_type: contract.event_type.clone(),
            place: place.of(""),
        });
    };
    let path = lock::path(&folder, &contract.event_type);
    let Some(locked) = lock::read(&path)? else {
        return match mode {
            Mode::Update => Ok(lock::write(&path, contract)?),
            Mode::Compare => Err(GateError::Missing {
                event_type: contract.event_type.clone(),
                place: place.of(""),
                path,
            }),
        };
    };
    if locked == *contract {
        return Ok(());
    }
    let report = compare(&locked, contract);
    let change = |report: Report| {
        let known = known_kinds(&folder);
        let successor = report.successor(known.iter().map(String::as_str));
        Change {
            places: report
                .findings
                .iter()
                .map(|finding| {
                    let declared = finding.declared.as_ref();
                    let line = place.of(declared.map_or("", |declared| &declared.top_field));
                    // Where a snapshot is declared, the derive of the event doesn't see.
                    match declared.and_then(|declared| declared.snapshot.as_ref()) {
                        Some(snapshot) => format!("{line}, in the snapshot `{snapshot}`"),
                        None => line,
                    }
                })
                .collect(),
            report,
            successor,
            path: path.clone(),
        }
    };
    if report.is_breaking() {
        return Err(GateError::Breaking(Box::new(change(report))));
    }
    match mode {
        Mode::Update => Ok(lock::write(&path, contract)?),
        Mode::Compare => Err(GateError::Stale(Box::new(change(report)))),
    }
}

/// The event types whose lock files lie in the crate.
fn known_kinds(crate_folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(crate_folder.join(lock::FOLDER)) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_suffix(".json").map(str::to_owned)
        })
        .collect()
}

/// A contract that differs from its lock file.
#[derive(Debug)]
pub struct Change {
    /// What changed.
    pub report: Report,
    /// File and line of each finding.
    places: Vec<String>,
    /// The version to add.
    successor: Successor,
    /// The lock file.
    path: PathBuf,
}

/// Why the gate fails; the text is the whole report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// There is no lock file.
    #[error(
        "the event `{event_type}` has no lock file, so nothing would notice when its contract breaks (EVT-3)\n  \
         where: {place}; {} is missing\n  \
         mend:  run `FACTUM_CONTRACTS=update cargo test`, and commit the file that it writes; mark an event that only \
         tests use with `#[event(unlocked)]`",
        path.display()
    )]
    Missing {
        /// The event type.
        event_type: String,
        /// File and line of the struct.
        place: String,
        /// The lock file.
        path: PathBuf,
    },
    /// A compatible change is not in the lock file yet.
    #[error("{}", stale(.0))]
    Stale(Box<Change>),
    /// A breaking change.
    #[error("{}", breaking(.0))]
    Breaking(Box<Change>),
    /// The lock file can't be read or written.
    #[error("{0}")]
    Lock(#[from] LockError),
    /// The crate was compiled without Cargo.
    #[error(
        "the lock file of `{event_type}` can't be found: the crate was compiled without Cargo's variable \
         CARGO_MANIFEST_DIR\n  where: {place}\n  \
         mend:  compile with Cargo, or set CARGO_MANIFEST_DIR to the folder of the crate's Cargo.toml while compiling"
    )]
    NoFolder {
        /// The event type.
        event_type: String,
        /// File and line of the struct.
        place: String,
    },
    /// `FACTUM_CONTRACTS` has another value than `update`.
    #[error(
        "FACTUM_CONTRACTS is \"{value}\", which means nothing\n  where: the environment\n  \
         mend:  unset it to compare the events with their lock files, or write FACTUM_CONTRACTS=update to write \
         compatible changes into them"
    )]
    UnknownMode {
        /// What it is.
        value: String,
    },
    /// `FACTUM_CONTRACTS=update` in CI.
    #[error(
        "FACTUM_CONTRACTS=update in CI (the variable CI is set): a change that nobody committed would pass here\n  \
         where: the environment\n  \
         mend:  unset FACTUM_CONTRACTS in CI; run `FACTUM_CONTRACTS=update cargo test` on your machine and commit the \
         lock files"
    )]
    UpdateInCi,
}

fn blocks<'f>(
    change: &'f Change,
    which: impl Fn(&Finding) -> bool + 'f,
) -> impl Iterator<Item = String> + 'f {
    change
        .report
        .findings
        .iter()
        .zip(&change.places)
        .filter(move |(finding, _)| which(finding))
        .map(|(finding, place)| text::block(finding, place, &change.successor))
}

fn stale(change: &Change) -> String {
    let mut text = format!(
        "the contract of `{}` has changed, and its lock file has not (EVT-3). The change is compatible:\n\n",
        change.report.event_type
    );
    if change.report.findings.is_empty() {
        text.push_str(
            "the order of fields or values, or the names of snapshots: nothing changes on the wire\n",
        );
    }
    for block in blocks(change, |_| true) {
        text.push_str(&block);
        text.push('\n');
    }
    text.push_str(&format!(
        "\nlock file: {}\nmend: run `FACTUM_CONTRACTS=update cargo test`, look at the difference, and commit it",
        change.path.display()
    ));
    text
}

fn breaking(change: &Change) -> String {
    let event_type = &change.report.event_type;
    let mut text = format!("the contract of `{event_type}` is broken (EVT-3):\n\n");
    for block in blocks(change, Finding::is_breaking) {
        text.push_str(&block);
        text.push_str("\n\n");
    }
    let compatible = change.report.compatible().count();
    if compatible > 0 {
        text.push_str(&format!(
            "{compatible} other {} compatible.\n",
            if compatible == 1 {
                "change is"
            } else {
                "changes are"
            }
        ));
    }
    text.push_str(&format!(
        "lock file: {}\nIt is not overwritten. If `{event_type}` was never published, not even to a test system that \
         lives on, delete the file and run `FACTUM_CONTRACTS=update cargo test`.",
        change.path.display()
    ));
    text
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.report.is_breaking() {
            breaking(self)
        } else {
            stale(self)
        };
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_was_carried_elsewhere_looks_where_its_runner_says() {
        let place = Place {
            crate_folder: Some("/nowhere/at/all"),
            file: "src/events.rs",
            line: 1,
            fields: &[],
        };
        // What Cargo says while this test runs is what it said while compiling it.
        assert_eq!(place.folder(), Some(env!("CARGO_MANIFEST_DIR").into()));
    }

    #[test]
    fn update_is_refused_in_ci_and_other_values_everywhere() {
        assert_eq!(Mode::new("", "true").unwrap(), Mode::Compare);
        assert_eq!(Mode::new("update", "").unwrap(), Mode::Update);
        assert_eq!(Mode::new("update", "false").unwrap(), Mode::Update);
        assert!(matches!(
            Mode::new("update", "true"),
            Err(GateError::UpdateInCi)
        ));
        let error = Mode::new("overwrite", "").unwrap_err().to_string();
        assert!(
            error.contains("FACTUM_CONTRACTS is \"overwrite\""),
            "{error}"
        );
    }
}
