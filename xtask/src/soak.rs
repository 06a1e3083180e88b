//! `cargo xtask soak`

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::prerequisites::{self, FOR_KAFKA, FOR_POSTGRES, TO_BUILD};
use crate::screen::Screen;
use crate::{Verdict, hand_over, kill};

/// Let a million orders pass while every process, every broker and PostgreSQL die again and again
///
/// Three nodes of Apache Kafka, three consumers, three relays and a PostgreSQL of its own. Each recovery is timed, and
/// in the end a separate program judges the tables and the topic. docs/soak.md explains the table.
#[derive(Args)]
#[command(after_help = "\
With --json, ends with {\"holds\":…,\"seed\":N,\"orders\":N,\"seconds\":N,\"orders_per_second\":N,\
\"worst_recovery_seconds\":N,\"outages\":[…],\"anomalies\":[…],\"counts\":{…}} on one line.
Exit codes: 0 no anomaly and every recovery within 10 s, 1 an anomaly, a longer recovery, or a run that could not be
carried out, 2 usage, 130 interrupted.

Example: cargo xtask soak --orders 100000 --process-kills 1 --postgres-stops 1 --seed 7")]
pub(crate) struct Soak {
    /// How many orders [default: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    orders: Option<u64>,
    /// Decides what dies when and which orders fail [default: another one each time; it is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How often each consumer and each relay is killed [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=20))]
    process_kills: Option<u8>,
    /// How often each broker is killed [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=20))]
    broker_kills: Option<u8>,
    /// How often PostgreSQL is stopped [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=20))]
    postgres_stops: Option<u8>,
    /// Keep the services' logs there, and the list of what was published
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

impl Soak {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        prerequisites::ensure(screen, &[TO_BUILD, FOR_POSTGRES, FOR_KAFKA])?;
        let mut command = Command::new(program(screen)?);
        command.args(self.arguments());
        if let Some(dir) = &self.logs {
            command.arg("--logs").arg(dir);
        }
        if screen.wants_json() {
            command.arg("--json");
        }
        hand_over(&mut command, "the soak")
    }

    fn arguments(&self) -> Vec<String> {
        let valued = [
            ("--orders", self.orders),
            ("--seed", self.seed),
            ("--process-kills", self.process_kills.map(u64::from)),
            ("--broker-kills", self.broker_kills.map(u64::from)),
            ("--postgres-stops", self.postgres_stops.map(u64::from)),
        ];
        let given = valued
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        given
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect()
    }
}

/// The soak of every test: each process and each broker dies once, and PostgreSQL once.
pub(crate) fn ordinary(screen: &Screen) -> Result<Command> {
    let mut command = Command::new(program(screen)?);
    command.args(["--orders", "100000", "--process-kills", "1"]);
    command.args(["--broker-kills", "1", "--postgres-stops", "1", "--json"]);
    Ok(command)
}

/// Builds it with its services and the checker, as the kill matrix.
fn program(screen: &Screen) -> Result<PathBuf> {
    Ok(kill::build(screen)?.with_file_name("soak"))
}

/// Whether the soak's last line says that it found no anomaly.
pub(crate) fn is_exact(line: &str) -> Option<bool> {
    let told: Value = serde_json::from_str(line).ok()?;
    told["anomalies"].as_array().map(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_handed_on() {
        let soak = Soak {
            orders: Some(20_000),
            seed: Some(7),
            process_kills: None,
            broker_kills: Some(0),
            postgres_stops: None,
            logs: None,
        };
        let arguments = soak.arguments().join(" ");
        assert_eq!(arguments, "--orders 20000 --seed 7 --broker-kills 0");
    }

    #[test]
    fn the_verdict_is_read_from_the_last_line() {
        assert_eq!(is_exact(r#"{"anomalies":[],"seed":7}"#), Some(true));
        assert_eq!(is_exact(r#"{"anomalies":["lost: x"]}"#), Some(false));
        assert_eq!(is_exact("100000 orders in 90 s"), None);
    }
}
