//! `factum dlq stats`: how many, by consumer and reason.

use std::collections::BTreeMap;

use clap::Args;
use factum_runtime::{DeadLetterGroup, dead_letter_groups};
use serde_json::{Value, json};

use super::{for_people, json_line, json_list};
use crate::list::{List, moment};
use crate::outcome::{Failure, Report};
use crate::screen::Screen;
use crate::target::Target;

pub(super) const HELP: &str = "Counts are exact. OLDEST and NEWEST are when letters of any state were seen.\n\n\
    Exit codes: 0 counted, also when there are none; 2 wrong usage; 3 the database is away.\n\n\
    Example:\n  factum dlq stats --json";

const SCHEMA: &str = "factum.dlq.stats/1";

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
        let groups = dead_letter_groups(db, options.consumer.as_deref()).await?;
        Ok(tell(&groups, options.target.json()))
    })
}

fn tell(groups: &[DeadLetterGroup], as_json: bool) -> Report {
    let mut consumers: BTreeMap<&str, Vec<&DeadLetterGroup>> = BTreeMap::new();
    for group in groups {
        consumers.entry(&group.consumer).or_default().push(group);
    }
    let screen = Screen::stdout();
    let header = [
        "CONSUMER",
        "OPEN",
        "REPLAYED",
        "DISCARDED",
        "OLDEST",
        "NEWEST",
        "OPEN BY REASON",
    ];
    let mut list = List::new(&header, &[1, 2, 3]).below(&[6]);
    let mut lines = Vec::new();
    for (consumer, groups) in consumers {
        let sum =
            |of: fn(&DeadLetterGroup) -> i64| groups.iter().map(|group| of(group)).sum::<i64>();
        let (open, replayed, discarded) =
            (sum(|g| g.open), sum(|g| g.replayed), sum(|g| g.discarded));
        let (Some(oldest), Some(newest)) = (
            groups.iter().map(|group| group.first_at).min(),
            groups.iter().map(|group| group.last_at).max(),
        ) else {
            continue;
        };
        let mut reasons: BTreeMap<&str, i64> = BTreeMap::new();
        for group in groups.iter().filter(|group| group.open > 0) {
            *reasons.entry(&group.reason).or_default() += group.open;
        }
        if as_json {
            let by_reason: serde_json::Map<String, Value> = reasons
                .iter()
                .map(|(reason, n)| ((*reason).to_owned(), n.to_string().into()))
                .collect();
            lines.push(json_line(&json!({
                "schema": "factum.dlq.consumer/1",
                "consumer": consumer,
                "open": open.to_string(),
                "replayed": replayed.to_string(),
                "discarded": discarded.to_string(),
                "oldest_at": moment(oldest),
                "newest_at": moment(newest),
                "open_by_reason": by_reason,
            })));
            continue;
        }
        let mut by_count: Vec<(&str, i64)> = reasons.into_iter().collect();
        by_count.sort_by_key(|(reason, n)| (-n, *reason));
        let by_reason: Vec<String> = by_count
            .iter()
            .map(|(reason, n)| format!("{reason} {}", screen.count(*n)))
            .collect();
        list.row([
            consumer.to_owned(),
            screen.count(open),
            screen.count(replayed),
            screen.count(discarded),
            screen.moment(oldest),
            screen.moment(newest),
            if by_reason.is_empty() {
                "-".to_owned()
            } else {
                by_reason.join(", ")
            },
        ]);
    }
    if as_json {
        json_list(SCHEMA, "consumers", &lines, false)
    } else {
        for_people(list.text())
    }
}
