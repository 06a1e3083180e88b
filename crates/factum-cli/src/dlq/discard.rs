//! `factum dlq discard`: gives letters up, or takes that back.

use clap::Args;
use factum_runtime::replay_plan;
use serde_json::json;

use super::confirm::confirm;
use super::selection::Which;
use super::{Who, events, json_line, reason, refused};
use crate::list::note;
use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::screen::thousands;
use crate::target::Target;

pub(super) const HELP: &str = "Discarded letters stay in the table, and --undo opens them again. The list is fixed when it is confirmed, and is \
    discarded whole or not at all.\n\n\
    Exit codes: 0 done; 2 wrong usage; 3 the database is away; 4 refused: no letter matches, it isn't confirmed, or the \
    letters have changed meanwhile.\n\n\
    Example:\n  factum dlq discard --id 48213 --reason 'corrected by hand, #4411'\n  factum dlq discard --group 7f3k --undo --reason 'too early' --yes";

const SCHEMA: &str = "factum.dlq.discard/1";

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Open discarded letters again
    #[arg(long)]
    undo: bool,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// Don't ask, above 10 events
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Report, Failure> {
    options.target.report(SCHEMA, async |db| {
        let asked = options.which.asked(db).await?;
        let letters = asked.letters();
        let place = plain::line(&asked.words).into_owned();
        let list = replay_plan::fixed_list(db, asked.selection(&letters), options.undo)
            .await
            .map_err(|error| refused(error, &place))?;
        let n = i64::try_from(list.ids.len()).unwrap_or(i64::MAX);
        if asked.may_be_cut(n) {
            note(&format!(
                "These are the oldest {}; more may match (--limit)",
                thousands(asked.limit())
            ));
        }
        let doing = if options.undo {
            "open again"
        } else {
            "discard"
        };
        confirm(doing, n, &list.consumer, options.yes)?;
        let actor = options.who.because(&options.reason);
        replay_plan::discard(db, &list, options.undo, actor)
            .await
            .map_err(|error| refused(error, &place))?;
        let done = if options.undo { "open" } else { "discarded" };
        let text = if options.target.json() {
            json_line(&json!({
                "schema": SCHEMA,
                "ok": true,
                "consumer": list.consumer,
                "state": done,
                "letters": n.to_string(),
            }))
        } else {
            let again = if options.undo {
                "open again"
            } else {
                "discarded"
            };
            format!("{} of {} {again}", events(n), plain::line(&list.consumer))
        };
        Ok(Report {
            text,
            exit: Exit::Done,
            json: None,
        })
    })
}
