//! The `factum` command: migrations, the contracts of events, how everything is, dead letters, and a relay on its own.
//!
//! Data goes to stdout; errors, notes and logs to stderr. With `--json` the last line of stdout is
//! one JSON object; a list is one object a line. Exit codes: see [`outcome::Exit`].

mod calls;
mod contract;
mod dlq;
mod doctor;
mod list;
mod migrate;
mod outcome;
mod parked;
mod plain;
mod relay;
mod screen;
mod status;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Event-driven services on Kafka and PostgreSQL whose effects happen exactly once.
#[derive(Debug, Parser)]
#[command(
    name = "factum",
    version,
    after_help = "Exit codes: 0 done; 1 failed, or something is pending or broken; 2 wrong usage, and of `contract` also a file that can't be read; 3 the database is away; 4 refused, with a name of the reason; 130 interrupted.\n\n\
                  Example:\n  DATABASE_URL=postgres://orders:…@localhost:5432/orders factum migrate up"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make Factum's tables, or say what is pending
    Migrate(migrate::Options),
    /// Look at the calls to other systems, and settle those that are in doubt
    Calls(calls::Options),
    /// Compare the contracts of events with those that are published, list and show them
    Contract(contract::Options),
    /// How everything is, on one screen; exit code 1 when something is red
    Status(status::Options),
    /// Whether the rules are kept: the dedup window, retention, sessions and slots that stand in the way; exit code 1 when not
    Doctor(doctor::Options),
    /// See dead letters, replay them through their own consumer, or discard them
    Dlq(dlq::Options),
    /// See the keys whose events wait, release them, or set their first event aside
    Parked(parked::Options),
    /// Send the outbox's rows to Kafka, in a process that does nothing else
    Relay(relay::Options),
}

fn main() -> ExitCode {
    // clap itself ends with 2 on wrong usage.
    let result = match Cli::parse().command {
        Command::Calls(options) => calls::run(&options),
        Command::Contract(options) => contract::run(&options),
        Command::Migrate(options) => migrate::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Dlq(options) => dlq::run(&options),
        Command::Parked(options) => parked::run(&options),
        Command::Relay(options) => relay::run(&options),
    };
    outcome::finish(result)
}
