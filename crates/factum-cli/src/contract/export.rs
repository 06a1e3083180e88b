//! `factum contract export`: contracts for other languages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use factum_contract::{AsyncApi, ExportKind, Exported, JsonSchema, TypeScript, Zod};
use factum_event::Contract;

use super::locks::{self, MAX_DEPTH};
use super::{Place, unknown_kind};
use crate::outcome::{self, Exit, Failure, Hint, Report};

const SCHEMA: &str = "factum.contract.export/1";

/// More of a file than its first bytes is not read to find the mark.
const MARK_BYTES: usize = 1024;

/// Reads every lock file (contracts/*.json beside a Cargo.toml) and writes the files of each kind that is asked for.
///
/// Only what has changed is written. Files that an earlier export of the same kinds made in that folder, and that this
/// one doesn't make, are removed, with the folders that become empty: also those of events that --only leaves out. What
/// no export made is never touched: where it is in the way, it is an error, before anything is written.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 written, or all was as it should be; 1 a file or folder below --out could not be read or \
                  written; 2 wrong usage, a lock file that can't be read, or something is in the way.\n\n\
                  Example:\n  factum contract export --typescript --json-schema --asyncapi --out generated"
)]
pub(crate) struct Options {
    /// Write TypeScript: interfaces, zod schemas, a registry and a decoder
    #[arg(long)]
    typescript: bool,
    /// Write JSON Schema 2020-12
    #[arg(long)]
    json_schema: bool,
    /// Write AsyncAPI 3.0
    #[arg(long)]
    asyncapi: bool,
    /// The folder to write into
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The release of zod that the schemas are for
    #[arg(long, value_name = "RELEASE", default_value = "4")]
    zod: ZodRelease,
    /// Put the events of an aggregate into a context, such as Order=sales; may be repeated
    #[arg(long, value_name = "AGGREGATE=CONTEXT")]
    context: Vec<String>,
    /// Export only this event type, and remove what an earlier export made of others; may be repeated
    #[arg(long, value_name = "KIND")]
    only: Vec<String>,
    /// The title of the AsyncAPI document
    #[arg(long, default_value = "Events")]
    title: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ZodRelease {
    #[value(name = "3")]
    Three,
    #[value(name = "4")]
    Four,
}

/// Why nothing was exported.
struct Trouble {
    what: String,
    hint: Option<Hint>,
    exit: Exit,
}

impl From<super::Trouble> for Trouble {
    fn from(trouble: super::Trouble) -> Trouble {
        Trouble {
            what: trouble.what,
            hint: trouble.hint.map(|(place, mend)| Hint { place, mend }),
            exit: Exit::Usage,
        }
    }
}

impl Trouble {
    fn usage(
        what: impl Into<String>,
        place: impl Into<String>,
        mend: impl Into<String>,
    ) -> Trouble {
        Trouble {
            what: what.into(),
            hint: Some(Hint {
                place: place.into(),
                mend: mend.into(),
            }),
            exit: Exit::Usage,
        }
    }

    fn file(what: &str, path: &Path, error: &io::Error) -> Trouble {
        Trouble {
            what: format!("{what}: {error}"),
            hint: Some(Hint {
                place: path.display().to_string(),
                mend: "see that the folder is there and that you may use it, then run the command again"
                    .to_owned(),
            }),
            exit: Exit::Failed,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    export(options).map_err(|trouble| Failure {
        what: trouble.what,
        hint: trouble.hint,
        exit: trouble.exit,
        schema: options.place.json.then_some(SCHEMA),
        refusal: None,
    })
}

fn export(options: &Options) -> Result<Report, Trouble> {
    let kinds = kinds(options)?;
    let all = all_contracts(options)?;
    let typescript = typescript(options, &all)?;
    let contracts = asked_for(options, all)?;
    let mut files = Exported::new();
    for kind in &kinds {
        files.extend(match kind {
            ExportKind::TypeScript => typescript.export(&contracts).map_err(|error| Trouble {
                what: error.to_string(),
                hint: None,
                exit: Exit::Usage,
            })?,
            ExportKind::JsonSchema => JsonSchema::new().export(&contracts),
            ExportKind::AsyncApi => AsyncApi::titled(&options.title).export(&contracts),
        });
    }
    let plan = Plan::of(&options.out, files, &kinds)?;
    plan.carry_out(&options.out)?;

    let list = |paths: &[String]| -> Vec<serde_json::Value> {
        paths.iter().map(|path| path.as_str().into()).collect()
    };
    let written: Vec<String> = plan.write.keys().cloned().collect();
    let json = options.place.json.then(|| {
        let mut fields = outcome::json(SCHEMA, Exit::Done);
        fields.insert("events".to_owned(), contracts.len().into());
        fields.insert("written".to_owned(), list(&written).into());
        fields.insert("removed".to_owned(), list(&plan.remove).into());
        fields.insert("unchanged".to_owned(), plan.unchanged.into());
        fields
    });
    let mut lines: Vec<String> = written
        .iter()
        .map(|path| format!("wrote   {path}"))
        .collect();
    lines.extend(plan.remove.iter().map(|path| format!("removed {path}")));
    lines.push(format!(
        "{}: {} written, {} removed, {} unchanged",
        counted(contracts.len(), "event"),
        counted(written.len(), "file"),
        plan.remove.len(),
        plan.unchanged
    ));
    Ok(Report {
        text: lines.join("\n"),
        exit: Exit::Done,
        json,
    })
}

/// `1 event`, and `2 events`.
fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

fn kinds(options: &Options) -> Result<Vec<ExportKind>, Trouble> {
    let asked = |kind: &ExportKind| match kind {
        ExportKind::TypeScript => options.typescript,
        ExportKind::JsonSchema => options.json_schema,
        ExportKind::AsyncApi => options.asyncapi,
    };
    let kinds: Vec<ExportKind> = ExportKind::ALL.into_iter().filter(asked).collect();
    if kinds.is_empty() {
        return Err(Trouble::usage(
            "nothing to export",
            "the command line",
            "add --typescript, --json-schema or --asyncapi",
        ));
    }
    Ok(kinds)
}

fn typescript(options: &Options, contracts: &[Contract]) -> Result<TypeScript, Trouble> {
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    let mut typescript = TypeScript::new().zod(match options.zod {
        ZodRelease::Three => Zod::Three,
        ZodRelease::Four => Zod::Four,
    });
    for given in &options.context {
        let Some((aggregate, context)) = given.split_once('=') else {
            return Err(Trouble::usage(
                format!("--context {given} names no aggregate"),
                "the command line",
                "write the aggregate's type and the context, such as --context Order=sales",
            ));
        };
        if !contracts.iter().any(|c| c.aggregate_type == aggregate) {
            return Err(unknown_aggregate(aggregate, contracts));
        }
        if let Some(other) = named.insert(aggregate, context)
            && other != context
        {
            return Err(Trouble::usage(
                format!("--context puts {aggregate} into `{other}` and into `{context}`"),
                "the command line",
                "name one context for each aggregate",
            ));
        }
        typescript = typescript
            .context(aggregate, context)
            .map_err(|error| Trouble {
                what: error.to_string(),
                hint: None,
                exit: Exit::Usage,
            })?;
    }
    Ok(typescript)
}

/// The trouble of an aggregate that no contract has, with the one that looks like it.
fn unknown_aggregate(aggregate: &str, contracts: &[Contract]) -> Trouble {
    /// More typing errors make another word.
    const MAX_DISTANCE: usize = 4;
    let known: BTreeSet<&str> = contracts
        .iter()
        .map(|contract| contract.aggregate_type.as_str())
        .collect();
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(aggregate, known), known))
        .min()
        .filter(|(distance, _)| *distance <= MAX_DISTANCE);
    let mend = match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => {
            let known: Vec<&str> = known.into_iter().collect();
            format!(
                "name one of the aggregates that there are: {}",
                known.join(", ")
            )
        }
    };
    Trouble::usage(
        format!("--context: no event is of the aggregate `{aggregate}`"),
        "the command line",
        mend,
    )
}

/// The contracts of all lock files, by event type.
fn all_contracts(options: &Options) -> Result<Vec<Contract>, Trouble> {
    let mut locks = locks::in_folder(&options.place.folder)?;
    locks.sort_by(|a, b| a.kind().cmp(b.kind()));
    if let Some([one, other]) = locks
        .array_windows::<2>()
        .find(|[one, other]| one.kind() == other.kind())
    {
        return Err(Trouble::usage(
            format!("`{}` has two lock files", one.kind()),
            format!("{} and {}", one.path().display(), other.path().display()),
            "keep the one of the crate that publishes the event, and mark the other's struct with `#[event(unlocked)]`",
        ));
    }
    let contracts: Vec<Contract> = locks.into_iter().map(|lock| lock.contract).collect();
    if contracts.is_empty() {
        return Err(Trouble::usage(
            "no event has a lock file",
            options.place.folder.display().to_string(),
            "run FACTUM_CONTRACTS=update cargo test in the crate that declares the events, or name its workspace with --in",
        ));
    }
    Ok(contracts)
}

/// Those that are asked for.
fn asked_for(options: &Options, mut contracts: Vec<Contract>) -> Result<Vec<Contract>, Trouble> {
    for kind in &options.only {
        let mut known = contracts
            .iter()
            .map(|contract| contract.event_type.as_str());
        if !known.any(|known| known == kind) {
            let known = contracts
                .iter()
                .map(|contract| contract.event_type.as_str());
            let place = options.place.folder.display().to_string();
            return Err(unknown_kind(kind, known, &place).into());
        }
    }
    if !options.only.is_empty() {
        contracts.retain(|contract| options.only.contains(&contract.event_type));
    }
    Ok(contracts)
}

/// What is to be done, known as a whole before anything is done.
struct Plan {
    write: Exported,
    remove: Vec<String>,
    unchanged: usize,
}

impl Plan {
    fn of(out: &Path, files: Exported, kinds: &[ExportKind]) -> Result<Plan, Trouble> {
        let mut plan = Plan {
            write: Exported::new(),
            remove: Vec::new(),
            unchanged: 0,
        };
        let mut in_the_way: BTreeSet<String> = no_folder(out)?.into_iter().collect();
        let wanted: BTreeSet<String> = files.keys().cloned().collect();
        for (path, text) in files {
            let place = out.join(&path);
            if let Some(obstacle) = obstacle(out, &path)? {
                in_the_way.insert(obstacle);
                continue;
            }
            match fs::read(&place) {
                Ok(there) if there == text.as_bytes() => plan.unchanged += 1,
                Ok(there) if marked(&there).is_none() => {
                    in_the_way.insert(path);
                }
                Ok(_) => {
                    plan.write.insert(path, text);
                }
                Err(error) if is_absence(&error) => {
                    plan.write.insert(path, text);
                }
                Err(error) => return Err(Trouble::file("a file can't be read", &place, &error)),
            }
        }
        if !in_the_way.is_empty() {
            let in_the_way: Vec<String> = in_the_way.into_iter().collect();
            return Err(Trouble::usage(
                format!(
                    "these are in the way, and no export made them: {}",
                    in_the_way.join(", ")
                ),
                out.display().to_string(),
                "move them, or write into another folder with --out; nothing was written",
            ));
        }
        if out.exists() {
            stale(out, "", 0, kinds, &wanted, &mut plan.remove)?;
            plan.remove.sort();
        }
        Ok(plan)
    }

    fn carry_out(&self, out: &Path) -> Result<(), Trouble> {
        for (path, text) in &self.write {
            let place = out.join(path);
            let folder = place.parent().unwrap_or(out);
            fs::create_dir_all(folder)
                .map_err(|error| Trouble::file("a folder can't be made", folder, &error))?;
            fs::write(&place, text)
                .map_err(|error| Trouble::file("a file can't be written", &place, &error))?;
        }
        for path in &self.remove {
            let place = out.join(path);
            fs::remove_file(&place)
                .map_err(|error| Trouble::file("a file can't be removed", &place, &error))?;
            // What isn't empty stays, and so does all that it lies in.
            let mut folder = Path::new(path).parent();
            while let Some(inner) = folder.filter(|folder| !folder.as_os_str().is_empty())
                && fs::remove_dir(out.join(inner)).is_ok()
            {
                folder = inner.parent();
            }
        }
        Ok(())
    }
}

/// Nothing is there, or a file stands for a folder above it.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// What stands at a place, if anything does.
fn there(place: &Path) -> Result<Option<fs::FileType>, Trouble> {
    match fs::metadata(place) {
        Ok(there) => Ok(Some(there.file_type())),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(Trouble::file("a file can't be read", place, &error)),
    }
}

/// A file where the folder is to be, or one that it is to lie in.
fn no_folder(out: &Path) -> Result<Option<String>, Trouble> {
    for place in out.ancestors().filter(|place| *place != Path::new("")) {
        if let Some(kind) = there(place)? {
            return Ok((!kind.is_dir()).then(|| format!("{} (a file)", place.display())));
        }
    }
    Ok(None)
}

/// What keeps a file from being written at a path below the folder: a file for a folder, or a folder for the file.
fn obstacle(out: &Path, path: &str) -> Result<Option<String>, Trouble> {
    for (end, _) in path.match_indices('/') {
        let folder = &path[..end];
        match there(&out.join(folder))? {
            Some(kind) if kind.is_dir() => {}
            Some(_) => return Ok(Some(format!("{folder} (a file)"))),
            None => return Ok(None),
        }
    }
    Ok(match there(&out.join(path))? {
        Some(kind) if kind.is_dir() => Some(format!("{path} (a folder)")),
        // Reading it may never end.
        Some(kind) if !kind.is_file() => Some(format!("{path} (no regular file)")),
        _ => None,
    })
}

/// The kind of export that made a file.
fn marked(bytes: &[u8]) -> Option<ExportKind> {
    ExportKind::of(&String::from_utf8_lossy(
        &bytes[..bytes.len().min(MARK_BYTES)],
    ))
}

/// Finds the files that exports of these kinds have made and that nothing asks for any more.
fn stale(
    folder: &Path,
    below: &str,
    depth: usize,
    kinds: &[ExportKind],
    wanted: &BTreeSet<String>,
    found: &mut Vec<String>,
) -> Result<(), Trouble> {
    let unreadable = |error: io::Error| Trouble::file("a folder can't be read", folder, &error);
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "node_modules" {
            continue;
        }
        let path = format!("{below}{name}");
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            if depth < MAX_DEPTH {
                let below = format!("{path}/");
                stale(&entry.path(), &below, depth + 1, kinds, wanted, found)?;
            }
        } else if kind.is_file()
            && (name.ends_with(".ts") || name.ends_with(".json"))
            && !wanted.contains(&path)
        {
            let bytes = fs::read(entry.path())
                .map_err(|error| Trouble::file("a file can't be read", &entry.path(), &error))?;
            if marked(&bytes).is_some_and(|kind| kinds.contains(&kind)) {
                found.push(path);
            }
        }
    }
    Ok(())
}
