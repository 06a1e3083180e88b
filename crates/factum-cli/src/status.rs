//! `factum status`: is anything wrong, and what first?

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use factum_runtime::status::{
    self, COUNTED, CallStatus, ConsumerStatus, OutboxStatus, Status, WindowStatus,
};
use serde_json::{Value, json};

use crate::list::{List, moment};
use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::screen::{Screen, thousands};
use crate::target::Target;

const SCHEMA: &str = "factum.status/1";
/// An outbox whose oldest row waits for longer is yellow.
const OLD: Duration = Duration::from_secs(30);
/// Partitions for fewer days than these are yellow.
const DAYS_AHEAD: i64 = 2;

#[derive(Debug, Args)]
#[command(
    after_help = "STATE begins with x for red and ! for yellow; the worst row comes first: dead letters are open, a key is held, nobody \
                  (no process runs; also behind another word), keys are parked, or it runs. PARKED counts keys. `-`: not measured yet. Tables that grow are \
                  counted up to 10,000; dead letters exactly. Each part has two seconds: one that needs longer says so.\n\n\
                  Exit codes: 0 nothing is red; 1 something is; 2 wrong usage; 3 the database is away.\n\n\
                  Example:\n  factum status --json"
)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Well,
    Yellow,
    Red,
}

impl Level {
    fn sign(self) -> &'static str {
        match self {
            Level::Well => "",
            Level::Yellow => "! ",
            Level::Red => "x ",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Well => "well",
            Level::Yellow => "yellow",
            Level::Red => "red",
        }
    }
}

/// A part below the consumers: OUTBOX, CALLS, WINDOW.
struct Part {
    name: &'static str,
    level: Level,
    says: String,
    next: Option<&'static str>,
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    options.target.report(SCHEMA, async |db| {
        let status = status::status(db).await?;
        let parts = parts(&status);
        let consumers = sorted(&status);
        let levels: Vec<Level> = consumers
            .iter()
            .map(|(level, ..)| *level)
            .chain(parts.iter().map(|part| part.level))
            .collect();
        let exit = if levels.contains(&Level::Red) {
            Exit::Failed
        } else {
            Exit::Done
        };
        let (text, json) = if options.target.json() {
            let object = json_object(&status, &parts, exit);
            (plain::line(&object.to_string()).into_owned(), None)
        } else {
            (
                told(&status, &consumers, &parts, &levels, Screen::stdout()),
                None,
            )
        };
        Ok(Report { text, exit, json })
    })
}

fn consumer_state(consumer: &ConsumerStatus) -> (Level, &'static str) {
    if consumer.dead_letters > 0 {
        (Level::Red, "dead")
    } else if consumer.held_keys > 0 {
        (Level::Red, "held")
    } else if consumer.processes == 0 {
        (Level::Yellow, "nobody")
    } else if consumer.parked_keys > 0 {
        (Level::Yellow, "parked")
    } else {
        (Level::Well, "runs")
    }
}

/// That no process runs, where something worse is said first.
fn alone(consumer: &ConsumerStatus, state: &str) -> &'static str {
    if consumer.processes == 0 && state != "nobody" {
        ", nobody"
    } else {
        ""
    }
}

/// The worst first, then by name.
fn sorted(status: &Status) -> Vec<(Level, &'static str, &ConsumerStatus)> {
    let mut consumers: Vec<_> = status
        .consumers
        .iter()
        .flatten()
        .map(|consumer| {
            let (level, state) = consumer_state(consumer);
            (level, state, consumer)
        })
        .collect();
    consumers.sort_by(|a, b| {
        (b.0, b.2.dead_letters)
            .cmp(&(a.0, a.2.dead_letters))
            .then_with(|| a.2.consumer.cmp(&b.2.consumer))
    });
    consumers
}

fn parts(status: &Status) -> Vec<Part> {
    let mut parts = Vec::new();
    if status.consumers.is_none() {
        parts.push(cut("CONSUMERS"));
    }
    parts.push(status.outbox.as_ref().map_or_else(|| cut("OUTBOX"), outbox));
    parts.push(status.calls.as_ref().map_or_else(|| cut("CALLS"), calls));
    parts.push(status.window.as_ref().map_or_else(|| cut("WINDOW"), window));
    parts
}

fn cut(name: &'static str) -> Part {
    Part {
        name,
        level: Level::Yellow,
        says: "unknown: it took longer than 2 s and was cut".to_owned(),
        next: None,
    }
}

fn outbox(outbox: &OutboxStatus) -> Part {
    let mut says = format!("{} unpublished", capped(outbox.unpublished));
    if let Some(oldest) = outbox.oldest {
        let _ = write!(says, ", oldest {}", age(oldest.as_secs_f64()));
    }
    match outbox.stopped_slots.as_slice() {
        [] => {}
        [one] => says.push_str(&format!(", slot {one} stopped")),
        many => says.push_str(&format!(", {} slots stopped", many.len())),
    }
    // With nothing to send, nobody misses a relay.
    match outbox.free_slots {
        _ if outbox.unpublished == 0 => {}
        0 => {}
        64 => says.push_str(", no relay"),
        1 => says.push_str(", 1 slot without a relay"),
        many => {
            let _ = write!(says, ", {many} slots without a relay");
        }
    }
    if outbox.set_aside > 0 {
        let _ = write!(says, ", {} set aside", capped(outbox.set_aside));
    }
    let is_old = outbox.oldest.is_some_and(|oldest| oldest > OLD);
    let is_yellow = is_old || !outbox.stopped_slots.is_empty() || outbox.set_aside > 0;
    Part {
        name: "OUTBOX",
        level: if is_yellow {
            Level::Yellow
        } else {
            Level::Well
        },
        says,
        next: None,
    }
}

fn calls(calls: &CallStatus) -> Part {
    let is_yellow = calls.set_aside > 0 || calls.unknown > 0;
    Part {
        name: "CALLS",
        level: if is_yellow {
            Level::Yellow
        } else {
            Level::Well
        },
        says: format!(
            "{} set aside, {} unknown",
            capped(calls.set_aside),
            capped(calls.unknown)
        ),
        next: is_yellow.then_some("factum calls list"),
    }
}

fn window(window: &WindowStatus) -> Part {
    let (level, says) = if window.days_ahead < 0 {
        (
            Level::Red,
            "no partition for today: no event can be handled".to_owned(),
        )
    } else {
        let says = format!(
            "{}d back, partitions for {}d ahead",
            window.days_back, window.days_ahead
        );
        let level = if window.days_ahead < DAYS_AHEAD {
            Level::Yellow
        } else {
            Level::Well
        };
        (level, says)
    };
    Part {
        name: "WINDOW",
        level,
        says,
        next: (level != Level::Well).then_some("factum migrate up --dedup-window-days DAYS"),
    }
}

/// A count that stops at a limit: `10,000+`.
fn capped(n: i64) -> String {
    if n > COUNTED {
        format!("{}+", thousands(COUNTED))
    } else {
        thousands(n)
    }
}

/// `0.4s`, `41s`, `12min`, `3h`, `4d`.
fn age(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1}s"),
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7_200.0 => format!("{:.0}min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

fn told(
    status: &Status,
    consumers: &[(Level, &'static str, &ConsumerStatus)],
    parts: &[Part],
    levels: &[Level],
    screen: Screen,
) -> String {
    let mut text = format!(
        "{}, as of {}\n",
        plain::line(&status.database),
        moment(status.at)
    );
    // A program always gets the same columns; a person none that only says `-`.
    let is_measured = screen.width.is_none()
        || consumers.iter().any(|(.., consumer)| {
            consumer.lag.is_some()
                || consumer.oldest_seconds.is_some()
                || consumer.events_per_second.is_some()
        });
    let mut list = if is_measured {
        let header = [
            "CONSUMER", "STATE", "LAG", "OLDEST", "EV/S", "PARKED", "DEAD",
        ];
        List::new(&header, &[2, 3, 4, 5, 6])
    } else {
        List::new(&["CONSUMER", "STATE", "PARKED", "DEAD"], &[2, 3])
    };
    for (level, state, consumer) in consumers {
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let name = consumer.consumer.clone();
        let state = format!("{}{state}{}", level.sign(), alone(consumer, state));
        let parked = capped(consumer.parked_keys);
        let dead = screen.count(consumer.dead_letters);
        if is_measured {
            list.row([
                name,
                state,
                or_unknown(consumer.lag.map(|lag| screen.count(lag))),
                or_unknown(consumer.oldest_seconds.map(age)),
                or_unknown(consumer.events_per_second.map(|rate| format!("{rate:.0}"))),
                parked,
                dead,
            ]);
        } else {
            list.row([name, state, parked, dead]);
        }
    }
    if consumers.is_empty() {
        text.push_str("No consumer has run here yet");
    } else {
        text.push_str(&list.text());
    }
    for part in parts {
        let sign = match part.level {
            Level::Well => " ",
            level => level.sign().trim(),
        };
        let _ = write!(
            text,
            "\n{:<7} {sign}  {}",
            part.name,
            plain::line(&part.says)
        );
    }
    let count = |wanted| levels.iter().filter(|level| **level == wanted).count();
    let (red, yellow) = (count(Level::Red), count(Level::Yellow));
    if red + yellow == 0 {
        text.push_str("\nAll is well.");
        return text;
    }
    let mut next: Vec<&str> = Vec::new();
    if consumers
        .iter()
        .any(|(.., consumer)| consumer.dead_letters > 0)
    {
        next.push("factum dlq list");
    }
    if consumers
        .iter()
        .any(|(.., consumer)| consumer.parked_keys > 0)
    {
        next.push("factum parked list");
    }
    next.extend(parts.iter().filter_map(|part| part.next));
    let _ = write!(text, "\n{red} red, {yellow} yellow.");
    if !next.is_empty() {
        let _ = write!(text, " Next: {}", next.join("; "));
    }
    text
}

fn json_object(status: &Status, parts: &[Part], exit: Exit) -> Value {
    let consumers = sorted(status);
    let level_of = |name: &str| {
        parts
            .iter()
            .find(|part| part.name == name)
            .map(|part| part.level.name())
    };
    json!({
        "schema": SCHEMA,
        "ok": exit == Exit::Done,
        "database": status.database,
        "as_of": moment(status.at),
        "consumers": status.consumers.as_ref().map(|_| consumers.iter().map(|(level, state, consumer)| json!({
            "consumer": consumer.consumer,
            "level": level.name(),
            "state": state,
            "processes": consumer.processes,
            "lag": consumer.lag.map(|lag| lag.to_string()),
            "oldest_seconds": consumer.oldest_seconds,
            "events_per_second": consumer.events_per_second,
            "parked_keys": consumer.parked_keys.min(COUNTED).to_string(),
            "parked_keys_are_more": consumer.parked_keys > COUNTED,
            "held_keys": consumer.held_keys.min(COUNTED).to_string(),
            "dead_letters": consumer.dead_letters.to_string(),
        })).collect::<Vec<_>>()),
        "outbox": status.outbox.as_ref().map(|outbox| json!({
            "level": level_of("OUTBOX"),
            "unpublished": outbox.unpublished.min(COUNTED).to_string(),
            "unpublished_are_more": outbox.unpublished > COUNTED,
            "oldest_seconds": outbox.oldest.map(|oldest| oldest.as_secs_f64()),
            "stopped_slots": outbox.stopped_slots,
            "relays": outbox.relays,
            "free_slots": outbox.free_slots,
            "set_aside": outbox.set_aside.min(COUNTED).to_string(),
        })),
        "calls": status.calls.as_ref().map(|calls| json!({
            "level": level_of("CALLS"),
            "set_aside": calls.set_aside.min(COUNTED).to_string(),
            "unknown": calls.unknown.min(COUNTED).to_string(),
        })),
        "window": status.window.as_ref().map(|window| json!({
            "level": level_of("WINDOW"),
            "days_back": window.days_back,
            "days_ahead": window.days_ahead,
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_short_and_a_count_says_where_it_stopped() {
        for (seconds, text) in [
            (0.44, "0.4s"),
            (41.2, "41s"),
            (600.0, "10min"),
            (10_800.0, "3h"),
            (432_000.0, "5d"),
        ] {
            assert_eq!(age(seconds), text);
        }
        assert_eq!(capped(10_000), "10,000");
        assert_eq!(capped(10_001), "10,000+");
    }
}
