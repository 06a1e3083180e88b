//! `cargo xtask demo`

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::compile::{self, Profile};
use crate::prerequisites::{self, FOR_POSTGRES, TO_BUILD};
use crate::screen::Screen;
use crate::{Verdict, hand_over};

/// Run the example under duplicates, poison and SIGKILLs, and count what was lost or doubled
///
/// Orders are confirmed, relayed, billed and mailed while records are sent twice, broken records are
/// mixed in, and the relay and the consumers are killed in mid-flight. Without --database-url a
/// private PostgreSQL is started, without --brokers a broker inside the demo; both go with it.
#[derive(Args)]
#[command(after_help = "\
Ends with one JSON object on one line with --json: events, deliveries, effects, duplicates,
set_aside, kills, anomalies, events_per_second.
Exit codes: 0 no anomaly, 1 an anomaly, 2 usage, 130 interrupted.

Example: cargo xtask demo --orders 2000 --seed 7")]
pub(crate) struct Demo {
    /// How many orders are confirmed
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    orders: u64,
    /// Decides what is ordered, repeated and killed, and when [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Keep the database that the run has made on a given server
    #[arg(long)]
    keep: bool,
    /// A PostgreSQL to use: the URL of a database whose user may create databases. In the environment
    /// it stays out of the list of running programs
    #[arg(
        long,
        value_name = "URL",
        env = "FACTUM_DEMO_DATABASE_URL",
        hide_env_values = true
    )]
    database_url: Option<String>,
    /// A Kafka to use: host:port, separated by commas
    #[arg(long, value_name = "LIST", env = "FACTUM_DEMO_BROKERS")]
    brokers: Option<String>,
}

impl Demo {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let needs: &[&[_]] = match self.database_url {
            Some(_) => &[TO_BUILD],
            None => &[TO_BUILD, FOR_POSTGRES],
        };
        prerequisites::ensure(screen, needs)?;
        let program = compile::example(screen, "orders", "orders-demo", Profile::Release)?;

        let mut command = Command::new(program);
        command.arg("--orders").arg(self.orders.to_string());
        if let Some(seed) = self.seed {
            command.arg("--seed").arg(seed.to_string());
        }
        if self.keep {
            command.arg("--keep");
        }
        if screen.wants_json() {
            command.arg("--json");
        }
        // By environment: everyone on the machine may read a program's arguments.
        for (name, value) in [
            ("FACTUM_DEMO_DATABASE_URL", &self.database_url),
            ("FACTUM_DEMO_BROKERS", &self.brokers),
        ] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        hand_over(&mut command, "the demo")
    }
}
