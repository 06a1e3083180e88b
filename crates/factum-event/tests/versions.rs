//! Versions of one fact: written as each, read from each, by whoever knows some of them.

use factum_event::{
    AnyEnvelope, ConversionError, Decoded, EncodeError, Envelope, Event, EventId, Poison,
    PoisonReason, Registry, RegistryError, TakenType, VersionError, VersionVisitor,
};
use factum_macros::Event;
use time::macros::datetime;

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    crate = "factum_event"
)]
struct ConfirmedV1 {
    #[event(aggregate_id, range(max = 9_007_199_254_740_991))]
    order_id: u64,
    cents: u32,
}

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v2",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    supersedes = ConfirmedV1,
    crate = "factum_event"
)]
struct ConfirmedV2 {
    #[event(aggregate_id, range(max = 9_007_199_254_740_991))]
    order_id: u64,
    #[event(range(max = 9_007_199_254_740_991))]
    amount: u64,
    currency: String,
}

/// Skips a number: versions need not be neighbours.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v10",
    aggregate = "Order",
    topic = "orders.confirmed-10",
    unlocked,
    supersedes = self::ConfirmedV2,
    crate = "factum_event"
)]
struct ConfirmedV10 {
    #[event(aggregate_id, range(max = 9_007_199_254_740_991))]
    order_id: u64,
    #[event(range(max = 9_007_199_254_740_991))]
    amount: u64,
    currency: String,
    note: Option<String>,
}

impl TryFrom<ConfirmedV1> for ConfirmedV2 {
    type Error = ConversionError;
    fn try_from(v1: ConfirmedV1) -> Result<Self, ConversionError> {
        match v1.cents {
            0 => Err(ConversionError::new("cents", "more than 0")),
            13 => panic!("a conversion's panic, as the test wants it"),
            cents => Ok(ConfirmedV2 {
                // 14 stands for a conversion that mixes two orders up.
                order_id: v1.order_id + u64::from(cents == 14),
                amount: cents.into(),
                currency: "EUR".to_owned(),
            }),
        }
    }
}

impl TryFrom<&ConfirmedV2> for ConfirmedV1 {
    type Error = ConversionError;
    fn try_from(v2: &ConfirmedV2) -> Result<Self, ConversionError> {
        if v2.currency != "EUR" {
            return Err(ConversionError::new("currency", "EUR"));
        }
        let cents = v2.amount.try_into();
        Ok(ConfirmedV1 {
            order_id: v2.order_id + u64::from(v2.amount == 14),
            cents: cents.map_err(|_| ConversionError::new("amount", "at most 4294967295"))?,
        })
    }
}

impl From<ConfirmedV2> for ConfirmedV10 {
    fn from(v2: ConfirmedV2) -> Self {
        ConfirmedV10 {
            order_id: v2.order_id,
            amount: v2.amount,
            currency: v2.currency,
            note: None,
        }
    }
}

impl From<&ConfirmedV10> for ConfirmedV2 {
    fn from(v10: &ConfirmedV10) -> Self {
        ConfirmedV2 {
            order_id: v10.order_id,
            amount: v10.amount,
            currency: v10.currency.clone(),
        }
    }
}

/// Another successor of v1, which knows nothing of v2.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v3",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    supersedes = ConfirmedV1,
    crate = "factum_event"
)]
struct OrderConfirmedV3 {
    #[event(aggregate_id, range(max = 9_007_199_254_740_991))]
    order_id: u64,
}

impl From<ConfirmedV1> for OrderConfirmedV3 {
    fn from(v1: ConfirmedV1) -> Self {
        OrderConfirmedV3 {
            order_id: v1.order_id,
        }
    }
}

impl From<&OrderConfirmedV3> for ConfirmedV1 {
    fn from(fork: &OrderConfirmedV3) -> Self {
        ConfirmedV1 {
            order_id: fork.order_id,
            cents: 1,
        }
    }
}

/// What is published: type, topic, body.
#[derive(Default)]
struct Published(Vec<(&'static str, &'static str, String)>);

#[derive(Debug, PartialEq)]
enum Refused {
    Version(VersionError),
    Encode(EncodeError),
}

impl From<VersionError> for Refused {
    fn from(error: VersionError) -> Self {
        Refused::Version(error)
    }
}

impl VersionVisitor for Published {
    type Error = Refused;
    fn version<E: Event>(&mut self, envelope: &Envelope<E>) -> Result<(), Refused> {
        let body = envelope.encode().map_err(Refused::Encode)?;
        let body = String::from_utf8(body).expect("JSON is text");
        self.0.push((E::EVENT_TYPE, E::TOPIC, body));
        Ok(())
    }
}

fn envelope<E: Event>(event: E) -> Envelope<E> {
    event
        .occurred_at(datetime!(2026-06-01 12:00 UTC))
        .with_id(EventId::floor(1_780_000_000_000))
}

fn v10() -> ConfirmedV10 {
    ConfirmedV10 {
        order_id: 7,
        amount: 1050,
        currency: "EUR".to_owned(),
        note: Some("gift".to_owned()),
    }
}

fn decode(registry: &Registry, value: &[u8]) -> AnyEnvelope {
    match registry.decode(Some(value)) {
        Decoded::Event(event) => event,
        other => panic!("{other:?}"),
    }
}

fn poison(registry: &Registry, value: &[u8]) -> Poison {
    match registry.decode(Some(value)) {
        Decoded::Poison(poison) => poison,
        other => panic!("{other:?}"),
    }
}

#[test]
fn listing_fault_07_one_fact_is_written_in_all_its_versions_with_one_id() {
    let mut published = Published::default();
    envelope(v10()).visit_versions(&mut published).unwrap();
    let head = r#"{"eventId":"019e7044-8800-7000-8000-000000000000","eventType":""#;
    let rest = r#"","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Order","aggregateId":"7","orderId":7,"#;
    let expected = [
        (
            "order.confirmed.v10",
            "orders.confirmed-10",
            r#""amount":1050,"currency":"EUR","note":"gift"}"#,
        ),
        (
            "order.confirmed.v2",
            "orders.confirmed",
            r#""amount":1050,"currency":"EUR"}"#,
        ),
        ("order.confirmed.v1", "orders.confirmed", r#""cents":1050}"#),
    ]
    .map(|(kind, topic, fields)| (kind, topic, format!("{head}{kind}{rest}{fields}")));
    assert_eq!(published.0, expected);
}

#[test]
fn the_contract_names_what_it_supersedes() {
    assert_eq!(ConfirmedV1::contract().supersedes, None);
    assert_eq!(
        ConfirmedV10::contract().supersedes.as_deref(),
        Some("order.confirmed.v2")
    );
}

#[test]
fn a_version_that_cant_be_made_is_an_error_that_names_field_and_types() {
    let refused = |event: ConfirmedV10| {
        let mut published = Published::default();
        match envelope(event).visit_versions(&mut published) {
            Err(Refused::Version(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let foreign = ConfirmedV10 {
        currency: "XTS".to_owned(),
        ..v10()
    };
    let text = refused(foreign);
    assert_eq!(
        text,
        "order.confirmed.v2 can't be written as order.confirmed.v1, which it supersedes: `currency` has no \
         counterpart: expected EUR; mend the event or the conversion"
    );
    assert!(!text.contains("XTS"), "no value: {text}");
    let mixed = refused(ConfirmedV10 {
        amount: 14,
        ..v10()
    });
    assert!(
        mixed.contains("name different aggregates") && mixed.contains("PROD-2"),
        "{mixed}"
    );
}

#[test]
fn the_newest_version_takes_all_older_ones_and_keeps_id_and_time() {
    let registry = Registry::new().with::<ConfirmedV10>();
    assert_eq!(
        registry
            .taken_types()
            .iter()
            .map(|t| (t.event_type, t.taken_as, t.topic))
            .collect::<Vec<_>>(),
        [
            (
                "order.confirmed.v1",
                "order.confirmed.v10",
                "orders.confirmed"
            ),
            (
                "order.confirmed.v10",
                "order.confirmed.v10",
                "orders.confirmed-10"
            ),
            (
                "order.confirmed.v2",
                "order.confirmed.v10",
                "orders.confirmed"
            ),
        ]
    );
    let v1 = ConfirmedV1 {
        order_id: 7,
        cents: 1050,
    };
    let event = decode(&registry, &envelope(v1).encode().unwrap());
    assert_eq!(
        (event.event_type(), event.sent_as()),
        ("order.confirmed.v10", "order.confirmed.v1")
    );
    assert_eq!(event.aggregate_id(), "7");
    let expected = envelope(ConfirmedV10 {
        note: None,
        ..v10()
    });
    assert_eq!(event.downcast::<ConfirmedV10>().unwrap(), expected);

    let event = decode(
        &registry,
        &envelope(ConfirmedV2::from(&v10())).encode().unwrap(),
    );
    assert_eq!(event.sent_as(), "order.confirmed.v2");
    assert_eq!(event.downcast::<ConfirmedV10>().unwrap(), expected);

    let event = decode(&registry, &envelope(v10()).encode().unwrap());
    assert_eq!(event.sent_as(), event.event_type());
}

#[test]
fn listing_fault_06_who_knows_v1_alone_skips_v2() {
    let registry = Registry::new().with::<ConfirmedV1>();
    let v2 = envelope(ConfirmedV2::from(&v10())).encode().unwrap();
    let decoded = registry.decode(Some(&v2));
    assert!(
        matches!(&decoded, Decoded::Unknown { event_type } if event_type == "order.confirmed.v2"),
        "{decoded:?}"
    );
}

#[test]
fn a_registered_version_is_read_as_itself_in_whatever_order_it_was_registered() {
    let v1 = envelope(ConfirmedV1 {
        order_id: 7,
        cents: 1,
    });
    let bytes = v1.encode().unwrap();
    for registry in [
        Registry::new().with::<ConfirmedV1>().with::<ConfirmedV2>(),
        Registry::new().with::<ConfirmedV2>().with::<ConfirmedV1>(),
    ] {
        let event = decode(&registry, &bytes);
        assert_eq!(event.downcast::<ConfirmedV1>().unwrap(), v1);
        assert_eq!(registry.conflicts(), []);
    }
}

#[test]
fn an_old_version_goes_to_the_nearest_registered_one_of_its_chain() {
    let bytes = envelope(ConfirmedV1 {
        order_id: 7,
        cents: 1,
    })
    .encode()
    .unwrap();
    for registry in [
        Registry::new().with::<ConfirmedV2>().with::<ConfirmedV10>(),
        Registry::new()
            .with::<ConfirmedV10>()
            .with::<ConfirmedV2>()
            .with::<ConfirmedV10>(),
    ] {
        assert!(decode(&registry, &bytes).is::<ConfirmedV2>());
        assert_eq!(registry.conflicts(), []);
    }
}

#[test]
fn two_that_supersede_the_same_version_are_a_conflict_unless_it_is_registered_itself() {
    let conflict = |first, second| {
        [RegistryError::Ambiguous {
            event_type: "order.confirmed.v1",
            first,
            second,
        }]
    };
    let (v2, v3, v10) = (
        "order.confirmed.v2",
        "order.confirmed.v3",
        "order.confirmed.v10",
    );
    let registry = Registry::new()
        .with::<ConfirmedV2>()
        .with::<OrderConfirmedV3>();
    assert_eq!(registry.conflicts(), conflict(v2, v3));
    let registry = Registry::new()
        .with::<OrderConfirmedV3>()
        .with::<ConfirmedV10>()
        .with::<ConfirmedV2>();
    assert_eq!(registry.conflicts(), conflict(v3, v10));
    assert_eq!(
        registry.conflicts()[0].to_string(),
        "both \"order.confirmed.v3\" and \"order.confirmed.v10\" supersede \"order.confirmed.v1\": let one of them \
         supersede the other, or register a type for \"order.confirmed.v1\" itself (EVT-3)"
    );
    let registry = Registry::new()
        .with::<ConfirmedV2>()
        .with::<OrderConfirmedV3>()
        .with::<ConfirmedV1>();
    assert_eq!(registry.conflicts(), []);
}

#[test]
fn an_upcast_that_refuses_is_poison_with_the_fields_name_and_no_value() {
    let registry = Registry::new().with::<ConfirmedV10>();
    let of = |cents| {
        let v1 = ConfirmedV1 { order_id: 7, cents };
        poison(&registry, &envelope(v1).encode().unwrap())
    };
    let refused = of(0);
    assert_eq!(refused.reason(), PoisonReason::Upcast);
    assert_eq!(
        refused.to_string(),
        "upcast at $.cents: expected more than 0: this order.confirmed.v1 can't be made into order.confirmed.v2; mend \
         the conversion, then replay"
    );
    let mixed = of(14);
    assert_eq!(
        (mixed.reason(), mixed.path()),
        (PoisonReason::Upcast, "$.aggregateId")
    );
    assert!(mixed.expected().contains("keeps the aggregate id"));
}

#[test]
fn a_conversion_that_panics_is_poison_and_no_panic() {
    let v1 = ConfirmedV1 {
        order_id: 7,
        cents: 13,
    };
    let bytes = envelope(v1).encode().unwrap();
    let poison = poison(&Registry::new().with::<ConfirmedV2>(), &bytes);
    assert_eq!(
        (poison.reason(), poison.path()),
        (PoisonReason::Upcast, "$")
    );
}

#[test]
fn what_is_wrong_in_the_old_version_is_said_of_the_old_version() {
    let registry = Registry::new().with::<ConfirmedV2>();
    let v1 = envelope(ConfirmedV1 {
        order_id: 7,
        cents: 1,
    });
    let text = String::from_utf8(v1.encode().unwrap()).unwrap();
    let poisoned = poison(
        &registry,
        text.replace("\"cents\":1", "\"cents\":-1").as_bytes(),
    );
    assert_eq!(
        (poisoned.reason(), poisoned.path()),
        (PoisonReason::InvalidField, "$.cents")
    );
    let other_key = text.replace("\"aggregateId\":\"7\"", "\"aggregateId\":\"8\"");
    let poisoned = poison(&registry, other_key.as_bytes());
    assert_eq!(poisoned.reason(), PoisonReason::AggregateId);
}

#[test]
fn taken_types_of_one_that_supersedes_nothing_are_its_own() {
    let taken: Vec<TakenType> = Registry::new().with::<ConfirmedV1>().taken_types();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].event_type, taken[0].taken_as);
}
