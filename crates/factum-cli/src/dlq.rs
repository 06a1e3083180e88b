//! `factum dlq list | stats | show | plan | replay | runs | discard`.

use clap::{Args, Subcommand};
use factum_runtime::replay_plan::{ActionError, digits};
use factum_runtime::{Database, DeadLetterGroup, dead_letter_groups};

use crate::list::moment;
use crate::outcome::{self, Exit, Failure, Report};
use crate::plain;
use crate::screen::thousands;
use crate::target::Trouble;

mod confirm;
mod discard;
mod list;
mod payload;
mod plan;
mod replay;
mod runs;
mod selection;
mod show;
mod stats;

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing here handles an event or sends a record: the consumer's own service carries out what is decided here.\n\n\
                  Exit codes: 0 done; 1 something failed again or was stopped; 2 wrong usage; 3 the database is away; 4 refused, with \
                  a name of the reason; 130 interrupted (the run pauses).\n\n\
                  Example:\n  factum dlq list\n  factum dlq plan --group 7f3k\n  factum dlq replay --plan p-19c2 --first 1 --reason '#4411'"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the faults, or with --group the letters of one
    #[command(after_help = list::HELP)]
    List(list::Options),
    /// Count them by consumer and reason
    #[command(after_help = stats::HELP)]
    Stats(stats::Options),
    /// Show one letter: what is wrong, where, and the payload's shape
    #[command(after_help = show::HELP)]
    Show(show::Options),
    /// Make a fixed list of letters and let the service say what a replay would do
    #[command(after_help = plan::HELP)]
    Plan(plan::Options),
    /// Let the service carry out a plan; or pause or stop a run
    #[command(after_help = replay::HELP)]
    Replay(Box<replay::Options>),
    /// List plans and runs
    #[command(after_help = runs::HELP)]
    Runs(runs::Options),
    /// Give letters up, or with --undo take that back; they stay in the table
    #[command(after_help = discard::HELP)]
    Discard(discard::Options),
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::List(options) => list::run(options),
        Command::Stats(options) => stats::run(options),
        Command::Show(options) => show::run(options),
        Command::Plan(options) => plan::run(options),
        Command::Replay(options) => replay::run(options),
        Command::Runs(options) => runs::run(options),
        Command::Discard(options) => discard::run(options),
    }
}

/// Who acts: stands in the audit.
#[derive(Debug, Args)]
struct Who {
    /// Your name for the audit [default: the environment's USER]
    #[arg(long, env = "USER", hide_env = true, value_name = "NAME")]
    actor: String,
}

impl Who {
    fn because<'a>(&'a self, reason: &'a str) -> factum_runtime::audit::Actor<'a> {
        factum_runtime::audit::Actor {
            name: &self.actor,
            via: "cli",
            reason,
        }
    }
}

/// What a person must give: a text that says something.
fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why, in your own words; it stands in the audit".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// The id of a plan or a run: `p-19c2` and `r-19c2` name the same row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunId(i64);

impl RunId {
    fn plan(self) -> String {
        format!("p-{}", digits(self.0))
    }

    fn run(self) -> String {
        format!("r-{}", digits(self.0))
    }
}

fn run_id(text: &str) -> Result<RunId, String> {
    let id = text.strip_prefix("p-").or(text.strip_prefix("r-"));
    id.filter(|digits| {
        digits
            .bytes()
            .all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
    })
    .and_then(|digits| i64::from_str_radix(digits, 36).ok())
    .map(RunId)
    .ok_or_else(|| "write it as `factum dlq runs` shows it, such as p-19c2 or r-19c2".to_owned())
}

/// A letter's id.
fn letter_id(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err("write the number that `factum dlq list --group …` shows".to_owned()),
    }
}

/// The group of this id, which may be the beginning of a longer one.
async fn group(db: &Database, id: &str) -> Result<DeadLetterGroup, Trouble> {
    let groups = dead_letter_groups(db, None).await?;
    let mut found = groups.into_iter().filter(|group| group.id.starts_with(id));
    let refused = |code, what: String, why: &str| Trouble::Refused {
        exit: Exit::Refused,
        code,
        what,
        place: format!("group {}", plain::line(id)),
        why: why.to_owned(),
        mend: "take an id that `factum dlq list` shows".to_owned(),
    };
    match (found.next(), found.next()) {
        (Some(group), _) if group.id == id => Ok(group),
        (Some(group), None) => Ok(group),
        (Some(_), Some(_)) => Err(refused(
            "DLQ-WHICH-GROUP",
            "several groups have an id that begins so".to_owned(),
            "an action is for one group",
        )),
        (None, _) => Err(refused(
            "DLQ-NO-GROUP",
            "no group has this id".to_owned(),
            "a group's id follows from its consumer, type, reason and path",
        )),
    }
}

/// A refusal of the database's side, said to a person. `place` is what they asked for.
fn refused(error: ActionError, place: &str) -> Trouble {
    let what = error.to_string();
    let (code, what, why, mend) = match error {
        ActionError::Database(error) => return Trouble::Database(error),
        ActionError::NoInstance { .. } => (
            "DLQ-NO-INSTANCE",
            what,
            "the handler lives in the service".to_owned(),
            "start the service, then repeat the command".to_owned(),
        ),
        ActionError::NoLetters => (
            "DLQ-EMPTY",
            what,
            "there is nothing to do".to_owned(),
            "look at `factum dlq list`; an action takes open letters, `--undo` discarded ones".to_owned(),
        ),
        ActionError::ManyConsumers { .. } => (
            "DLQ-MANY-CONSUMERS",
            what,
            "an action is for one consumer".to_owned(),
            "name the letters of one consumer".to_owned(),
        ),
        ActionError::NoLetter { .. } => (
            "DLQ-NO-LETTER",
            what,
            "an action takes the letters that are named, all or none".to_owned(),
            "take ids that `factum dlq list --group` shows".to_owned(),
        ),
        ActionError::WrongState { id, .. } => (
            "DLQ-STATE",
            what,
            "somebody was quicker, or it was settled long ago".to_owned(),
            format!("look at `factum dlq show {id}`"),
        ),
        ActionError::Changed { .. } => (
            "DLQ-CHANGED",
            what,
            "an action runs on the list that you confirmed, whole or not at all".to_owned(),
            "repeat the command".to_owned(),
        ),
        ActionError::NoRun => (
            "DLQ-NO-RUN",
            what,
            "a plan is made with `factum dlq plan`".to_owned(),
            "take an id that `factum dlq runs` shows".to_owned(),
        ),
        ActionError::NotChecked => (
            "DLQ-NOT-CHECKED",
            what,
            "the consumer's service checks it first".to_owned(),
            "see that the service runs and is not held up, then repeat the command".to_owned(),
        ),
        ActionError::Expired { good_until } => (
            "DLQ-EXPIRED",
            format!("the plan was good until {}", moment(good_until)),
            "letters and builds change; a plan is good for 15 minutes".to_owned(),
            "make a new plan with `factum dlq plan`".to_owned(),
        ),
        ActionError::RunIs { .. } => (
            "DLQ-RUN-STATE",
            what,
            "a plan is started once; a paused run goes on; a running one can be paused; what is not at its end can be \
             stopped"
                .to_owned(),
            "look at `factum dlq runs`".to_owned(),
        ),
        ActionError::AnotherRun { id, ref state, .. } => {
            let (plan, run) = (RunId(id).plan(), RunId(id).run());
            let go_on = if state == "paused" {
                format!("go on with it (`factum dlq replay --plan {plan}`) or end it (`factum dlq replay --stop {run} --reason TEXT`)")
            } else {
                format!("wait for its end, or end it with `factum dlq replay --stop {run} --reason TEXT`")
            };
            ("DLQ-ANOTHER-RUN", format!("{what}: {run}"), "a consumer has one run at a time".to_owned(), go_on)
        }
        _ => ("DLQ-REFUSED", what, "the database's side refused it".to_owned(), "look at the text above".to_owned()),
    };
    Trouble::Refused {
        exit: Exit::Refused,
        code,
        what,
        place: place.to_owned(),
        why,
        mend,
    }
}

/// `1 event`, `1,203 events`.
fn events(n: i64) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} event{s}", thousands(n))
}

/// A record's key, for people: text as it is, other bytes in hex.
fn key_text(key: Option<&[u8]>) -> String {
    match key.map(|key| (key, std::str::from_utf8(key))) {
        None => "none".to_owned(),
        Some((_, Ok(text))) => text.to_owned(),
        Some((bytes, Err(_))) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{hex}")
        }
    }
}

/// A list for people.
fn for_people(text: String) -> Report {
    Report {
        text,
        exit: Exit::Done,
        json: None,
    }
}

/// A list for a program: its lines, and the closing object, which counts them.
fn json_list(schema: &'static str, name: &str, lines: &[String], more: bool) -> Report {
    Report {
        text: lines.join("\n"),
        exit: Exit::Done,
        json: Some(outcome::closing(
            schema,
            Exit::Done,
            name,
            lines.len(),
            more,
        )),
    }
}

/// One JSON object on a line of its own.
fn json_line(value: &serde_json::Value) -> String {
    plain::line(&value.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_run_is_read_as_it_is_written() {
        for id in [1, 35, 36, 48213, i64::MAX] {
            let id = RunId(id);
            assert_eq!(run_id(&id.plan()), Ok(id));
            assert_eq!(run_id(&id.run()), Ok(id));
        }
        assert_eq!(RunId(58898).plan(), "p-19g2");
        for wrong in [
            "",
            "p-",
            "19c2",
            "p--1",
            "p-1.5",
            "q-1",
            "p-zzzzzzzzzzzzzzzz",
            "P-1",
            "p-1 ",
        ] {
            assert!(run_id(wrong).is_err(), "{wrong}");
        }
        assert!(
            letter_id("0").is_err()
                && letter_id("-1").is_err()
                && letter_id("99999999999999999999").is_err()
        );
    }
}
