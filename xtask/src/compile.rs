//! Building a program of the examples or of ours, with a bar that knows how far it is.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::screen::Screen;
use crate::workspace::{Origin, cargo, metadata, root, stream, target_dir};

/// The workspace of the examples.
pub(crate) const EXAMPLES: &str = "examples/Cargo.toml";

/// The workspace of everything else.
pub(crate) const OURS: &str = "Cargo.toml";

/// How the program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// Builds the programs of the example `package`, and gives the path of `bin`.
///
/// All of them: the demo runs the services that lie beside it.
pub(crate) fn example(
    screen: &Screen,
    package: &str,
    bin: &str,
    profile: Profile,
) -> Result<PathBuf> {
    program(screen, EXAMPLES, package, bin, profile)
}

/// Builds the programs of `package` of the workspace with this manifest, and gives the path of `bin`.
pub(crate) fn program(
    screen: &Screen,
    workspace: &str,
    package: &str,
    bin: &str,
    profile: Profile,
) -> Result<PathBuf> {
    let total = packages_of(workspace, package)?;
    let mut command = Command::new(cargo());
    command
        .args(["build", "--message-format", "json-render-diagnostics"])
        .args(["--package", package, "--bins", "--manifest-path"])
        .arg(root().join(workspace))
        .env("CARGO_TARGET_DIR", target_dir()?)
        .current_dir(root());
    if profile == Profile::Release {
        command.arg("--release");
    }
    let what = format!("building {bin} (the first time takes about 5 minutes on 2 cores)");
    screen.begin(&what);
    let mut built = BTreeSet::new();
    let mut executable = None;
    let mut complaints = Vec::new();
    let status = stream(&mut command, |from, line| match from {
        Origin::Stdout => {
            let Ok(told) = serde_json::from_str::<Value>(line) else {
                return;
            };
            if told["reason"] != "compiler-artifact" {
                return;
            }
            if let Some(id) = told["package_id"].as_str() {
                built.insert(id.to_owned());
            }
            if told["target"]["name"] == bin {
                executable = told["executable"].as_str().map(PathBuf::from);
            }
            screen.advance("building", built.len() as u64, total);
        }
        // What makes us wait is told at once. Cargo's list of what it compiles is what the bar
        // tells; the rest matters if the build fails.
        Origin::Stderr => {
            let word = line.split_whitespace().next().unwrap_or_default();
            if matches!(word, "Blocking" | "Downloading" | "Updating") {
                screen.note(line);
            }
            complaints.push(line.to_owned());
        }
    });
    screen.clear();
    if !status?.success() {
        for line in &complaints {
            screen.note(line);
        }
        bail!("the program `{bin}` does not build; what cargo said is above");
    }
    executable.with_context(|| format!("cargo built no program `{bin}`"))
}

/// How many packages go into a package of a workspace, itself among them, on this machine.
fn packages_of(workspace: &str, package: &str) -> Result<u64> {
    let host = host()?;
    let metadata = metadata(workspace, &["--filter-platform", &host])?;
    let mut needs: HashMap<&str, Vec<&str>> = HashMap::new();
    for node in metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let built = node["deps"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| {
                let kinds = dependency["dep_kinds"].as_array();
                kinds.is_none_or(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
            });
        needs.insert(
            node["id"].as_str().unwrap_or_default(),
            built
                .filter_map(|dependency| dependency["pkg"].as_str())
                .collect(),
        );
    }
    let start = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|found| found["name"] == package && found["source"].is_null())
        .and_then(|found| found["id"].as_str())
        .with_context(|| format!("{workspace} has no package `{package}`"))?;
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(needs.get(id).into_iter().flatten());
        }
    }
    Ok(reached.len() as u64)
}

fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("running `rustc`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`rustc -vV` names no host")
}
