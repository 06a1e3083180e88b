//! The rows that were written together with the events: a row without its event is a loss, an event without its row
//! was never published.

use std::borrow::Cow;
use std::collections::HashSet;

use uuid::Uuid;

use super::{AnomalyKind, Checker, Phase};
use crate::facts::Facts;
use crate::history::{Fate, History};

/// The history with the fate of every event whose publisher did not learn it: the table tells.
pub(super) fn resolved<'a>(history: &'a History, facts: &Facts) -> Cow<'a, History> {
    if history
        .input
        .iter()
        .all(|input| input.fate != Fate::Unknown)
    {
        return Cow::Borrowed(history);
    }
    let committed: HashSet<Uuid> = facts.business.iter().map(|row| row.event_id).collect();
    let mut history = history.clone();
    for input in &mut history.input {
        if input.fate == Fate::Unknown {
            input.fate = if committed.contains(&input.id) {
                Fate::Effect
            } else {
                Fate::RolledBack
            };
        }
    }
    Cow::Owned(history)
}

impl Checker<'_> {
    /// Each event that was published has its row, and no other row is there; at the end nothing waits to be sent.
    pub(super) fn business(&mut self) {
        let Some(table) = &self.history.business else {
            return;
        };
        let mut there = vec![false; self.history.input.len()];
        for row in &self.facts.business {
            let id = row.event_id;
            let Some(&input) = self.inputs.get(&id) else {
                let text = format!("{table} has a row of event {id}, which is no input");
                self.add(AnomalyKind::Phantom, text);
                continue;
            };
            there[input] = true;
            let cause = self.input(input);
            if cause.fate != Fate::Effect {
                let text = format!("{table} has a row of {}", self.name(input));
                self.add(AnomalyKind::Phantom, text);
            } else if row.account != cause.key || Some(row.seq) != cause.seq {
                let text = format!(
                    "{table} has another account or seq than {}",
                    self.name(input)
                );
                self.add(AnomalyKind::Phantom, text);
            }
        }
        for (input, there) in there.into_iter().enumerate() {
            // It may not have been published yet; but not if it has its effect.
            let is_due = self.phase == Phase::Ended || self.has_an_effect(input);
            if !there && is_due && self.input(input).fate == Fate::Effect {
                let text = format!("{} has no row in {table}", self.name(input));
                self.add(AnomalyKind::Lost, text);
            }
        }
        if self.phase == Phase::Running {
            return;
        }
        for row in &self.facts.unsent {
            let text = format!(
                "outbox row {} of event {} is not marked as sent",
                row.id, row.event_id
            );
            self.add(AnomalyKind::Stuck, text);
        }
    }
}
