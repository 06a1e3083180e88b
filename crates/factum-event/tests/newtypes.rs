//! Structs of one nameless field: on the wire they are that field's value.

use factum_event::{Contract, Decoded, Event, EventId, FieldShape, Personal, Registry, Shape};
use factum_macros::{Event, Snapshot};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(aggregate_id, crate = "factum_event")]
struct OrderId(Uuid);

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Serial(#[snapshot(text)] u64);

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Email(Personal<String>);

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "t",
    restricted,
    unlocked,
    crate = "factum_event"
)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: OrderId,
    serials: Vec<Serial>,
    email: Option<Email>,
}

#[test]
fn a_newtype_is_its_value_on_the_wire_and_in_the_contract() {
    let confirmed = OrderConfirmed {
        order_id: OrderId(Uuid::from_u128(7)),
        serials: vec![Serial(u64::MAX), Serial(0)],
        email: Some(Email(Personal::new("a@b.example".to_owned()))),
    };
    let bytes = confirmed
        .clone()
        .occurred_at(OffsetDateTime::UNIX_EPOCH)
        .with_id(EventId::floor(0))
        .encode()
        .unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    for part in [
        r#""aggregateId":"00000000-0000-0000-0000-000000000007""#,
        r#""orderId":"00000000-0000-0000-0000-000000000007""#,
        r#""serials":["18446744073709551615","0"]"#,
        r#""email":"a@b.example""#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let registry = Registry::new().with::<OrderConfirmed>();
    let Decoded::Event(read) = registry.decode(Some(&bytes)) else {
        panic!("{text} is no event");
    };
    assert_eq!(
        *read.downcast::<OrderConfirmed>().unwrap().event(),
        confirmed
    );

    let Contract {
        fields,
        definitions,
        ..
    } = OrderConfirmed::contract();
    let serial = Shape::Integer {
        min: 0,
        max: u64::MAX.into(),
        not_zero: false,
        text: true,
    };
    let list = Shape::Array {
        items: Box::new(serial),
        min_items: None,
        max_items: None,
    };
    assert_eq!(fields[0], FieldShape::new("orderId", Shape::Uuid));
    assert_eq!(fields[1], FieldShape::new("serials", list));
    assert!(fields[2].optional && definitions.is_empty());
}
