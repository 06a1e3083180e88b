//! Where the published lock files come from: a folder, or a commit of git.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use factum_contract::lock;

use super::Trouble;
use super::locks::{self, LAYOUT, Lock};

/// The published lock files, and what they are called in a sentence.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) locks: Vec<Lock>,
    /// `origin/main (4f2c1a9)`
    pub(super) name: String,
}

/// Reads the lock files of `against`: those of a folder, or those of a commit below `root`.
///
/// Of a branch it is the commit at which the working tree's branch left it: what was added to the branch since is no
/// removal here.
pub(super) fn read(root: &Path, against: &str) -> Result<Base, Trouble> {
    let is_folder = Path::new(against).is_dir();
    // `./main` can be no ref.
    let is_path = against.starts_with(['.', '/']);
    if is_folder && (is_path || commit(root, against).is_err()) {
        let locks = locks::in_folder(Path::new(against))?;
        if locks.is_empty() {
            return Err(Trouble::new(
                format!(
                    "the folder `{against}` holds no lock file, so there is nothing to compare with"
                ),
                "--against",
                format!("name a folder that has them: {LAYOUT}"),
            ));
        }
        return Ok(Base {
            locks,
            name: against.to_owned(),
        });
    }
    if is_folder {
        return Err(Trouble::new(
            format!("`{against}` is a folder and a git ref as well"),
            "--against",
            format!("write ./{against} for the folder, or refs/heads/{against} for the branch"),
        ));
    }
    let commit = commit(root, against)?;
    let base = match merge_base(root, &commit) {
        Some(base) => base,
        // What was added there since would look removed here.
        None if is_shallow(root) => {
            return Err(Trouble::new(
                format!(
                    "this clone is shallow and lacks the commit at which the working tree's branch left `{against}`"
                ),
                root.display().to_string(),
                FETCH_ALL,
            ));
        }
        None => commit,
    };
    let short = git(root, &["rev-parse", "--short", &base])?;
    Ok(Base {
        locks: of_commit(root, &base)?,
        name: format!("{against} ({short})"),
    })
}

/// The folder's path below the top of its repository, with `/` at the end; empty at the top, and without git.
pub(super) fn prefix(root: &Path) -> String {
    git(root, &["rev-parse", "--show-prefix"]).unwrap_or_default()
}

fn commit(root: &Path, name: &str) -> Result<String, Trouble> {
    git(root, &["rev-parse", "--is-inside-work-tree"]).map_err(|trouble| {
        if trouble.what.contains("not a git repository") {
            Trouble::new(
                format!("`{name}` is no folder, and there is no git repository to look it up in"),
                root.display().to_string(),
                "run the command within the repository, name it with --in, or give a folder to --against",
            )
        } else {
            trouble
        }
    })?;
    let asked = format!("{name}^{{commit}}");
    git(root, &["rev-parse", "--verify", "--quiet", "--end-of-options", &asked]).map_err(|_| {
        let mend = if is_shallow(root) {
            format!("this clone is shallow and lacks it: {FETCH_ALL}")
        } else if let Some(branch) = name.strip_prefix("origin/") {
            format!("fetch it first: `git fetch origin {branch}`")
        } else if is_plain(name) {
            format!("correct the name; a branch of the remote is origin/{name}, after `git fetch origin`")
        } else {
            "correct the name, or fetch it first: `git fetch`, and for a tag `git fetch --tags`".to_owned()
        };
        Trouble::new(
            format!("git knows no commit `{name}`, and there is no such folder"),
            "--against",
            mend,
        )
    })
}

const FETCH_ALL: &str = "fetch the whole history: `git fetch --unshallow`; in GitHub's actions/checkout, `fetch-depth: 0`";

fn is_shallow(root: &Path) -> bool {
    git(root, &["rev-parse", "--is-shallow-repository"]).is_ok_and(|answer| answer == "true")
}

/// Whether it may be a branch's name alone: no path of a ref, no commit, nothing counted from one.
fn is_plain(name: &str) -> bool {
    let is_word = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let is_commit = name.len() >= 7 && name.chars().all(|c| c.is_ascii_hexdigit());
    // `v1.4.0`
    let is_version = name
        .trim_start_matches('v')
        .starts_with(|c: char| c.is_ascii_digit());
    is_word && !is_commit && !is_version && name != "HEAD" && !name.starts_with(['-', '.'])
}

/// `None` when the two have no common past, or when it was not fetched.
fn merge_base(root: &Path, commit: &str) -> Option<String> {
    git(root, &["merge-base", "HEAD", commit]).ok()
}

fn of_commit(root: &Path, commit: &str) -> Result<Vec<Lock>, Trouble> {
    // Paths are those below `root`, and only those.
    let listing = git(root, &["ls-tree", "-r", "-z", "--name-only", commit])?;
    let paths: BTreeSet<&Path> = listing.split('\0').map(Path::new).collect();
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for path in &paths {
        let Some((crate_folder, folder)) = path
            .parent()
            .and_then(|folder| Some((folder.parent()?, folder.file_name()?)))
        else {
            continue;
        };
        let is_lock = folder == lock::FOLDER
            && locks::is_lock_file(path)
            && paths.contains(&*crate_folder.join("Cargo.toml"))
            && !is_skipped(crate_folder);
        if !is_lock {
            continue;
        }
        let name = format!("{commit}:./{}", path.display());
        let bytes = output(root, &["show", "--end-of-options", &name])?;
        match lock::read_bytes(path, &bytes) {
            Ok(contract) => found.push(Lock {
                crate_folder: crate_folder.to_owned(),
                contract,
            }),
            Err(error) => faults.push(format!("in the commit {commit}, {error}")),
        }
    }
    locks::all_good(found, &faults)
}

/// As in a walk of the working tree.
fn is_skipped(folder: &Path) -> bool {
    folder.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        name.starts_with('.') || name == "target" || name == "node_modules"
    })
}

/// The output of a git command as text, without the line break at its end.
fn git(root: &Path, arguments: &[&str]) -> Result<String, Trouble> {
    let bytes = output(root, arguments)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Trouble::new(
            "git lists a path that is not UTF-8",
            root.display().to_string(),
            "rename the file",
        )
    })?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn output(root: &Path, arguments: &[&str]) -> Result<Vec<u8>, Trouble> {
    let place = || format!("git {}", arguments.join(" "));
    let ran = Command::new("git")
        .arg("-C")
        .arg(if root == Path::new("") {
            PathBuf::from(".")
        } else {
            root.to_owned()
        })
        .args(arguments)
        // Its texts are looked at.
        .env("LC_ALL", "C")
        .output();
    let output = ran.map_err(|error| {
        Trouble::new(
            format!("git can't be run: {error}"),
            place(),
            "install git, or give a folder to --against",
        )
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let what = if said.is_empty() { "git failed" } else { said };
    Err(Trouble::new(
        what,
        place(),
        "do what git says above, or give a folder to --against",
    ))
}
