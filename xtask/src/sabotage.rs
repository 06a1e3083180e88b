//! `cargo xtask sabotage`

mod patches;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use factum_testing::tool;
use serde_json::{Value, json};

use self::patches::{Catcher, PATCHES, Patch};
use crate::prerequisites::{self, FOR_KAFKA, FOR_POSTGRES, TO_BUILD};
use crate::programs::test_result;
use crate::screen::{Screen, Word};
use crate::services::{BROKERS, DATABASE_URL, Running};
use crate::workspace::{cargo, root, stream, target_dir};
use crate::{Usage, Verdict, kill};

/// Break the code one way at a time, and see that the kill matrix or a test notices
///
/// It works on a copy of the tree under target/, with a target directory of its own, and never on the
/// tree. First every catcher must pass on the sound copy; then each break must make one of its catchers
/// fail.
#[derive(Args)]
#[command(after_help = "\
With --json, ends with {\"broken\":N,\"caught\":N,\"results\":[{\"sabotage\":…,\"caught_by\":…,\"seconds\":…}]}
on one line; caught_by is null where nothing noticed. With --list, with {\"sabotages\":[…]}.
The first time the copy is built.
Exit codes: 0 every break was caught, 1 one was not, 2 usage, 130 interrupted.

Example: cargo xtask sabotage --only dedup-always-new")]
pub(crate) struct Sabotage {
    /// Only this break; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Name the breaks, and break nothing
    #[arg(long)]
    list: bool,
}

impl Sabotage {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let patches = self.patches()?;
        if self.list {
            for patch in &patches {
                screen.data(format_args!("{}\t{}", patch.name, patch.what));
            }
            let names: Vec<&str> = patches.iter().map(|patch| patch.name).collect();
            screen.end(&json!({ "sabotages": names }));
            return Ok(Verdict::Holds);
        }
        prerequisites::ensure(screen, &[TO_BUILD, FOR_POSTGRES, FOR_KAFKA])?;
        let copy = Copy::make()?;
        let mut servers = Running::default();
        let lab = Lab {
            screen,
            database_url: servers.database_url(screen)?,
            brokers: servers.brokers(screen)?,
            copy,
        };
        lab.control(&patches)?;

        let mut rows = Vec::new();
        let mut results: Vec<Value> = Vec::new();
        let mut caught = 0;
        for (place, patch) in patches.iter().enumerate() {
            screen.begin(&format!(
                "break {} of {}: {}",
                place + 1,
                patches.len(),
                patch.name
            ));
            let start = Instant::now();
            let attempt = lab.attempt(patch);
            // One patch that went stale must not hide what the others show.
            let catcher = match attempt {
                Err(failure) if !tool::is_interrupted() => {
                    screen.error(&failure);
                    None
                }
                attempt => attempt?,
            };
            let seconds = start.elapsed().as_secs_f64();
            caught += usize::from(catcher.is_some());
            results.push(json!({
                "sabotage": patch.name,
                "caught_by": catcher,
                "seconds": (seconds * 10.0).round() / 10.0,
            }));
            let word = if catcher.is_some() {
                Word::Ok
            } else {
                Word::Failed
            };
            let by = catcher.unwrap_or_else(|| "nothing noticed".to_owned());
            rows.push((
                vec![
                    patch.name.to_owned(),
                    word.text().to_owned(),
                    format!("{seconds:.1}"),
                    by,
                ],
                Some(word),
            ));
        }
        screen.clear();
        drop(servers);
        screen.table(&["SABOTAGE", "RESULT", "SECONDS", "CAUGHT BY"], &rows);
        screen.data(format_args!("{} broken, {caught} caught", rows.len()));
        screen.end(&json!({ "broken": rows.len(), "caught": caught, "results": results }));
        Ok(Verdict::of(caught == rows.len()))
    }

    fn patches(&self) -> Result<Vec<&'static Patch>, Usage> {
        for name in &self.only {
            if !PATCHES.iter().any(|patch| patch.name == name) {
                return Err(Usage(format!(
                    "there is no break `{name}`; --list names them"
                )));
            }
        }
        let wanted =
            |patch: &&Patch| self.only.is_empty() || self.only.iter().any(|n| n == patch.name);
        Ok(PATCHES.iter().filter(wanted).collect())
    }
}

/// A copy of the tree, and where it is built.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Copies what git would, changed files included. A file that is the same already is left alone, so
    /// that cargo doesn't build it anew.
    fn make() -> Result<Copy> {
        let base = target_dir()?.join("sabotage");
        let copy = Copy {
            tree: base.join("tree"),
            target: base.join("target"),
        };
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root())
            .output()
            .context("running `git ls-files`")?;
        ensure!(
            listed.status.success(),
            "the tree is copied by what `git ls-files` lists, and it failed: {}",
            String::from_utf8_lossy(&listed.stderr).trim()
        );
        let listed = String::from_utf8(listed.stdout).context("reading `git ls-files`")?;
        // A file that was deleted since is listed still.
        let paths: Vec<&str> = listed
            .split_terminator('\0')
            .filter(|path| root().join(path).is_file())
            .collect();
        for path in &paths {
            let content = fs::read(root().join(path)).with_context(|| format!("reading {path}"))?;
            copy.write(path, &content)?;
        }
        copy.remove_others(&copy.tree, &paths)?;
        Ok(copy)
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let to = self.tree.join(path);
        if fs::read(&to).is_ok_and(|there| there == content) {
            return Ok(());
        }
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        fs::write(&to, content).with_context(|| format!("writing {}", to.display()))
    }

    /// Removes what an earlier copy had and the tree has no more.
    fn remove_others(&self, dir: &Path, paths: &[&str]) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                self.remove_others(&path, paths)?;
            } else if let Ok(name) = path.strip_prefix(&self.tree)
                && !paths.iter().any(|listed| Path::new(listed) == name)
            {
                fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Applies a patch; gives the file's sound content.
    fn apply(&self, patch: &Patch) -> Result<String> {
        let path = self.tree.join(patch.file);
        let sound =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let broken = patch.apply(&sound)?;
        self.write(patch.file, broken.as_bytes())?;
        Ok(sound)
    }
}

/// The copy, and the servers that its programs run on.
struct Lab<'a> {
    screen: &'a Screen,
    database_url: String,
    brokers: String,
    copy: Copy,
}

impl Lab<'_> {
    /// On sound code every catcher passes: else its failure would prove nothing.
    fn control(&self, patches: &[&Patch]) -> Result<()> {
        let catchers: BTreeMap<String, &Catcher> = patches
            .iter()
            .flat_map(|patch| patch.catchers)
            .map(|catcher| (catcher.to_string(), catcher))
            .collect();
        self.screen
            .begin("building the sound copy (the first time takes about 5 minutes on 2 cores)");
        ensure!(self.builds()?, "the sound copy doesn't build");
        for (place, (name, catcher)) in catchers.iter().enumerate() {
            self.screen.begin(&format!(
                "on sound code, {} of {}: {name}",
                place + 1,
                catchers.len()
            ));
            ensure!(
                self.passes(catcher)?,
                "{name} fails on sound code, so it can't tell sound from broken"
            );
        }
        Ok(())
    }

    /// Breaks the copy and gives the name of what noticed.
    fn attempt(&self, patch: &Patch) -> Result<Option<String>> {
        let sound = self.copy.apply(patch)?;
        let noticed = self.noticed(patch);
        // Whatever happened, the next break begins with sound code.
        self.copy.write(patch.file, sound.as_bytes())?;
        noticed
    }

    fn noticed(&self, patch: &Patch) -> Result<Option<String>> {
        ensure!(
            self.builds()?,
            "the break {} doesn't build: mend the patch",
            patch.name
        );
        for catcher in patch.catchers {
            if !self.passes(catcher)? {
                return Ok(Some(catcher.to_string()));
            }
        }
        Ok(None)
    }

    fn builds(&self) -> Result<bool> {
        let mut command = self.cargo();
        command.args(["build", "--workspace", "--all-features", "--bins"]);
        let (success, log) = self.finished(&mut command)?;
        if !success {
            self.screen.note(log.join("\n"));
        }
        Ok(success)
    }

    fn passes(&self, catcher: &Catcher) -> Result<bool> {
        match catcher {
            Catcher::Cell(cell) => self.cell_is_clean(cell),
            Catcher::Test { target, name } => self.test_passes(target, name),
        }
    }

    /// Runs a cell on the embedded broker. A cell that can't be carried out has noticed something too.
    fn cell_is_clean(&self, cell: &str) -> Result<bool> {
        let mut command = Command::new(self.copy.target.join("debug/kill-matrix"));
        command
            .args(["--broker", "embedded", "--json", "--cell", cell])
            .env(DATABASE_URL, &self.database_url);
        let (_, log) = self.finished(&mut command)?;
        match log.iter().rev().find_map(|line| kill::sums(line)) {
            Some((1, failed)) => Ok(failed == 0),
            _ => bail!("the cell {cell} told no result:\n{}", log.join("\n")),
        }
    }

    fn test_passes(&self, target: &str, name: &str) -> Result<bool> {
        let mut command = self.cargo();
        command
            .args(["test", "--workspace", "--all-features"])
            .args(target.split(' '))
            .args(["--", name])
            .env(DATABASE_URL, &self.database_url)
            .env(BROKERS, &self.brokers);
        let (success, log) = self.finished(&mut command)?;
        let (passed, failed) = log
            .iter()
            .filter_map(|line| test_result(line))
            .fold((0, 0), |sum, here| (sum.0 + here.0, sum.1 + here.1));
        ensure!(
            passed + failed > 0,
            "there is no test {name} in {target}:\n{}",
            log.join("\n")
        );
        Ok(success && failed == 0)
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command
            .current_dir(&self.copy.tree)
            .env("CARGO_TARGET_DIR", &self.copy.target)
            // A break may leave something unused.
            .env("RUSTFLAGS", "-A warnings");
        command
    }

    /// Runs a program to its end: whether it succeeded, and what it printed.
    fn finished(&self, command: &mut Command) -> Result<(bool, Vec<String>)> {
        let mut log = Vec::new();
        let status = stream(command, |_, line| log.push(line.to_owned()))?;
        ensure!(!tool::is_interrupted(), "interrupted");
        Ok((status.success(), log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_fits_its_file_exactly_once() {
        let stale: Vec<String> = PATCHES
            .iter()
            .filter_map(|patch| {
                let sound = fs::read_to_string(root().join(patch.file)).unwrap();
                patch
                    .apply(&sound)
                    .err()
                    .map(|failure| format!("{failure:#}"))
            })
            .collect();
        assert!(stale.is_empty(), "{stale:#?}");
    }

    #[test]
    fn every_patch_has_a_name_of_its_own_and_a_catcher() {
        let mut names: Vec<&str> = PATCHES.iter().map(|patch| patch.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PATCHES.len());
        assert!(PATCHES.iter().all(|patch| !patch.catchers.is_empty()));
    }

    #[test]
    fn an_unknown_break_is_refused() {
        let wrong = Sabotage {
            only: vec!["nothing".to_owned()],
            list: false,
        };
        assert!(wrong.patches().is_err());
    }
}
