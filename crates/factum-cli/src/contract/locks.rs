//! The lock files of a workspace.

use std::fs;
use std::path::{Path, PathBuf};

use factum_contract::lock;
use factum_event::Contract;

use super::Trouble;

/// Folders nest at most so deep; links are not followed, so this ends no walk of a real workspace.
pub(super) const MAX_DEPTH: usize = 32;

/// Where lock files lie, for a sentence.
pub(super) const LAYOUT: &str = "`<crate>/contracts/<kind>.json` beside `<crate>/Cargo.toml`";

/// A lock file.
#[derive(Debug)]
pub(super) struct Lock {
    /// The folder of its crate, below the folder that was looked in; empty for that folder itself.
    pub(super) crate_folder: PathBuf,
    pub(super) contract: Contract,
}

impl Lock {
    pub(super) fn kind(&self) -> &str {
        &self.contract.event_type
    }

    /// The file, below the folder that was looked in.
    pub(super) fn path(&self) -> PathBuf {
        lock::path(&self.crate_folder, self.kind())
    }
}

/// All lock files below a folder, by path.
///
/// Every one that can't be read is named, so that one run shows all of them.
pub(super) fn in_folder(root: &Path) -> Result<Vec<Lock>, Trouble> {
    let mut found = Vec::new();
    walk(root, Path::new(""), 0, &mut found)?;
    found.sort();
    let mut locks = Vec::new();
    let mut faults = Vec::new();
    for (crate_folder, file) in found {
        match lock::read(&root.join(&file)) {
            Ok(Some(contract)) => locks.push(Lock {
                crate_folder,
                contract,
            }),
            // Removed since it was seen.
            Ok(None) => {}
            Err(error) => faults.push(error.to_string()),
        }
    }
    all_good(locks, &faults)
}

pub(super) fn all_good(locks: Vec<Lock>, faults: &[String]) -> Result<Vec<Lock>, Trouble> {
    match faults {
        [] => Ok(locks),
        [one] => Err(Trouble {
            what: one.clone(),
            hint: None,
        }),
        many => Err(Trouble {
            what: format!(
                "{} lock files can't be read:\n{}",
                many.len(),
                many.join("\n")
            ),
            hint: None,
        }),
    }
}

/// Collects crate folders and files, as paths below the root.
fn walk(
    root: &Path,
    below: &Path,
    depth: usize,
    found: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<(), Trouble> {
    let folder = root.join(below);
    let unreadable = |error: std::io::Error| {
        Trouble::new(
            format!("a folder can't be read: {error}"),
            folder.display().to_string(),
            "name a folder that exists and that you may read with --in or --against",
        )
    };
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_folder = entry.file_type().map_err(unreadable)?.is_dir();
        if !is_folder || name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if name == lock::FOLDER && folder.join("Cargo.toml").is_file() {
            for file in fs::read_dir(entry.path()).map_err(unreadable)? {
                let file = PathBuf::from(file.map_err(unreadable)?.file_name());
                if is_lock_file(&file) {
                    found.push((below.to_owned(), below.join(lock::FOLDER).join(file)));
                }
            }
        } else if depth < MAX_DEPTH {
            walk(root, &below.join(&*name), depth + 1, found)?;
        }
    }
    Ok(())
}

/// By its name: `order.confirmed.v1.json`.
pub(super) fn is_lock_file(name: &Path) -> bool {
    let is_hidden = name
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !is_hidden
        && name
            .extension()
            .is_some_and(|extension| extension == "json")
}
