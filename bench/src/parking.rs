//! The load for what parked keys cost the others: events of which every twentieth key fails, or doesn't.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use uuid::Uuid;

use crate::broker::Record;
use crate::order::RawOrder;

/// Of so many keys one fails: 5 %.
const KEYS_PER_FAILING: u128 = 20;

/// Whether the events of an order fail, where they are to.
pub(crate) fn is_failing(order_id: Uuid) -> bool {
    // The ids are random ones.
    order_id.as_u128().is_multiple_of(KEYS_PER_FAILING)
}

/// What is in the topic.
pub(crate) struct Load {
    /// The events of keys that never fail.
    pub(crate) healthy: HashSet<Uuid>,
    /// All events.
    pub(crate) all: HashSet<Uuid>,
    /// The records: first one of each failing key, so that all of these are parked before anything is measured.
    pub(crate) records: Vec<Record>,
    /// How many keys fail.
    pub(crate) failing_keys: usize,
    /// How many of the records are of keys that never fail.
    pub(crate) healthy_records: usize,
}

impl Load {
    /// From records in the order of their keys.
    pub(crate) fn of(all: HashSet<Uuid>, records: Vec<Record>) -> Result<Load> {
        let mut failing = HashSet::new();
        let mut healthy = HashSet::new();
        let mut healthy_records = 0;
        let (mut first, mut rest) = (Vec::new(), Vec::with_capacity(records.len()));
        for record in records {
            let key: Uuid = record.key.parse().context("a key is no order's id")?;
            if !is_failing(key) {
                healthy.insert(RawOrder::read(Some(&record.value))?.event_id);
                healthy_records += 1;
            } else if failing.insert(key) {
                first.push(record);
                continue;
            }
            rest.push(record);
        }
        first.append(&mut rest);
        Ok(Load {
            healthy,
            all,
            records: first,
            failing_keys: failing.len(),
            healthy_records,
        })
    }

    /// Of the records behind those that come first, the part whose keys never fail.
    pub(crate) fn healthy_part(&self) -> f64 {
        self.healthy_records as f64 / (self.records.len() - self.failing_keys) as f64
    }
}

#[cfg(test)]
mod tests {
    use factum::{Envelope, new_event_id};
    use time::OffsetDateTime;

    use super::*;
    use crate::order::OrderConfirmed;

    #[test]
    fn one_record_of_each_failing_key_comes_first() {
        let mut all = HashSet::new();
        let records = (0..4_000)
            .map(|number| {
                let order = OrderConfirmed::numbered(number).unwrap();
                let (id, key) = (new_event_id(), order.order_id.to_string());
                all.insert(id.as_uuid());
                let order = Envelope::new(id, order, OffsetDateTime::UNIX_EPOCH);
                Record {
                    key,
                    value: order.encode().unwrap(),
                    headers: Vec::new(),
                }
            })
            .collect();
        let load = Load::of(all, records).unwrap();
        assert_eq!((load.all.len(), load.records.len()), (4_000, 4_000));
        // Of 400 keys.
        assert!(
            (8..40).contains(&load.failing_keys),
            "{}",
            load.failing_keys
        );
        let (first, rest) = load.records.split_at(load.failing_keys);
        let key = |record: &Record| record.key.parse::<Uuid>().unwrap();
        let keys: HashSet<Uuid> = first.iter().map(key).collect();
        assert_eq!(keys.len(), load.failing_keys);
        assert!(keys.iter().all(|key| is_failing(*key)));
        let healthy = rest.iter().filter(|r| !is_failing(key(r))).count();
        assert_eq!(healthy, load.healthy_records);
        assert_eq!(healthy, load.healthy.len());
        assert_eq!(healthy, 4_000 - 10 * load.failing_keys);
        assert!(load.healthy_part() > 0.9 && load.healthy_part() < 1.0);
        let numbers = |records: &[Record]| -> Vec<Uuid> {
            let ids = records.iter().map(|r| RawOrder::read(Some(&r.value)));
            ids.map(|order| order.unwrap().event_id).collect()
        };
        // Ids ascend with time, so those of a key stand in its order.
        assert!(numbers(rest).is_sorted() && numbers(first).is_sorted());
    }
}
