//! `factum calls list | show | retry | resolve`: calls to other systems.

use clap::{Args, Subcommand, ValueEnum};
use factum_runtime::audit::Actor;
use factum_runtime::{
    CallRefusal, CallRow, CallState, Database, find_call, resolve_call, retry_call,
    reveal_response, unfinished_calls,
};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use crate::list::{List, moment};
use crate::outcome::{self, Exit, Failure, Report};
use crate::plain;
use crate::screen::Screen;
use crate::target::{Target, Trouble};

/// Calls in one list.
const ROWS: u32 = 50;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 well; 1 there are calls in doubt, or it failed; 2 wrong usage; 3 the database is away; 4 refused, with a name of the reason.\n\n\
                  Example:\n  factum calls list --endpoint payments"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List calls that are not finished: those in doubt first
    #[command(
        after_help = "50 at most; with --state, --after continues behind an id.\n\n\
                      Exit codes: 0 none is in doubt; 1 some are, or it failed; 2 wrong usage; 3 the database is away.\n\n\
                      Example:\n  factum calls list --endpoint payments --state set_aside"
    )]
    List {
        #[command(flatten)]
        target: Target,
        /// Only calls to this endpoint
        #[arg(long, value_name = "NAME")]
        endpoint: Option<String>,
        /// Only calls in this state
        #[arg(long, value_name = "STATE")]
        state: Option<State>,
        /// Only calls behind this id
        #[arg(long, value_name = "ID", requires = "state", default_value = "0", value_parser = call_id)]
        after: i64,
    },
    /// Show one call, without its body and its response
    #[command(
        after_help = "Exit codes: 0 shown; 1 it failed; 2 wrong usage; 3 the database is away; 4 refused.\n\n\
                      Example:\n  factum calls show 551"
    )]
    Show {
        #[command(flatten)]
        target: Target,
        /// The call's id
        #[arg(value_parser = call_id)]
        id: i64,
        /// Show the response, too; that is written into the audit
        #[arg(long, requires = "reason")]
        response: bool,
        /// Why you need the response
        #[arg(long, value_name = "TEXT", value_parser = text, requires = "response")]
        reason: Option<String>,
        #[command(flatten)]
        who: Who,
    },
    /// Send a call that was set aside again, with the same key and bytes
    #[command(
        after_help = "A call whose response's handler had failed is not sent: its handler is called again. A call that is unknown, or \
                      whose key has expired, is never sent.\n\n\
                      Exit codes: 0 it will be sent; 1 it failed; 2 wrong usage; 3 the database is away; 4 refused.\n\n\
                      Example:\n  factum calls retry 551 --reason '#4411: their certificate is renewed'"
    )]
    Retry {
        #[command(flatten)]
        target: Target,
        /// The call's id
        #[arg(value_parser = call_id)]
        id: i64,
        /// Why, for the audit
        #[arg(long, value_name = "TEXT", value_parser = text)]
        reason: String,
        #[command(flatten)]
        who: Who,
    },
    /// Settle a call in doubt by what you found out at the other system
    #[command(
        after_help = "It is not sent any more, and ordered calls behind it go on.\n\n\
                      Exit codes: 0 settled; 1 it failed; 2 wrong usage; 3 the database is away; 4 refused.\n\n\
                      Example:\n  factum calls resolve 552 --outcome charged --reason 'their ledger has ch_81, #4412'"
    )]
    Resolve {
        #[command(flatten)]
        target: Target,
        /// The call's id
        #[arg(value_parser = call_id)]
        id: i64,
        /// What you found: charged, not-sent, …
        #[arg(long, value_name = "TEXT", value_parser = text)]
        outcome: String,
        /// The evidence, for the audit
        #[arg(long, value_name = "TEXT", value_parser = text)]
        reason: String,
        #[command(flatten)]
        who: Who,
    },
}

/// Who acts.
#[derive(Debug, Args)]
struct Who {
    /// Your name for the audit [default: the environment's USER]
    #[arg(long = "actor", value_name = "NAME", env = "USER", hide_env = true)]
    actor: String,
}

impl Who {
    fn because<'a>(&'a self, reason: &'a str) -> Actor<'a> {
        Actor {
            name: &self.actor,
            via: "cli",
            reason,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum State {
    Pending,
    Answered,
    #[value(alias = "set-aside")]
    SetAside,
    Unknown,
}

/// A call's id.
fn call_id(text: &str) -> Result<i64, &'static str> {
    match text.parse() {
        Ok(id) if id >= 0 => Ok(id),
        _ => Err("write the number that `factum calls list` shows, such as 551"),
    }
}

/// A reason of blanks is none.
fn text(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("write at least a word"),
        text => Ok(text.to_owned()),
    }
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::List {
            target,
            endpoint,
            state,
            after,
        } => target.report("factum.calls.list/1", async |db| {
            list(db, target, endpoint.as_deref(), *state, *after).await
        }),
        Command::Show {
            target,
            id,
            response,
            reason,
            who,
        } => {
            let reason = reason.as_deref().filter(|_| *response);
            target.report("factum.calls.show/1", async |db| {
                show(db, target, *id, reason.map(|reason| who.because(reason))).await
            })
        }
        Command::Retry {
            target,
            id,
            reason,
            who,
        } => target.report("factum.calls.retry/1", async |db| {
            let done = retry_call(db, *id, who.because(reason)).await;
            done.map_err(|refusal| trouble(*id, &refusal))?;
            let text = format!("call {id} is due again, with the same key and bytes");
            Ok(report(
                target,
                "factum.calls.retry/1",
                Exit::Done,
                text,
                json!({"id": id.to_string()}),
            ))
        }),
        Command::Resolve {
            target,
            id,
            outcome,
            reason,
            who,
        } => target.report("factum.calls.resolve/1", async |db| {
            let done = resolve_call(db, *id, outcome, who.because(reason)).await;
            done.map_err(|refusal| trouble(*id, &refusal))?;
            let text = format!("call {id} is resolved: {outcome}");
            let fields = json!({"id": id.to_string(), "outcome": outcome});
            Ok(report(
                target,
                "factum.calls.resolve/1",
                Exit::Done,
                text,
                fields,
            ))
        }),
    }
}

async fn list(
    db: &Database,
    target: &Target,
    endpoint: Option<&str>,
    state: Option<State>,
    after: i64,
) -> Result<Report, Trouble> {
    let state = state.map(|state| match state {
        State::Pending => CallState::Pending,
        State::Answered => CallState::Answered,
        State::SetAside => CallState::SetAside,
        State::Unknown => CallState::Unknown,
    });
    let mut calls = unfinished_calls(db, endpoint, state, after, ROWS + 1).await?;
    let more = calls.len() > ROWS as usize;
    calls.truncate(ROWS as usize);
    let in_doubt = calls.iter().any(|call| is_in_doubt(call.state));
    let exit = if in_doubt { Exit::Failed } else { Exit::Done };
    if target.json() {
        let lines = calls.iter().map(|call| {
            let mut fields = Map::new();
            fields.insert("schema".to_owned(), "factum.calls.call/1".into());
            fields.extend(fields_of(call));
            plain::line(&Value::Object(fields).to_string()).into_owned()
        });
        return Ok(Report {
            text: lines.collect::<Vec<_>>().join("\n"),
            exit,
            json: Some(outcome::closing(
                "factum.calls.list/1",
                exit,
                "calls",
                calls.len(),
                more,
            )),
        });
    }
    let text = if calls.is_empty() {
        "No call is unfinished.".to_owned()
    } else {
        let mut list = List::new(
            &[
                "ID", "STATE", "ENDPOINT", "CALL", "STATUS", "TRIES", "BEHIND", "SINCE", "NEXT",
                "CAUSE",
            ],
            &[4, 5, 6],
        )
        .below(&[9, 3, 8, 7]);
        let screen = Screen::stdout();
        for call in &calls {
            list.row([
                call.id.to_string(),
                call.state.as_str().to_owned(),
                call.endpoint.clone(),
                format!("{} {}", call.method, call.path),
                call.status
                    .map_or_else(|| "-".to_owned(), |status| status.to_string()),
                call.attempts.to_string(),
                call.waiting.to_string(),
                screen.moment(call.created_at),
                match next(call) {
                    Some(at) => screen.moment(at),
                    None => "-".to_owned(),
                },
                call.error.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        let mut text = list.text();
        if more {
            text.push_str(
                "\nThere are more: narrow by --endpoint, or continue with --state and --after",
            );
        }
        if in_doubt {
            text.push_str("\nNext: factum calls show ID; then factum calls retry or resolve");
        }
        text
    };
    Ok(Report {
        text,
        exit,
        json: None,
    })
}

async fn show(
    db: &Database,
    target: &Target,
    id: i64,
    reveal: Option<Actor<'_>>,
) -> Result<Report, Trouble> {
    let Some(call) = find_call(db, id).await? else {
        return Err(trouble(id, &CallRefusal::NoCall));
    };
    let at = |moment_: Option<OffsetDateTime>| moment_.map_or_else(|| "-".to_owned(), moment);
    let step = if call.step.is_empty() {
        String::new()
    } else {
        format!(", step {}", call.step)
    };
    let mut lines = vec![
        format!(
            "{}  {}  {}  {} {}",
            call.id,
            call.state.as_str(),
            call.endpoint,
            call.method,
            call.path
        ),
        format!(
            "from      {} of {}, event {}{step}",
            call.event_type, call.consumer, call.event_id
        ),
        format!(
            "key       {}, never sent after {}",
            call.idempotency_key,
            at(call.key_expires_at)
        ),
        format!("body      {} B, hidden", call.body_bytes),
        format!(
            "attempts  {}, first {}, next {}",
            call.attempts,
            at(call.first_sent_at),
            at(next(&call))
        ),
    ];
    let is_due = matches!(call.state, CallState::Pending | CallState::Answered);
    if let Some(error) = &call.error {
        // What it was set aside for is history once it is due again.
        let of = if is_due { "last try, " } else { "" };
        lines.push(format!("cause     {of}{error}"));
    }
    if let Some(resolution) = &call.resolution {
        lines.push(format!("resolved  {resolution}"));
    }
    if call.waiting > 0 {
        lines.push(format!(
            "behind    {} ordered calls of its key wait for it",
            call.waiting
        ));
    }
    let mut fields = fields_of(&call);
    match (&reveal, call.status) {
        (_, None) => lines.push("response  none".to_owned()),
        (None, Some(status)) => lines.push(format!(
            "response  {}{status}, {} B, hidden; --response with --reason shows it (audited)",
            if is_due { "last try, " } else { "" },
            call.response_bytes.unwrap_or(0)
        )),
        (Some(actor), Some(_)) => {
            let revealed = reveal_response(db, id, *actor).await;
            if let Some(response) = revealed.map_err(|refusal| trouble(id, &refusal))? {
                let body = String::from_utf8_lossy(&response.body).into_owned();
                lines.push(format!(
                    "response  {}{}",
                    response.status,
                    if response.cut { ", cut" } else { "" }
                ));
                for (name, value) in &response.headers {
                    lines.push(format!("  {name}: {}", value.escape_debug()));
                }
                // No sequence of a foreign text reaches the terminal.
                lines.extend(body.lines().map(|line| {
                    format!(
                        "  {}",
                        line.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}")
                    )
                }));
                let headers: Vec<Value> = response
                    .headers
                    .iter()
                    .map(|(name, value)| json!([name, value]))
                    .collect();
                fields.insert(
                    "response".to_owned(),
                    json!({"status": response.status, "headers": headers, "body": body, "cut": response.cut}),
                );
            }
        }
    }
    Ok(report(
        target,
        "factum.calls.show/1",
        Exit::Done,
        lines.join("\n"),
        Value::Object(fields),
    ))
}

/// When it is sent next, as far as it will be.
fn next(call: &CallRow) -> Option<OffsetDateTime> {
    matches!(call.state, CallState::Pending | CallState::Answered).then_some(call.next_attempt_at)
}

fn is_in_doubt(state: CallState) -> bool {
    matches!(state, CallState::SetAside | CallState::Unknown)
}

fn fields_of(call: &CallRow) -> Map<String, Value> {
    let at = |at: Option<OffsetDateTime>| at.map(moment);
    let fields = json!({
        "id": call.id.to_string(),
        "state": call.state.as_str(),
        "service": call.service,
        "consumer": call.consumer,
        "event_id": call.event_id.to_string(),
        "event_type": call.event_type,
        "step": call.step,
        "endpoint": call.endpoint,
        "method": call.method,
        "path": call.path,
        "idempotency_key": call.idempotency_key,
        "attempts": call.attempts,
        "status": call.status,
        "error": call.error,
        "body_bytes": call.body_bytes.to_string(),
        "response_bytes": call.response_bytes.map(|bytes| bytes.to_string()),
        "created_at": moment(call.created_at),
        "first_sent_at": at(call.first_sent_at),
        "next_attempt_at": moment(call.next_attempt_at),
        "key_expires_at": at(call.key_expires_at),
        "waiting": call.waiting.to_string(),
        "resolution": call.resolution,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn report(
    target: &Target,
    schema: &'static str,
    exit: Exit,
    text: String,
    fields: Value,
) -> Report {
    let json = target.json().then(|| {
        let mut closing = outcome::json(schema, exit);
        if let Value::Object(fields) = fields {
            closing.extend(fields);
        }
        closing
    });
    // With --json stdout is for a program alone.
    let text = if json.is_some() { String::new() } else { text };
    Report { text, exit, json }
}

fn trouble(id: i64, refusal: &CallRefusal) -> Trouble {
    let refused = |code, what: String, why: &str, mend: String| Trouble::Refused {
        exit: Exit::Refused,
        code,
        what,
        place: format!("call {id}"),
        why: why.to_owned(),
        mend,
    };
    match refusal {
        CallRefusal::Database(error) => Trouble::Database(error.clone()),
        CallRefusal::NoCall => refused(
            "CALL-NONE",
            "there is no call of that id".to_owned(),
            "calls are known by the id that the list shows",
            "look it up: factum calls list".to_owned(),
        ),
        CallRefusal::State(state) => refused(
            "CALL-STATE",
            format!("the call is {}", state.as_str()),
            "only a call in doubt is a person's to settle, and only one that was set aside is sent again",
            format!("look at it: factum calls show {id}"),
        ),
        CallRefusal::Unknown => refused(
            "CALL-UNKNOWN",
            "nobody knows whether the call took effect".to_owned(),
            "the other system may have forgotten its key, so that it would take effect a second time",
            format!("find out there, then: factum calls resolve {id} --outcome TEXT --reason TEXT"),
        ),
        CallRefusal::KeyExpired(at) => refused(
            "CALL-KEY-EXPIRED",
            format!("the key's lifetime ended at {}", moment(*at)),
            "the other system may have forgotten it, so that the call would take effect a second time",
            format!(
                "find out there what became of it, then: factum calls resolve {id} --outcome TEXT --reason TEXT"
            ),
        ),
        // The list of reasons may grow.
        other => refused(
            "CALL-REFUSED",
            other.to_string(),
            "the call isn't fit for that",
            format!("look at it: factum calls show {id}"),
        ),
    }
}
