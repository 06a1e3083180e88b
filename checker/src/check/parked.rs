//! What is parked: set aside in sight while the run goes on, and gone at its end.

use std::collections::{HashMap, HashSet};

use super::{AnomalyKind, Checker, Phase, Place, Step};
use crate::facts::{Parked, Position, Record};
use crate::history::Fate;

/// The table, as texts call it.
const TABLE: &str = "parked_event";

impl Checker<'_> {
    /// What is parked is a record of the run, stands in the order of its key, and has nothing of its key past it.
    pub(super) fn parked(&mut self) {
        let history = self.history;
        let records: HashMap<Position, &Record> = self
            .source
            .iter()
            .map(|record| (record.position, *record))
            .collect();
        let mut rows: Vec<&Parked> = self.facts.parked.iter().collect();
        rows.sort_by_key(|row| row.id);
        let mut steps = Vec::with_capacity(rows.len());
        for row in rows {
            let place = Place::Row {
                table: TABLE,
                id: row.id,
            };
            let is_of_source = row.topic == history.source.topic;
            // Another run's.
            if is_of_source && row.position.offset < history.source.begin.of(row.position.partition)
            {
                continue;
            }
            let record = records.get(&row.position).filter(|_| is_of_source);
            let input = record
                .and_then(|record| self.input_of(record))
                .filter(|input| self.input(*input).id == row.event_id);
            let Some(input) = input else {
                let text = format!(
                    "{place} is of {}/{}, where event {} is not",
                    row.topic, row.position, row.event_id
                );
                self.add(AnomalyKind::Phantom, text);
                continue;
            };
            if !self.parked.insert(row.position) {
                let text = format!("{place} is a second row of {}", self.name(input));
                self.add(AnomalyKind::Duplicate, text);
            }
            self.waiting.insert(input);
            let cause = self.input(input);
            if self.phase == Phase::Ended && cause.fate != Fate::Parked {
                let text = format!("{place}: {} is still parked", self.name(input));
                self.add(AnomalyKind::Stuck, text);
            }
            // Such a one is given up some time, and has no place in the order.
            if !matches!(cause.fate, Fate::Effect | Fate::Parked) || self.has_an_effect(input) {
                continue;
            }
            steps.push(Step {
                partition: row.position.partition,
                input,
                // An event always has one.
                seq: cause.seq.unwrap_or_default(),
                place,
            });
        }
        self.ascending(&steps);
        self.nothing_overtakes(&steps);
        if self.phase == Phase::Running {
            return;
        }
        let occupied: HashSet<&str> = self
            .waiting
            .iter()
            .map(|input| history.input[*input].key.as_str())
            .collect();
        for key in &self.facts.parked_keys {
            if !occupied.contains(key.as_str()) {
                let text = format!("key {key} is still parked, and nothing waits behind it");
                self.add(AnomalyKind::Stuck, text);
            }
        }
        for (input, cause) in history.input.iter().enumerate() {
            if cause.fate == Fate::Parked && !self.waiting.contains(&input) {
                let text = format!("{} is not parked", self.name(input));
                self.add(AnomalyKind::Lost, text);
            }
        }
    }

    /// While an event waits, no later one of its key takes effect.
    fn nothing_overtakes(&mut self, parked: &[Step<'_>]) {
        if parked.is_empty() {
            return;
        }
        let mut latest: HashMap<&str, (i64, usize)> = HashMap::new();
        for (input, cause) in self.history.input.iter().enumerate() {
            if cause.fate != Fate::Effect || !self.has_an_effect(input) {
                continue;
            }
            // An event always has one.
            let seq = cause.seq.unwrap_or_default();
            let last = latest.entry(&cause.key).or_insert((seq, input));
            if seq > last.0 {
                *last = (seq, input);
            }
        }
        for step in parked {
            let Some((seq, later)) = latest.get(self.input(step.input).key.as_str()) else {
                continue;
            };
            if *seq > step.seq {
                let text = format!(
                    "{}: {} waits, and seq {seq} (event {}) has its effect already",
                    step.place,
                    self.name(step.input),
                    self.input(*later).id
                );
                self.add(AnomalyKind::Inversion, text);
            }
        }
    }
}
