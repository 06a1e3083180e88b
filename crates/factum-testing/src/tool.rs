//! Programs that are run to their end, and that an interruption ends with all that they started.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A program in a process group of its own, such as `cargo` with the compilers and tests that it
/// starts.
///
/// Ctrl-C on a terminal doesn't reach another group, so the owner must pass it on with
/// [`interrupt`]: then it reaches programs too that got no signal because only the owner did.
#[derive(Debug)]
pub struct Tool {
    child: Child,
    group: Pid,
}

#[derive(Debug, Default)]
struct Running {
    interruptions: u32,
    groups: Vec<Pid>,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    interruptions: 0,
    groups: Vec::new(),
});

fn running() -> MutexGuard<'static, Running> {
    // The list is whole after every step, so a panic elsewhere doesn't spoil it.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interrupts every running [`Tool`] (SIGINT; a second call sends SIGKILL), and makes every server
/// that is being started here give up. From now on no tool starts.
pub fn interrupt() {
    let mut running = running();
    running.interruptions += 1;
    let signal = if running.interruptions == 1 {
        Signal::SIGINT
    } else {
        Signal::SIGKILL
    };
    for group in &running.groups {
        // A group that has just ended is what we want.
        let _ = killpg(*group, signal);
    }
}

/// Whether [`interrupt`] was called.
pub fn is_interrupted() -> bool {
    running().interruptions > 0
}

impl Tool {
    /// Starts `command` in a process group of its own.
    ///
    /// # Errors
    ///
    /// When it can't be started; of kind `Interrupted` after [`interrupt`].
    pub fn spawn(command: &mut Command) -> io::Result<Tool> {
        // Locked over the start: no interruption falls between the start and the list.
        let mut running = running();
        if running.interruptions > 0 {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        running.groups.push(group);
        Ok(Tool { child, group })
    }

    /// Runs `command` to its end without input, and gives what it printed.
    pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut tool = Tool::spawn(command)?;
        let mut stderr = tool.child.stderr.take();
        let reader = std::thread::spawn(move || read_all(stderr.as_mut()));
        let stdout = read_all(tool.child.stdout.as_mut());
        let stderr = reader.join().unwrap_or_default();
        let status = tool.wait()?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }

    /// Whether the program has ended. What it started may still run, and hold its output open.
    ///
    /// # Errors
    ///
    /// As `Child::try_wait`.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    ///
    /// As `Child::wait`.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for Tool {
    /// Ends the program if it still runs, and whatever it has left in its group.
    fn drop(&mut self) {
        let mut running = running();
        // An empty group is what we hope for.
        let _ = killpg(self.group, Signal::SIGKILL);
        running.groups.retain(|group| *group != self.group);
        drop(running);
        let _ = self.child.wait();
    }
}

fn read_all(source: Option<&mut impl io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(source) = source {
        // A pipe that breaks ends what there is to read; the exit status tells the rest.
        let _ = source.read_to_end(&mut bytes);
    }
    bytes
}
