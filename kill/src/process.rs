//! A service's process: frozen, thawed, killed.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a process may take to come to its point.
const POINT_LIMIT: Duration = Duration::from_secs(60);
/// How long a process may take to end after SIGTERM: its own deadline, and time for a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Lines of a log that are shown.
const LOG_LINES: usize = 25;

/// A running service. It is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` in the process group, with its output in the file `log`.
    ///
    /// # Errors
    ///
    /// The program can't be started.
    pub fn start(mut command: Command, group: i32, log: PathBuf) -> Result<Process> {
        let output = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let child = command
            .process_group(group)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
        Ok(Process { child, log })
    }

    /// Waits until the process has been killed at its point by SIGKILL.
    ///
    /// # Errors
    ///
    /// It ended otherwise, or never came there.
    pub async fn killed(&mut self) -> Result<()> {
        let ended = self.until(POINT_LIMIT, |process| Ok(process.child.try_wait()?));
        let Some(status) = ended.await? else {
            bail!("it never came to the point\n{}", self.tail());
        };
        if status.signal() != Some(Signal::SIGKILL as i32) {
            bail!(
                "it ended with {status} before it came to the point\n{}",
                self.tail()
            );
        }
        Ok(())
    }

    /// Waits until the process stands still at its point.
    ///
    /// # Errors
    ///
    /// It ended, or never came there.
    pub async fn frozen(&mut self) -> Result<()> {
        self.comes_to("the point", |process| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id()))?;
            // The state follows the name, which stands in parentheses.
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
            Ok(state.starts_with('T').then_some(()))
        })
        .await
    }

    /// Waits until the thread that pauses at the point has made its file.
    ///
    /// # Errors
    ///
    /// It ended, or never came there.
    pub async fn paused(&mut self, file: &Path) -> Result<()> {
        self.comes_to("the point", |_| Ok(file.exists().then_some(())))
            .await
    }

    /// Waits until its log holds `text`.
    ///
    /// # Errors
    ///
    /// It ended, or never said so.
    pub async fn says(&mut self, text: &str) -> Result<()> {
        self.comes_to(&format!("saying \"{text}\""), |process| {
            Ok(process.log().contains(text).then_some(()))
        })
        .await
    }

    async fn comes_to(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Process) -> Result<Option<()>>,
    ) -> Result<()> {
        let came = self.until(POINT_LIMIT, |process| {
            if look(process)?.is_some() {
                return Ok(Some(()));
            }
            match process.child.try_wait()? {
                None => Ok(None),
                Some(status) => bail!(
                    "it ended with {status} before it came to {what}\n{}",
                    process.tail()
                ),
            }
        });
        if came.await?.is_none() {
            bail!("it never came to {what}\n{}", self.tail());
        }
        Ok(())
    }

    /// Lets a frozen process go on.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// SIGKILL, whatever it is doing.
    ///
    /// # Errors
    ///
    /// It can't be waited for.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM; it must end in good order.
    ///
    /// # Errors
    ///
    /// It was gone already, took too long, or ended with an error.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it ended by itself with {status}\n{}", self.tail());
        }
        self.signal(Signal::SIGTERM)?;
        let ended = self.until(STOP_LIMIT, |process| Ok(process.child.try_wait()?));
        match ended.await? {
            None => bail!("it did not end after SIGTERM\n{}", self.tail()),
            Some(status) if !status.success() => {
                bail!("it ended with {status} after SIGTERM\n{}", self.tail())
            }
            Some(_) => Ok(()),
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    ///
    /// The system doesn't tell.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Its log's last lines.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    fn log(&self) -> String {
        // Half a character at the end, or a file that isn't there yet, is no reason to fail.
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?;
        Ok(())
    }

    async fn until<T>(
        &mut self,
        limit: Duration,
        mut look: impl FnMut(&mut Process) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(Some(found));
            }
            if start.elapsed() > limit {
                return Ok(None);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
