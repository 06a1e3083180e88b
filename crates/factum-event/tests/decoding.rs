//! Decoding: what is an event, what is unknown, what is poison, and why.

use std::collections::BTreeMap;

use factum_event::{
    AggregateId, AnyEnvelope, DeadLetterReason, DecodeLimits, Decoded, Event as _, EventId,
    Failure, Outcome, Poison, PoisonReason, Registry, RegistryError, Retry, decide,
};
use factum_macros::{Event, Snapshot};
use time::macros::datetime;

#[derive(Debug, Event)]
#[event(
    kind = "customer.registered.v1",
    aggregate = "Customer",
    topic = "customers.registered",
    unlocked,
    crate = "factum_event"
)]
struct CustomerRegistered {
    #[event(aggregate_id)]
    #[event(range(min = 0, max = 9_007_199_254_740_991))]
    customer_id: u64,
    name: String,
    nick: Option<String>,
    #[event(not_personal = "made up for a test")]
    addresses: Vec<Address>,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Address {
    city: String,
    geo: Option<Geo>,
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Geo {
    #[snapshot(float = "a satellite measures it")]
    latitude: f64,
}

const HEAD: &str = r#""eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"customer.registered.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Customer","aggregateId":"7""#;
const BODY: &str = r#""customerId":7,"name":"Jane","addresses":[],"labels":{}"#;

fn registry() -> Registry {
    Registry::new().with::<CustomerRegistered>()
}

fn good() -> String {
    format!("{{{HEAD},{BODY}}}")
}

fn with(more: &str) -> String {
    format!("{{{HEAD},{BODY},{more}}}")
}

fn event(value: impl AsRef<[u8]>) -> AnyEnvelope {
    match registry().decode(Some(value.as_ref())) {
        Decoded::Event(event) => event,
        other => panic!("expected an event, got {other:?}"),
    }
}

fn poison(value: impl AsRef<[u8]>) -> Poison {
    match registry().decode(Some(value.as_ref())) {
        Decoded::Poison(poison) => poison,
        other => panic!("expected poison, got {other:?}"),
    }
}

/// Reason and path.
fn fault(value: impl AsRef<[u8]>) -> (PoisonReason, String) {
    let poison = poison(value);
    (poison.reason(), poison.path().to_owned())
}

#[test]
fn an_event_is_decoded_with_its_envelope() {
    let event = event(good());
    assert_eq!(event.event_type(), "customer.registered.v1");
    assert_eq!(event.aggregate_id(), "7");
    assert_eq!(
        event.id().to_string(),
        "01935c3e-7c1a-7000-8000-000000000001"
    );
    assert_eq!(event.occurred_at(), datetime!(2026-06-01 12:00 UTC));
    assert!(event.is::<CustomerRegistered>());
    let envelope = event.downcast::<CustomerRegistered>().unwrap();
    assert_eq!(envelope.name, "Jane");
    assert_eq!(envelope.aggregate_id(), Ok(AggregateId::from(7_u64)));
    assert_eq!(envelope.occurred_at(), datetime!(2026-06-01 12:00 UTC));
}

#[test]
fn unknown_fields_space_and_order_do_not_matter() {
    event(with(r#""later":{"a":[1,{"b":null}]},"x":1e999"#));
    event(format!(" \t\r\n{{ {BODY} , {HEAD} }}\n"));
    let absent = event(good()).downcast::<CustomerRegistered>().unwrap();
    let null = event(with(r#""nick":null"#))
        .downcast::<CustomerRegistered>()
        .unwrap();
    assert_eq!((absent.nick.as_ref(), null.nick.as_ref()), (None, None));
    let escaped = event(with(r#""\u006eick":"J\u0061\ud83d\ude00\n\/""#));
    let escaped = escaped.downcast::<CustomerRegistered>().unwrap();
    assert_eq!(escaped.nick.as_deref(), Some("Ja😀\n/"));
}

#[test]
fn case_55_null_empty_null_text_and_empty_object_are_told_apart() {
    assert!(matches!(registry().decode(None), Decoded::Tombstone));
    assert_eq!(fault(""), (PoisonReason::Empty, "$".into()));
    assert_eq!(fault("null"), (PoisonReason::NotObject, "$".into()));
    assert_eq!(fault("{}"), (PoisonReason::EventType, "$.eventType".into()));
    for value in ["1", "\"{}\"", "true", "[]"] {
        assert_eq!(fault(value).0, PoisonReason::NotObject, "{value}");
    }
    assert_eq!(fault(" ").0, PoisonReason::MalformedJson);
}

#[test]
fn case_43_what_can_not_be_read_is_never_retried() {
    let failure = Failure::from(poison("{\"eventId\":"));
    for attempt in [0, 1, 2, 100] {
        assert_eq!(
            decide(&failure, attempt, &Retry::pause_partition().attempts(8)),
            Outcome::DeadLetter {
                reason: DeadLetterReason::Poison(PoisonReason::MalformedJson)
            },
        );
    }
}

#[test]
fn listing_fault_06_an_unregistered_type_is_unknown_whatever_its_body_is() {
    for (body, event_type) in [
        (
            r#"{"eventType":"customer.registered.v2"}"#,
            "customer.registered.v2",
        ),
        (
            r#"{"eventType":"customer.registered.v2","eventId":5,"name":null}"#,
            "customer.registered.v2",
        ),
        (
            r#"{"eventType":"customer.registered.v1 "}"#,
            "customer.registered.v1 ",
        ),
        (
            r#"{"eventType":"CustomerRegistered","note":"a\u0000b"}"#,
            "CustomerRegistered",
        ),
        (r#"{"event\u0054ype":"x"}"#, "x"),
    ] {
        match registry().decode(Some(body.as_bytes())) {
            Decoded::Unknown { event_type: found } => assert_eq!(found, event_type),
            other => panic!("{body}: {other:?}"),
        }
    }
    // What is unsafe to read is poison whatever its type.
    let duplicate = r#"{"eventType":"x","a":1,"a":1}"#;
    assert_eq!(fault(duplicate), (PoisonReason::DuplicateKey, "$.a".into()));
    assert_eq!(
        fault(r#"{"eventType":"x"} x"#).0,
        PoisonReason::MalformedJson
    );
}

#[test]
fn a_type_that_can_not_be_printed_is_poison() {
    for event_type in [
        r#""""#,
        "5",
        "null",
        "[]",
        r#""a\u0000b""#,
        r#""a\nb""#,
        r#""a\u007fb""#,
    ] {
        let value = format!(r#"{{"eventType":{event_type}}}"#);
        assert_eq!(
            fault(value),
            (PoisonReason::EventType, "$.eventType".into()),
            "{event_type}"
        );
    }
    let long = |length| format!(r#"{{"eventType":"{}"}}"#, "x".repeat(length));
    assert!(matches!(
        registry().decode(Some(long(255).as_bytes())),
        Decoded::Unknown { .. }
    ));
    assert_eq!(fault(long(256)).0, PoisonReason::EventType);
}

#[test]
fn the_type_of_poison_is_read_where_it_can_be() {
    let read = |value: &str| registry().event_type_of(value.as_bytes());
    // No field of its own, not even an envelope; and a type that nobody registered.
    assert_eq!(
        read(r#"{"eventType":"customer.registered.v1"}"#).as_deref(),
        Some("customer.registered.v1")
    );
    assert_eq!(read(r#"{"eventType":"x"}"#).as_deref(), Some("x"));
    let hopeless = [
        "",
        "[]",
        "{}",
        r#"{"eventType":7}"#,
        r#"{"eventType":"a\nb"}"#,
        r#"{"eventType":"x""#,
        r#"{"eventType":"x","eventType":"y"}"#,
    ];
    for value in hopeless {
        assert_eq!(read(value), None, "{value}");
    }
}

#[test]
fn listing_fault_10_what_the_database_would_refuse_is_poison_before_it() {
    // U+0000: in a field that is read, in one that is not, in a key, in a key of a map.
    assert_eq!(
        fault(with(r#""nick":"a\u0000b""#)),
        (PoisonReason::Nul, "$.nick".into())
    );
    let unread = with(r#""later":[{"x":"\u0000"}]"#);
    assert_eq!(fault(unread), (PoisonReason::Nul, "$.later[0].x".into()));
    assert_eq!(
        fault(with(r#""a\u0000":1"#)),
        (PoisonReason::Nul, "$['…']".into())
    );
    let in_map = good().replace(r#""labels":{}"#, r#""labels":{"a\u0000":"x"}"#);
    assert_eq!(fault(in_map), (PoisonReason::Nul, "$.labels['…']".into()));
    let raw = with("\"later\":\"a\0b\"");
    assert_eq!(
        fault(raw).0,
        PoisonReason::MalformedJson,
        "a raw control character is no JSON"
    );

    // Lone surrogates.
    for text in [
        r"\ud800",
        r"\ud800x",
        r"\ud800\n",
        r"\ud800\ud800",
        r"\ud800\u0041",
        r"\udc00",
        r"\udc00\ud800",
    ] {
        let value = with(&format!(r#""later":"{text}""#));
        assert_eq!(fault(value).0, PoisonReason::MalformedJson, "{text}");
        let key = with(&format!(r#""{text}":1"#));
        assert_eq!(fault(key).0, PoisonReason::MalformedJson, "{text} as a key");
    }

    // Invalid UTF-8: a lone byte, an overlong form, an encoded surrogate, a cut character.
    for bytes in [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98"] {
        let mut value = with(r#""later":"?""#).into_bytes();
        let at = value.iter().rposition(|byte| *byte == b'?').unwrap();
        value.splice(at..=at, bytes.iter().copied());
        assert_eq!(
            fault(value),
            (PoisonReason::NotUtf8, "$".into()),
            "{bytes:x?}"
        );
    }
}

#[test]
fn listing_fault_10_a_duplicate_key_is_poison_at_any_depth_and_in_any_escape() {
    for (more, path) in [
        (r#""name":"x""#, "$.name"),
        (r#""n\u0061me":"x""#, "$.name"),
        (r#""later":{"a":1,"b":2,"a":1}"#, "$.later.a"),
        (
            r#""later":[0,[{"x":{"a":1,"\u0061":1}}]]"#,
            "$.later[1][0].x.a",
        ),
        (r#""later":{"":1,"":1}"#, "$.later['…']"),
        (r#""later":{"/":1,"\/":1}"#, "$.later['…']"),
        (r#""eventId":null"#, "$.eventId"),
        (
            r#""later":{"jane@example.com":1,"jane@example.com":2}"#,
            "$.later['…']",
        ),
    ] {
        assert_eq!(
            fault(with(more)),
            (PoisonReason::DuplicateKey, path.into()),
            "{more}"
        );
    }
    // Equal by Unicode normalisation only, or by case only, is not equal.
    event(with("\"later\":{\"é\":1,\"e\u{301}\":2,\"E\":3,\"e\":4}"));
    // Beyond the few keys that are compared pairwise.
    let many = |last: &str| {
        let keys: Vec<String> = (0..1_000).map(|key| format!(r#""k{key}":0"#)).collect();
        with(&format!(r#""later":{{{},"{last}":0}}"#, keys.join(",")))
    };
    event(many("k1000"));
    assert_eq!(
        fault(many("k500")),
        (PoisonReason::DuplicateKey, "$.later.k500".into())
    );
}

#[test]
fn case_50_unstorable_text_is_one_poison_record_and_no_more() {
    let registry = registry();
    let bad = with(r#""nick":"x\u0000y""#);
    let good = good();
    let records: Vec<&str> = (0..500)
        .map(|n| if n == 250 { &*bad } else { &*good })
        .collect();
    let (mut events, mut poisons) = (0, 0);
    for record in records {
        match registry.decode(Some(record.as_bytes())) {
            Decoded::Event(_) => events += 1,
            Decoded::Poison(_) => poisons += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((events, poisons), (499, 1));
}

#[test]
fn framing_and_encodings_are_named() {
    let framed = [&[0, 0, 0, 0, 1], good().as_bytes()].concat();
    assert_eq!(fault(framed), (PoisonReason::Framed, "$".into()));
    let marked = format!("\u{feff}{}", good());
    assert_eq!(fault(&marked).0, PoisonReason::MalformedJson);
    assert!(poison(&marked).expected().contains("byte order mark"));
}

#[test]
fn the_limits_hold_to_the_byte_and_to_the_level() {
    let limits = DecodeLimits {
        max_bytes: good().len(),
        max_depth: 2,
    };
    let registry = registry().with_limits(limits);
    let reason = |value: &str| match registry.decode(Some(value.as_bytes())) {
        Decoded::Poison(poison) => Some(poison.reason()),
        _ => None,
    };
    assert_eq!(reason(&good()), None);
    assert_eq!(
        reason(&format!("{} ", good())),
        Some(PoisonReason::TooLarge)
    );
    assert_eq!(reason(r#"{"eventType":"x","a":[]}"#), None);
    assert_eq!(
        reason(r#"{"eventType":"x","a":[[]]}"#),
        Some(PoisonReason::TooDeep)
    );
    assert_eq!(
        reason(r#"{"eventType":"x","a":[{}]}"#),
        Some(PoisonReason::TooDeep)
    );

    let default = Registry::new();
    let nested = |levels: usize| {
        format!(
            r#"{{"eventType":"x","a":{}{}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    assert!(matches!(
        default.decode(Some(nested(31).as_bytes())),
        Decoded::Unknown { .. }
    ));
    let Decoded::Poison(poison) = default.decode(Some(nested(32).as_bytes())) else {
        panic!()
    };
    assert_eq!(poison.reason(), PoisonReason::TooDeep);
    assert!(poison.path().starts_with("$.a[0][0]"), "{}", poison.path());
}

#[test]
fn a_record_of_brackets_ends_in_poison_and_not_in_a_stack_overflow() {
    for open in ["[", "{\"a\":", "[{\"a\":"] {
        let bomb = open.repeat(100_000);
        let limits = DecodeLimits {
            max_bytes: usize::MAX,
            max_depth: u32::MAX,
        };
        let Decoded::Poison(poison) = Registry::new()
            .with_limits(limits)
            .decode(Some(bomb.as_bytes()))
        else {
            panic!()
        };
        assert_eq!(poison.reason(), PoisonReason::TooDeep);
        assert!(poison.path().len() <= 512);
    }
}

#[test]
fn a_business_fault_names_its_path_and_what_was_expected() {
    let at = |more: &str| {
        let value = good().replace(r#""addresses":[]"#, &format!(r#""addresses":[{more}]"#));
        poison(value).to_string()
    };
    assert_eq!(
        at(r#"{"city":"Oslo"},{"geo":null}"#),
        "missing_field at $.addresses[1].city: expected text",
    );
    assert_eq!(
        at(r#"{"city":"Oslo","geo":{"latitude":"59"}}"#),
        "invalid_field at $.addresses[0].geo.latitude: expected a number that a double can hold",
    );
    assert_eq!(
        at("5"),
        "invalid_field at $.addresses[0]: expected an object"
    );
    assert_eq!(
        at(r#"{"city":["jane@example.com"]}"#),
        "invalid_field at $.addresses[0].city: expected text",
    );
    let no_array = good().replace(r#""addresses":[]"#, r#""addresses":{}"#);
    assert_eq!(
        poison(no_array).to_string(),
        "invalid_field at $.addresses: expected an array",
    );
    let map = good().replace(r#""labels":{}"#, r#""labels":{"jane@example.com":5}"#);
    assert_eq!(
        poison(map).to_string(),
        "invalid_field at $.labels[*]: expected text"
    );
}

#[test]
fn the_envelope_must_belong_to_the_event() {
    let replaced = |from: &str, to: &str| fault(good().replace(from, to));
    let other_id = replaced(r#""aggregateId":"7""#, r#""aggregateId":"8""#);
    assert_eq!(
        other_id,
        (PoisonReason::AggregateId, "$.aggregateId".into())
    );
    for id in [
        "7",
        "null",
        r#""""#,
        r#""\u0000""#,
        &format!("\"{}\"", "7".repeat(256)),
    ] {
        let other = replaced(r#""aggregateId":"7""#, &format!(r#""aggregateId":{id}"#));
        assert_eq!(
            other,
            (PoisonReason::AggregateId, "$.aggregateId".into()),
            "{id}"
        );
    }
    let missing = replaced(r#","aggregateId":"7""#, "");
    assert_eq!(missing, (PoisonReason::AggregateId, "$.aggregateId".into()));
    for aggregate_type in [r#""customer""#, r#""Order""#, "null"] {
        let other = replaced(r#":"Customer""#, &format!(":{aggregate_type}"));
        assert_eq!(
            other,
            (PoisonReason::AggregateType, "$.aggregateType".into())
        );
    }
    let occurred_at = replaced("2026-06-01T12:00:00Z", "yesterday");
    assert_eq!(
        occurred_at,
        (PoisonReason::OccurredAt, "$.occurredAt".into())
    );
    let event_id = replaced("01935c3e-7c1a-7", "01935c3e-7c1a-4");
    assert_eq!(event_id, (PoisonReason::EventId, "$.eventId".into()));
}

#[test]
fn a_wrong_downcast_gives_the_envelope_back() {
    #[derive(Debug, Event)]
    #[event(
        kind = "customer.left.v1",
        aggregate = "Customer",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct CustomerLeft {
        #[event(aggregate_id)]
        aggregate_id: u64,
    }
    let event = event(good());
    assert!(!event.is::<CustomerLeft>());
    assert!(event.downcast_ref::<CustomerLeft>().is_none());
    let event = event.downcast::<CustomerLeft>().unwrap_err();
    assert_eq!(
        event
            .downcast_ref::<CustomerRegistered>()
            .unwrap()
            .customer_id,
        7
    );
    let left = CustomerLeft { aggregate_id: 1 };
    assert_eq!(left.aggregate_id().unwrap().as_str(), "1");
}

#[test]
fn a_debug_text_of_an_event_of_any_type_shows_no_field() {
    let shown = format!("{:?}", registry().decode(Some(good().as_bytes())));
    assert!(!shown.contains("Jane"), "{shown}");
    assert!(shown.contains("customer.registered.v1"), "{shown}");
}

#[test]
fn a_type_has_one_rust_type() {
    #[derive(Debug, Event)]
    #[event(
        kind = "customer.registered.v1",
        aggregate = "Customer",
        topic = "t",
        unlocked,
        crate = "factum_event"
    )]
    struct Registered {
        #[event(aggregate_id)]
        aggregate_id: u64,
    }
    let registry = registry().with::<CustomerRegistered>();
    assert_eq!(
        registry.event_types().collect::<Vec<_>>(),
        ["customer.registered.v1"]
    );
    let error = registry.try_with::<Registered>().unwrap_err();
    assert_eq!(
        error,
        RegistryError::TypeTaken {
            event_type: "customer.registered.v1"
        }
    );
    let _ = Registered { aggregate_id: 1 }.aggregate_id;
}

#[test]
fn a_hand_written_event_is_checked_when_it_is_registered() {
    struct Malformed;
    impl factum_event::Event for Malformed {
        const EVENT_TYPE: &'static str = "Malformed";
        const AGGREGATE_TYPE: &'static str = "Customer";
        const TOPIC: &'static str = "t";
        fn contract() -> factum_event::Contract {
            unreachable!("nobody asks for it")
        }
        fn aggregate_id(&self) -> Result<AggregateId, factum_event::AggregateIdError> {
            Ok(AggregateId::from(1_u64))
        }
        fn write_fields(
            &self,
            out: &mut factum_event::ObjectWriter<'_>,
        ) -> Result<(), factum_event::EncodeError> {
            out.field("eventId", &1_u64)
        }
        fn read_fields(_: &factum_event::ObjectReader<'_>) -> Result<Self, Poison> {
            Ok(Malformed)
        }
    }
    let error = Registry::new().try_with::<Malformed>().unwrap_err();
    assert_eq!(
        error,
        RegistryError::MalformedType {
            event_type: "Malformed"
        }
    );
    // And it can't write a name twice, which every reader would refuse.
    let envelope = Malformed
        .occurred_at(datetime!(2026-06-01 12:00 UTC))
        .with_id(EventId::floor(0));
    assert_eq!(
        envelope.encode().unwrap_err().to_string(),
        "$.eventId is written twice: rename one of the two fields",
    );
}
