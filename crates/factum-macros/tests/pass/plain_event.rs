extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use factum::{Amount, Currency, Event as _, EventId, Money, Registry};

#[derive(Debug, Event)]
#[event(kind = "customer-order.paid-out.v12", aggregate = "CustomerOrder", topic = "orders.paid_out-v1")]
pub(crate) struct OrderPaidOut {
    #[event(aggregate_id)]
    order_id: uuid::Uuid,
    total: Money,
    #[event(text)]
    exact: Option<Amount>,
    r#type: String,
    items: Vec<Item>,
}

#[derive(Debug, Snapshot)]
struct Item {
    product_id: u32,
    #[snapshot(text)]
    serial: u64,
}

#[derive(Debug, Snapshot)]
struct Nothing {}

fn main() {
    let event = OrderPaidOut {
        order_id: uuid::Uuid::from_u128(7),
        total: Money::from_minor(1, Currency::EUR),
        exact: None,
        r#type: "gift".to_owned(),
        items: vec![Item { product_id: 1, serial: u64::MAX }],
    };
    assert_eq!(OrderPaidOut::EVENT_TYPE, "customer-order.paid-out.v12");
    assert_eq!(OrderPaidOut::AGGREGATE_TYPE, "CustomerOrder");
    assert_eq!(OrderPaidOut::TOPIC, "orders.paid_out-v1");
    let envelope = event.occurred_at(time::OffsetDateTime::UNIX_EPOCH).with_id(EventId::floor(0));
    let text = String::from_utf8(envelope.encode().unwrap()).unwrap();
    assert!(text.contains(r#""type":"gift","items":[{"productId":1,"serial":"18446744073709551615"}]"#));
    let decoded = Registry::new().with::<OrderPaidOut>().decode(Some(text.as_bytes()));
    assert!(matches!(decoded, factum::Decoded::Event(_)));
    let _ = Nothing {};
}
