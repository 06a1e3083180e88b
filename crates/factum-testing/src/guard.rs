//! Processes that end for sure with their owner.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// A shell whose process group other processes join. Its input is a pipe that only we hold: when this
/// program ends in any way, SIGKILL included, the shell reads the end of the pipe and kills its group.
/// The group also keeps Ctrl-C on a terminal from the processes: ending them is their owner's business.
///
/// ```
/// use std::os::unix::process::CommandExt as _;
///
/// let guard = factum_testing::guard::Guard::start()?;
/// let mut child = std::process::Command::new("sleep")
///     .arg("1000")
///     .process_group(guard.group())
///     .spawn()?;
/// drop(guard);
/// assert!(!child.wait()?.success());
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts the shell.
    ///
    /// # Errors
    ///
    /// There is no `sh`.
    pub fn start() -> Result<Guard> {
        let shell = Command::new("sh")
            .args(["-c", "trap : INT TERM HUP; cat; kill -KILL 0"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting `sh`, which guards the processes")?;
        Ok(Guard { shell })
    }

    /// The group's id, for `process_group`.
    #[must_use]
    pub fn group(&self) -> i32 {
        // A process id fits: Linux's go up to 2^22.
        i32::try_from(self.shell.id()).unwrap_or_default()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
