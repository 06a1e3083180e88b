//! Encoding: the form on the wire, and what is refused because a reader would see something else.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use factum_event::{
    AggregateId, Amount, Currency, Decoded, EncodeError, Envelope, Event, EventId, JsonValue,
    Money, Poison, PoisonReason, Registry, Shape, Shapes, Snapshot, ValueWriter, Written,
};
use factum_macros::{Event, Snapshot};
use time::OffsetDateTime;
use time::macros::{date, datetime};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    crate = "factum_event"
)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_ref: String,
    #[event(range(min = -9_007_199_254_740_991, max = 9_007_199_254_740_991))]
    customer_id: i64,
    #[event(float = "a scale measures it")]
    weight: f64,
    total: Money,
    note: Option<String>,
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Line {
    r#type: String,
    price: Amount,
    #[snapshot(text)]
    exact_price: Option<Amount>,
    #[snapshot(text)]
    serial: u64,
}

fn order() -> OrderConfirmed {
    OrderConfirmed {
        order_ref: "A-1".into(),
        customer_id: 2,
        weight: 1.5,
        total: Money::from_minor(1050, Currency::EUR),
        note: None,
        lines: vec![],
    }
}

fn line() -> Line {
    Line {
        r#type: "book".into(),
        price: amount("10.5"),
        exact_price: None,
        serial: 1,
    }
}

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn envelope<E: Event>(event: E) -> Envelope<E> {
    event
        .occurred_at(datetime!(2026-06-01 12:00 +3))
        .with_id(EventId::floor(1_780_000_000_000))
}

fn encoded<E: Event>(event: E) -> String {
    String::from_utf8(envelope(event).encode().unwrap()).unwrap()
}

fn refused<E: Event>(event: E) -> EncodeError {
    envelope(event).encode().unwrap_err()
}

fn decoded<E: Event>(value: &[u8]) -> Result<Envelope<E>, Poison> {
    match Registry::new().with::<E>().decode(Some(value)) {
        Decoded::Event(event) => Ok(event.downcast().unwrap()),
        Decoded::Poison(poison) => Err(poison),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_form_is_flat_camel_case_with_the_envelope_first() {
    let mut order = order();
    order.lines = vec![Line {
        exact_price: Some(amount("0.1")),
        ..line()
    }];
    assert_eq!(
        encoded(order),
        concat!(
            r#"{"eventId":"019e7044-8800-7000-8000-000000000000","eventType":"order.confirmed.v1","#,
            r#""occurredAt":"2026-06-01T09:00:00Z","aggregateType":"Order","aggregateId":"A-1","#,
            r#""orderRef":"A-1","customerId":2,"weight":1.5,"#,
            r#""total":{"amount":10.5,"currency":"EUR"},"#,
            r#""lines":[{"type":"book","price":10.5,"exactPrice":"0.1","serial":"1"}]}"#,
        ),
    );
}

#[test]
fn case_53_an_absent_value_is_left_out_and_null_is_read_as_absent() {
    let text = encoded(order());
    assert!(!text.contains("note") && !text.contains("null"), "{text}");
    let null = text.replace(r#""lines""#, r#""note":null,"lines""#);
    assert_eq!(
        decoded::<OrderConfirmed>(null.as_bytes()).unwrap().note,
        None
    );
}

#[test]
fn a_field_called_aggregate_id_is_the_envelopes_own() {
    #[derive(Debug, PartialEq, Event)]
    #[event(
        kind = "order.paid.v1",
        aggregate = "Order",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct OrderPaid {
        #[event(aggregate_id)]
        aggregate_id: NonZeroU64,
    }
    let paid = || OrderPaid {
        aggregate_id: NonZeroU64::new(7).unwrap(),
    };
    let text = encoded(paid());
    assert!(text.ends_with(r#""aggregateId":"7"}"#), "{text}");
    assert_eq!(text.matches("aggregateId").count(), 1);
    assert_eq!(
        decoded::<OrderPaid>(text.as_bytes()).unwrap().event(),
        &paid()
    );
    for id in ["0", "07", "x", "-1"] {
        let other = text.replace(r#":"7""#, &format!(r#":"{id}""#));
        let poison = decoded::<OrderPaid>(other.as_bytes()).unwrap_err();
        assert_eq!(
            (poison.reason(), poison.path()),
            (PoisonReason::AggregateId, "$.aggregateId")
        );
    }
}

#[test]
fn strings_are_escaped_as_json_wants_it() {
    let all: String = ('\u{1}'..='\u{ff}')
        .chain(['\u{2028}', '😀', '\u{ffff}'])
        .collect();
    let order = OrderConfirmed {
        note: Some(all.clone()),
        ..order()
    };
    let text = encoded(order);
    assert!(
        text.bytes().all(|byte| byte >= 0x20),
        "a raw control character"
    );
    assert_eq!(
        decoded::<OrderConfirmed>(text.as_bytes())
            .unwrap()
            .note
            .as_ref(),
        Some(&all)
    );
    let other_reader: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(other_reader["note"], serde_json::Value::String(all));
}

#[test]
fn listing_fault_10_nul_is_not_written() {
    let in_list = vec![
        line(),
        Line {
            r#type: "\0".into(),
            ..line()
        },
    ];
    for (order, path) in [
        (
            OrderConfirmed {
                note: Some("a\0".into()),
                ..order()
            },
            "$.note",
        ),
        (
            OrderConfirmed {
                lines: in_list,
                ..order()
            },
            "$.lines[1].type",
        ),
    ] {
        assert_eq!(refused(order), EncodeError::Nul { path: path.into() });
    }
    #[derive(Debug, Event)]
    #[event(
        kind = "order.noted.v1",
        aggregate = "Order",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct OrderNoted {
        #[event(aggregate_id)]
        order_id: u32,
        notes: BTreeMap<String, Option<bool>>,
    }
    let noted = |key: &str| OrderNoted {
        order_id: 1,
        notes: BTreeMap::from([(key.to_owned(), None), ("b".to_owned(), Some(true))]),
    };
    assert_eq!(
        refused(noted("\0")),
        EncodeError::Nul {
            path: "$.notes[*]".into()
        }
    );
    let text = encoded(noted("a"));
    assert!(
        text.ends_with(r#""orderId":1,"notes":{"a":null,"b":true}}"#),
        "{text}"
    );
    assert_eq!(
        decoded::<OrderNoted>(text.as_bytes()).unwrap().notes,
        noted("a").notes
    );
}

#[test]
fn numbers_that_json_has_not_are_not_written() {
    for weight in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let order = OrderConfirmed { weight, ..order() };
        assert_eq!(
            refused(order),
            EncodeError::NonFinite {
                path: "$.weight".into()
            }
        );
    }
    for (weight, text) in [
        (1e300, "1e300"),
        (5e-324, "5e-324"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
    ] {
        let text_of_event = encoded(OrderConfirmed { weight, ..order() });
        assert!(
            text_of_event.contains(&format!(r#""weight":{text},"#)),
            "{text_of_event}"
        );
        let back = decoded::<OrderConfirmed>(text_of_event.as_bytes())
            .unwrap()
            .weight;
        assert_eq!(back.to_bits(), weight.to_bits());
    }
}

#[derive(Debug, Event)]
#[event(
    kind = "order.counted.v1",
    aggregate = "Order",
    topic = "t",
    unlocked,
    crate = "factum_event"
)]
struct OrderCounted {
    #[event(aggregate_id)]
    id: u32,
    number: Raw,
}

/// A value whose form is written by hand.
#[derive(Debug)]
struct Raw(i64);

impl Snapshot for Raw {
    const EXPECTED: &'static str = "an integer";

    fn shape(_: &mut Shapes) -> Shape {
        unreachable!("nobody asks for it")
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.integer(i128::from(self.0))
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        i64::read(from).map(Raw)
    }
}

#[test]
fn case_49_integers_that_javascript_changes_are_written_as_text_or_not_at_all() {
    const SAFE: i64 = 9_007_199_254_740_991;
    for customer_id in [SAFE, -SAFE, 0] {
        let text = encoded(OrderConfirmed {
            customer_id,
            ..order()
        });
        assert_eq!(
            decoded::<OrderConfirmed>(text.as_bytes())
                .unwrap()
                .customer_id,
            customer_id
        );
    }
    for customer_id in [SAFE + 1, -SAFE - 1, i64::MAX, i64::MIN] {
        let error = refused(OrderConfirmed {
            customer_id,
            ..order()
        });
        assert!(
            matches!(&error, EncodeError::Invalid { path, rule: "range", .. } if path == "$.customerId"),
            "{error}"
        );
        // The writer itself keeps the limit, for what is written by hand.
        assert_eq!(
            refused(OrderCounted {
                id: 1,
                number: Raw(customer_id)
            }),
            EncodeError::UnsafeInteger {
                path: "$.number".into()
            },
        );
    }
    for serial in [u64::MAX, SAFE as u64 + 2, 0] {
        let text = encoded(OrderConfirmed {
            lines: vec![Line { serial, ..line() }],
            ..order()
        });
        assert!(text.contains(&format!(r#""serial":"{serial}""#)), "{text}");
        assert_eq!(
            decoded::<OrderConfirmed>(text.as_bytes()).unwrap().lines[0].serial,
            serial
        );
        // A number is read too: another writer may send it so.
        let number = text.replace(&format!(r#""{serial}""#), &serial.to_string());
        assert_eq!(
            decoded::<OrderConfirmed>(number.as_bytes()).unwrap().lines[0].serial,
            serial
        );
    }
}

#[test]
fn listing_fault_09_amounts_stay_exact() {
    let with_price = |price: Amount| OrderConfirmed {
        lines: vec![Line { price, ..line() }],
        ..order()
    };

    // Written as a number, since a double holds it: every reader sees the same digits.
    for price in [
        "0.1",
        "10.5",
        "-3",
        "0",
        "999999999999999",
        "0.30000000000000004",
        "1e17",
        "1e-38",
    ] {
        let text = encoded(with_price(amount(price)));
        assert_eq!(
            decoded::<OrderConfirmed>(text.as_bytes()).unwrap().lines[0].price,
            amount(price),
        );
        // JavaScript takes the nearest double and prints its shortest text.
        let (_, rest) = text.split_once(r#""price":"#).unwrap();
        let seen: f64 = rest.split_once(',').unwrap().0.parse().unwrap();
        assert_eq!(amount(&format!("{seen:e}")), amount(price), "{price}");
    }

    // Not written as a number, since JavaScript would read 90071992547409.94.
    for price in [
        "90071992547409.93",
        "1234567890123456.78",
        "9007199254740993",
        "0.12345678901234567",
    ] {
        assert_eq!(
            refused(with_price(amount(price))),
            EncodeError::InexactNumber {
                path: "$.lines[0].price".into()
            },
            "{price}",
        );
        // As text every digit stays.
        let exact_price = Some(amount(price));
        let order = OrderConfirmed {
            lines: vec![Line {
                exact_price,
                ..line()
            }],
            ..order()
        };
        let text = encoded(order);
        assert!(
            text.contains(&format!(r#""exactPrice":"{price}""#)),
            "{text}"
        );
        let back = decoded::<OrderConfirmed>(text.as_bytes()).unwrap();
        assert_eq!(back.lines[0].exact_price, Some(amount(price)));
    }
    let total = Money::new(amount("90071992547409.93"), Currency::EUR);
    assert_eq!(
        refused(OrderConfirmed { total, ..order() }),
        EncodeError::InexactNumber {
            path: "$.total.amount".into()
        },
    );

    // Read from another writer, as number and as text: the digits that were sent.
    let text = encoded(with_price(amount("10.5")));
    for digits in [
        "90071992547409.93",
        "0.1000000000000000055511151231257827",
        "9007199254740993",
        "10.50",
        "1E5",
    ] {
        for form in [digits.to_owned(), format!("\"{digits}\"")] {
            let value = text.replace(r#""price":10.5"#, &format!(r#""price":{form}"#));
            let read = decoded::<OrderConfirmed>(value.as_bytes()).unwrap().lines[0]
                .price
                .clone();
            assert_eq!(read, amount(digits), "{form}");
        }
    }
    let read = decoded::<OrderConfirmed>(
        text.replace(r#""price":10.5"#, r#""price":90071992547409.93"#)
            .as_bytes(),
    );
    assert_eq!(
        read.unwrap().lines[0].price.to_string(),
        "90071992547409.93"
    );

    // Never infinity, never rounded: beyond the limits it is a fault.
    for digits in [
        "1e400",
        "-1e400",
        "1e18",
        "-1e18",
        "1e-39",
        "5e-324",
        "1e999999999999999999999",
    ] {
        let value = text.replace(r#""price":10.5"#, &format!(r#""price":{digits}"#));
        let poison = decoded::<OrderConfirmed>(value.as_bytes()).unwrap_err();
        assert_eq!(
            (poison.reason(), poison.path()),
            (PoisonReason::InvalidField, "$.lines[0].price"),
            "{digits}",
        );
    }
}

#[test]
fn listing_fault_09_integers_are_not_rounded() {
    let text = encoded(order());
    let read = |digits: &str| {
        let value = text.replace(r#""customerId":2"#, &format!(r#""customerId":{digits}"#));
        decoded::<OrderConfirmed>(value.as_bytes()).map(|order| order.customer_id)
    };
    for (digits, value) in [
        ("1e0", 1),
        ("1e15", 1_000_000_000_000_000),
        ("-2.50e1", -25),
        ("9007199254740991", 9_007_199_254_740_991),
        ("-9007199254740991.000", -9_007_199_254_740_991),
        ("-0", 0),
    ] {
        assert_eq!(read(digits), Ok(value), "{digits}");
    }
    for digits in [
        "9007199254740992",
        "9007199254740993",
        "-9007199254740992",
        "1e16",
        "1e400",
        "1.5",
        "1e-1",
        "\"1\"",
        "null",
        "true",
        "[1]",
    ] {
        let poison = read(digits).unwrap_err();
        assert_eq!(poison.reason(), PoisonReason::InvalidField, "{digits}");
        assert_eq!(poison.path(), "$.customerId");
    }
}

#[test]
fn an_aggregate_id_that_can_not_be_a_key_is_not_written() {
    for order_ref in ["", "a\0", &"a".repeat(256)] {
        let order = OrderConfirmed {
            order_ref: order_ref.into(),
            ..order()
        };
        assert!(
            matches!(refused(order), EncodeError::AggregateId(_)),
            "{order_ref:?}"
        );
    }
    let longest = OrderConfirmed {
        order_ref: "a".repeat(255),
        ..order()
    };
    assert_eq!(
        envelope(longest).aggregate_id(),
        AggregateId::new("a".repeat(255))
    );
}

#[test]
fn times_are_kept_as_postgresql_keeps_them() {
    let at = datetime!(2026-06-01 12:00:00.123456789 +3);
    let occurred = order().occurred_at(at);
    assert_eq!(
        occurred.occurred_at(),
        datetime!(2026-06-01 09:00:00.123456 UTC)
    );
    assert_eq!(occurred.occurred_at().offset(), time::UtcOffset::UTC);
    let envelope = occurred.with_id(EventId::floor(0));
    let back = decoded::<OrderConfirmed>(&envelope.encode().unwrap()).unwrap();
    assert_eq!(back, envelope);

    let year_0 = datetime!(0000-12-31 23:59 UTC);
    let below_year_1_in_utc = datetime!(0001-01-01 00:00 +1);
    for at in [year_0, below_year_1_in_utc] {
        let error = order()
            .occurred_at(at)
            .with_id(EventId::floor(0))
            .encode()
            .unwrap_err();
        assert_eq!(
            error,
            EncodeError::TimeOutOfRange {
                path: "$.occurredAt".into()
            }
        );
    }
}

#[test]
fn every_plain_type_is_written_and_read_back() {
    #[derive(Debug, Clone, PartialEq, Event)]
    #[event(
        kind = "thing.seen.v1",
        aggregate = "Thing",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct ThingSeen {
        #[event(aggregate_id)]
        thing_id: Uuid,
        caused_by: EventId,
        small: i8,
        seen: bool,
        at: OffsetDateTime,
        on: time::Date,
        boxed: Option<Box<bool>>,
        sparse: Vec<Option<u8>>,
    }
    let thing = ThingSeen {
        thing_id: Uuid::from_u128(7),
        caused_by: EventId::floor(1),
        small: -128,
        seen: true,
        at: datetime!(2026-06-01 12:00:00.5 UTC),
        on: date!(0001 - 01 - 01),
        boxed: None,
        sparse: vec![None, Some(1)],
    };
    let text = encoded(thing.clone());
    assert!(
        text.ends_with(concat!(
            r#""causedBy":"00000000-0001-7000-8000-000000000000","small":-128,"seen":true,"#,
            r#""at":"2026-06-01T12:00:00.500Z","on":"0001-01-01","sparse":[null,1]}"#
        )),
        "{text}"
    );
    assert_eq!(
        decoded::<ThingSeen>(text.as_bytes()).unwrap().event(),
        &thing
    );
    for (good, bad) in [
        ("-128", "-129"),
        (r#""seen":true"#, r#""seen":1"#),
        ("0001-01-01", "0000-01-01"),
        ("[null,1]", "[null,256]"),
        (
            r#""thingId":"00000000-0000-0000-0000-000000000007""#,
            r#""thingId":"00000000000000000000000000000007""#,
        ),
    ] {
        assert!(text.contains(good), "{good}");
        let poison = decoded::<ThingSeen>(text.replace(good, bad).as_bytes()).unwrap_err();
        assert_eq!(poison.reason(), PoisonReason::InvalidField, "{bad}");
    }
}

#[test]
fn what_readers_refuse_for_size_or_depth_is_not_written() {
    let note = Some("x".repeat(1024 * 1024));
    let error = refused(OrderConfirmed { note, ..order() });
    let EncodeError::TooLarge { bytes, limit } = error else {
        panic!("{error}")
    };
    assert!(bytes > limit && limit == 1024 * 1024);

    #[derive(Debug, Clone, PartialEq, Snapshot)]
    #[snapshot(crate = "factum_event")]
    struct Nested {
        inner: Option<Box<Nested>>,
    }
    #[derive(Debug, Clone, PartialEq, Event)]
    #[event(
        kind = "thing.nested.v1",
        aggregate = "Thing",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct ThingNested {
        #[event(aggregate_id)]
        thing_id: u32,
        inner: Nested,
    }
    let nested = |levels: usize| {
        let mut inner = Nested { inner: None };
        for _ in 1..levels {
            inner = Nested {
                inner: Some(Box::new(inner)),
            };
        }
        ThingNested { thing_id: 1, inner }
    };
    let deepest = nested(31);
    let text = encoded(deepest.clone());
    assert_eq!(
        decoded::<ThingNested>(text.as_bytes()).unwrap().event(),
        &deepest
    );
    let error = refused(nested(32));
    assert!(
        matches!(error, EncodeError::TooDeep { limit: 32, .. }),
        "{error}"
    );
}

#[test]
fn the_limits_of_amounts_are_those_that_are_documented() {
    let largest = amount("999999999999999999");
    assert!(largest.checked_add(&amount("1")).is_err());
    assert!(
        amount("-999999999999999999")
            .checked_sub(&amount("1"))
            .is_err()
    );
    assert_eq!(largest.checked_sub(&largest).unwrap(), Amount::zero());
    assert!(amount("1e-38").checked_mul(i64::MAX).is_ok());
    assert!(amount("1e17").checked_mul(10).is_err());
    assert!("1e-39".parse::<Amount>().is_err());
    assert!(
        "123456789012345678.901234567890123456789"
            .parse::<Amount>()
            .is_err(),
        "39 digits"
    );
    assert!(
        "123456789012345678.90123456789012345678"
            .parse::<Amount>()
            .is_ok(),
        "38 digits"
    );
    assert_eq!(
        amount("0.1").checked_add(&amount("0.2")).unwrap(),
        amount("0.3")
    );
    assert_eq!(amount("10.50").to_string(), "10.5");
    assert_eq!(amount("1e17").to_string(), "100000000000000000");
    assert_eq!(Amount::from_minor(-5, 2).unwrap().to_string(), "-0.05");
    assert!(!amount("-0").is_positive() && amount("-0").is_zero());
    for decimal in ["1e400", "1e-400", "1e1000000000"] {
        let decimal: bigdecimal::BigDecimal = decimal.parse().unwrap();
        assert!(Amount::from_decimal(&decimal).is_err());
    }
    let many_zeros: bigdecimal::BigDecimal = "10.500000000000000000".parse().unwrap();
    assert_eq!(Amount::from_decimal(&many_zeros).unwrap(), amount("10.5"));
}

#[test]
fn money_keeps_to_its_currency() {
    let yen = Money::from_minor(1050, Currency::JPY);
    assert_eq!(yen.to_string(), "1050 JPY");
    assert_eq!(
        Money::from_minor(-5, Currency::EUR).to_string(),
        "-0.05 EUR"
    );
    assert!(Money::from_minor(0, Currency::EUR).is_zero());
    let sum = yen
        .checked_add(&Money::from_minor(1, Currency::JPY))
        .unwrap();
    assert_eq!(sum, Money::from_minor(1051, Currency::JPY));
    let error = yen
        .checked_add(&Money::from_minor(1, Currency::EUR))
        .unwrap_err();
    assert_eq!(error, factum_event::MoneyError::CurrenciesDiffer);
    // No count of minor units is out of the limits.
    for units in [i64::MAX, i64::MIN] {
        for currency in Currency::all() {
            assert!(!Money::from_minor(units, currency).is_zero());
        }
    }
}
