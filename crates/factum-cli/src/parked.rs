//! `factum parked list | release | dead-letter`: keys whose events wait, and what a person may do with them.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use factum_runtime::audit::Actor;
use factum_runtime::status;
use factum_runtime::{
    Database, DueKey, ParkedKey, SetAside, parked_keys, release_parked, set_aside_parked,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::list::{List, moment, note};
use crate::outcome::{self, Exit, Failure, Report};
use crate::plain;
use crate::screen::Screen;
use crate::target::{Target, Trouble, note_if_unknown};

/// Keys that are listed at most; one more says that there are more.
const LIST_LIMIT: usize = 1_000;
/// Events of a key that are counted at most.
const COUNT_LIMIT: u64 = 10_000;
/// So many keys are released without a question.
const WITHOUT_QUESTION: usize = 10;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 the database is away; 4 refused, with a name of the reason.\n\n\
                  Example:\n  factum parked list --consumer billing-order-confirmed"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Which keys wait, for what, until when
    #[command(
        after_help = "A key that isn't text is shown as 0x and hexadecimal digits. At most 1,000 keys, the longest parked first.\n\n\
                      Exit codes: 0 listed; 1 failed; 2 wrong usage; 3 the database is away.\n\n\
                      Example:\n  factum parked list --json"
    )]
    List {
        #[command(flatten)]
        target: Target,
        /// Only this consumer's
        #[arg(long, value_name = "NAME")]
        consumer: Option<String>,
    },
    /// Try a parked key again now, also one that is held: when its cause is mended
    #[command(
        after_help = "The running service does it. Each key gets its attempts anew. All keys together are spread over a second per hundred.\n\n\
                      Exit codes: 0 released; 1 failed; 2 wrong usage; 3 the database is away; 4 PARKED-NO-KEY, PARKED-NOT-CONFIRMED.\n\n\
                      Example:\n  factum parked release --consumer billing-order-confirmed --all --reason 'payments is back' --yes"
    )]
    #[command(group = ArgGroup::new("which").required(true).args(["topic", "all"]))]
    Release {
        #[command(flatten)]
        target: Target,
        /// The consumer
        #[arg(long, value_name = "NAME")]
        consumer: String,
        /// The topic of the key
        #[arg(long, value_name = "TOPIC", requires = "key")]
        topic: Option<String>,
        /// The key, as `factum parked list` writes it
        #[arg(long, value_name = "KEY", requires = "topic", conflicts_with = "all", value_parser = parse_key)]
        key: Option<Key>,
        /// All parked keys of the consumer
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        why: Why,
        /// Don't ask, whatever the number of keys
        #[arg(long)]
        yes: bool,
    },
    /// Set a parked key's first event aside as a dead letter; the key goes on with the next
    #[command(
        after_help = "The event's effect is then missing before the later ones of its key.\n\n\
                      Exit codes: 0 set aside; 1 failed; 2 wrong usage; 3 the database is away; 4 PARKED-NO-KEY, PARKED-BUSY.\n\n\
                      Example:\n  factum parked dead-letter --consumer billing-order-confirmed --topic orders.confirmed --key 7c1e --reason '#4411'"
    )]
    DeadLetter {
        #[command(flatten)]
        target: Target,
        /// The consumer
        #[arg(long, value_name = "NAME")]
        consumer: String,
        /// The topic of the key
        #[arg(long, value_name = "TOPIC")]
        topic: String,
        /// The key, as `factum parked list` writes it
        #[arg(long, value_name = "KEY", value_parser = parse_key)]
        key: Key,
        #[command(flatten)]
        why: Why,
    },
}

/// What stands in the audit.
#[derive(Debug, Args)]
struct Why {
    /// Why, in your own words, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// Your name for the audit [default: the environment's USER]
    #[arg(long, env = "USER", hide_env = true, value_name = "NAME")]
    actor: String,
}

impl Why {
    fn actor(&self) -> Actor<'_> {
        Actor {
            name: &self.actor,
            via: "cli",
            reason: &self.reason,
        }
    }
}

fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why, in your own words; it stands in the audit".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// A key's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key(Vec<u8>);

/// As [`write_key`] writes it.
fn parse_key(text: &str) -> Result<Key, String> {
    let Some(digits) = text.strip_prefix("0x") else {
        return Ok(Key(text.as_bytes().to_vec()));
    };
    let bad = || "after 0x come pairs of hexadecimal digits".to_owned();
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(bad());
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| bad()))
        .collect::<Result<Vec<u8>, String>>()
        .map(Key)
}

/// Text as it is; what isn't text, has control characters or could be taken for digits as 0x and its digits.
fn write_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.is_empty() && !text.starts_with("0x") && plain::line(text) == text => {
            text.to_owned()
        }
        _ => key.iter().fold("0x".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::List { target, consumer } => {
            const SCHEMA: &str = "factum.parked.list/1";
            target.report(SCHEMA, async |db| {
                list(db, consumer.as_deref(), target.json().then_some(SCHEMA)).await
            })
        }
        Command::Release {
            target,
            consumer,
            topic,
            key,
            why,
            yes,
            all: _,
        } => {
            const SCHEMA: &str = "factum.parked.release/1";
            // clap asks for both or neither.
            let key = topic.clone().zip(key.clone());
            let key = key.map(|(topic, Key(key))| DueKey { topic, key });
            target.report(SCHEMA, async |db| {
                let schema = target.json().then_some(SCHEMA);
                release(db, consumer, key.as_ref(), why, *yes, schema).await
            })
        }
        Command::DeadLetter {
            target,
            consumer,
            topic,
            key,
            why,
        } => {
            const SCHEMA: &str = "factum.parked.dead-letter/1";
            let key = DueKey {
                topic: topic.clone(),
                key: key.0.clone(),
            };
            target.report(SCHEMA, async |db| {
                dead_letter(db, consumer, &key, why, target.json().then_some(SCHEMA)).await
            })
        }
    }
}

async fn list(
    db: &Database,
    consumer: Option<&str>,
    schema: Option<&'static str>,
) -> Result<Report, Trouble> {
    let limit = u32::try_from(LIST_LIMIT + 1).unwrap_or(u32::MAX);
    let mut keys = parked_keys(db, consumer, limit).await?;
    let more = keys.len() > LIST_LIMIT;
    keys.truncate(LIST_LIMIT);
    let now = OffsetDateTime::now_utc();
    let text = match schema {
        Some(_) => {
            let lines = keys.iter().map(|key| object(key).to_string());
            lines.collect::<Vec<_>>().join("\n")
        }
        None if keys.is_empty() => {
            if let Some(consumer) = consumer {
                note_if_unknown(db, consumer).await?;
            }
            "No key waits".to_owned()
        }
        None => {
            let mut list = List::new(
                &[
                    "KEY", "WAITING", "ATTEMPT", "NEXT", "SINCE", "CAUSE", "TOPIC", "CONSUMER",
                ],
                &[1, 2],
            )
            .below(&[5, 6, 7, 4]);
            let screen = Screen::stdout();
            for key in &keys {
                list.row([
                    write_key(&key.key),
                    waiting(key.waiting),
                    format!("{}/{}", key.attempts, key.max_attempts),
                    next(key, now),
                    screen.moment(key.parked_at),
                    plain::line(key.error.as_deref().unwrap_or_default()).into_owned(),
                    key.topic.clone(),
                    key.consumer.clone(),
                ]);
            }
            let mut text = list.text();
            if more {
                let _ = write!(text, "\nand more; narrow it with --consumer");
            }
            text
        }
    };
    Ok(Report {
        text,
        exit: Exit::Done,
        json: schema.map(|schema| outcome::closing(schema, Exit::Done, "keys", keys.len(), more)),
    })
}

fn object(key: &ParkedKey) -> Value {
    json!({
        "schema": "factum.parked.key/1",
        "key": write_key(&key.key),
        "waiting": waiting(key.waiting),
        "attempts": key.attempts,
        "max_attempts": key.max_attempts,
        "next_attempt_at": key.next_attempt_at.map(moment),
        "held": key.next_attempt_at.is_none(),
        "parked_at": moment(key.parked_at),
        "cause": key.error,
        "topic": key.topic,
        "consumer": key.consumer,
    })
}

fn waiting(events: u64) -> String {
    if events > COUNT_LIMIT {
        format!("{COUNT_LIMIT}+")
    } else {
        events.to_string()
    }
}

/// `in 2m10s`, `now`, or `held`.
fn next(key: &ParkedKey, now: OffsetDateTime) -> String {
    let Some(at) = key.next_attempt_at else {
        return "held".to_owned();
    };
    let left = Duration::try_from(at - now).unwrap_or_default().as_secs();
    match (left / 3600, left / 60 % 60, left % 60) {
        (0, 0, 0) => "now".to_owned(),
        (0, 0, seconds) => format!("in {seconds}s"),
        (0, minutes, seconds) => format!("in {minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("in {hours}h{minutes:02}m"),
    }
}

async fn release(
    db: &Database,
    consumer: &str,
    key: Option<&DueKey>,
    why: &Why,
    yes: bool,
    schema: Option<&'static str>,
) -> Result<Report, Trouble> {
    if key.is_none() && !yes {
        let some = u32::try_from(WITHOUT_QUESTION + 1).unwrap_or(u32::MAX);
        if parked_keys(db, Some(consumer), some).await?.len() > WITHOUT_QUESTION {
            confirm(consumer)?;
        }
    }
    let released = release_parked(db, consumer, key, why.actor()).await?;
    if released == 0 {
        return Err(no_key(consumer, key));
    }
    let text = if status::runs(db, consumer).await? {
        format!("released {released}; the running service tries them now")
    } else {
        note("No process of this consumer runs: start its service");
        format!("released {released}; the service tries them when it runs")
    };
    Ok(done(
        text,
        schema,
        json!({ "released": released.to_string() }),
    ))
}

async fn dead_letter(
    db: &Database,
    consumer: &str,
    key: &DueKey,
    why: &Why,
    schema: Option<&'static str>,
) -> Result<Report, Trouble> {
    match set_aside_parked(db, consumer, key, why.actor()).await? {
        SetAside::Done { partition, offset } => Ok(done(
            format!(
                "set aside {}/{partition} @ {offset}; the key goes on",
                key.topic
            ),
            schema,
            json!({ "topic": key.topic, "partition": partition, "offset": offset.to_string() }),
        )),
        SetAside::Busy => Err(Trouble::Refused {
            exit: Exit::Refused,
            code: "PARKED-BUSY",
            what: "the key's first event is being handled".to_owned(),
            place: place(consumer, Some(key)),
            why: "it may succeed".to_owned(),
            mend: "look at `factum parked list` in a moment, then repeat the command".to_owned(),
        }),
        _ => Err(no_key(consumer, Some(key))),
    }
}

fn done(text: String, schema: Option<&'static str>, fields: Value) -> Report {
    Report {
        text: if schema.is_some() {
            String::new()
        } else {
            text
        },
        exit: Exit::Done,
        json: schema.map(|schema| {
            let mut closing = outcome::json(schema, Exit::Done);
            if let Value::Object(fields) = fields {
                closing.extend(fields);
            }
            closing
        }),
    }
}

fn place(consumer: &str, key: Option<&DueKey>) -> String {
    match key {
        Some(key) => format!("{} of {consumer} in {}", write_key(&key.key), key.topic),
        None => format!("consumer {consumer}"),
    }
}

fn no_key(consumer: &str, key: Option<&DueKey>) -> Trouble {
    Trouble::Refused {
        exit: Exit::Refused,
        code: "PARKED-NO-KEY",
        what: "nothing is parked there".to_owned(),
        place: place(consumer, key),
        why: "it was handled meanwhile, or consumer, topic or key are written differently"
            .to_owned(),
        mend: "take them from `factum parked list`".to_owned(),
    }
}

/// Lets a person type the consumer's name; a program says `--yes`.
fn confirm(consumer: &str) -> Result<(), Trouble> {
    let refused = |what: &str, mend: &str| Trouble::Refused {
        exit: Exit::Refused,
        code: "PARKED-NOT-CONFIRMED",
        what: what.to_owned(),
        place: place(consumer, None),
        why: "more than 10 keys are released only with a confirmation".to_owned(),
        mend: mend.to_owned(),
    };
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(refused(
            "nobody is there to confirm it",
            "repeat the command with --yes",
        ));
    }
    let mut answer = String::new();
    let question = format!(
        "Type the consumer's name to release all keys of {}: ",
        plain::line(consumer)
    );
    let asked = write!(io::stderr(), "{question}")
        .and_then(|()| io::stderr().flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    if asked.is_ok() && answer.trim() == consumer {
        return Ok(());
    }
    Err(refused(
        "what was typed is not the consumer's name",
        "repeat the command, and type the name in full",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        for (key, written) in [
            (&b"7c1e-09d2"[..], "7c1e-09d2"),
            ("ä".as_bytes(), "ä"),
            (b"\xff\x00", "0xff00"),
            (b"0xff", "0x30786666"),
            (b"a\x1b[2J", "0x611b5b324a"),
            (b"", "0x"),
        ] {
            assert_eq!(write_key(key), written);
            assert_eq!(parse_key(written), Ok(Key(key.to_vec())));
        }
        for wrong in ["0x1", "0xzz", "0xä"] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
