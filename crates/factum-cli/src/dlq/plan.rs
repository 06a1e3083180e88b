//! `factum dlq plan`, also called `factum dlq replay --dry-run`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use factum_runtime::Database;
use factum_runtime::dead_letter_list::Build;
use factum_runtime::replay_plan::{
    self, ActionError, MOST_RATE, NewPlan, PlanFacts, Run, USUAL_RATE,
};
use serde_json::json;

use super::selection::Which;
use super::{RunId, Who, json_line, refused};
use crate::list::moment;
use crate::list::note;
use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::screen::thousands;
use crate::target::{Target, Trouble};

pub(super) const HELP: &str = "A plan is a fixed list of open letters, 10,000 unless --limit says otherwise, and good for 15 minutes. The consumer's own \
    service decodes each and looks whether it was handled before; no handler runs.\n\n\
    Exit codes: 0 planned; 1 not checked in time; 2 wrong usage; 3 the database is away; 4 refused: no process of the \
    consumer runs, no letter matches, or letters of several consumers are named.\n\n\
    Example:\n  factum dlq plan --group 7f3k\n  factum dlq plan --consumer billing-order-confirmed --reason-code missing_field --since 2026-11-30T14:02:00Z";

/// How long a plan may take to be checked.
const POLL: Duration = Duration::from_millis(200);
const TELL_EACH: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) which: Which,
    #[command(flatten)]
    pub(super) how: How,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    target: Target,
}

/// How letters are replayed.
#[derive(Debug, Args)]
pub(super) struct How {
    /// Handle so many a second at most
    #[arg(long, value_name = "N", default_value_t = USUAL_RATE, value_parser = clap::value_parser!(i32).range(1..=i64::from(MOST_RATE)))]
    rate: i32,
    /// Also handle letters outside the dedup window, of which nobody knows whether they were handled: once, without
    /// a dedup row
    #[arg(long)]
    accept_outside_window: bool,
    /// Wait so many seconds for the service's check
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=3600))]
    wait: u16,
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    plan(&options.which, &options.how, &options.who, &options.target)
}

pub(super) fn plan(
    which: &Which,
    how: &How,
    who: &Who,
    target: &Target,
) -> Result<Report, Failure> {
    target.report("factum.dlq.plan/1", async |db| {
        let asked = which.asked(db).await?;
        let letters = asked.letters();
        let new = NewPlan {
            selection: asked.selection(&letters),
            asked: &asked.words,
            rate: how.rate,
            accept_outside_window: how.accept_outside_window,
            actor: who.because(""),
        };
        let place = plain::line(&asked.words).into_owned();
        let id = replay_plan::plan(db, new)
            .await
            .map_err(|error| refused(error, &place))?;
        let run = checked(db, RunId(id), Duration::from_secs(how.wait.into())).await?;
        if asked.may_be_cut(run.items.total) {
            note(&format!(
                "The plan holds the oldest {}; more may match (--limit)",
                thousands(asked.limit())
            ));
        }
        let facts = replay_plan::facts(db, &run).await?;
        let text = if target.json() {
            json_text(&run, &facts)
        } else {
            told(&run, &facts)
        };
        Ok(Report {
            text,
            exit: Exit::Done,
            json: None,
        })
    })
}

/// Waits for the service's check.
async fn checked(db: &Database, id: RunId, limit: Duration) -> Result<Run, Trouble> {
    let begun = Instant::now();
    let mut told = Instant::now();
    loop {
        let run = replay_plan::run(db, id.0).await?;
        let Some(run) = run else {
            return Err(refused(ActionError::NoRun, &id.plan()));
        };
        match run.state.as_str() {
            "planned" => return Ok(run),
            "checking" => {}
            state => {
                let state = state.to_owned();
                return Err(refused(ActionError::RunIs { state }, &id.plan()));
            }
        }
        let left = run.items.unchecked;
        if begun.elapsed() >= limit {
            return Err(Trouble::Refused {
                exit: Exit::Failed,
                code: "DLQ-NOT-CHECKED",
                what: format!(
                    "the plan is not checked after {} s: {} of {} letters are left",
                    limit.as_secs(),
                    thousands(left),
                    thousands(run.items.total)
                ),
                place: format!("plan {} of {}", id.plan(), plain::line(&run.consumer)),
                why: "the consumer's service checks it, and is busy or held up".to_owned(),
                mend: format!(
                    "look at the service's log; `factum dlq runs` shows when {} is planned, or wait longer with --wait",
                    id.plan()
                ),
            });
        }
        if told.elapsed() >= TELL_EACH {
            told = Instant::now();
            note(&format!(
                "{}: {} of {} letters checked",
                id.plan(),
                thousands(run.items.total - left),
                thousands(run.items.total)
            ));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// `billing 1.5.0`.
pub(super) fn build_name(build: &Build) -> String {
    match build.build.as_str() {
        "" => build.service.clone(),
        version => format!("{} {version}", build.service),
    }
}

/// What the run would do: handle, find duplicates, leave out.
fn sums(run: &Run) -> (i64, i64, i64) {
    let items = run.items;
    let accepted = if run.accept_outside_window {
        items.out_of_window
    } else {
        0
    };
    let handle = items.ready + accepted;
    (
        handle,
        items.duplicate,
        items.total - handle - items.duplicate,
    )
}

fn told(run: &Run, facts: &PlanFacts) -> String {
    let items = run.items;
    let (handle, duplicate, left_out) = sums(run);
    let mut rows = vec![(
        "matched",
        items.total,
        format!("open at {}", moment(run.created_at)),
    )];
    let build = facts
        .running
        .as_ref()
        .map_or("the service".to_owned(), build_name);
    let mut handled = format!("decoded by {build}; handler not run");
    if run.accept_outside_window && items.out_of_window > 0 {
        let _ = write!(
            handled,
            "; {} outside the window, once and without a dedup row",
            thousands(items.out_of_window)
        );
    }
    rows.push(("would be handled", handle, handled));
    rows.push(("would be duplicate", duplicate, String::new()));
    let mut why: Vec<String> = facts
        .undecodable
        .iter()
        .map(|(reason, n)| format!("{} still {reason}", thousands(*n)))
        .collect();
    let named: i64 = facts.undecodable.iter().map(|(_, n)| n).sum();
    if items.undecodable > named {
        why.push(format!(
            "{} still can't be decoded",
            thousands(items.undecodable - named)
        ));
    }
    if items.out_of_window > 0 && !run.accept_outside_window {
        why.push(format!(
            "{} outside the window",
            thousands(items.out_of_window)
        ));
    }
    if items.gone > 0 {
        why.push(format!("{} no longer open", thousands(items.gone)));
    }
    rows.push(("left out", left_out, why.join(", ")));
    let width = rows
        .iter()
        .map(|(name, n, _)| (name.len() + thousands(*n).len()).max(25))
        .max()
        .unwrap_or(25);
    let id = RunId(run.id);
    let mut text = format!(
        "PLAN {} for {}, good until {}",
        id.plan(),
        plain::line(&run.consumer),
        time_of_day(run)
    );
    for (name, n, says) in &rows {
        let n = thousands(*n);
        let gap = width.saturating_sub(name.len());
        let row = format!("\n{name}{n:>gap$}  {}", plain::line(says));
        text.push_str(row.trim_end());
    }
    let parked = match facts.parked_keys {
        0 => String::new(),
        1 => "; 1 key parked".to_owned(),
        n => format!("; {} keys parked", thousands(n)),
    };
    let ahead = items.ahead(run.accept_outside_window);
    let seconds = (ahead / i64::from(run.rate)).max(1);
    let _ = write!(
        text,
        "\norder  later events of these keys may be handled already{parked}\
         \nreach  this consumer only; {}/s, about {}",
        run.rate,
        duration(seconds)
    );
    let next = if ahead == 0 {
        "Nothing was replayed, and nothing would be.".to_owned()
    } else {
        format!(
            "Nothing was replayed. Next: factum dlq replay --plan {} --reason TEXT",
            id.plan()
        )
    };
    let _ = write!(text, "\n{next}");
    text
}

/// `14:46:40Z`: a plan is good for minutes.
fn time_of_day(run: &Run) -> String {
    let full = moment(run.good_until);
    full.get(11..).map_or(full.clone(), str::to_owned)
}

/// `12 s`, `3 min`.
fn duration(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn json_text(run: &Run, facts: &PlanFacts) -> String {
    let (handle, duplicate, _) = sums(run);
    let outside = if run.accept_outside_window {
        0
    } else {
        run.items.out_of_window
    };
    json_line(&json!({
        "schema": "factum.dlq.plan/1",
        "ok": true,
        "plan": RunId(run.id).plan(),
        "consumer": run.consumer,
        "matched": run.items.total.to_string(),
        "would_be_handled": handle.to_string(),
        "would_be_duplicate": duplicate.to_string(),
        "undecodable": run.items.undecodable.to_string(),
        "outside_window": outside.to_string(),
        "no_longer_open": run.items.gone.to_string(),
        "parked_keys": facts.parked_keys.to_string(),
        "rate": run.rate,
        "accept_outside_window": run.accept_outside_window,
        "created_at": moment(run.created_at),
        "good_until": moment(run.good_until),
        "running": facts.running.as_ref().map(|build| json!({"service": build.service, "build": build.build})),
    }))
}
