//! What is fetched once and kept under `target/`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where cargo puts what it builds: downloads live beside it, so `cargo clean` takes them too.
fn target_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(dir);
    }
    // The crate lies at <workspace>/crates/factum-testing.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    match workspace {
        Some(workspace) if workspace.is_dir() => workspace.join("target"),
        _ => PathBuf::from("target"),
    }
}

/// `target/<name>`, filled by `fill` if it isn't there yet.
///
/// `fill` works on a directory of its own, which takes its final name only when it is complete: an
/// interrupted download is never taken for a whole one. A lock makes a second process wait instead
/// of fetching the same.
pub(crate) fn once(name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let target = target_dir();
    let whole = target.join(name);
    if whole.is_dir() {
        return Ok(whole);
    }
    fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
    let lock_path = target.join(format!("{name}.lock"));
    let lock = File::create(&lock_path)
        .with_context(|| format!("making the lock file {}", lock_path.display()))?;
    lock.lock()
        .with_context(|| format!("locking {}", lock_path.display()))?;
    if whole.is_dir() {
        return Ok(whole);
    }
    let leftovers = format!("{name}.part-");
    for entry in fs::read_dir(&target)?.flatten() {
        // Of a download that was killed; nobody else works on it, for we hold the lock.
        if entry.file_name().to_string_lossy().starts_with(&leftovers) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    // On the same file system as its final place, so that the rename is one step.
    let part = tempfile::Builder::new()
        .prefix(&leftovers)
        .tempdir_in(&target)
        .with_context(|| format!("making a directory in {}", target.display()))?;
    fill(part.path())?;
    fs::rename(part.path(), &whole)
        .with_context(|| format!("moving the download to {}", whole.display()))?;
    let _ = part.keep();
    // Readable for the unprivileged user that servers run as; a TempDir is not.
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&whole, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("opening {} for reading", whole.display()))?;
    Ok(whole)
}
