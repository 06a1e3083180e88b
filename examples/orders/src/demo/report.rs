//! What a run says at its end.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::check::{Anomaly, first_records};
use super::facts::{Content, Facts};

/// How many anomalies of each kind are written out.
const SHOWN_OF_EACH: usize = 10;

/// The figures of a run. All but the kills and the time are counted in tables and topics after the
/// run: a service that was killed takes its own counters along.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Events that the services have published: rows of the outbox.
    pub events: usize,
    /// Records in both topics, injected ones included. Each topic has one consumer, so this is how
    /// many records consumers had to deal with. One that was read again after a kill counts once.
    pub deliveries: usize,
    /// Invoices and mails.
    pub effects: usize,
    /// Records that repeat an event which has had its effect, injected by the demo or sent again by a
    /// relay that was killed before it had noted the broker's answer.
    pub duplicates: usize,
    /// Rows of `dead_letter`.
    pub set_aside: usize,
    /// Records that consumers pass by: unknown types and tombstones.
    pub skipped: usize,
    /// Processes killed with SIGKILL while they were at work.
    pub kills: usize,
    /// From the start of the services to the last effect, kills and their repair included.
    pub took: Duration,
    /// What is wrong.
    pub anomalies: Vec<Anomaly>,
}

impl Report {
    /// Counts.
    pub fn new(facts: &Facts, kills: usize, took: Duration, anomalies: Vec<Anomaly>) -> Report {
        let records = || facts.topics.iter().flat_map(|topic| &topic.records);
        let set_aside: HashSet<_> = facts
            .dead_letters
            .iter()
            .map(|letter| (letter.topic.as_str(), letter.position))
            .collect();
        let repeats = facts.topics.iter().map(|topic| {
            let events = topic.records.iter().filter(|record| {
                let is_event = matches!(record.content, Content::Event { .. });
                is_event && !set_aside.contains(&(topic.name.as_str(), record.position))
            });
            let handled: HashSet<_> = first_records(topic)
                .filter(|(_, position, ..)| !set_aside.contains(&(topic.name.as_str(), *position)))
                .map(|(_, _, event_id, _)| event_id)
                .collect();
            events.count() - handled.len()
        });
        Report {
            events: facts.outbox_rows,
            deliveries: records().count(),
            effects: facts.invoices.len() + facts.mails.len(),
            duplicates: repeats.sum(),
            set_aside: facts.dead_letters.len(),
            skipped: records()
                .filter(|r| matches!(r.content, Content::UnknownType | Content::Tombstone))
                .count(),
            kills,
            took,
            anomalies,
        }
    }

    /// Events by time.
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.took.as_secs_f64().max(0.001)
    }

    /// One object, on one line.
    pub fn json(&self) -> String {
        serde_json::json!({
            "events": self.events,
            "deliveries": self.deliveries,
            "effects": self.effects,
            "duplicates": self.duplicates,
            "set_aside": self.set_aside,
            "kills": self.kills,
            "anomalies": self.anomalies.len(),
            "events_per_second": (self.events_per_second() * 10.0).round() / 10.0,
        })
        .to_string()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("events", self.events, "published by the services"),
            (
                "deliveries",
                self.deliveries,
                "records in the topics, each for one consumer",
            ),
            ("  effects", self.effects, "invoices and mails"),
            (
                "  duplicates stopped",
                self.duplicates,
                "records that repeat an event",
            ),
            (
                "  set aside",
                self.set_aside,
                "dead letters: poison, and orders nobody can bill",
            ),
            ("  skipped", self.skipped, "unknown types and tombstones"),
            ("kills", self.kills, "processes ended by SIGKILL at work"),
            (
                "anomalies",
                self.anomalies.len(),
                "lost, duplicate, phantom, inverted, …",
            ),
        ];
        for (name, number, meaning) in rows {
            writeln!(f, "{name:<22}{number:>10}   {meaning}")?;
        }
        let took = self.took.as_secs_f64();
        let rate = self.events_per_second();
        write!(
            f,
            "{:<22}{rate:>10.0}   in {took:.1} s, kills and their repair included",
            "events per second"
        )?;
        let mut kinds: BTreeMap<_, Vec<&Anomaly>> = BTreeMap::new();
        for anomaly in &self.anomalies {
            kinds.entry(anomaly.kind).or_default().push(anomaly);
        }
        for (kind, anomalies) in kinds {
            for anomaly in anomalies.iter().take(SHOWN_OF_EACH) {
                write!(f, "\n  {anomaly}")?;
            }
            let more = anomalies.len().saturating_sub(SHOWN_OF_EACH);
            if more > 0 {
                write!(f, "\n  {kind}: and {more} more")?;
            }
        }
        Ok(())
    }
}
