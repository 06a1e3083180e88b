//! Runs the kill matrix; `cargo xtask kill` builds it and its programs first.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use factum_kill::cell::Cell;
use factum_kill::interrupt::interrupted;
use factum_kill::matrix::{self, Broker};

/// Kill, freeze and cut off a service at every point of an event's path, and count what was lost or doubled
#[derive(Parser)]
#[command(after_help = "\
A cell is a harm at a point, such as kill/commit.before; --list names them all.
With --json, ends with {\"cells\":N,\"anomalies\":N,\"failed\":N,\"results\":[…]} on one line; with --list,
with {\"cells\":[…]}.
Exit codes: 0 every cell is clean, 1 an anomaly or a cell that could not be carried out, 2 usage,
130 interrupted.

Example: kill-matrix --cell kill/commit.before --broker embedded")]
struct Options {
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
    /// Cells side by side
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=8))]
    jobs: u32,
    /// Name the cells, and run none
    #[arg(long)]
    list: bool,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

impl Options {
    fn cells(&self) -> Result<Vec<Cell>, String> {
        let mut cells = Cell::all();
        if self.subset {
            cells.retain(|cell| cell.is_in_subset());
        }
        for name in &self.cell {
            if !cells.iter().any(|cell| is_named(*cell, name)) {
                return Err(format!("there is no cell `{name}`; --list names them"));
            }
        }
        cells.retain(|cell| {
            self.cell.is_empty() || self.cell.iter().any(|name| is_named(*cell, name))
        });
        Ok(cells)
    }
}

fn is_named(cell: Cell, name: &str) -> bool {
    name == cell.to_string() || name == cell.harm.name() || name == cell.point.name()
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let cells = match options.cells() {
        Ok(cells) => cells,
        Err(wrong) => {
            say(&format!("error: {wrong}"));
            return ExitCode::from(2);
        }
    };
    if options.list {
        let names: Vec<String> = cells.iter().map(Cell::to_string).collect();
        names.iter().for_each(|name| print(name));
        if options.json {
            print(&serde_json::json!({ "cells": names }).to_string());
        }
        return ExitCode::SUCCESS;
    }
    let run = async {
        let program = std::env::current_exe().context("finding this program")?;
        let dir = program.parent().context("this program lies nowhere")?;
        matrix::run(&cells, options.broker, options.jobs, dir).await
    };
    // Whatever runs is dropped, and with it every process and directory.
    let outcomes = tokio::select! {
        outcomes = run => outcomes,
        () = interrupted() => return ExitCode::from(130),
    };
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(failure) => {
            say(&format!("error: {failure:#}"));
            return ExitCode::FAILURE;
        }
    };
    for outcome in outcomes.iter().filter(|outcome| !outcome.is_clean()) {
        print(&outcome.describe());
    }
    let sums = matrix::json(&outcomes);
    print(&format!(
        "cells: {}, anomalies: {}, failed: {}",
        sums["cells"], sums["anomalies"], sums["failed"]
    ));
    if options.json {
        print(&sums.to_string());
    }
    if sums["failed"] == 0 {
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
