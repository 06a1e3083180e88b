//! Which letters an action is for.

use clap::Args;
use factum_runtime::Database;
use factum_runtime::dead_letter_list::Letters;
use factum_runtime::replay_plan::{MOST_LETTERS, Selection, USUAL_LETTERS};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{group, letter_id};
use crate::list::moment;
use crate::outcome::Exit;
use crate::target::Trouble;

/// The letters: of a group, by their ids, or by a filter of one consumer.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The letters of a group that `factum dlq list` shows
    #[arg(long, value_name = "GROUP", value_parser = group_id, conflicts_with_all = ["id", "consumer"])]
    group: Option<String>,
    /// These letters, by their ids
    #[arg(long, value_name = "ID", num_args = 1.., value_parser = letter_id, conflicts_with = "consumer")]
    id: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// Take so many letters at most, the oldest first
    #[arg(long, value_name = "N", default_value_t = USUAL_LETTERS,
          value_parser = clap::value_parser!(i64).range(1..=MOST_LETTERS))]
    limit: i64,
}

/// A filter of one consumer's letters.
#[derive(Debug, Args)]
pub(super) struct Filter {
    /// The letters of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Of them those with this reason, such as missing_field
    #[arg(long, value_name = "REASON", requires = "consumer")]
    reason_code: Option<String>,
    /// Of them those with a fault at this path; `$.items[3].price` stands for every item
    #[arg(long, value_name = "PATH", requires = "consumer")]
    path: Option<String>,
    /// Of them those of this event type
    #[arg(long = "type", value_name = "KIND", requires = "consumer")]
    kind: Option<String>,
    /// Of them those with this key
    #[arg(long, value_name = "KEY", requires = "consumer")]
    key: Option<String>,
    /// Of them those that failed last at this moment or later: 2026-11-30T14:02:00Z
    #[arg(long, value_name = "TIME", value_parser = time, requires = "consumer")]
    since: Option<OffsetDateTime>,
    /// Of them those that failed last before this moment
    #[arg(long, value_name = "TIME", value_parser = time, requires = "consumer")]
    until: Option<OffsetDateTime>,
}

/// A group's id: letters and digits.
pub(super) fn group_id(text: &str) -> Result<String, String> {
    if (4..=12).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("write it as `factum dlq list` shows it, such as 7f3k".to_owned())
    }
}

fn time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "write a moment of RFC 3339, such as 2026-11-30T14:02:00Z".to_owned())
}

/// A path with its indices taken out, as groups have it.
fn generalised(path: &str) -> String {
    let mut general = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('[') {
        general.push_str(before);
        general.push('[');
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        rest = match after[digits..].starts_with(']') {
            true => &after[digits..],
            false => after,
        };
    }
    general.push_str(rest);
    general
}

/// A selection, and how it was asked for.
pub(super) struct Asked {
    letters: Letters<'static>,
    consumer: Option<String>,
    event_type: Option<String>,
    reason: Option<String>,
    path_group: Option<String>,
    key: Option<String>,
    ids: Vec<i64>,
    limit: i64,
    /// For people: `group 7f3k`.
    pub(super) words: String,
}

impl Asked {
    /// Gives the selection to `with`, which borrows from it.
    pub(super) fn letters(&self) -> Letters<'_> {
        Letters {
            consumer: self.consumer.as_deref(),
            event_type: self.event_type.as_deref(),
            reason: self.reason.as_deref(),
            path_group: self.path_group.as_deref(),
            key: self.key.as_deref().map(str::as_bytes),
            ..self.letters
        }
    }

    /// The selection, given what [`letters`](Asked::letters) gave.
    pub(super) fn selection<'a>(&'a self, letters: &'a Letters<'a>) -> Selection<'a> {
        if self.ids.is_empty() {
            Selection::Matching(letters, self.limit)
        } else {
            Selection::Ids(&self.ids)
        }
    }

    /// Whether the list was cut at the limit.
    pub(super) fn may_be_cut(&self, found: i64) -> bool {
        self.ids.is_empty() && found >= self.limit
    }

    pub(super) fn limit(&self) -> i64 {
        self.limit
    }
}

impl Which {
    /// Whether nothing was asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.group.is_none() && self.id.is_empty() && self.filter.consumer.is_none()
    }

    /// Reads what was asked for; letters of any state.
    pub(super) async fn asked(&self, db: &Database) -> Result<Asked, Trouble> {
        let mut asked = Asked {
            letters: Letters {
                state: None,
                ..Letters::OPEN
            },
            consumer: None,
            event_type: None,
            reason: None,
            path_group: None,
            key: None,
            ids: Vec::new(),
            limit: self.limit,
            words: String::new(),
        };
        if let Some(id) = &self.group {
            let group = group(db, id).await?;
            if group.reason == "other" && group.path_group == "other" {
                return Err(Trouble::Refused {
                    exit: Exit::Refused,
                    code: "DLQ-OTHER",
                    what:
                        "this group holds the letters of all faults that have no group of their own"
                            .to_owned(),
                    place: format!("group {id}"),
                    why: "its letters have many reasons and paths".to_owned(),
                    mend: "use --consumer with --reason-code, --path or --type".to_owned(),
                });
            }
            asked.words = format!("group {id}");
            asked.consumer = Some(group.consumer);
            asked.event_type = Some(group.event_type);
            asked.reason = Some(group.reason);
            asked.path_group = Some(group.path_group);
            return Ok(asked);
        }
        if !self.id.is_empty() {
            asked.ids.clone_from(&self.id);
            asked.ids.sort_unstable();
            asked.ids.dedup();
            asked.words = match asked.ids.as_slice() {
                [one] => format!("letter {one}"),
                many => format!("{} letters", many.len()),
            };
            return Ok(asked);
        }
        let filter = &self.filter;
        if filter.consumer.is_none() {
            return Err(Trouble::Refused {
                exit: Exit::Usage,
                code: "DLQ-NO-FILTER",
                what: "it is not said which letters".to_owned(),
                place: "the arguments".to_owned(),
                why: "an empty filter never means all".to_owned(),
                mend: "give --group, --id, or --consumer (all its letters, or fewer with --reason-code, --path, --type, --key, --since)".to_owned(),
            });
        }
        let texts = [
            ("consumer", &filter.consumer),
            ("reason", &filter.reason_code),
            ("path", &filter.path),
            ("type", &filter.kind),
        ];
        let mut words: Vec<String> = texts
            .iter()
            .filter_map(|(name, text)| Some(format!("{name} {}", text.as_ref()?)))
            .collect();
        words.extend(filter.key.as_ref().map(|_| "one key".to_owned()));
        words.extend(filter.since.map(|at| format!("since {}", moment(at))));
        words.extend(filter.until.map(|at| format!("until {}", moment(at))));
        asked.words = words.join(", ");
        asked.consumer.clone_from(&filter.consumer);
        asked.reason.clone_from(&filter.reason_code);
        asked.path_group = filter.path.as_deref().map(generalised);
        asked.event_type.clone_from(&filter.kind);
        asked.key.clone_from(&filter.key);
        asked.letters.since = filter.since;
        asked.letters.until = filter.until;
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_for_every_item() {
        for (path, general) in [
            ("$.total.currency", "$.total.currency"),
            ("$.items[3].price", "$.items[].price"),
            ("$.items[].price", "$.items[].price"),
            ("$.a[0][12].b[*].c['…']", "$.a[][].b[*].c['…']"),
            ("$.a[1", "$.a[1"),
        ] {
            assert_eq!(generalised(path), general);
        }
    }

    #[test]
    fn a_groups_id_is_letters_and_digits() {
        assert_eq!(group_id("7F3K").as_deref(), Ok("7f3k"));
        for wrong in ["", "7f3", "7f3k'; --", "7f3k7f3k7f3k7"] {
            assert!(group_id(wrong).is_err(), "{wrong}");
        }
    }
}
