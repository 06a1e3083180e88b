//! `factum dlq replay`: lets the consumer's own service carry out a plan, and tells how it goes.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;
use factum_runtime::Database;
use factum_runtime::replay_plan::{self, ActionError, FailedItem, Run};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::confirm::confirm;
use super::plan::{self, How};
use super::selection::Which;
use super::{RunId, Who, json_line, reason, refused, run_id};
use crate::list::note;
use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::screen::thousands;
use crate::target::{Target, Trouble};

pub(super) const HELP: &str = "The consumer's own service carries the plan out, by offset within a key, through the ordinary dedup transaction. It reaches \
    no other consumer and no topic. If this command is killed, the run goes on in the service; Ctrl-C pauses it. A \
    paused run goes on with the same command.\n\n\
    Exit codes: 0 all went well; 1 some failed again, or the run was stopped or paused by somebody else; 2 wrong usage; 3 \
    the database is away; 4 refused, with a name of the reason; 130 interrupted: the run is paused.\n\n\
    Example:\n  factum dlq replay --plan p-19c2 --first 1 --reason '#4411'\n  factum dlq replay --plan p-19c2 --reason '#4411' --yes";

const POLL: Duration = Duration::from_millis(300);
/// A run that is over by then needs no bar.
const BAR_AFTER: Duration = Duration::from_secs(1);
const TELL_EACH: Duration = Duration::from_secs(10);
/// Failed items that are listed.
const LISTED: usize = 20;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The plan, or the paused run
    #[arg(long, value_name = "PLAN", value_parser = run_id,
          conflicts_with_all = ["group", "id", "consumer", "dry_run"])]
    plan: Option<RunId>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
    /// Handle so many of them and then pause
    #[arg(long, value_name = "N", requires = "plan", value_parser = clap::value_parser!(i32).range(1..))]
    first: Option<i32>,
    /// Don't ask, above 10 events
    #[arg(long, requires = "plan")]
    yes: bool,
    /// Don't wait for the end
    #[arg(long, requires = "plan")]
    detach: bool,
    /// Let a run rest after the item at hand
    #[arg(long, value_name = "RUN", value_parser = run_id,
          conflicts_with_all = ["plan", "group", "id", "consumer", "dry_run", "stop"])]
    pause: Option<RunId>,
    /// End a run, or a plan, for good after the item at hand
    #[arg(long, value_name = "RUN", value_parser = run_id,
          conflicts_with_all = ["plan", "group", "id", "consumer", "dry_run"])]
    stop: Option<RunId>,
    /// Only make the plan, as `factum dlq plan` does
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    target: Target,
}

const SCHEMA: &str = "factum.dlq.replay/1";

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    if options.dry_run {
        return plan::plan(&options.which, &options.how, &options.who, &options.target);
    }
    options.target.report(SCHEMA, async |db| {
        if let Some(id) = options.pause {
            return halt(db, options, id, "pause").await;
        }
        if let Some(id) = options.stop {
            return halt(db, options, id, "stop").await;
        }
        let Some(id) = options.plan else {
            return Err(no_plan(&options.which));
        };
        let why = needed(options.reason.as_deref(), &id.plan())?;
        start(db, options, id, why).await
    })
}

/// A replay without a plan: never of what nobody has seen.
fn no_plan(which: &Which) -> Trouble {
    let mend = if which.is_empty() {
        "make one with `factum dlq plan --group …`"
    } else {
        "make one of these letters: the same command with --dry-run"
    };
    Trouble::Refused {
        exit: Exit::Usage,
        code: "DLQ-NO-PLAN",
        what: "there is no plan to carry out".to_owned(),
        place: "the arguments".to_owned(),
        why: "a replay runs on a fixed list that somebody has looked at".to_owned(),
        mend: mend.to_owned(),
    }
}

fn needed<'a>(reason: Option<&'a str>, place: &str) -> Result<&'a str, Trouble> {
    reason.ok_or_else(|| Trouble::Refused {
        exit: Exit::Usage,
        code: "DLQ-NO-REASON",
        what: "it is not said why".to_owned(),
        place: place.to_owned(),
        why: "the reason stands in the audit".to_owned(),
        mend: "give --reason TEXT".to_owned(),
    })
}

async fn halt(
    db: &Database,
    options: &Options,
    id: RunId,
    what: &'static str,
) -> Result<Report, Trouble> {
    let why = needed(options.reason.as_deref(), &id.run())?;
    let actor = options.who.because(why);
    let (halted, done) = match what {
        "pause" => (replay_plan::pause(db, id.0, actor).await, "paused"),
        _ => (replay_plan::stop(db, id.0, actor).await, "stopped"),
    };
    halted.map_err(|error| refused(error, &id.run()))?;
    let text = if options.target.json() {
        json_line(&json!({"schema": SCHEMA, "ok": true, "run": id.run(), "state": done}))
    } else {
        format!("{} {done}", id.run())
    };
    Ok(Report {
        text,
        exit: Exit::Done,
        json: None,
    })
}

async fn start(db: &Database, options: &Options, id: RunId, why: &str) -> Result<Report, Trouble> {
    let before = read(db, id).await?;
    let ahead = before.items.ahead(before.accept_outside_window);
    let now = options.first.map_or(ahead, |first| ahead.min(first.into()));
    confirm("replay", now, &before.consumer, options.yes)?;
    // From here on Ctrl-C pauses the run.
    let mut interrupts = signal(SignalKind::interrupt()).map_err(|error| Trouble::Refused {
        exit: Exit::Failed,
        code: "DLQ-SIGNAL",
        what: format!("Ctrl-C can't be listened to: {error}"),
        place: "this process".to_owned(),
        why: "it pauses a run".to_owned(),
        mend: "use --detach, and --pause from another command".to_owned(),
    })?;
    // Of fewer than are left it pauses; else it comes to its end.
    let first = options.first.filter(|first| i64::from(*first) < ahead);
    replay_plan::start(db, id.0, first, options.who.because(why))
        .await
        .map_err(|error| refused(error, &format!("plan {}", id.plan())))?;
    if options.detach {
        let text = if options.target.json() {
            json_line(&json!({"schema": SCHEMA, "ok": true, "run": id.run(), "state": "running"}))
        } else {
            format!("{} started; `factum dlq runs` shows how it goes", id.run())
        };
        return Ok(Report {
            text,
            exit: Exit::Done,
            json: None,
        });
    }
    let (run, interrupted) = follow(db, options, id, &before, &mut interrupts).await?;
    let failures = replay_plan::failures(db, id.0, LISTED).await?;
    let done_now = run.items.finished() - before.items.finished();
    let wanted = run.state == "done"
        || (run.state == "paused" && options.first.is_some() && done_now >= now);
    let failed_now = run.items.failed > before.items.failed;
    let exit = if interrupted {
        Exit::Interrupted
    } else if wanted && !failed_now {
        Exit::Done
    } else {
        Exit::Failed
    };
    let text = if options.target.json() {
        json_text(&run, &failures)
    } else {
        told(&run, &failures, interrupted)
    };
    Ok(Report {
        text,
        exit,
        json: None,
    })
}

async fn read(db: &Database, id: RunId) -> Result<Run, Trouble> {
    let run = replay_plan::run(db, id.0).await?;
    run.ok_or_else(|| refused(ActionError::NoRun, &format!("plan {}", id.plan())))
}

/// Waits until the run no longer runs. `true` when Ctrl-C paused it.
async fn follow(
    db: &Database,
    options: &Options,
    id: RunId,
    before: &Run,
    interrupts: &mut Signal,
) -> Result<(Run, bool), Trouble> {
    let mut progress = Progress::new(id, before);
    let mut interrupted = false;
    loop {
        let run = read(db, id).await?;
        if run.state != "running" {
            progress.end();
            return Ok((run, interrupted));
        }
        progress.show(&run);
        if progress.is_silent() {
            let facts = replay_plan::facts(db, &run).await?;
            if facts.running.is_none() {
                progress.say(&format!(
                    "no process of {} runs now; the run goes on when one does",
                    plain::line(&run.consumer)
                ));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            Some(()) = interrupts.recv(), if !interrupted => {
                interrupted = true;
                progress.say("pauses after the event at hand");
                let actor = options.who.because("interrupted");
                match replay_plan::pause(db, id.0, actor).await {
                    // It came to its end meanwhile.
                    Ok(()) | Err(ActionError::RunIs { .. }) => {}
                    Err(error) => return Err(refused(error, &id.run())),
                }
            }
        }
    }
}

/// A bar on a terminal, else a line now and then.
struct Progress {
    id: RunId,
    total: i64,
    begun: Instant,
    told: Instant,
    /// When a number last moved, and where it stood.
    moved: (Instant, i64),
    bar: Option<ProgressBar>,
    is_terminal: bool,
}

impl Progress {
    fn new(id: RunId, before: &Run) -> Progress {
        let now = Instant::now();
        Progress {
            id,
            total: before.items.ahead(before.accept_outside_window) + before.items.finished(),
            begun: now,
            told: now,
            moved: (now, -1),
            bar: None,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, run: &Run) {
        let finished = run.items.finished();
        if self.moved.1 != finished {
            self.moved = (Instant::now(), finished);
        }
        let says = counts(run);
        if self.is_terminal {
            if self.begun.elapsed() < BAR_AFTER {
                return;
            }
            let (id, total) = (self.id, self.total);
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::with_draw_target(
                    Some(total.unsigned_abs()),
                    ProgressDrawTarget::stderr(),
                );
                if let Ok(style) =
                    ProgressStyle::with_template("{prefix} {bar:10.} {human_pos}/{human_len} {msg}")
                {
                    bar.set_style(style.progress_chars("##-"));
                }
                bar.set_prefix(id.run());
                bar
            });
            bar.set_position(finished.unsigned_abs());
            bar.set_message(says);
        } else if self.told.elapsed() >= TELL_EACH {
            self.told = Instant::now();
            let (done, all) = (thousands(finished), thousands(self.total));
            note(&format!("{} {done}/{all} {says}", self.id.run()));
        }
    }

    /// Whether nothing has moved for a while; once for each while.
    fn is_silent(&mut self) -> bool {
        let silent = self.moved.0.elapsed() >= TELL_EACH;
        if silent {
            self.moved.0 = Instant::now();
        }
        silent
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note(text)),
            None => note(text),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn counts(run: &Run) -> String {
    format!(
        "handled {}, duplicate {}, failed again {}",
        thousands(run.items.handled),
        thousands(run.items.was_duplicate),
        thousands(run.items.failed)
    )
}

fn told(run: &Run, failures: &[FailedItem], interrupted: bool) -> String {
    let id = RunId(run.id);
    let mut text = format!("{} {}: {}", id.run(), run.state, counts(run));
    if let Some(cause) = &run.stop_cause {
        text.push_str(&format!("\nbecause {}", plain::line(cause)));
    }
    for item in failures {
        text.push_str(&format!(
            "\nfailed  {}  {}",
            item.letter,
            plain::line(&item.detail)
        ));
    }
    let more = run.items.failed - i64::try_from(failures.len()).unwrap_or_default();
    if more > 0 {
        text.push_str(&format!("\n        and {} more", thousands(more)));
    }
    let ahead = run.items.ahead(run.accept_outside_window);
    let next = match run.state.as_str() {
        "paused" => format!(
            "{} left. Next: factum dlq replay --plan {} --reason TEXT; or factum dlq replay --stop {} --reason TEXT",
            thousands(ahead),
            id.plan(),
            id.run()
        ),
        "stopped" => "What is left stays open. Next: factum dlq list".to_owned(),
        _ if run.items.failed > 0 => "What failed stays open. Next: factum dlq list".to_owned(),
        _ if interrupted => "It was done before it could be paused.".to_owned(),
        _ => "Next: factum status".to_owned(),
    };
    text.push_str(&format!("\n{next}"));
    text
}

fn json_text(run: &Run, failures: &[FailedItem]) -> String {
    json_line(&json!({
        "schema": SCHEMA,
        "run": RunId(run.id).run(),
        "consumer": run.consumer,
        "state": run.state,
        "handled": run.items.handled.to_string(),
        "duplicate": run.items.was_duplicate.to_string(),
        "failed": run.items.failed.to_string(),
        "left": run.items.ahead(run.accept_outside_window).to_string(),
        "stop_cause": run.stop_cause,
        "failures": failures.iter().map(|item| json!({
            "id": item.letter.to_string(), "detail": item.detail,
        })).collect::<Vec<_>>(),
    }))
}
