//! `factum dlq runs`: plans and runs, the newest first.

use clap::Args;
use factum_runtime::replay_plan::{self, Run};
use serde_json::json;

use super::{RunId, for_people, json_line, json_list};
use crate::list::{List, moment};
use crate::outcome::{Failure, Report};
use crate::screen::Screen;
use crate::target::Target;

pub(super) const HELP: &str = "The newest 20.\n\n\
    Exit codes: 0 listed, also when there are none; 2 wrong usage; 3 the database is away.\n\n\
    Example:\n  factum dlq runs --consumer billing-order-confirmed";

const SCHEMA: &str = "factum.dlq.runs/1";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Only this consumer's
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    options.target.report(SCHEMA, async |db| {
        let runs = replay_plan::runs(db, options.consumer.as_deref()).await?;
        Ok(if options.target.json() {
            let lines: Vec<String> = runs.iter().map(line).collect();
            json_list(SCHEMA, "runs", &lines, false)
        } else {
            for_people(table(&runs))
        })
    })
}

fn table(runs: &[Run]) -> String {
    let screen = Screen::stdout();
    let header = [
        "RUN",
        "STATE",
        "CONSUMER",
        "LETTERS",
        "HANDLED",
        "DUPLICATE",
        "FAILED",
        "PLANNED",
        "BY",
        "REASON",
    ];
    let mut list = List::new(&header, &[3, 4, 5, 6]).below(&[9, 8, 2]);
    for run in runs {
        list.row([
            shown_id(run),
            run.state.clone(),
            run.consumer.clone(),
            screen.count(run.items.total),
            screen.count(run.items.handled),
            screen.count(run.items.was_duplicate),
            screen.count(run.items.failed),
            screen.moment(run.created_at),
            run.started_by
                .clone()
                .unwrap_or_else(|| run.created_by.clone()),
            run.stop_cause
                .clone()
                .or_else(|| run.reason.clone())
                .unwrap_or_default(),
        ]);
    }
    list.text()
}

/// `p-…` until it is started, then `r-…`.
fn shown_id(run: &Run) -> String {
    match run.state.as_str() {
        "checking" | "planned" => RunId(run.id).plan(),
        _ => RunId(run.id).run(),
    }
}

fn line(run: &Run) -> String {
    json_line(&json!({
        "schema": "factum.dlq.run/1",
        "run": shown_id(run),
        "consumer": run.consumer,
        "state": run.state,
        "letters": run.items.total.to_string(),
        "handled": run.items.handled.to_string(),
        "duplicate": run.items.was_duplicate.to_string(),
        "failed": run.items.failed.to_string(),
        "rate": run.rate,
        "accept_outside_window": run.accept_outside_window,
        "created_by": run.created_by,
        "created_at": moment(run.created_at),
        "started_by": run.started_by,
        "started_at": run.started_at.map(moment),
        "reason": run.reason,
        "stop_cause": run.stop_cause,
        "ended_at": run.ended_at.map(moment),
    }))
}
