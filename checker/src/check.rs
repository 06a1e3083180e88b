//! From facts to anomalies. Pure, so that it can be tried with histories made by hand.

mod business;
mod calls;
mod parked;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use crate::facts::{Body, Effect, Facts, Label, Position, Record, Topic};
use crate::history::{Fate, History, Input};

/// Whether the run may still be at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Things may be unfinished: only what no time can mend is an anomaly.
    Running,
    /// All is done: what is missing now is lost.
    Ended,
}

/// What a run can do wrong. The list is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnomalyKind {
    /// Something that must be there at the end is not.
    Lost,
    /// Something happened twice.
    Duplicate,
    /// Something is there that nothing in the input caused, or says something else than its cause.
    Phantom,
    /// Two events of a key stand in the wrong order, or a key stands in two partitions.
    Inversion,
    /// A committed offset is beyond a record that is not finished.
    PrematureCommit,
    /// An event has a row in one effect table and none in another.
    HalfEffect,
    /// At the end, a committed offset is not at its partition's end, or something waits that nobody holds.
    Stuck,
}

impl AnomalyKind {
    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AnomalyKind::Lost => "lost",
            AnomalyKind::Duplicate => "duplicate",
            AnomalyKind::Phantom => "phantom",
            AnomalyKind::Inversion => "inversion",
            AnomalyKind::PrematureCommit => "premature-commit",
            AnomalyKind::HalfEffect => "half-effect",
            AnomalyKind::Stuck => "stuck",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anomaly {
    /// Of which kind.
    pub kind: AnomalyKind,
    /// What and where: table and row, topic/partition@offset, event and key.
    pub text: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.text)
    }
}

/// Everything that is wrong, sorted. The facts may be in any order.
#[must_use]
pub fn check(history: &History, facts: &Facts, phase: Phase) -> Vec<Anomaly> {
    let history = &*business::resolved(history, facts);
    let inputs: HashMap<Uuid, usize> = history
        .input
        .iter()
        .enumerate()
        .map(|(place, input)| (input.id, place))
        .collect();
    let (source, derived) = (in_order(&facts.source), in_order(&facts.derived));
    let mut checker = Checker {
        rows: vec![vec![0; history.effects.len()]; history.input.len()],
        source: &source,
        derived: &derived,
        history,
        facts,
        phase,
        inputs,
        letters: HashMap::new(),
        parked: HashSet::new(),
        waiting: HashSet::new(),
        found: Vec::new(),
    };
    checker.effects();
    checker.parked();
    checker.source();
    checker.dead_letters();
    checker.derived();
    checker.commits();
    checker.calls();
    checker.business();
    checker.found.sort();
    checker.found
}

fn in_order(topic: &Topic) -> Vec<&Record> {
    let mut records: Vec<&Record> = topic.records.iter().collect();
    records.sort_by_key(|record| record.position);
    records
}

struct Checker<'a> {
    history: &'a History,
    facts: &'a Facts,
    phase: Phase,
    /// The place of each input in the history, by its id.
    inputs: HashMap<Uuid, usize>,
    /// How many rows each input has in each effect table.
    rows: Vec<Vec<u32>>,
    /// Both topics by position.
    source: &'a [&'a Record],
    derived: &'a [&'a Record],
    /// How many dead letters a position of the source topic has.
    letters: HashMap<Position, u32>,
    /// The positions of the source topic whose records are parked.
    parked: HashSet<Position>,
    /// The inputs of which a record is parked.
    waiting: HashSet<usize>,
    found: Vec<Anomaly>,
}

/// One event, or record of it, in the order to be checked.
struct Step<'a> {
    /// Order holds within a key and a partition.
    partition: i32,
    input: usize,
    seq: i64,
    place: Place<'a>,
}

/// Where something stands.
#[derive(Clone, Copy)]
enum Place<'a> {
    Row { table: &'a str, id: i64 },
    Record { topic: &'a str, position: Position },
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Row { table, id } => write!(f, "{table} row {id}"),
            Place::Record { topic, position } => write!(f, "{topic}/{position}"),
        }
    }
}

impl<'a> Checker<'a> {
    fn add(&mut self, kind: AnomalyKind, text: String) {
        self.found.push(Anomaly { kind, text });
    }

    fn input(&self, place: usize) -> &'a Input {
        &self.history.input[place]
    }

    /// How an input is called in a text.
    fn name(&self, place: usize) -> String {
        let input = self.input(place);
        let what = match input.fate {
            Fate::Effect | Fate::Replayed | Fate::Parked => "event",
            Fate::DeadLetter => "poison",
            Fate::RolledBack => "rolled back event",
            Fate::Unknown => "event of unknown fate",
        };
        match input.seq {
            Some(seq) => format!("{what} {} ({}, seq {seq})", input.id, input.key),
            None => format!("{what} {} ({})", input.id, input.key),
        }
    }

    fn source_place(&self, position: Position) -> Place<'a> {
        Place::Record {
            topic: &self.history.source.topic,
            position,
        }
    }

    /// Whether the event is in every effect table.
    fn has_all_effects(&self, place: usize) -> bool {
        self.rows[place].iter().all(|rows| *rows > 0)
    }

    fn has_an_effect(&self, place: usize) -> bool {
        self.rows[place].iter().any(|rows| *rows > 0)
    }

    /// Each event has one row in each table, in the order of its key; and nothing else is there.
    fn effects(&mut self) {
        let (history, facts) = (self.history, self.facts);
        for (column, table) in history.effects.iter().enumerate() {
            let mut rows: Vec<&Effect> = facts
                .effects
                .get(column)
                .map_or_else(Vec::new, |rows| rows.iter().collect());
            rows.sort_by_key(|row| row.id);
            let mut steps = Vec::with_capacity(rows.len());
            for row in rows {
                let place = Place::Row { table, id: row.id };
                let id = row.event_id;
                let Some(&input) = self.inputs.get(&id) else {
                    let text = format!("{place} is of event {id}, which is no input");
                    self.add(AnomalyKind::Phantom, text);
                    continue;
                };
                let cause = self.input(input);
                if !cause.fate.has_effects() {
                    let text = format!("{place} is an effect of {}", self.name(input));
                    self.add(AnomalyKind::Phantom, text);
                    continue;
                }
                if row.account != cause.key || Some(row.seq) != cause.seq {
                    let name = self.name(input);
                    let text = format!("{place} has another account or seq than {name}");
                    self.add(AnomalyKind::Phantom, text);
                }
                self.rows[input][column] += 1;
                // A replay comes whenever a person wants it.
                if cause.fate == Fate::Replayed {
                    continue;
                }
                steps.push(Step {
                    partition: 0,
                    input,
                    // An event always has one.
                    seq: cause.seq.unwrap_or_default(),
                    place,
                });
            }
            self.ascending(&steps);
        }
        for input in 0..history.input.len() {
            // Nearly all of them.
            if self.rows[input].iter().all(|rows| *rows == 1) {
                continue;
            }
            self.effects_of(input);
        }
    }

    /// An event is in all tables or in none, and in each once.
    fn effects_of(&mut self, input: usize) {
        let tables = &self.history.effects;
        let rows = self.rows[input].clone();
        for (table, rows) in tables.iter().zip(&rows).filter(|(_, rows)| **rows > 1) {
            let text = format!("{table} has {rows} rows of {}", self.name(input));
            self.add(AnomalyKind::Duplicate, text);
        }
        if self.has_an_effect(input) && !self.has_all_effects(input) {
            let those = |is_there: bool| {
                let those: Vec<&str> = tables
                    .iter()
                    .zip(&rows)
                    .filter(|(_, rows)| (**rows > 0) == is_there)
                    .map(|(table, _)| table.as_str())
                    .collect();
                those.join(", ")
            };
            let text = format!(
                "{} is in {} and not in {}",
                self.name(input),
                those(true),
                those(false)
            );
            self.add(AnomalyKind::HalfEffect, text);
        }
    }

    /// Within a key and a partition, events appear for the first time in the order of their seq.
    fn ascending(&mut self, steps: &[Step<'a>]) {
        let mut seen: HashSet<(i32, usize)> = HashSet::with_capacity(steps.len());
        let mut highest: HashMap<(i32, &str), (i64, usize)> = HashMap::new();
        for step in steps {
            // What comes again says nothing about the order.
            if !seen.insert((step.partition, step.input)) {
                continue;
            }
            let key = self.input(step.input).key.as_str();
            let last = highest
                .entry((step.partition, key))
                .or_insert((step.seq, step.input));
            if step.seq < last.0 {
                let (seq, earlier) = (last.0, self.input(last.1).id);
                let text = format!(
                    "{}: {} comes after seq {seq} (event {earlier})",
                    step.place,
                    self.name(step.input)
                );
                self.add(AnomalyKind::Inversion, text);
            } else {
                *last = (step.seq, step.input);
            }
        }
    }

    /// A key stands in one partition. Else nobody keeps its order.
    fn one_partition(&mut self, topic: &str, inputs: &[(usize, Position)]) {
        let mut places: BTreeMap<&str, BTreeMap<i32, Position>> = BTreeMap::new();
        for (input, position) in inputs {
            places
                .entry(self.input(*input).key.as_str())
                .or_default()
                .entry(position.partition)
                .or_insert(*position);
        }
        for (key, firsts) in places.iter().filter(|(_, firsts)| firsts.len() > 1) {
            let firsts: Vec<String> = firsts.values().map(ToString::to_string).collect();
            let count = firsts.len();
            let text = format!(
                "{topic}: key {key} is in {count} partitions, first at {}",
                firsts.join(" and ")
            );
            self.add(AnomalyKind::Inversion, text);
        }
    }

    /// The input that a record of the source topic is of.
    fn input_of(&self, record: &Record) -> Option<usize> {
        let id = match record.label {
            Label::Names(id) => id,
            Label::Illegible => return None,
            Label::Absent => record.body.as_ref()?.event_id,
        };
        let input = *self.inputs.get(&id)?;
        // Only its header makes a record the poison: a sound event with that id is something else.
        let is_poison = self.input(input).fate == Fate::DeadLetter;
        (!is_poison || record.label != Label::Absent).then_some(input)
    }

    /// The source topic holds what was sent, in order; anything may stand there again.
    fn source(&mut self) {
        let topic = self.history.source.topic.as_str();
        let mut steps = Vec::with_capacity(self.source.len());
        let mut inputs = Vec::with_capacity(self.source.len());
        let mut there = vec![false; self.history.input.len()];
        for record in self.source {
            let place = self.source_place(record.position);
            let Some(input) = self.input_of(record) else {
                self.add(AnomalyKind::Phantom, format!("{place} is no input"));
                continue;
            };
            let cause = self.input(input);
            there[input] = true;
            inputs.push((input, record.position));
            if cause.fate == Fate::DeadLetter {
                continue;
            }
            if cause.fate == Fate::RolledBack {
                self.add(
                    AnomalyKind::Phantom,
                    format!("{place} is {}", self.name(input)),
                );
                continue;
            }
            if !says(record.body.as_ref(), cause, cause.id) {
                let text = format!("{place} says something else than {}", self.name(input));
                self.add(AnomalyKind::Phantom, text);
            }
            steps.push(Step {
                partition: record.position.partition,
                input,
                // An event always has one.
                seq: cause.seq.unwrap_or_default(),
                place,
            });
        }
        self.ascending(&steps);
        self.one_partition(topic, &inputs);
        if self.phase == Phase::Running {
            return;
        }
        for (input, there) in there.into_iter().enumerate() {
            if self.input(input).fate == Fate::RolledBack {
                continue;
            }
            if !there {
                let text = format!("{} is not in {topic}", self.name(input));
                self.add(AnomalyKind::Lost, text);
            } else if self.input(input).fate.has_effects()
                && !self.has_an_effect(input)
                // That it never leaves is told already.
                && !self.waiting.contains(&input)
            {
                let text = format!("{} has no effect", self.name(input));
                self.add(AnomalyKind::Lost, text);
            }
        }
    }

    /// Each poison record has one dead letter, and no other record has.
    fn dead_letters(&mut self) {
        let history = self.history;
        let records: HashMap<Position, &Record> = self
            .source
            .iter()
            .map(|record| (record.position, *record))
            .collect();
        for letter in &self.facts.dead_letters {
            let place = Place::Record {
                topic: &letter.topic,
                position: letter.position,
            };
            let reason = &letter.reason;
            if letter.topic != history.source.topic {
                let text = format!(
                    "a dead letter ({reason}) is of {place}, a topic that {} does not read",
                    history.consumer
                );
                self.add(AnomalyKind::Phantom, text);
                continue;
            }
            // Another run's.
            if letter.position.offset < history.source.begin.of(letter.position.partition) {
                continue;
            }
            let count = self.letters.entry(letter.position).or_default();
            *count += 1;
            if *count > 1 {
                continue;
            }
            let input = records.get(&letter.position).map(|r| self.input_of(r));
            let what = match input {
                None => "where no record is".to_owned(),
                Some(None) => "which is no input".to_owned(),
                Some(Some(input)) => match self.input(input).fate {
                    Fate::DeadLetter => continue,
                    Fate::Replayed => {
                        self.replayed(input, letter.is_replayed, place);
                        continue;
                    }
                    Fate::Effect | Fate::Parked | Fate::RolledBack | Fate::Unknown => {
                        format!("which is {}", self.name(input))
                    }
                },
            };
            let text = format!("a dead letter ({reason}) is of {place}, {what}");
            self.add(AnomalyKind::Phantom, text);
        }
        let mut many: Vec<(Position, u32)> = self
            .letters
            .iter()
            .map(|(position, count)| (*position, *count))
            .filter(|(_, count)| *count > 1)
            .collect();
        many.sort_unstable();
        for (position, count) in many {
            let text = format!("{} has {count} dead letters", self.source_place(position));
            self.add(AnomalyKind::Duplicate, text);
        }
        if self.phase == Phase::Running {
            return;
        }
        for record in self.source {
            let poison = self
                .input_of(record)
                .filter(|input| self.input(*input).fate == Fate::DeadLetter);
            if let Some(input) = poison
                && !self.letters.contains_key(&record.position)
                && !self.parked.contains(&record.position)
            {
                let place = self.source_place(record.position);
                let text = format!("{} at {place} has no dead letter", self.name(input));
                self.add(AnomalyKind::Lost, text);
            }
        }
    }

    /// A letter that a replay has marked has its effects; and at the end it is marked.
    fn replayed(&mut self, input: usize, is_replayed: bool, place: Place<'_>) {
        if is_replayed && !self.has_an_effect(input) {
            let text = format!(
                "the dead letter of {place} is replayed, and {} has no effect",
                self.name(input)
            );
            self.add(AnomalyKind::Lost, text);
        }
        if self.phase == Phase::Ended && !is_replayed {
            let text = format!(
                "the dead letter of {place}, {}, was not replayed",
                self.name(input)
            );
            self.add(AnomalyKind::Stuck, text);
        }
    }

    /// Each effect has one derived event, in the order of its key; the relay may send it again.
    fn derived(&mut self) {
        let Some(run) = &self.history.derived else {
            return;
        };
        let topic = run.topic.as_str();
        let mut steps = Vec::with_capacity(self.derived.len());
        let mut inputs = Vec::with_capacity(self.derived.len());
        let mut ids: Vec<BTreeSet<Uuid>> = vec![BTreeSet::new(); self.history.input.len()];
        let mut causes: HashMap<Uuid, usize> = HashMap::new();
        for record in self.derived {
            let place = Place::Record {
                topic,
                position: record.position,
            };
            let body = record.body.as_ref();
            let cause = body.and_then(|body| self.inputs.get(&body.cause?).copied());
            let (Some(body), Some(cause)) = (body, cause) else {
                let text = format!("{place} has no input for a cause");
                self.add(AnomalyKind::Phantom, text);
                continue;
            };
            let input = self.input(cause);
            let name = || self.name(cause);
            if !input.fate.has_effects() {
                let text = format!("{place} is caused by {}", name());
                self.add(AnomalyKind::Phantom, text);
                continue;
            }
            let id = body.event_id;
            if *causes.entry(id).or_insert(cause) != cause {
                let text = format!(
                    "{place} has the id {id} of another event, and is caused by {}",
                    name()
                );
                self.add(AnomalyKind::Phantom, text);
            } else if !self.has_an_effect(cause) {
                let text = format!("{place} is caused by {}, which has no effect", name());
                self.add(AnomalyKind::Phantom, text);
            } else if !says(Some(body), input, id) || record.key.as_ref() != Some(&input.key) {
                let text = format!(
                    "{place} has another account, key or seq than its cause, {}",
                    name()
                );
                self.add(AnomalyKind::Phantom, text);
            }
            ids[cause].insert(id);
            inputs.push((cause, record.position));
            if input.fate == Fate::Replayed {
                continue;
            }
            steps.push(Step {
                partition: record.position.partition,
                input: cause,
                // An event always has one.
                seq: input.seq.unwrap_or_default(),
                place,
            });
        }
        self.ascending(&steps);
        self.one_partition(topic, &inputs);
        for (input, ids) in ids.iter().enumerate() {
            if ids.len() > 1 {
                let all: Vec<String> = ids.iter().map(ToString::to_string).collect();
                let text = format!(
                    "{} has {} derived events in {topic}: {}",
                    self.name(input),
                    ids.len(),
                    all.join(", ")
                );
                self.add(AnomalyKind::Duplicate, text);
            }
            if self.phase == Phase::Ended && ids.is_empty() && self.has_an_effect(input) {
                let text = format!("{} has no derived event in {topic}", self.name(input));
                self.add(AnomalyKind::Lost, text);
            }
        }
    }

    /// The committed offset is never beyond what is finished, and at the end it is at the end.
    fn commits(&mut self) {
        let (history, facts) = (self.history, self.facts);
        let (group, topic) = (&history.consumer, &history.source.topic);
        let committed = |partition: i32| {
            let partition = facts.source.partitions.get(&partition)?;
            partition.committed
        };
        for record in self.source {
            let Some(committed) = committed(record.position.partition) else {
                continue;
            };
            if record.position.offset >= committed {
                continue;
            }
            let Some(input) = self.input_of(record) else {
                continue;
            };
            let fate = self.input(input).fate;
            let is_done = self.letters.contains_key(&record.position)
                || self.parked.contains(&record.position)
                // A repeat of an event that waits, or is done, is done with it.
                || fate != Fate::DeadLetter && self.waiting.contains(&input)
                || fate.has_effects() && self.has_all_effects(input);
            if !is_done {
                let text = format!(
                    "{group} is committed at {committed}, beyond {} at {}, which is not finished",
                    self.name(input),
                    self.source_place(record.position)
                );
                self.add(AnomalyKind::PrematureCommit, text);
            }
        }
        for (number, partition) in &facts.source.partitions {
            let begin = history.source.begin.of(*number);
            let end = partition.end;
            let committed = partition.committed.unwrap_or(begin);
            if committed > end {
                let text = format!(
                    "{group} is committed at {committed} in {topic}/{number}, which ends at {end}"
                );
                self.add(AnomalyKind::PrematureCommit, text);
            } else if self.phase == Phase::Ended && committed < end {
                let how = match partition.committed {
                    Some(committed) => format!("is committed at {committed}"),
                    None => "has committed nothing".to_owned(),
                };
                let text = format!("{group} {how} in {topic}/{number}, which ends at {end}");
                self.add(AnomalyKind::Stuck, text);
            }
        }
    }
}

/// Whether a body is the event `id` with its cause's account and seq.
fn says(body: Option<&Body>, cause: &Input, id: Uuid) -> bool {
    body.is_some_and(|body| {
        body.event_id == id
            && body.account.as_ref() == Some(&cause.key)
            && body.seq.is_some()
            && body.seq == cause.seq
    })
}

#[cfg(test)]
mod tests;
