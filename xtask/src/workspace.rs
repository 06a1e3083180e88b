//! Where things are, and running cargo on them.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};
use factum_testing::tool::Tool;

/// The checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    // xtask lies at <root>/xtask.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// What `cargo metadata` says about the workspace of this manifest, relative to the root.
pub(crate) fn metadata(manifest: &str, extra: &[&str]) -> Result<serde_json::Value> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(root().join(manifest))
        .args(extra)
        .stdin(Stdio::null())
        .output()
        .context("running `cargo metadata`")?;
    ensure!(
        output.status.success(),
        "`cargo metadata` of {manifest} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("reading what `cargo metadata` printed")
}

/// Where cargo puts what it builds. The examples share it, so that nothing is built twice.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata("Cargo.toml", &["--no-deps"])?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo names no target directory")?;
    Ok(PathBuf::from(dir))
}

/// The cargo that runs us, and no other on the path.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// From which of its outputs a program's line came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Stdout,
    Stderr,
}

/// Runs a program to its end and hands on each line that it prints, at once.
pub(crate) fn stream(
    command: &mut Command,
    mut on_line: impl FnMut(From, &str),
) -> Result<ExitStatus> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut tool = Tool::spawn(command).with_context(|| format!("running `{name}`"))?;
    let (lines, printed) = mpsc::channel();
    let stdout = tool.child().stdout.take();
    let stderr = tool.child().stderr.take();
    forward(stdout, From::Stdout, lines.clone());
    forward(stderr, From::Stderr, lines);
    for (from, line) in printed {
        on_line(from, &line);
    }
    tool.wait().with_context(|| format!("waiting for `{name}`"))
}

fn forward(
    source: Option<impl Read + Send + 'static>,
    from: From,
    lines: mpsc::Sender<(From, String)>,
) {
    let Some(source) = source else { return };
    std::thread::spawn(move || {
        let mut reader = BufReader::new(source);
        let mut line = Vec::new();
        // A pipe that breaks ends the output; the exit status tells the rest.
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line);
            if lines
                .send((from, text.trim_end_matches(['\n', '\r']).to_owned()))
                .is_err()
            {
                return;
            }
            line.clear();
        }
    });
}
