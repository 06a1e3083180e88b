//! `factum dlq list`: the groups, or the letters of one.

use clap::{Args, ValueEnum};
use factum_runtime::dead_letter_list::{self, Letter, Letters, PAGE};
use factum_runtime::{Database, DeadLetterGroup, dead_letter_groups};
use serde_json::{Value, json};

use super::{for_people, group, json_line, json_list, key_text, letter_id, selection};
use crate::list::{List, moment, note};
use crate::outcome::{Exit, Failure, Report};
use crate::screen::{Screen, thousands};
use crate::target::{Target, Trouble, note_if_unknown};

pub(super) const HELP: &str = "Without --group each row is a fault: letters of one consumer with the same reason, path and type. Counts are exact. \
    No payload is read.\n\n\
    Exit codes: 0 listed, also when there are none; 2 wrong usage; 3 the database is away; 4 no such group.\n\n\
    Example:\n  factum dlq list\n  factum dlq list --group 7f3k --after 48262";

const SCHEMA: &str = "factum.dlq.list/1";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Only this consumer's
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// The letters of this group, 50 of them
    #[arg(long, value_name = "GROUP", value_parser = selection::group_id)]
    group: Option<String>,
    /// The next page: letters with an id above this one
    #[arg(long, value_name = "ID", value_parser = letter_id, requires = "group")]
    after: Option<i64>,
    /// Letters in this state
    #[arg(long, value_name = "STATE", default_value = "open")]
    state: State,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    /// Waiting for a person
    Open,
    /// Handled after all
    Replayed,
    /// Given up
    Discarded,
    /// All of them
    Any,
}

impl State {
    fn name(self) -> Option<&'static str> {
        match self {
            State::Open => Some("open"),
            State::Replayed => Some("replayed"),
            State::Discarded => Some("discarded"),
            State::Any => None,
        }
    }

    fn count(self, group: &DeadLetterGroup) -> i64 {
        match self {
            State::Open => group.open,
            State::Replayed => group.replayed,
            State::Discarded => group.discarded,
            State::Any => group.open + group.replayed + group.discarded,
        }
    }

    fn header(self) -> &'static str {
        match self {
            State::Open => "OPEN",
            State::Replayed => "REPLAYED",
            State::Discarded => "DISCARDED",
            State::Any => "LETTERS",
        }
    }
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    options
        .target
        .report(SCHEMA, async |db| match &options.group {
            Some(id) => letters(db, options, id).await,
            None => groups(db, options).await,
        })
}

async fn groups(db: &Database, options: &Options) -> Result<Report, Trouble> {
    let all = dead_letter_groups(db, options.consumer.as_deref()).await?;
    let state = options.state;
    let shown: Vec<&DeadLetterGroup> = all.iter().filter(|g| state.count(g) > 0).collect();
    if options.target.json() {
        let lines = shown
            .iter()
            .map(|group| json_line(&group_json(group)))
            .collect::<Vec<_>>();
        return Ok(json_list(SCHEMA, "groups", &lines, false));
    }
    let screen = Screen::stdout();
    if shown.is_empty() {
        if let Some(consumer) = &options.consumer {
            note_if_unknown(db, consumer).await?;
        }
        let sum = |of: fn(&DeadLetterGroup) -> i64| thousands(all.iter().map(of).sum());
        note(&format!(
            "None is {}; {} open, {} replayed, {} discarded",
            state.name().unwrap_or("there"),
            sum(|g| g.open),
            sum(|g| g.replayed),
            sum(|g| g.discarded)
        ));
    }
    let one_consumer = shown
        .windows(2)
        .all(|pair| pair[0].consumer == pair[1].consumer);
    let cells = |group: &DeadLetterGroup| {
        [
            group.id.clone(),
            group.reason.clone(),
            or_dash(&group.path_group),
            or_dash(&group.event_type),
            screen.count(state.count(group)),
            screen.moment(group.last_at),
        ]
    };
    // A person sees the consumer where it makes a difference; a program always gets the same columns.
    if screen.width.is_some() && one_consumer {
        let mut list = List::new(
            &["GROUP", "REASON", "WHERE", "TYPE", state.header(), "LAST"],
            &[4],
        );
        for group in shown {
            list.row(cells(group));
        }
        return Ok(for_people(list.text()));
    }
    let header = [
        "GROUP",
        "REASON",
        "WHERE",
        "TYPE",
        state.header(),
        "LAST",
        "CONSUMER",
    ];
    let mut list = List::new(&header, &[4]).below(&[6]);
    for group in shown {
        let [id, reason, path, kind, count, last] = cells(group);
        list.row([id, reason, path, kind, count, last, group.consumer.clone()]);
    }
    Ok(for_people(list.text()))
}

fn group_json(group: &DeadLetterGroup) -> Value {
    json!({
        "schema": "factum.dlq.group/1",
        "group": group.id,
        "consumer": group.consumer,
        "reason": group.reason,
        "path": group.path_group,
        "type": group.event_type,
        "open": group.open.to_string(),
        "replayed": group.replayed.to_string(),
        "discarded": group.discarded.to_string(),
        "first_at": moment(group.first_at),
        "last_at": moment(group.last_at),
    })
}

async fn letters(db: &Database, options: &Options, id: &str) -> Result<Report, Trouble> {
    let group = group(db, id).await?;
    let is_other = group.reason == "other" && group.path_group == "other";
    if is_other {
        return Err(Trouble::Refused {
            exit: Exit::Refused,
            code: "DLQ-OTHER",
            what: "this group holds the letters of all faults that have no group of their own"
                .to_owned(),
            place: format!("group {id}"),
            why: "its letters have many reasons and paths".to_owned(),
            mend: "make a plan by --consumer with --reason-code, --path or --type".to_owned(),
        });
    }
    let filter = Letters {
        state: options.state.name(),
        consumer: Some(&group.consumer),
        event_type: Some(&group.event_type),
        reason: Some(&group.reason),
        path_group: Some(&group.path_group),
        ..Letters::OPEN
    };
    let after = options.after.unwrap_or(0);
    let mut page = dead_letter_list::page(db, &filter, after, PAGE + 1).await?;
    let more = page.len() > PAGE;
    page.truncate(PAGE);
    if more && let Some(last) = page.last() {
        note(&format!(
            "More: factum dlq list --group {id} --after {}",
            last.id
        ));
    }
    if options.target.json() {
        let lines = page
            .iter()
            .map(|letter| json_line(&letter_json(letter)))
            .collect::<Vec<_>>();
        return Ok(json_list(SCHEMA, "letters", &lines, more));
    }
    let screen = Screen::stdout();
    let mut list = List::new(
        &["ID", "STATE", "FROM", "KEY", "ATTEMPTS", "BYTES", "LAST"],
        &[0, 4, 5],
    )
    .below(&[3]);
    for letter in &page {
        list.row([
            letter.id.to_string(),
            letter.state.clone(),
            place_of(letter),
            key_text(letter.key.as_deref()),
            letter.attempts.to_string(),
            screen.count(letter.payload_bytes),
            screen.moment(letter.last_seen),
        ]);
    }
    if page.is_empty() {
        note("No such letter");
    }
    Ok(for_people(list.text()))
}

/// `orders.confirmed/4 @ 918273`.
pub(super) fn place_of(letter: &Letter) -> String {
    format!("{}/{} @ {}", letter.topic, letter.partition, letter.offset)
}

/// A letter without its payload.
pub(super) fn letter_json(letter: &Letter) -> Value {
    json!({
        "schema": "factum.dlq.letter/1",
        "id": letter.id.to_string(),
        "state": letter.state,
        "state_at": letter.state_at.map(moment),
        "consumer": letter.consumer,
        "type": letter.event_type,
        "event_id": letter.event_id.map(|id| id.to_string()),
        "reason": letter.reason,
        "path": letter.path,
        "error": letter.error,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset.to_string(),
        "key": key_text(letter.key.as_deref()),
        "payload_bytes": letter.payload_bytes.to_string(),
        "attempts": letter.attempts,
        "first_seen": moment(letter.first_seen),
        "last_seen": moment(letter.last_seen),
        "build": letter.build,
    })
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}
