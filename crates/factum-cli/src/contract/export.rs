//! `factum contract export`: contracts for other languages.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use factum_contract::{AsyncApi, ExportKind, Exported, JsonSchema, TypeScript, Zod};
use factum_event::Contract;

use super::locks;
use crate::outcome::{self, Exit, Failure, Hint, Report};

const SCHEMA: &str = "factum.contract.export/1";

/// Folders nest at most so deep; links are not followed, so this ends no walk of a real workspace.
const MAX_DEPTH: usize = 32;
/// More of a file than its first bytes is not read to find the mark.
const MARK_BYTES: usize = 1024;

/// Reads every lock file (contracts/*.json beside a Cargo.toml) and writes the files of each kind that is asked for.
///
/// Only what has changed is written. Files that an earlier export made and that no contract asks for any more are
/// removed. A file that no export made is never touched: it is an error, before anything is written.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 written, or all was as it should be; 1 a file could not be read or written; 2 wrong usage, \
                  or a file is in the way.\n\n\
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
    /// Export only this event type; may be repeated
    #[arg(long, value_name = "KIND")]
    only: Vec<String>,
    /// The title of the AsyncAPI document
    #[arg(long, default_value = "Events")]
    title: String,
    /// The folder to look in, with all folders below it: `contracts` beside a Cargo.toml holds lock files
    #[arg(long = "in", value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
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
        let failure = trouble.into_failure(None);
        Trouble {
            what: failure.what,
            hint: failure.hint,
            exit: failure.exit,
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
        schema: options.json.then_some(SCHEMA),
    })
}

fn export(options: &Options) -> Result<Report, Trouble> {
    let kinds = kinds(options)?;
    let contracts = contracts(options)?;
    let mut files = Exported::new();
    for kind in &kinds {
        files.extend(match kind {
            ExportKind::TypeScript => {
                typescript(options)?
                    .export(&contracts)
                    .map_err(|error| Trouble {
                        what: error.to_string(),
                        hint: None,
                        exit: Exit::Usage,
                    })?
            }
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
    let json = options.json.then(|| {
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
        "{} events: {} files written, {} removed, {} unchanged",
        contracts.len(),
        written.len(),
        plan.remove.len(),
        plan.unchanged
    ));
    Ok(Report {
        text: lines.join("\n"),
        exit: Exit::Done,
        json,
    })
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

fn typescript(options: &Options) -> Result<TypeScript, Trouble> {
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

/// The contracts that are asked for, by event type.
fn contracts(options: &Options) -> Result<Vec<Contract>, Trouble> {
    let locks = locks::in_folder(&options.folder).map_err(Trouble::from)?;
    let mut contracts: Vec<Contract> = locks.into_iter().map(|lock| lock.contract).collect();
    contracts.sort_by(|a, b| a.event_type.cmp(&b.event_type));
    for kind in &options.only {
        if !contracts
            .iter()
            .any(|contract| contract.event_type == *kind)
        {
            return Err(Trouble::usage(
                format!("no event is called `{kind}`"),
                options.folder.display().to_string(),
                "`factum contract list` shows the events that there are",
            ));
        }
    }
    if !options.only.is_empty() {
        contracts.retain(|contract| options.only.contains(&contract.event_type));
    }
    if contracts.is_empty() {
        return Err(Trouble::usage(
            "no event has a lock file",
            options.folder.display().to_string(),
            "run FACTUM_CONTRACTS=update cargo test in the crate that declares the events, or name its workspace with --in",
        ));
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
        let mut in_the_way = Vec::new();
        let wanted: BTreeSet<String> = files.keys().cloned().collect();
        for (path, text) in files {
            let place = out.join(&path);
            match fs::read(&place) {
                Ok(there) if there == text.as_bytes() => plan.unchanged += 1,
                Ok(there) if marked(&there).is_none() => in_the_way.push(path),
                Ok(_) => {
                    plan.write.insert(path, text);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    plan.write.insert(path, text);
                }
                Err(error) => return Err(Trouble::file("a file can't be read", &place, &error)),
            }
        }
        if !in_the_way.is_empty() {
            return Err(Trouble::usage(
                format!(
                    "these files are in the way, and no export made them: {}",
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
        }
        Ok(())
    }
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
