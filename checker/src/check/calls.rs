//! Calls to another system, against that system's own book.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{AnomalyKind, Checker, Phase};
use crate::facts::{Call, CallState};

impl Checker<'_> {
    /// Each effect has its calls, and each call was carried out once, unless it stands in doubt.
    pub(super) fn calls(&mut self) {
        let Some(expected) = &self.history.calls else {
            return;
        };
        let mut calls: Vec<&Call> = self.facts.calls.iter().collect();
        calls.sort_by_key(|call| call.id);
        let mut made: HashMap<usize, HashSet<&str>> = HashMap::new();
        let mut keys: BTreeMap<&str, i64> = BTreeMap::new();
        for call in calls {
            let (id, step) = (call.id, &call.step);
            let input = self.inputs.get(&call.event_id).copied();
            let Some(input) = input.filter(|_| expected.steps.contains(step)) else {
                let text = format!(
                    "call {id} (step `{step}`) is of event {}, which makes no such call",
                    call.event_id
                );
                self.add(AnomalyKind::Phantom, text);
                continue;
            };
            let name = format!("call {id} (step `{step}`) of {}", self.name(input));
            if !self.has_an_effect(input) {
                self.add(
                    AnomalyKind::HalfEffect,
                    format!("{name} is there without the event's effects"),
                );
            }
            if !made.entry(input).or_default().insert(step) {
                self.add(
                    AnomalyKind::Duplicate,
                    format!("{name} is there a second time"),
                );
            }
            if let Some(other) = keys.insert(&call.key, id) {
                self.add(
                    AnomalyKind::Duplicate,
                    format!("{name} has the idempotency key of call {other}"),
                );
            }
            let times = expected.book.get(&call.key).copied().unwrap_or(0);
            if times > 1 {
                self.add(
                    AnomalyKind::Duplicate,
                    format!("{name} was carried out {times} times"),
                );
            }
            // The book is older than the table: what is done in the table may not stand in the book yet.
            if self.phase == Phase::Running {
                continue;
            }
            match call.state {
                CallState::Open => {
                    self.add(AnomalyKind::Stuck, format!("{name} is not finished"));
                }
                CallState::Done if times == 0 => self.add(
                    AnomalyKind::Lost,
                    format!("{name} is done, and was never carried out"),
                ),
                CallState::Done | CallState::InDoubt => {}
            }
        }
        for key in expected.book.keys() {
            if expected.book[key] > 0 && !keys.contains_key(key.as_str()) {
                let text = format!("the other system carried out {key}, which is no call");
                self.add(AnomalyKind::Phantom, text);
            }
        }
        for input in 0..self.history.input.len() {
            if !self.has_an_effect(input) {
                continue;
            }
            for step in &expected.steps {
                let is_made = made
                    .get(&input)
                    .is_some_and(|steps| steps.contains(step.as_str()));
                if !is_made {
                    let text = format!(
                        "{} has its effects, and no call (step `{step}`)",
                        self.name(input)
                    );
                    self.add(AnomalyKind::HalfEffect, text);
                }
            }
        }
    }
}
