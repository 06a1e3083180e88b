//! `factum contract check` and `diff`: the lock files of a workspace beside the published ones.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use factum_contract::compatibility::{self, Finding, Removal, Rule, Successor, compare};
use factum_contract::text;
use serde_json::{Value, json};

use super::locks::{self, LAYOUT, Lock};
use super::revision::{self, Base};
use super::source::{Crates, Declaration, Position};
use super::{Place, Trouble, annotation, unknown_event};
use crate::outcome::{self, Exit, Failure, Report};

const CHECK: &str = "factum.contract.check/1";
const DIFF: &str = "factum.contract.diff/1";

pub(super) const HELP: &str = "\
Of a branch, the commit counts at which the working tree's branch left it. A removed event is a breaking change: \
consumers wait for it. So is one whose lock file is still there while nothing in its crate declares it, or while it is \
`unlocked`. Once nobody handles it, accept that with --allow-removed.

Exit codes: 0 compatible; 1 broken; 2 wrong usage, or something can't be read, or there is nothing to compare.

Examples:
  factum contract check --against origin/main
  factum contract check --against v1.4.0 --json | tail -1 | jq .breaking
  factum contract check --against ../published --allow-removed order.confirmed.v1";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// What is published: a git ref (a branch, a tag, a commit) or a folder
    #[arg(long, value_name = "REF|FOLDER")]
    against: String,
    /// Accept that this event is no longer published; may be given several times
    #[arg(long, value_name = "KIND")]
    allow_removed: Vec<String>,
    /// Print annotations for GitHub, too; the default where GITHUB_ACTIONS is `true`
    #[arg(long)]
    github: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// The event, such as order.confirmed.v1
    kind: String,
    /// What is published: a git ref (a branch, a tag, a commit) or a folder
    #[arg(long, value_name = "REF|FOLDER")]
    against: String,
    #[command(flatten)]
    place: Place,
}

/// A change, where it stands, and what to do.
struct Located {
    event: String,
    finding: Finding,
    position: Position,
    successor: Successor,
}

/// An event on both sides: `None` where it is missing.
type Pair<'l> = (Option<&'l Lock>, Option<&'l Lock>);

pub(super) const DIFF_HELP: &str = "\
Exit codes: 0 the same, new, or compatible; 1 broken; 2 wrong usage, no such event, or something can't be read.

Example:
  factum contract diff order.confirmed.v1 --against origin/main";

/// Both sides of a comparison.
struct Compared<'c> {
    root: &'c Path,
    now: &'c [Lock],
    base: &'c [Lock],
    crates: Crates,
    /// The command that compares them so, to be run again with one option more.
    command: String,
}

impl<'c> Compared<'c> {
    fn new(root: &'c Path, now: &'c [Lock], base: &'c Base, against: &str) -> Compared<'c> {
        let mut command = format!("factum contract check --against {}", word(against));
        if root != Path::new(".") {
            let _ = write!(command, " --in {}", word(&root.display().to_string()));
        }
        Compared {
            root,
            now,
            base: &base.locks,
            crates: Crates::of(root, now.iter().map(|lock| &*lock.crate_folder)),
            command,
        }
    }
}

/// As one word of a shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./~^@{}:+=,%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    let schema = options.place.json.then_some(CHECK);
    check(options).map_err(|trouble| trouble.into_failure(schema))
}

fn check(options: &Options) -> Result<Report, Trouble> {
    let root = &options.place.folder;
    let now = locks::in_folder(root)?;
    let base = revision::read(root, &options.against)?;
    if base.locks.is_empty() && now.is_empty() {
        return Err(Trouble::new(
            format!("there is nothing to compare: neither side has a lock file ({LAYOUT})"),
            format!("{}, and {}", root.display(), base.name),
            "name the workspace with --in; or, if its events have no lock files yet, write them with \
             `FACTUM_CONTRACTS=update cargo test`",
        ));
    }
    for kind in &options.allow_removed {
        let known = || base.locks.iter().chain(&now);
        if !known().any(|known| known.kind() == kind) {
            return Err(unknown_event(kind, known(), "--allow-removed"));
        }
    }
    let compared = Compared::new(root, &now, &base, &options.against);
    let mut changes = compared.changes(|_| true);
    changes.retain(|change| {
        change.finding.rule != Rule::EventRemoved || !options.allow_removed.contains(&change.event)
    });
    let broken: Vec<&Located> = changes.iter().filter(|c| c.finding.is_breaking()).collect();
    let mut text = String::new();
    for change in &broken {
        let _ = writeln!(text, "{}\n", change.block());
    }
    let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
    if options.github || on_github {
        let prefix = revision::prefix(root);
        for change in &broken {
            let _ = writeln!(text, "{}", change.annotation(&prefix));
        }
    }
    for change in changes.iter().filter(|c| !c.finding.is_breaking()) {
        let _ = writeln!(text, "{}", change.line());
    }
    let added = pairs(&base.locks, &now)
        .iter()
        .filter(|(before, _)| before.is_none())
        .count();
    let _ = write!(
        text,
        "{}, {added} of them new, compared with {}: {}, {}",
        count(now.len(), "event"),
        base.name,
        count(broken.len(), "breaking change"),
        count(changes.len() - broken.len(), "compatible change"),
    );
    let exit = exit(!broken.is_empty());
    Ok(Report {
        text,
        exit,
        json: options.place.json.then(|| {
            let mut fields = outcome::json(CHECK, exit);
            fields.insert("events".to_owned(), now.len().into());
            fields.insert("against".to_owned(), base.name.clone().into());
            let breaking: Vec<Value> = broken.iter().map(|change| change.json()).collect();
            fields.insert("breaking".to_owned(), breaking.into());
            let compatible = changes.iter().filter(|c| !c.finding.is_breaking());
            let compatible: Vec<Value> = compatible.map(Located::json).collect();
            fields.insert("compatible".to_owned(), compatible.into());
            fields
        }),
    })
}

pub(super) fn diff(options: &Diff) -> Result<Report, Failure> {
    let schema = options.place.json.then_some(DIFF);
    diff_one(options).map_err(|trouble| trouble.into_failure(schema))
}

fn diff_one(options: &Diff) -> Result<Report, Trouble> {
    let root = &options.place.folder;
    let kind = &options.kind;
    let now = locks::in_folder(root)?;
    let base = revision::read(root, &options.against)?;
    let name = &base.name;
    let known = || base.locks.iter().chain(&now);
    if !known().any(|lock| lock.kind() == kind) {
        return Err(unknown_event(
            kind,
            known(),
            "the workspace, and what it is compared with",
        ));
    }
    let is_new = !base.locks.iter().any(|lock| lock.kind() == kind);
    let compared = Compared::new(root, &now, &base, &options.against);
    let changes = compared.changes(|of| of == kind);
    let mut text = String::new();
    for change in &changes {
        let _ = writeln!(text, "{}\n", change.block());
    }
    let is_broken = changes.iter().any(|change| change.finding.is_breaking());
    let verdict = match (is_new, changes.is_empty(), is_broken) {
        (.., true) => "is broken (EVT-3)",
        (true, ..) => "is new",
        (_, true, _) => "has not changed on the wire",
        _ => "changed, and is compatible",
    };
    let _ = write!(text, "compared with {name}, `{kind}` {verdict}");
    let exit = exit(is_broken);
    Ok(Report {
        text,
        exit,
        json: options.place.json.then(|| {
            let mut fields = outcome::json(DIFF, exit);
            fields.insert("event".to_owned(), kind.clone().into());
            fields.insert("against".to_owned(), name.clone().into());
            fields.insert("new".to_owned(), is_new.into());
            let changes: Vec<Value> = changes.iter().map(Located::json).collect();
            fields.insert("changes".to_owned(), changes.into());
            fields
        }),
    })
}

fn exit(is_broken: bool) -> Exit {
    if is_broken { Exit::Failed } else { Exit::Done }
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Pairs the events of both sides: by crate and kind, and where the crate is another now, by kind. An event that
/// another crate has locked, too, is that event; and one that is still locked somewhere is not gone.
fn pairs<'l>(base: &'l [Lock], now: &'l [Lock]) -> Vec<Pair<'l>> {
    let same_crate = |a: &Lock, b: &Lock| a.kind() == b.kind() && a.crate_folder == b.crate_folder;
    let mut moved: Vec<&Lock> = base
        .iter()
        .filter(|before| !now.iter().any(|after| same_crate(before, after)))
        .collect();
    let mut pairs: Vec<Pair<'l>> = Vec::new();
    for after in now {
        let before = base
            .iter()
            .find(|before| same_crate(before, after))
            .or_else(|| {
                let at = moved
                    .iter()
                    .position(|before| before.kind() == after.kind())?;
                Some(moved.remove(at))
            })
            .or_else(|| base.iter().find(|before| before.kind() == after.kind()));
        pairs.push((before, Some(after)));
    }
    moved.retain(|before| !now.iter().any(|after| before.kind() == after.kind()));
    pairs.extend(moved.into_iter().map(|before| (Some(before), None)));
    pairs
}

impl Compared<'_> {
    /// What changed in the events whose kinds are asked for.
    fn changes(&self, is_asked: impl Fn(&str) -> bool) -> Vec<Located> {
        let mut changes = Vec::new();
        for (before, after) in pairs(self.base, self.now) {
            let kind = before.or(after).map(Lock::kind).unwrap_or_default();
            if !is_asked(kind) {
                continue;
            }
            let report = match (before, after) {
                (Some(before), Some(after)) => compare(&before.contract, &after.contract),
                (Some(before), None) => self.removed(before, Removal::LockFile),
                (None, _) => continue,
            };
            changes.extend(self.located(report, before, after));
        }
        for lock in self.now.iter().filter(|lock| is_asked(lock.kind())) {
            let removal = match self.crates.declaration(&lock.crate_folder, lock.kind()) {
                Declaration::Missing => Removal::Declaration,
                Declaration::Unlocked => Removal::Guard,
                Declaration::Locked | Declaration::Unknown => continue,
            };
            changes.extend(self.located(self.removed(lock, removal), None, Some(lock)));
        }
        for (at, lock) in self.now.iter().enumerate() {
            let earlier = self.now[..at].iter().find(|of| of.kind() == lock.kind());
            if let Some(earlier) = earlier.filter(|_| is_asked(lock.kind())) {
                let report = compatibility::Report::locked_twice(
                    (&earlier.contract, &earlier.path()),
                    (&lock.contract, &lock.path()),
                );
                changes.extend(self.located(report, None, Some(lock)));
            }
        }
        changes
    }

    fn removed(&self, lock: &Lock, removal: Removal) -> compatibility::Report {
        let is_published = self.base.iter().any(|base| base.kind() == lock.kind());
        let is_elsewhere = self.now.iter().any(|other| {
            other.kind() == lock.kind()
                && other.crate_folder != lock.crate_folder
                && self.crates.declaration(&other.crate_folder, other.kind()) == Declaration::Locked
        });
        let check = (is_published && !is_elsewhere).then_some(&*self.command);
        compatibility::Report::removed(&lock.contract, removal, &lock.path(), check)
    }
}

impl Compared<'_> {
    fn located(
        &self,
        report: compatibility::Report,
        before: Option<&Lock>,
        after: Option<&Lock>,
    ) -> Vec<Located> {
        if report.findings.is_empty() {
            return Vec::new();
        }
        let known = self.base.iter().chain(self.now).map(Lock::kind);
        let successor = report.successor(known);
        let sources = after.and_then(|after| self.crates.sources(&after.crate_folder));
        let lock = after.or(before).map(Lock::path).unwrap_or_default();
        let mut lines = HashMap::new();
        report
            .findings
            .into_iter()
            .map(|finding| {
                let position = sources
                    .and_then(|sources| sources.find(&report.event_type, finding.declared.as_ref()))
                    .unwrap_or_else(|| in_lock(self.root, &lock, &finding, &mut lines));
                Located {
                    event: report.event_type.clone(),
                    position,
                    successor: successor.clone(),
                    finding,
                }
            })
            .collect()
    }
}

/// The field's place in the lock file: where the source has none that can be found.
fn in_lock(
    root: &Path,
    lock: &Path,
    finding: &Finding,
    texts: &mut HashMap<PathBuf, String>,
) -> Position {
    let text = texts
        .entry(lock.to_owned())
        .or_insert_with(|| fs::read_to_string(root.join(lock)).unwrap_or_default());
    let field = finding.declared.as_ref().and_then(|of| of.field.as_ref());
    let line = field.and_then(|field| {
        let wanted = format!("\"name\": {}", Value::from(field.as_str()));
        let at = text
            .lines()
            .position(|line| line.trim() == format!("{wanted},"))?;
        Some(at + 1)
    });
    Position {
        file: lock.to_owned(),
        line: line.unwrap_or(1),
    }
}

impl Located {
    fn place(&self) -> String {
        format!("{}:{}", self.position.file.display(), self.position.line)
    }

    fn block(&self) -> String {
        let block = text::block(&self.finding, &self.place(), &self.successor);
        format!("{}\n{block}", self.event)
    }

    /// A compatible change, in one line.
    fn line(&self) -> String {
        let Located { event, finding, .. } = self;
        format!(
            "compatible: {event}: {} ({}, {})",
            finding.why,
            finding.rule,
            self.place()
        )
    }

    fn annotation(&self, prefix: &str) -> String {
        let title = format!("{} is broken: {}", self.event, self.finding.rule);
        let file = format!("{prefix}{}", self.position.file.display());
        let mend = self.finding.mend(&self.successor);
        let mut message = format!("{} ({})", self.finding.why, self.finding.rule.standard());
        if let Some(example) = &self.finding.counterexample {
            let _ = write!(message, "\nproof: {}", text::shortened(&example.document));
        }
        let _ = write!(message, "\nmend: {mend}");
        annotation::error(&file, self.position.line, &title, &message)
    }

    fn json(&self) -> Value {
        let finding = &self.finding;
        let example = finding.counterexample.as_ref();
        json!({
            "event": self.event,
            "field": finding.field,
            "rule": finding.rule.as_str(),
            "standard": finding.rule.standard(),
            "file": self.position.file,
            "line": self.position.line,
            "side": finding.side.map(compatibility::Side::as_str),
            "why": finding.why,
            // Text, so that no reader of this object rounds its numbers.
            "counterexample": example.map(|example| &example.document),
            "expected": example.and_then(|example| example.refused.as_ref()),
            "mend": finding.mend(&self.successor),
        })
    }
}
