//! Factum's own tasks. `cargo xtask --help` lists them; each has an example in its `--help`.
//!
//! One manner for all: data on stdout, progress and notes on stderr; a progress bar on a terminal,
//! plain lines elsewhere; `--json` ends stdout with one JSON object (of `bench` an array) on one line. Exit codes: 0 all
//! holds, 1 something does not, 2 usage, 130 interrupted. An interruption ends everything that was
//! started, and waits for it.

mod bench;
mod compile;
mod conformance;
mod demo;
mod kill;
mod node;
mod prerequisites;
mod programs;
mod sabotage;
mod screen;
mod services;
mod signals;
mod soak;
mod test;
mod tidy;
mod workspace;

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use factum_testing::tool::{self, Tool};

use crate::screen::Screen;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Factum's own tasks",
    after_help = "Exit codes: 0 all holds, 1 something does not, 2 usage, 130 interrupted.\n\n\
                  Example: cargo xtask demo --orders 2000"
)]
struct Arguments {
    /// End stdout with one JSON object on one line (bench: an array).
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Demo(demo::Demo),
    Bench(bench::Bench),
    Test(test::Test),
    Conformance(conformance::Conformance),
    Kill(kill::Kill),
    Sabotage(sabotage::Sabotage),
    Services(services::Services),
    Soak(soak::Soak),
    Tidy(tidy::Tidy),
}

/// What a task found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// All holds: exit code 0.
    Holds,
    /// Something does not, and was told: exit code 1.
    Fails,
}

impl Verdict {
    fn of(holds: bool) -> Verdict {
        if holds {
            Verdict::Holds
        } else {
            Verdict::Fails
        }
    }
}

/// A wrong argument that only the task itself could see: exit code 2.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Runs a program that prints as a task does and has a task's exit codes, on our own stdout and stderr.
fn hand_over(command: &mut Command, what: &str) -> Result<Verdict> {
    let status = Tool::spawn(command)
        .and_then(Tool::wait)
        .with_context(|| format!("running {what}"))?;
    match status.code() {
        Some(0) => Ok(Verdict::Holds),
        Some(1) => Ok(Verdict::Fails),
        Some(2) => Err(Usage(format!("{what} refused its arguments, see above")).into()),
        _ => Err(anyhow::anyhow!("{what} ended with {status}")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::new(arguments.json);
    if let Err(failure) = signals::watch(&screen) {
        screen.error(&failure);
        return ExitCode::FAILURE;
    }
    let outcome = match arguments.task {
        Task::Demo(task) => task.run(&screen),
        Task::Bench(task) => task.run(&screen),
        Task::Test(task) => task.run(&screen),
        Task::Conformance(task) => task.run(&screen),
        Task::Kill(task) => task.run(&screen),
        Task::Sabotage(task) => task.run(&screen),
        Task::Services(task) => task.run(&screen),
        Task::Soak(task) => task.run(&screen),
        Task::Tidy(task) => task.run(&screen),
    };
    // Everything that the task started has ended here: its values are dropped.
    if tool::is_interrupted() {
        screen.note("interrupted: everything that was started has ended");
        return ExitCode::from(130);
    }
    match outcome {
        Ok(Verdict::Holds) => ExitCode::SUCCESS,
        Ok(Verdict::Fails) => ExitCode::FAILURE,
        Err(failure) => {
            screen.error(&failure);
            if failure.is::<Usage>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
