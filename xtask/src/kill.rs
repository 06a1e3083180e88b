//! `cargo xtask kill`

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::prerequisites::{self, FOR_KAFKA, FOR_POSTGRES, TO_BUILD};
use crate::screen::Screen;
use crate::services::{BROKERS, DATABASE_URL, Running};
use crate::workspace::{Origin, cargo, root, stream, target_dir};
use crate::{Usage, Verdict, hand_over};

/// Kill, freeze and cut off a service at every point of an event's path, and count what was lost or doubled
///
/// A cell is a harm at a point: kill/commit.before. The service runs in a process of its own on a
/// private PostgreSQL and Apache Kafka; after each cell a separate program judges the tables and topics.
#[derive(Args)]
#[command(after_help = "\
On 2 cores --subset on the embedded broker takes some 5 minutes, one cell some 10 s.
With --json, ends with {\"cells\":N,\"anomalies\":N,\"failed\":N,\"results\":[…]} on one line; with --list,
with {\"cells\":[…]}.
Exit codes: 0 every cell is clean, 1 an anomaly or a cell that could not be carried out, 2 usage,
130 interrupted.

Example: cargo xtask kill --cell kill/commit.before --broker embedded")]
pub(crate) struct Kill {
    /// Run only this cell, or all cells of a harm (kill, kill-twice, handover, zombie, backend, broker) or of
    /// a point; may be repeated
    #[arg(long, value_name = "NAME")]
    cell: Vec<String>,
    /// The broker
    #[arg(long, value_enum, default_value_t = Broker::Kafka)]
    broker: Broker,
    /// Only a part that takes few minutes: a kill at every point, and a few of every other harm
    #[arg(long)]
    subset: bool,
    /// Name the cells, and run none
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Broker {
    /// Apache Kafka
    Kafka,
    /// librdkafka's in-process broker: no Java, and sooner done
    Embedded,
}

impl Kill {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let mut needs = vec![TO_BUILD];
        if !self.list {
            needs.push(FOR_POSTGRES);
            if self.broker == Broker::Kafka {
                needs.push(FOR_KAFKA);
            }
        }
        prerequisites::ensure(screen, &needs)?;
        let program = build(screen)?;
        self.check_names(screen, &program)?;
        // Started here, so that they have ended when this ends.
        let mut servers = Running::default();
        let mut command = Command::new(program);
        if self.list {
            command.arg("--list");
        } else {
            command.env(DATABASE_URL, servers.database_url(screen)?);
            if self.broker == Broker::Kafka {
                command.env(BROKERS, servers.brokers(screen)?);
            }
        }
        for name in &self.cell {
            command.arg("--cell").arg(name);
        }
        if self.broker == Broker::Embedded {
            command.args(["--broker", "embedded"]);
        }
        if self.subset {
            command.arg("--subset");
        }
        if screen.wants_json() {
            command.arg("--json");
        }
        hand_over(&mut command, "the matrix")
    }
}

impl Kill {
    /// Wrong names are told before a server is started.
    fn check_names(&self, screen: &Screen, program: &Path) -> Result<()> {
        let mut command = Command::new(program);
        command.arg("--list");
        for name in &self.cell {
            command.arg("--cell").arg(name);
        }
        let status = stream(&mut command, |from, line| {
            if from == Origin::Stderr {
                screen.note(line);
            }
        })?;
        match status.code() {
            Some(0) => Ok(()),
            Some(2) => Err(Usage("nothing was run".to_owned()).into()),
            _ => Err(anyhow::anyhow!("the matrix ended with {status}")),
        }
    }
}

/// Builds the matrix, the service and the checker: in the manner of `cargo test`, so that what the tests
/// have built is not built anew.
pub(crate) fn build(screen: &Screen) -> Result<PathBuf> {
    screen.begin(
        "building the matrix (only what has changed; the first time about 3 minutes on 2 cores)",
    );
    let mut command = Command::new(cargo());
    command
        .args(["build", "--workspace", "--all-features", "--bins"])
        .env("CARGO_TARGET_DIR", target_dir()?)
        .current_dir(root());
    let mut complaints = Vec::new();
    let status = stream(&mut command, |from, line| {
        if from == Origin::Stderr {
            complaints.push(line.to_owned());
        }
    });
    screen.clear();
    let succeeded = status?.success();
    if !succeeded {
        for line in &complaints {
            screen.note(line);
        }
    }
    ensure!(
        succeeded,
        "the matrix does not build; what cargo said is above"
    );
    Ok(target_dir()?.join("debug").join("kill-matrix"))
}

/// The cells and the failed cells in the matrix's last line.
pub(crate) fn sums(line: &str) -> Option<(u64, u64)> {
    let told: Value = serde_json::from_str(line).ok()?;
    Some((told["cells"].as_u64()?, told["failed"].as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::sums;

    #[test]
    fn the_sums_are_read_from_the_last_line() {
        assert_eq!(
            sums(r#"{"cells":43,"anomalies":2,"failed":1}"#),
            Some((43, 1))
        );
        assert_eq!(sums("43 cells"), None);
    }
}
