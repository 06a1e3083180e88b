//! What is true after a run: rows of tables and records of topics, as plain data.
//!
//! Nothing here comes from a service's own words, and record values are read with a plain JSON
//! parser, not with Factum's decoder.

use std::collections::BTreeMap;

use factum::bigdecimal::BigDecimal;
use factum::uuid::Uuid;

/// Everything that the checker looks at.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The table `orders`.
    pub orders: Vec<Order>,
    /// The table `invoice`, by id.
    pub invoices: Vec<Invoice>,
    /// The table `mail`, by id.
    pub mails: Vec<Mail>,
    /// The table `dead_letter`.
    pub dead_letters: Vec<DeadLetter>,
    /// Rows of the outbox that were never acknowledged by the broker.
    pub unpublished: Vec<Unpublished>,
    /// How many rows the outbox has: the events that services have published.
    pub outbox_rows: usize,
    /// The topics, each with the consumer that reads it.
    pub topics: Vec<Topic>,
}

/// A row of `orders`.
#[derive(Debug, Clone)]
pub struct Order {
    /// `id`
    pub id: i64,
    /// `order_ref`: the aggregate.
    pub order_ref: String,
    /// `total_amount`
    pub total_amount: BigDecimal,
    /// `currency`
    pub currency: String,
    /// Whether `confirmed_at` is set.
    pub confirmed: bool,
}

/// A row of `invoice`.
#[derive(Debug, Clone)]
pub struct Invoice {
    /// `id`: ascending in the order of writing.
    pub id: i64,
    /// `event_id`
    pub event_id: Uuid,
    /// `order_ref`
    pub order_ref: String,
    /// `order_id`
    pub order_id: i64,
    /// `total_amount`
    pub total_amount: BigDecimal,
    /// `currency`
    pub currency: String,
}

/// A row of `mail`.
#[derive(Debug, Clone)]
pub struct Mail {
    /// `id`: ascending in the order of writing.
    pub id: i64,
    /// `event_id`
    pub event_id: Uuid,
    /// `invoice_ref`: the aggregate.
    pub invoice_ref: String,
    /// `invoice_id`
    pub invoice_id: i64,
}

/// A row of `dead_letter`.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// `consumer`
    pub consumer: String,
    /// `topic`
    pub topic: String,
    /// `partition` and `record_offset`
    pub position: Position,
    /// `reason`
    pub reason: String,
}

/// A row of the outbox without `published_at`.
#[derive(Debug, Clone)]
pub struct Unpublished {
    /// `event_id`
    pub event_id: Uuid,
    /// `event_type`
    pub event_type: String,
    /// Whether the relay has set it aside.
    pub set_aside: bool,
}

/// Where a record stands in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

/// A topic and its one consumer.
#[derive(Debug, Clone, Default)]
pub struct Topic {
    /// The name.
    pub name: String,
    /// The consumer's name, which is its group too.
    pub consumer: String,
    /// Its partitions, by number.
    pub partitions: BTreeMap<i32, Partition>,
    /// Its records, by position.
    pub records: Vec<Record>,
    /// What the demo has put into it, as acknowledged by the broker.
    pub injected: Injected,
}

/// A partition's ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Partition {
    /// The oldest offset that is still there.
    pub low: i64,
    /// The offset after the last record.
    pub high: i64,
    /// What the consumer's group has committed.
    pub committed: Option<i64>,
}

/// A record.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where it stands.
    pub position: Position,
    /// Its key as text.
    pub key: String,
    /// What it holds.
    pub content: Content,
}

/// What a record holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An event of the topic's own type.
    Event {
        /// `eventId`
        event_id: Uuid,
        /// `orderId` of an order, `invoiceId` of an invoice.
        number: i64,
    },
    /// Poison that the demo has put there, with the reason that the consumer must give.
    Poison {
        /// The reason's name.
        reason: String,
    },
    /// An event of a type that nobody here knows, from the demo.
    UnknownType,
    /// A record without a value, from the demo.
    Tombstone,
    /// None of these: nobody should have written it.
    Foreign,
}

/// How many records the demo has put into a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Injected {
    /// Second copies of records that were there.
    pub duplicates: usize,
    /// Records that can't be read.
    pub poison: usize,
    /// Events of an unknown type.
    pub unknown_types: usize,
    /// Records without a value.
    pub tombstones: usize,
}
