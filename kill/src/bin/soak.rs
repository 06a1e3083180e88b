//! Runs the soak; `cargo xtask soak` builds it and its programs first.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use factum_kill::interrupt::interrupted;
use factum_kill::soak::outage::Times;
use factum_kill::soak::{self, Plan};

/// Orders flow for long while every process, every broker and the database die again and again
#[derive(Parser)]
#[command(after_help = "\
Ends with a table of the outages and how long each was recovered from, and a line with the sums; with --json, with
{\"holds\":…,\"seed\":N,\"orders\":N,\"seconds\":N,\"orders_per_second\":N,\"worst_recovery_seconds\":N,\"outages\":[…],\
\"anomalies\":[…],\"counts\":{…}} on one line.
Exit codes: 0 no anomaly and every recovery within 10 s, 1 an anomaly, a longer recovery, or a run that could not be
carried out, 2 usage, 130 interrupted.

Example: soak --orders 100000 --process-kills 1 --postgres-stops 1 --seed 7")]
struct Options {
    /// How many orders
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    orders: u64,
    /// Decides what dies when and which orders fail [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How often each consumer and each relay is killed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(..=20))]
    process_kills: u8,
    /// How often each broker is killed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=20))]
    broker_kills: u8,
    /// How often PostgreSQL is stopped
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(..=20))]
    postgres_stops: u8,
    /// Keep the services' logs there, and the list of what was published
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let run = async {
        let program = std::env::current_exe().context("finding this program")?;
        let plan = Plan {
            orders: options.orders,
            // A number that a person can copy, and JSON can hold.
            seed: options.seed.unwrap_or_else(|| fastrand::u64(..1 << 32)),
            times: Times {
                process: options.process_kills.into(),
                broker: options.broker_kills.into(),
                postgres: options.postgres_stops.into(),
            },
            programs: program
                .parent()
                .context("this program lies nowhere")?
                .to_owned(),
            logs: options.logs,
        };
        soak::run(plan, say).await
    };
    // Whatever runs is dropped, and with it every process, server and directory.
    let outcome: Result<soak::Outcome> = tokio::select! {
        outcome = run => outcome,
        () = interrupted() => return ExitCode::from(130),
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(failure) => {
            say(&format!("error: {failure:#}"));
            return ExitCode::FAILURE;
        }
    };
    print(&outcome.describe());
    if options.json {
        print(&outcome.json().to_string());
    }
    if outcome.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(line: &str) {
    // A reader that has gone away, such as `head`, is no reason to fail.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
