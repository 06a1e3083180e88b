//! A server that ends for sure with its owner.
//!
//! A server is not our child but the child of a small shell, the keeper, whose standard input is a
//! pipe that only we hold. When we close it, or die in any way, SIGKILL included, the kernel closes
//! the pipe, the keeper reads end of file, stops the server and removes its directory. No handler
//! in our own process could promise that.

use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Gid, Pid, Uid, User, chown, geteuid};

use crate::tool;

/// How long an owner waits for its keeper to stop the server and clean up, before it kills both.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The pause between two looks at a server that is starting.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the keeper runs. `$1` is the server's directory, `$2` the signal that stops the server.
///
/// The server is started from `$1/start` by a subshell, which records the server's id and, when it
/// ends, its exit code: an owner reads `ended` to tell "still starting" from "died".
/// Traps hold a body (not ''), since an ignored signal would stay ignored in the server.
/// The removal is repeated: a tool that the owner ran there may still write for a moment.
const KEEPER: &str = r#"
dir=$1 signal=$2 runner=
cd "$dir" || exit 1
trap : INT TERM HUP
halt() {
    [ -n "$runner" ] || return 0
    until [ -s pid ]; do sleep 0.01; done
    [ -e ended ] || kill -s "$signal" "$(cat pid)" 2>/dev/null
    wait "$runner"
    runner=
}
while read -r word; do
    case $word in
        start)
            halt
            rm -f pid ended
            (
                sh ./start </dev/null >>server.log 2>&1 &
                echo $! >pid.new && mv pid.new pid
                wait $!
                echo $? >ended
            ) </dev/null >/dev/null 2>&1 &
            runner=$!
            echo started ;;
        stop)
            halt
            echo stopped ;;
    esac
done
halt
cd / || exit 1
tries=0
while [ -e "$dir" ] && [ "$tries" -lt 100 ]; do
    rm -rf -- "$dir" 2>/dev/null || sleep 0.1
    tries=$((tries + 1))
done
"#;

/// The user that a server runs as, when it may not run as us.
#[derive(Clone, Debug)]
pub(crate) struct RunAs {
    uid: Uid,
    gid: Gid,
}

impl RunAs {
    /// PostgreSQL refuses to run as root, so as root we hand it to an unprivileged user.
    pub(crate) fn unprivileged() -> Result<Option<RunAs>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        for name in ["postgres", "nobody"] {
            if let Some(user) = User::from_name(name).context("looking up an unprivileged user")? {
                return Ok(Some(RunAs {
                    uid: user.uid,
                    gid: user.gid,
                }));
            }
        }
        bail!(
            "PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody` \
             to run it as; run: useradd --system postgres"
        )
    }

    /// As `chown` takes it.
    pub(crate) fn owner(&self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }
}

/// A directory of a server, and the shell that stops the server and removes the directory.
#[derive(Debug)]
pub(crate) struct Keeper {
    dir: PathBuf,
    run_as: Option<RunAs>,
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    /// A fresh directory named after `prefix`, and its keeper; nothing runs yet.
    ///
    /// `stop_signal` must end the server in a bounded time: the keeper has no patience of its own.
    pub(crate) fn new(prefix: &str, stop_signal: &str, run_as: Option<RunAs>) -> Result<Keeper> {
        let base = scratch_base(run_as.as_ref());
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&base)
            .with_context(|| format!("making a directory in {}", base.display()))?;
        if let Some(user) = &run_as {
            chown(dir.path(), Some(user.uid), Some(user.gid))
                .with_context(|| format!("giving {} to its user", dir.path().display()))?;
        }
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(KEEPER)
            .arg("factum-testing-keeper")
            .arg(dir.path())
            .arg(stop_signal)
            // A group of its own: Ctrl-C on the terminal must reach the owner, not the keeper.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        dress(&mut shell, run_as.as_ref());
        let mut shell = shell
            .spawn()
            .context("starting `sh`, which keeps the server")?;
        let orders = shell.stdin.take();
        let answers = shell.stdout.take().context("`sh` has no output")?;
        // From here on the keeper removes the directory.
        let dir = dir.keep();
        Ok(Keeper {
            dir,
            run_as,
            shell,
            orders,
            answers: BufReader::new(answers),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file that only the server's user can read.
    pub(crate) fn write(&self, name: &str, contents: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let write = || -> Result<()> {
            fs::write(&path, "")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            fs::write(&path, contents)?;
            if let Some(user) = &self.run_as {
                chown(&path, Some(user.uid), Some(user.gid))?;
            }
            Ok(())
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// A command that runs in the server's directory as the server's user.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .process_group(0);
        dress(&mut command, self.run_as.as_ref());
        command
    }

    /// Starts the server: `program` with `args`. The keeper stops an earlier one first.
    pub(crate) fn start<I, S>(&mut self, program: &Path, args: I) -> Result<()>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut line = format!("exec {}", quoted(program.as_os_str()));
        for arg in args {
            line.push(' ');
            line.push_str(&quoted(arg.as_ref()));
        }
        line.push('\n');
        self.write("start", &line)?;
        self.order("start", "started")
    }

    /// Starts what ran last once more.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.order("start", "started")
    }

    /// Stops the server and waits for its end; its files stay.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.order("stop", "stopped")
    }

    fn order(&mut self, order: &str, expected: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("the keeper has gone")?;
        writeln!(orders, "{order}").context("the keeper has gone")?;
        let mut answer = String::new();
        self.answers
            .read_line(&mut answer)
            .context("the keeper has gone")?;
        if answer.trim_end() != expected {
            bail!("the keeper answered `{}` to `{order}`", answer.trim_end());
        }
        Ok(())
    }

    /// Whether the server that was started last has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.dir.join("ended").exists()
    }

    /// What the server printed, from its last start on or before.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of the server's log, for an error.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.log(), 15)
    }

    /// Waits until `is_ready` says so, the server ends, or `limit` is over.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        mut is_ready: impl FnMut() -> bool,
    ) -> std::result::Result<(), StartFailure> {
        let start = Instant::now();
        loop {
            if is_ready() {
                return Ok(());
            }
            if self.has_ended() {
                return Err(StartFailure::Ended {
                    log: self.log_tail(),
                });
            }
            if tool::is_interrupted() {
                return Err(StartFailure::Interrupted);
            }
            if start.elapsed() > limit {
                return Err(StartFailure::TooLate {
                    limit,
                    log: self.log_tail(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // End of file is the keeper's order to stop everything and to remove the directory.
        self.orders.take();
        let start = Instant::now();
        while start.elapsed() < STOP_LIMIT {
            match self.shell.try_wait() {
                Ok(Some(_)) => return,
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Err(_) => break,
            }
        }
        if let Ok(group) = i32::try_from(self.shell.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Why a server isn't there.
#[derive(Debug)]
pub(crate) enum StartFailure {
    /// It ended by itself.
    Ended { log: String },
    /// The owner was interrupted meanwhile.
    Interrupted,
    /// It ran, but did not answer in time.
    TooLate { limit: Duration, log: String },
}

impl StartFailure {
    /// Another one took the port between our choice and the server's bind: choose again.
    pub(crate) fn is_port_taken(&self) -> bool {
        matches!(self, StartFailure::Ended { log }
            if log.contains("Address already in use") || log.contains("failed to bind"))
    }

    pub(crate) fn into_error(self, what: &str) -> anyhow::Error {
        match self {
            StartFailure::Interrupted => anyhow::anyhow!("interrupted while {what} was starting"),
            StartFailure::Ended { log } => {
                anyhow::anyhow!("{what} ended while starting; its last lines:\n{log}")
            }
            StartFailure::TooLate { limit, log } => anyhow::anyhow!(
                "{what} did not answer within {} s; its last lines:\n{log}",
                limit.as_secs()
            ),
        }
    }
}

/// So many ports that were free a moment ago and that a server finds free again after a restart: they
/// lie below those that the system gives to outgoing connections. A client that tries to reach a
/// server that is down could else be given the broker's own port.
pub(crate) fn lasting_ports(count: usize) -> Result<Vec<u16>> {
    const TRIES: usize = 1000;
    let random = RandomState::new();
    // Held until all are chosen, so that none is chosen twice.
    let mut held: Vec<TcpListener> = Vec::with_capacity(count);
    for attempt in 0..TRIES {
        let mut hasher = random.build_hasher();
        hasher.write_usize(attempt);
        let port = 15_000 + (hasher.finish() % 17_000) as u16;
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
        if held.len() == count {
            let ports = held
                .iter()
                .map(|listener| Ok(listener.local_addr()?.port()));
            return ports.collect();
        }
    }
    bail!("no {count} free ports between 15000 and 32000")
}

/// The last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Whether the server's user can reach `path` for reading and running.
pub(crate) fn is_reachable(path: &Path) -> bool {
    path.ancestors()
        .filter(|part| !part.as_os_str().is_empty())
        .all(|part| fs::metadata(part).is_ok_and(|meta| meta.mode() & 0o001 != 0 || !meta.is_dir()))
}

/// Where directories of servers are made: the user's temporary directory, unless the server's user
/// could not enter it.
fn scratch_base(run_as: Option<&RunAs>) -> PathBuf {
    let own = std::env::temp_dir();
    if run_as.is_none() || is_reachable(&own) {
        own
    } else {
        PathBuf::from("/tmp")
    }
}

/// The user and the environment of a server's process. Settings of the caller's own PostgreSQL or
/// Kafka must not leak in, and messages are read by us, so they are in English.
fn dress(command: &mut Command, run_as: Option<&RunAs>) {
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_bytes();
        if bytes.starts_with(b"PG") || bytes.starts_with(b"KAFKA_") {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C");
    if let Some(user) = run_as {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
}

/// `text` as one word of a shell. Paths here come from the machine, and are valid UTF-8 or the
/// server's start fails with a clear "not found".
fn quoted(text: &OsStr) -> String {
    format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(pid: i32) -> bool {
        // A zombie still has a process id, but no more files or memory.
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .starts_with(" Z")
        })
    }

    fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "waited in vain: {what}"
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn server_pid(keeper: &Keeper) -> i32 {
        let path = keeper.dir().join("pid");
        wait_for("a process id", || path.exists());
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn drop_stops_the_server_and_removes_its_directory() {
        let mut keeper = Keeper::new("factum-keeper-", "KILL", None).unwrap();
        keeper.start(Path::new("/bin/sleep"), ["1000"]).unwrap();
        let pid = server_pid(&keeper);
        let dir = keeper.dir().to_owned();
        assert!(is_alive(pid) && dir.exists());
        drop(keeper);
        assert!(!is_alive(pid), "the server outlived its owner");
        assert!(!dir.exists(), "{} was left behind", dir.display());
    }

    #[test]
    fn a_server_that_dies_is_told_from_one_that_is_slow() {
        let mut keeper = Keeper::new("factum-keeper-", "KILL", None).unwrap();
        keeper
            .start(Path::new("/bin/sh"), ["-c", "echo it\\'s broken; exit 3"])
            .unwrap();
        let ended = keeper
            .wait_until(Duration::from_secs(10), || false)
            .unwrap_err();
        assert!(matches!(&ended, StartFailure::Ended { log } if log.contains("it's broken")));

        keeper.start(Path::new("/bin/sleep"), ["1000"]).unwrap();
        let late = keeper
            .wait_until(Duration::from_millis(50), || false)
            .unwrap_err();
        assert!(matches!(late, StartFailure::TooLate { .. }));
    }

    #[test]
    fn stop_keeps_the_files_for_the_next_start() {
        let mut keeper = Keeper::new("factum-keeper-", "TERM", None).unwrap();
        keeper.start(Path::new("/bin/sleep"), ["1000"]).unwrap();
        let first = server_pid(&keeper);
        keeper.stop().unwrap();
        assert!(!is_alive(first));
        assert!(keeper.dir().join("start").exists());
        keeper.start_again().unwrap();
        let second = server_pid(&keeper);
        assert_ne!(first, second);
        assert!(is_alive(second));
    }

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted(OsStr::new("a b'c$d")), r"'a b'\''c$d'");
    }

    #[test]
    fn ports_that_last_differ_and_are_no_ports_of_outgoing_connections() {
        let mut ports = lasting_ports(50).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| (15_000..32_000).contains(port)));
    }
}
