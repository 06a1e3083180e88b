//! The `factum` command: migrations, and a relay on its own.
//!
//! Data goes to stdout; errors, notes and logs to stderr. With `--json` the last line of stdout is
//! one JSON object. Exit codes: see [`outcome::Exit`].

mod contract_export;
mod migrate;
mod outcome;
mod relay;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Event-driven services on Kafka and PostgreSQL whose effects happen exactly once.
#[derive(Debug, Parser)]
#[command(
    name = "factum",
    version,
    after_help = "Exit codes: 0 done; 1 failed, or something is pending; 2 wrong usage; 3 the database is away (`migrate`).\n\n\
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
    /// Write the contracts of events for other languages
    #[command(subcommand)]
    Contract(Contract),
    /// Send the outbox's rows to Kafka, in a process that does nothing else
    Relay(relay::Options),
}

#[derive(Debug, Subcommand)]
enum Contract {
    /// Write what the lock files say as TypeScript, JSON Schema or AsyncAPI
    Export(contract_export::Options),
}

fn main() -> ExitCode {
    // clap itself ends with 2 on wrong usage.
    let result = match Cli::parse().command {
        Command::Contract(Contract::Export(options)) => contract_export::run(&options),
        Command::Migrate(options) => migrate::run(&options),
        Command::Relay(options) => relay::run(&options),
    };
    outcome::finish(result)
}
