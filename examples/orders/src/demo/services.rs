//! The three services as processes of their own, to be killed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use factum_testing::guard::Guard;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::servers::Servers;

/// How long a service may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Lines of a service's log that are kept for an error.
const LOG_LINES: usize = 40;

/// A service of the example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceName {
    /// Confirms orders and relays.
    Orders,
    /// Writes invoices, and relays when the order service doesn't.
    Billing,
    /// Writes mails.
    Mailer,
}

impl ServiceName {
    /// Every service.
    pub const ALL: [ServiceName; 3] = [
        ServiceName::Orders,
        ServiceName::Billing,
        ServiceName::Mailer,
    ];

    fn as_str(self) -> &'static str {
        match self {
            ServiceName::Orders => "orders",
            ServiceName::Billing => "billing",
            ServiceName::Mailer => "mailer",
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The running services.
#[derive(Debug)]
pub struct Services {
    directory: PathBuf,
    environments: BTreeMap<ServiceName, BTreeMap<String, String>>,
    running: BTreeMap<ServiceName, Running>,
    guard: Guard,
}

#[derive(Debug)]
struct Running {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
}

/// A service that ended and should not have.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub service: ServiceName,
    /// How.
    pub status: ExitStatus,
    /// The last lines of its log.
    pub log: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ended by itself ({}); its last lines:\n{}",
            self.service, self.status, self.log
        )
    }
}

impl Services {
    /// Starts the three services, which lie beside this program.
    ///
    /// # Errors
    ///
    /// One of them can't be started.
    pub fn start(servers: &Servers) -> Result<Services> {
        let program = std::env::current_exe().context("where this program is")?;
        let directory = program
            .parent()
            .context("where this program is")?
            .to_owned();
        let environments = ServiceName::ALL
            .map(|service| (service, servers.environment(service.as_str())))
            .into_iter()
            .collect();
        let mut services = Services {
            directory,
            environments,
            running: BTreeMap::new(),
            guard: Guard::start()?,
        };
        for service in ServiceName::ALL {
            services.start_one(service)?;
        }
        Ok(services)
    }

    fn start_one(&mut self, service: ServiceName) -> Result<()> {
        let program = self.directory.join(service.as_str());
        let mut child = Command::new(&program)
            .env_clear()
            .envs(&self.environments[&service])
            .process_group(self.guard.group())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!(
                    "starting {}; build all programs with `cargo build --manifest-path examples/Cargo.toml`",
                    program.display()
                )
            })?;
        let log = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(output) = child.stderr.take() {
            let log = log.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                    if log.len() == LOG_LINES {
                        log.pop_front();
                    }
                    log.push_back(line);
                }
            });
        }
        self.running.insert(service, Running { child, log });
        Ok(())
    }

    /// Kills a service as a power cut would (SIGKILL), and starts it again. `false` if it was not
    /// running.
    ///
    /// # Errors
    ///
    /// It can't be started again.
    pub async fn kill(&mut self, service: ServiceName) -> Result<bool> {
        let Some(mut running) = self.running.remove(&service) else {
            return Ok(false);
        };
        let was_alive = running.child.try_wait()?.is_none();
        running.child.kill().await?;
        self.start_one(service)?;
        Ok(was_alive)
    }

    /// The service with that process id.
    pub fn with_pid(&self, pid: u32) -> Option<ServiceName> {
        let found = self
            .running
            .iter()
            .find(|(_, running)| running.child.id() == Some(pid));
        found.map(|(service, _)| *service)
    }

    /// A service that has ended by itself, if there is one. It is not started again.
    ///
    /// # Errors
    ///
    /// The system doesn't tell.
    pub fn ended(&mut self) -> Result<Option<Ended>> {
        for (&service, running) in &mut self.running {
            if let Some(status) = running.child.try_wait()? {
                return Ok(Some(Ended {
                    service,
                    status,
                    log: running.tail(),
                }));
            }
        }
        Ok(None)
    }

    /// The last lines of every service's log.
    pub fn logs(&self) -> String {
        let log = |(service, running): (&ServiceName, &Running)| {
            format!("  {service}:\n{}", running.tail())
        };
        self.running.iter().map(log).collect::<Vec<_>>().join("\n")
    }

    /// Asks all services to stop (SIGTERM) and waits for them. Those that didn't end well are
    /// returned.
    ///
    /// # Errors
    ///
    /// The system doesn't tell.
    pub async fn stop(mut self) -> Result<Vec<Ended>> {
        for running in self.running.values() {
            if let Some(pid) = running.child.id() {
                // It may have ended just now; then there is nothing to stop.
                let _ = kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM);
            }
        }
        let mut badly = Vec::new();
        for (service, mut running) in std::mem::take(&mut self.running) {
            let status = match tokio::time::timeout(STOP_LIMIT, running.child.wait()).await {
                Ok(status) => status?,
                Err(_) => {
                    running.child.kill().await?;
                    running.child.wait().await?
                }
            };
            if !status.success() {
                badly.push(Ended {
                    service,
                    status,
                    log: running.tail(),
                });
            }
        }
        Ok(badly)
    }
}

impl Running {
    fn tail(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter()
            .map(|line| format!("    {line}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}
