//! Where things are, and running cargo on them.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

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
pub(crate) enum Origin {
    Stdout,
    Stderr,
}

/// When a program has ended and nothing came for this long, it has printed everything.
const SILENCE: Duration = Duration::from_secs(1);

/// Runs a program to its end and hands on each line that it prints, at once.
pub(crate) fn stream(
    command: &mut Command,
    mut on_line: impl FnMut(Origin, &str),
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
    forward(stdout, Origin::Stdout, lines.clone());
    forward(stderr, Origin::Stderr, lines);
    loop {
        match printed.recv_timeout(SILENCE) {
            Ok((from, line)) => on_line(from, &line),
            Err(RecvTimeoutError::Disconnected) => break,
            // A program that it left behind may hold its output open for ever.
            Err(RecvTimeoutError::Timeout) => {
                if tool
                    .has_ended()
                    .with_context(|| format!("waiting for `{name}`"))?
                {
                    break;
                }
            }
        }
    }
    tool.wait().with_context(|| format!("waiting for `{name}`"))
}

fn forward(
    source: Option<impl Read + Send + 'static>,
    from: Origin,
    lines: mpsc::Sender<(Origin, String)>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> (Vec<(Origin, String)>, bool) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let status = stream(&mut command, |from, line| {
            lines.push((from, line.to_owned()));
        });
        (lines, status.unwrap().success())
    }

    #[test]
    fn each_line_is_handed_on_with_its_origin() {
        let (mut lines, succeeded) = run("echo one; echo two >&2; printf three; exit 3");
        lines.sort_by_key(|(_, line)| line.clone());
        let expected = [
            (Origin::Stdout, "one"),
            (Origin::Stdout, "three"),
            (Origin::Stderr, "two"),
        ];
        assert_eq!(lines, expected.map(|(from, line)| (from, line.to_owned())));
        assert!(!succeeded);
    }

    #[test]
    fn what_a_program_leaves_behind_neither_holds_us_up_nor_stays() {
        let (lines, succeeded) = run("sleep 1000 & echo $!");
        assert!(succeeded);
        let left = lines[0].1.parse().unwrap();
        let is_alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{left}/stat"));
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), None).is_ok()
                && stat.map_or(true, |stat| !stat.contains(") Z"))
        };
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !is_alive()
        }));
    }
}
