//! The event that everything here is measured with: an order of 450 bytes of JSON.

use anyhow::{Context as _, Result, ensure};
use bigdecimal::BigDecimal;
use factum::{Currency, Envelope, Event, Money, Snapshot};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// The size of every event's JSON.
pub(crate) const EVENT_BYTES: usize = 450;

/// Orders that several events are about have their order to keep.
const EVENTS_OF_AN_ORDER: usize = 10;

/// An article of an order.
#[derive(Debug, Clone, Snapshot)]
pub(crate) struct Item {
    pub(crate) sku: String,
    pub(crate) quantity: u32,
}

/// An order was confirmed: what the consumers and the relay are measured with.
#[derive(Debug, Clone, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "bench.confirmed",
    unlocked
)]
pub(crate) struct OrderConfirmed {
    #[event(aggregate_id)]
    pub(crate) order_id: Uuid,
    pub(crate) customer_id: Uuid,
    pub(crate) total: Money,
    pub(crate) items: Vec<Item>,
    pub(crate) note: String,
}

/// An order was placed: what the way from publish to effect is measured with. A type of its own, so that its
/// topic holds nothing else.
#[derive(Debug, Clone, Event)]
#[event(
    kind = "order.placed.v1",
    aggregate = "Order",
    topic = "bench.placed",
    unlocked
)]
pub(crate) struct OrderPlaced {
    #[event(aggregate_id)]
    pub(crate) order_id: Uuid,
    pub(crate) customer_id: Uuid,
    pub(crate) total: Money,
    pub(crate) items: Vec<Item>,
    pub(crate) note: String,
}

impl OrderConfirmed {
    /// The event with this number of a run: always the same for the same number, but for its note, which fills
    /// it up to [`EVENT_BYTES`].
    pub(crate) fn numbered(number: usize) -> Result<OrderConfirmed> {
        let order = OrderConfirmed {
            order_id: uuid_of(number / EVENTS_OF_AN_ORDER, 1),
            customer_id: uuid_of(number, 2),
            total: Money::from_minor(1_000 + (number % 90_000) as i64, Currency::EUR),
            items: vec![
                Item {
                    sku: format!("A-{:04}", number % 10_000),
                    quantity: 1 + (number % 9) as u32,
                },
                Item {
                    sku: format!("B-{:04}", number % 7_919),
                    quantity: 2,
                },
            ],
            note: String::new(),
        };
        let sample = Envelope::new(factum::EventId::floor(0), order, OffsetDateTime::UNIX_EPOCH);
        let bare = sample.encode()?.len();
        ensure!(
            bare <= EVENT_BYTES,
            "an event has {bare} bytes without a note"
        );
        let mut order = sample.into_event();
        order.note = "n".repeat(EVENT_BYTES - bare);
        Ok(order)
    }
}

impl OrderPlaced {
    pub(crate) fn numbered(number: usize) -> Result<OrderPlaced> {
        let OrderConfirmed {
            order_id,
            customer_id,
            total,
            items,
            note,
        } = OrderConfirmed::numbered(number)?;
        Ok(OrderPlaced {
            order_id,
            customer_id,
            total,
            items,
            note,
        })
    }
}

/// Spread like random ones, and the same in every run.
fn uuid_of(number: usize, kind: u64) -> Uuid {
    let mut random = fastrand::Rng::with_seed(number as u64 * 4 + kind);
    Uuid::from_u128(random.u128(..))
}

/// The same event as a careful person reads it without Factum: serde_json into a struct, ids as UUIDs, the
/// amount without a detour over a double.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawOrder {
    #[serde(deserialize_with = "uuid")]
    pub(crate) event_id: Uuid,
    pub(crate) event_type: String,
    #[serde(deserialize_with = "rfc_3339")]
    pub(crate) occurred_at: OffsetDateTime,
    #[serde(deserialize_with = "uuid")]
    pub(crate) order_id: Uuid,
    #[serde(deserialize_with = "uuid")]
    pub(crate) customer_id: Uuid,
    pub(crate) total: RawMoney,
    pub(crate) items: Vec<RawItem>,
    #[expect(
        dead_code,
        reason = "it is read as a field of the event, and no statement needs it"
    )]
    pub(crate) note: String,
}

/// Money of a [`RawOrder`].
#[derive(Debug, Deserialize)]
pub(crate) struct RawMoney {
    #[serde(deserialize_with = "decimal")]
    pub(crate) amount: BigDecimal,
    pub(crate) currency: String,
}

/// An article of a [`RawOrder`].
#[derive(Debug, Deserialize)]
pub(crate) struct RawItem {
    #[expect(
        dead_code,
        reason = "it is read as a field of the event, and no statement needs it"
    )]
    pub(crate) sku: String,
    #[expect(
        dead_code,
        reason = "it is read as a field of the event, and no statement needs it"
    )]
    pub(crate) quantity: u32,
}

impl RawOrder {
    /// Reads the value of a record.
    pub(crate) fn read(value: Option<&[u8]>) -> Result<RawOrder> {
        let value = value.context("a record has no value")?;
        let order: RawOrder = serde_json::from_slice(value).context("a record is no order")?;
        ensure!(
            order.event_type == OrderConfirmed::EVENT_TYPE,
            "a record is another event"
        );
        Ok(order)
    }
}

fn uuid<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
    Uuid::try_parse(<&str>::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn rfc_3339<'de, D: Deserializer<'de>>(from: D) -> Result<OffsetDateTime, D::Error> {
    OffsetDateTime::parse(<&str>::deserialize(from)?, &Rfc3339).map_err(serde::de::Error::custom)
}

fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<BigDecimal, D::Error> {
    let number = <&RawValue>::deserialize(from)?;
    number.get().parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_the_same_size_and_both_sides_read_the_same() {
        for number in [0, 1, 9_999, 123_456] {
            let at = OffsetDateTime::UNIX_EPOCH;
            let id = factum::EventId::floor(1_780_000_000_000);
            let order = Envelope::new(id, OrderConfirmed::numbered(number).unwrap(), at);
            let value = order.encode().unwrap();
            assert_eq!(value.len(), EVENT_BYTES);
            let raw = RawOrder::read(Some(&value)).unwrap();
            assert_eq!(raw.event_id, id.as_uuid());
            assert_eq!(raw.occurred_at, at);
            assert_eq!(raw.order_id, order.order_id);
            assert_eq!(raw.customer_id, order.customer_id);
            assert_eq!(&raw.total.amount, order.total.amount().as_decimal());
            assert_eq!(raw.total.currency, "EUR");
            assert_eq!(raw.items.len(), 2);
        }
    }

    #[test]
    fn events_of_one_order_share_its_key() {
        let order = |number| OrderConfirmed::numbered(number).unwrap().order_id;
        assert_eq!(order(0), order(9));
        assert_ne!(order(9), order(10));
    }
}
