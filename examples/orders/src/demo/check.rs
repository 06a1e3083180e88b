//! The checker: from facts to anomalies. Pure, so that it can be tested with histories made by hand.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::Hash;

use factum::DeadLetterReason;
use factum::uuid::Uuid;

use super::facts::{Content, Facts, Invoice, Order, Position, Topic};

/// What a run may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnomalyKind {
    /// An effect or a record that should be there is not.
    Lost,
    /// An effect is there twice.
    Duplicate,
    /// An effect is there that nothing has caused.
    Phantom,
    /// Two events of one key took effect, or stand in the topic, in the wrong order.
    Inversion,
    /// An effect says something else than its cause.
    WrongContent,
    /// A record is in the dead letters that should not be, or with the wrong reason, or isn't there.
    DeadLetter,
    /// An event is still in the outbox.
    Outbox,
    /// A committed offset is not at its partition's end.
    Offset,
    /// The broker dropped records that are needed for this check.
    Truncated,
    /// A service ended by itself, or the run made no progress.
    Service,
}

impl fmt::Display for AnomalyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AnomalyKind::Lost => "lost",
            AnomalyKind::Duplicate => "duplicate",
            AnomalyKind::Phantom => "phantom",
            AnomalyKind::Inversion => "inversion",
            AnomalyKind::WrongContent => "wrong content",
            AnomalyKind::DeadLetter => "dead letter",
            AnomalyKind::Outbox => "outbox",
            AnomalyKind::Offset => "offset",
            AnomalyKind::Truncated => "truncated",
            AnomalyKind::Service => "service",
        })
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anomaly {
    /// Of which kind.
    pub kind: AnomalyKind,
    /// What exactly.
    pub text: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// Everything that is wrong. `is_billed` tells the currencies that billing takes: an order in
/// another one must end in the dead letters.
pub fn check(facts: &Facts, is_billed: impl Fn(&str) -> bool) -> Vec<Anomaly> {
    let mut checker = Checker {
        facts,
        is_billed,
        anomalies: Vec::new(),
    };
    checker.invoices();
    checker.mails();
    checker.topics();
    checker.dead_letters();
    checker.outbox();
    checker.anomalies.sort();
    checker.anomalies
}

/// The topic's events in the order of their first record, without repeats.
pub fn first_records(topic: &Topic) -> impl Iterator<Item = (&str, Position, Uuid, i64)> {
    let mut seen = HashSet::new();
    topic
        .records
        .iter()
        .filter_map(move |record| match record.content {
            Content::Event { event_id, number } if seen.insert(event_id) => {
                Some((record.key.as_str(), record.position, event_id, number))
            }
            _ => None,
        })
}

struct Checker<'a, F> {
    facts: &'a Facts,
    is_billed: F,
    anomalies: Vec<Anomaly>,
}

impl<F: Fn(&str) -> bool> Checker<'_, F> {
    fn found(&mut self, kind: AnomalyKind, text: String) {
        self.anomalies.push(Anomaly { kind, text });
    }

    /// Every confirmed order has one invoice, with the order's content, in the order's order.
    fn invoices(&mut self) {
        let facts = self.facts;
        let orders: HashMap<i64, &Order> = facts.orders.iter().map(|o| (o.id, o)).collect();
        let invoices = grouped(&facts.invoices, |invoice| invoice.order_id);
        for order in &facts.orders {
            let there = invoices.get(&order.id).map_or(0, Vec::len);
            let name = format!("order {} of {}", order.id, order.order_ref);
            if !order.confirmed {
                self.found(
                    AnomalyKind::Lost,
                    format!("{name} was placed and is not confirmed"),
                );
            }
            match (order.confirmed && (self.is_billed)(&order.currency), there) {
                (true, 1) | (false, 0) => {}
                (true, 0) => self.found(AnomalyKind::Lost, format!("{name} has no invoice")),
                (true, n) => self.found(AnomalyKind::Duplicate, format!("{name} has {n} invoices")),
                (false, n) => self.found(
                    AnomalyKind::Phantom,
                    format!("{name} must not be billed and has {n} invoices"),
                ),
            }
        }
        for invoice in &facts.invoices {
            match orders.get(&invoice.order_id) {
                None => self.found(
                    AnomalyKind::Phantom,
                    format!(
                        "invoice {} is for order {}, which nobody placed",
                        invoice.id, invoice.order_id
                    ),
                ),
                Some(order) if !says_the_same(invoice, order) => self.found(
                    AnomalyKind::WrongContent,
                    format!(
                        "invoice {} says something else than order {}",
                        invoice.id, order.id
                    ),
                ),
                Some(_) => {}
            }
        }
        let in_order = facts
            .invoices
            .iter()
            .map(|i| (i.order_ref.as_str(), i.order_id));
        self.ascending("invoices", "order", in_order);
    }

    /// Every invoice has one mail, in the invoices' order.
    fn mails(&mut self) {
        let facts = self.facts;
        let invoices: HashSet<i64> = facts.invoices.iter().map(|i| i.id).collect();
        let mails = grouped(&facts.mails, |mail| mail.invoice_id);
        for invoice in &facts.invoices {
            match mails.get(&invoice.id).map_or(0, Vec::len) {
                1 => {}
                0 => self.found(
                    AnomalyKind::Lost,
                    format!("invoice {} has no mail", invoice.id),
                ),
                n => self.found(
                    AnomalyKind::Duplicate,
                    format!("invoice {} has {n} mails", invoice.id),
                ),
            }
        }
        for mail in &facts.mails {
            if !invoices.contains(&mail.invoice_id) {
                let text = format!(
                    "mail {} is for invoice {}, which is not there",
                    mail.id, mail.invoice_id
                );
                self.found(AnomalyKind::Phantom, text);
            }
        }
        let in_order = facts
            .mails
            .iter()
            .map(|m| (m.invoice_ref.as_str(), m.invoice_id));
        self.ascending("mails", "invoice", in_order);
    }

    /// Within each key the numbers ascend. A number that comes again is a duplicate, which is told
    /// elsewhere.
    fn ascending<'k>(&mut self, what: &str, of: &str, rows: impl Iterator<Item = (&'k str, i64)>) {
        let mut last: HashMap<&str, i64> = HashMap::new();
        for (key, number) in rows {
            let highest = last.entry(key).or_insert(number);
            if number < *highest {
                let text = format!("{what} of {key}: {of} {number} comes after {of} {highest}");
                self.found(AnomalyKind::Inversion, text);
            }
            *highest = number.max(*highest);
        }
    }

    /// Each topic holds what was published and what was injected, whole, in order; and it was read to
    /// its end.
    fn topics(&mut self) {
        for topic in &self.facts.topics {
            self.partitions(topic);
            self.injections(topic);
            self.order_in_topic(topic);
        }
        let facts = self.facts;
        let confirmed = facts
            .orders
            .iter()
            .filter(|o| o.confirmed)
            .map(|o| o.id)
            .collect();
        self.published(0, "order", &confirmed);
        let issued = facts.invoices.iter().map(|i| i.id).collect();
        self.published(1, "invoice", &issued);
        // An effect carries the id of the event that caused it.
        self.caused(
            0,
            "invoice",
            facts
                .invoices
                .iter()
                .map(|i| (i.id, i.event_id, i.order_id)),
        );
        self.caused(
            1,
            "mail",
            facts.mails.iter().map(|m| (m.id, m.event_id, m.invoice_id)),
        );
    }

    fn partitions(&mut self, topic: &Topic) {
        for (number, partition) in &topic.partitions {
            let name = format!("{}/{number}", topic.name);
            if partition.low > 0 {
                let text = format!(
                    "{name} begins at offset {}: the broker has dropped records",
                    partition.low
                );
                self.found(AnomalyKind::Truncated, text);
            }
            let here = topic
                .records
                .iter()
                .filter(|r| r.position.partition == *number)
                .count() as i64;
            if here != partition.high - partition.low {
                let expected = partition.high - partition.low;
                self.found(
                    AnomalyKind::Truncated,
                    format!("{name} holds {here} of {expected} records"),
                );
            }
            let committed = partition.committed.unwrap_or(partition.low);
            if committed != partition.high {
                let text = format!(
                    "{}: {name} is committed at {committed}, and ends at {}",
                    topic.consumer, partition.high
                );
                self.found(AnomalyKind::Offset, text);
            }
        }
    }

    fn injections(&mut self, topic: &Topic) {
        let count =
            |is: fn(&Content) -> bool| topic.records.iter().filter(|r| is(&r.content)).count();
        let injected = topic.injected;
        for (what, here, sent) in [
            (
                "poison",
                count(|c| matches!(c, Content::Poison { .. })),
                injected.poison,
            ),
            (
                "unknown types",
                count(|c| *c == Content::UnknownType),
                injected.unknown_types,
            ),
            (
                "tombstones",
                count(|c| *c == Content::Tombstone),
                injected.tombstones,
            ),
        ] {
            if here < sent {
                self.found(
                    AnomalyKind::Lost,
                    format!("{}: {here} of {sent} {what} are there", topic.name),
                );
            }
        }
        for record in topic
            .records
            .iter()
            .filter(|r| r.content == Content::Foreign)
        {
            let Position { partition, offset } = record.position;
            let text = format!(
                "{}/{partition}@{offset} was written by nobody here",
                topic.name
            );
            self.found(AnomalyKind::Phantom, text);
        }
    }

    /// A key has one partition, and there its events stand in order. A repeat may stand anywhere
    /// after the first.
    fn order_in_topic(&mut self, topic: &Topic) {
        let mut partitions: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
        for record in &topic.records {
            if matches!(record.content, Content::Event { .. }) {
                partitions
                    .entry(&record.key)
                    .or_default()
                    .insert(record.position.partition);
            }
        }
        for (key, partitions) in partitions {
            if partitions.len() > 1 {
                let text = format!("{}: {key} is in partitions {partitions:?}", topic.name);
                self.found(AnomalyKind::Inversion, text);
            }
        }
        let firsts = first_records(topic).map(|(key, _, _, number)| (key, number));
        self.ascending(&format!("records in {}", topic.name), "number", firsts);
    }

    /// Each row has an event in the topic, under one id; and each event there has its row.
    fn published(&mut self, topic: usize, what: &str, rows: &HashSet<i64>) {
        let Some(topic) = self.facts.topics.get(topic) else {
            return;
        };
        let mut ids: HashMap<i64, HashSet<Uuid>> = HashMap::new();
        for (_, _, event_id, number) in first_records(topic) {
            ids.entry(number).or_default().insert(event_id);
        }
        for number in rows {
            match ids.get(number).map_or(0, HashSet::len) {
                1 => {}
                0 => self.found(
                    AnomalyKind::Lost,
                    format!("{what} {number} has no event in {}", topic.name),
                ),
                n => self.found(
                    AnomalyKind::Duplicate,
                    format!(
                        "{what} {number} has {n} events with different ids in {}",
                        topic.name
                    ),
                ),
            }
        }
        for number in ids.keys().filter(|number| !rows.contains(number)) {
            let text = format!(
                "{} has an event of {what} {number}, which is not there",
                topic.name
            );
            self.found(AnomalyKind::Phantom, text);
        }
    }

    fn caused(
        &mut self,
        topic: usize,
        what: &str,
        effects: impl Iterator<Item = (i64, Uuid, i64)>,
    ) {
        let Some(topic) = self.facts.topics.get(topic) else {
            return;
        };
        let events: HashMap<Uuid, i64> = first_records(topic)
            .map(|(_, _, event_id, number)| (event_id, number))
            .collect();
        for (id, event_id, number) in effects {
            if events.get(&event_id) != Some(&number) {
                let text = format!(
                    "{what} {id} names event {event_id}, which is no such event in {}",
                    topic.name
                );
                self.found(AnomalyKind::Phantom, text);
            }
        }
    }

    /// Poison, and orders that break billing's rule, are set aside: each record once, with its reason,
    /// and nothing else is.
    fn dead_letters(&mut self) {
        let facts = self.facts;
        let unbilled: HashSet<i64> = facts
            .orders
            .iter()
            .filter(|o| !(self.is_billed)(&o.currency))
            .map(|o| o.id)
            .collect();
        let mut expected: BTreeMap<(&str, &str, Position), &str> = BTreeMap::new();
        for (index, topic) in facts.topics.iter().enumerate() {
            for record in &topic.records {
                let reason = match &record.content {
                    Content::Poison { reason } => reason.as_str(),
                    Content::Event { number, .. } if index == 0 && unbilled.contains(number) => {
                        DeadLetterReason::Permanent.as_str()
                    }
                    _ => continue,
                };
                expected.insert((&topic.consumer, &topic.name, record.position), reason);
            }
        }
        let mut there: BTreeMap<(&str, &str, Position), Vec<&str>> = BTreeMap::new();
        for letter in &facts.dead_letters {
            let place = (
                letter.consumer.as_str(),
                letter.topic.as_str(),
                letter.position,
            );
            there.entry(place).or_default().push(&letter.reason);
        }
        for (place, reason) in &expected {
            let name = place_name(*place);
            match there.get(place).map(Vec::as_slice) {
                None => self.found(
                    AnomalyKind::DeadLetter,
                    format!("{name} ({reason}) is not set aside"),
                ),
                Some([one]) if one == reason => {}
                Some([one]) => self.found(
                    AnomalyKind::DeadLetter,
                    format!("{name} is set aside as {one}, expected {reason}"),
                ),
                Some(many) => self.found(
                    AnomalyKind::DeadLetter,
                    format!("{name} is set aside {} times", many.len()),
                ),
            }
        }
        for (place, reasons) in there
            .iter()
            .filter(|(place, _)| !expected.contains_key(place))
        {
            let text = format!(
                "{} is set aside as {}, and is sound",
                place_name(*place),
                reasons[0]
            );
            self.found(AnomalyKind::DeadLetter, text);
        }
    }

    fn outbox(&mut self) {
        for row in &self.facts.unpublished {
            let state = if row.set_aside {
                "was set aside by the relay"
            } else {
                "was never sent"
            };
            self.found(
                AnomalyKind::Outbox,
                format!("{} {} {state}", row.event_type, row.event_id),
            );
        }
    }
}

fn says_the_same(invoice: &Invoice, order: &Order) -> bool {
    invoice.order_ref == order.order_ref
        && invoice.total_amount == order.total_amount
        && invoice.currency == order.currency
}

fn grouped<T, K: Hash + Eq>(rows: &[T], key: impl Fn(&T) -> K) -> HashMap<K, Vec<&T>> {
    let mut groups: HashMap<K, Vec<&T>> = HashMap::new();
    for row in rows {
        groups.entry(key(row)).or_default().push(row);
    }
    groups
}

fn place_name((consumer, topic, Position { partition, offset }): (&str, &str, Position)) -> String {
    format!("{consumer}: {topic}/{partition}@{offset}")
}

#[cfg(test)]
mod tests;
