//! `cargo xtask tidy`: what a script can see of the architecture.

mod crates;
mod docs;
mod locks;
mod rust;
mod sources;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use crate::Verdict;
use crate::screen::Screen;
use crate::workspace::{metadata, root};

/// Check the invariants that a script can see: crate edges, who names rdkafka, who holds SQL, purity
#[derive(Args)]
#[command(after_help = "\
Rules:
  crate-edge           a crate depends only on those that ARCHITECTURE.md allows
  crate-lints          every crate takes the workspace's lints
  kafka-door           only factum-kafka names rdkafka, and the checker, and the raw loops of bench/
  sql-home             only factum-postgres holds SQL
  pure                 factum-event, -macros and -contract have no IO, clock or randomness (but for the lock files)
  unfinished           no todo!, no unimplemented!, no ignored test
  architecture-files   every file that ARCHITECTURE.md names is there
  decisions-index      every decision is listed in docs/decisions/README.md
  guarantee-test       every test and cell that docs/guarantees.md names is there
  same-lock            both lock files have the same versions of shared packages

Ends with {\"files\":N,\"findings\":N} on one line with --json.
Exit codes: 0 nothing found, 1 something found, 2 usage, 130 interrupted.

Example: cargo xtask tidy --json")]
pub(crate) struct Tidy {}

impl Tidy {
    #[expect(clippy::unused_self, reason = "each task runs alike")]
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let tree = Tree::read(root())?;
        let findings = report(screen, &tree)?;
        screen.data(format_args!(
            "{} files, {} findings",
            tree.files.len(),
            findings.len()
        ));
        screen.end(&json!({ "files": tree.files.len(), "findings": findings.len() }));
        Ok(Verdict::of(findings.is_empty()))
    }
}

/// Prints what is found.
pub(crate) fn check(screen: &Screen) -> Result<Vec<Finding>> {
    report(screen, &Tree::read(root())?)
}

fn report(screen: &Screen, tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = crates::check(tree, &metadata("Cargo.toml", &["--no-deps"])?, root());
    findings.extend(sources::check(tree));
    findings.extend(docs::check(tree, |path| root().join(path).exists()));
    findings.extend(locks::check(tree));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &findings {
        screen.data(finding);
    }
    Ok(findings)
}

/// One thing to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    /// From 1.
    line: usize,
    what: String,
    mend: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.rule, self.what)?;
        writeln!(f, "  --> {}:{}", self.path, self.line)?;
        write!(f, "  mend  {}", self.mend)
    }
}

/// The text files of a checkout, by their path from its root, with `/`.
#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.add(root, root)
            .with_context(|| format!("reading {}", root.display()))?;
        Ok(tree)
    }

    fn add(&mut self, root: &Path, dir: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Built, downloaded or not ours.
            if name.starts_with('.') || name == "target" || name == "node_modules" {
                continue;
            }
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.add(root, &path)?;
            } else if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(root).unwrap_or(&path);
                self.files
                    .insert(relative.to_string_lossy().into_owned(), text);
            }
        }
        Ok(())
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// The files below `dir` that end with `.<extension>`.
    fn below<'a>(
        &'a self,
        dir: &'a str,
        extension: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files.iter().filter_map(move |(path, text)| {
            let is_below = path
                .strip_prefix(dir)
                .is_some_and(|rest| rest.starts_with('/'));
            (is_below
                && path
                    .rsplit_once('.')
                    .is_some_and(|(_, end)| end == extension))
            .then_some((path.as_str(), text.as_str()))
        })
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Tree {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Tree {
            files: files.collect(),
        }
    }
}

/// The line, from 1, of the first line that `is_it` accepts; else 1.
fn line_of(text: &str, is_it: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is_it).map_or(1, |place| place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_where_and_how_to_mend_it() {
        let finding = Finding {
            rule: "pure",
            path: "crates/factum-event/src/id.rs".to_owned(),
            line: 12,
            what: "`SystemTime` in a pure crate".to_owned(),
            mend: "take the time as an argument",
        };
        assert_eq!(
            finding.to_string(),
            "error[pure]: `SystemTime` in a pure crate\n\
             \x20 --> crates/factum-event/src/id.rs:12\n\
             \x20 mend  take the time as an argument"
        );
    }

    #[test]
    fn a_tree_holds_no_built_and_no_hidden_files() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b.rs", "target/c.rs", ".git/d", "e/node_modules/f.js"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        fs::write(dir.path().join("binary"), [0xff, 0xfe]).unwrap();
        let tree = Tree::read(dir.path()).unwrap();
        assert_eq!(tree.files.keys().collect::<Vec<_>>(), ["a/b.rs"]);
    }
}
