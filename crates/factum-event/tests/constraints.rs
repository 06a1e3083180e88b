//! Constraints of fields: what they refuse when an event is read and when it is published, what is said
//! about it, and what they make of the contract.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU16;

use factum_event::{
    Amount, AmountBound, CodeList, Contract, Decoded, EncodeError, Event as _, EventId, Invalid,
    Poison, PoisonReason, PositiveAmount, Registry, Shape,
};
use factum_macros::{Event, Snapshot};
use time::OffsetDateTime;

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "parcel.sent.v1",
    aggregate = "Parcel",
    topic = "parcels.sent",
    unlocked,
    validate = whole_parcel,
    crate = "factum_event"
)]
struct ParcelSent {
    #[event(aggregate_id, range(min = 1, max = 1_000_000))]
    aggregate_id: u64,
    #[event(length(min = 2, max = 5))]
    label: Option<String>,
    #[event(pattern = "[A-Z]{3}-[0-9]+")]
    track: String,
    #[event(items(min = 1, max = 3), length(max = 4), pattern = "[a-zé😀]*")]
    tags: Vec<String>,
    #[event(code = "country")]
    to: String,
    #[event(code = "language")]
    languages: Vec<String>,
    #[event(code = "currency")]
    currency: String,
    #[event(range(min = 0.5, max = 70.0), float = "weighed on a scale")]
    weight: f64,
    #[event(range(min = -5, max = 40), float = "read from a sensor")]
    celsius: Option<f64>,
    #[event(range(min = "0.01", max = "999.99"))]
    price: Amount,
    #[event(range(greater_than = 0, less_than = "1000"))]
    fee: Option<Amount>,
    #[event(range(max = 50))]
    tip: Option<PositiveAmount>,
    #[event(text, range(min = 7))]
    serial: Option<u64>,
    #[event(range(max = 12))]
    months: Vec<Option<NonZeroU16>>,
    content: Vec<Content>,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(validate = Content::is_whole, crate = "factum_event")]
struct Content {
    #[snapshot(length(min = 1))]
    name: String,
    #[snapshot(range(min = 1))]
    count: u32,
    #[snapshot(range(max = 9))]
    broken: u32,
    #[snapshot(items(max = 2))]
    inside: Vec<Content>,
}

impl Content {
    fn is_whole(&self) -> Result<(), Invalid> {
        if self.broken <= self.count {
            Ok(())
        } else {
            Err(Invalid::new("broken", "no more than `count`"))
        }
    }
}

fn whole_parcel(parcel: &ParcelSent) -> Result<(), Invalid> {
    // `items(min = 1)` holds here, when reading as when publishing.
    if parcel.tags[0] == "bad" {
        Err(Invalid::new("tags[0]", "another first tag"))
    } else {
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
enum State {
    Packed,
    HandedOver,
    #[snapshot(name = "LOST!")]
    Lost,
}

fn parcel() -> ParcelSent {
    ParcelSent {
        aggregate_id: 1,
        label: Some("ab".into()),
        track: "ABC-1".into(),
        tags: vec!["a".into()],
        to: "DE".into(),
        languages: vec!["de".into(), "en".into()],
        currency: "EUR".into(),
        weight: 0.5,
        celsius: Some(-5.0),
        price: amount("0.01"),
        fee: Some(amount("0.001")),
        tip: Some("50".parse().unwrap()),
        serial: Some(u64::MAX),
        months: vec![None, NonZeroU16::new(12)],
        content: vec![content()],
        state: State::HandedOver,
    }
}

fn content() -> Content {
    Content {
        name: "book".into(),
        count: 1,
        broken: 1,
        inside: vec![],
    }
}

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn encode(parcel: ParcelSent) -> Result<Vec<u8>, EncodeError> {
    parcel
        .occurred_at(OffsetDateTime::UNIX_EPOCH)
        .with_id(EventId::floor(0))
        .encode()
}

fn decode(bytes: &[u8]) -> Result<ParcelSent, Poison> {
    match Registry::new().with::<ParcelSent>().decode(Some(bytes)) {
        Decoded::Event(event) => Ok(event.downcast::<ParcelSent>().unwrap().into_event()),
        Decoded::Poison(poison) => Err(poison),
        other => panic!("{other:?}"),
    }
}

/// The good parcel as JSON, with one value of its replaced.
fn with(field: &str, value: serde_json::Value) -> Vec<u8> {
    let mut json: serde_json::Value = serde_json::from_slice(&encode(parcel()).unwrap()).unwrap();
    let (place, name) = match field.rsplit_once('/') {
        Some((parent, name)) => (json.pointer_mut(&format!("/{parent}")).unwrap(), name),
        None => (&mut json, field),
    };
    match name.parse::<usize>() {
        Ok(index) => place[index] = value,
        Err(_) => place[name] = value,
    }
    serde_json::to_vec(&json).unwrap()
}

/// Makes a good parcel a bad one.
type Change = fn(&mut ParcelSent);

/// What is wrong, each as JSON and as a value: place, JSON, change, path, rule, expectation.
fn violations() -> Vec<(
    &'static str,
    serde_json::Value,
    Change,
    &'static str,
    &'static str,
    &'static str,
)> {
    use serde_json::json;
    vec![
        (
            "aggregateId",
            json!("1000001"),
            |p| p.aggregate_id = 1_000_001,
            "$.aggregateId",
            "range",
            "a value from 1 to 1000000",
        ),
        (
            "label",
            json!("a"),
            |p| p.label = Some("a".into()),
            "$.label",
            "length",
            "2 to 5 characters",
        ),
        // Six characters and 24 bytes; five of them are let through below.
        (
            "label",
            json!("😀😀😀😀😀😀"),
            |p| p.label = Some("😀".repeat(6)),
            "$.label",
            "length",
            "2 to 5 characters",
        ),
        (
            "track",
            json!("xABC-1"),
            |p| p.track = "xABC-1".into(),
            "$.track",
            "pattern",
            "text that matches `[A-Z]{3}-[0-9]+` as a whole",
        ),
        (
            "track",
            json!("ABC-1\n"),
            |p| p.track = "ABC-1\n".into(),
            "$.track",
            "pattern",
            "text that matches `[A-Z]{3}-[0-9]+` as a whole",
        ),
        (
            "track",
            json!("ABC-٣"),
            |p| p.track = "ABC-٣".into(),
            "$.track",
            "pattern",
            "text that matches `[A-Z]{3}-[0-9]+` as a whole",
        ),
        (
            "tags",
            json!([]),
            |p| p.tags.clear(),
            "$.tags",
            "items",
            "1 to 3 items",
        ),
        (
            "tags",
            json!(["a", "a", "a", "a"]),
            |p| p.tags = vec!["a".into(); 4],
            "$.tags",
            "items",
            "1 to 3 items",
        ),
        (
            "tags",
            json!(["a", "abcde"]),
            |p| p.tags.push("abcde".into()),
            "$.tags[1]",
            "length",
            "at most 4 characters",
        ),
        (
            "tags",
            json!(["a", "B"]),
            |p| p.tags.push("B".into()),
            "$.tags[1]",
            "pattern",
            "text that matches `[a-zé😀]*` as a whole",
        ),
        (
            "to",
            json!("de"),
            |p| p.to = "de".into(),
            "$.to",
            "code",
            "a country code (ISO 3166-1 alpha-2), such as \"DE\"",
        ),
        (
            "languages/1",
            json!("EN"),
            |p| p.languages[1] = "EN".into(),
            "$.languages[1]",
            "code",
            "a language code (ISO 639-1), such as \"de\"",
        ),
        (
            "currency",
            json!("eur"),
            |p| p.currency = "eur".into(),
            "$.currency",
            "code",
            "a currency code (ISO 4217), such as \"EUR\"",
        ),
        (
            "weight",
            json!(0.49),
            |p| p.weight = 0.49,
            "$.weight",
            "range",
            "a value from 0.5 to 70.0",
        ),
        (
            "celsius",
            json!(40.5),
            |p| p.celsius = Some(40.5),
            "$.celsius",
            "range",
            "a value from -5 to 40",
        ),
        (
            "price",
            json!("0.0099999999999999999999"),
            |p| p.price = amount("0.0099999999999999999999"),
            "$.price",
            "range",
            "a value from 0.01 to 999.99",
        ),
        (
            "price",
            json!(1000),
            |p| p.price = amount("1000"),
            "$.price",
            "range",
            "a value from 0.01 to 999.99",
        ),
        (
            "fee",
            json!(0),
            |p| p.fee = Some(amount("0")),
            "$.fee",
            "range",
            "a value of more than 0 and less than 1000",
        ),
        (
            "fee",
            json!("1000"),
            |p| p.fee = Some(amount("1000")),
            "$.fee",
            "range",
            "a value of more than 0 and less than 1000",
        ),
        (
            "tip",
            json!(50.01),
            |p| p.tip = Some("50.01".parse().unwrap()),
            "$.tip",
            "range",
            "a value of at most 50",
        ),
        (
            "serial",
            json!("6"),
            |p| p.serial = Some(6),
            "$.serial",
            "range",
            "a value of at least 7",
        ),
        (
            "months/0",
            json!(13),
            |p| p.months[0] = NonZeroU16::new(13),
            "$.months[0]",
            "range",
            "a value of at most 12",
        ),
        (
            "content/0/name",
            json!(""),
            |p| p.content[0].name.clear(),
            "$.content[0].name",
            "length",
            "at least 1 character",
        ),
        (
            "content/0/broken",
            json!(2),
            |p| p.content[0].broken = 2,
            "$.content[0].broken",
            "validate",
            "no more than `count`",
        ),
        (
            "tags/0",
            json!("bad"),
            |p| p.tags[0] = "bad".into(),
            "$.tags[0]",
            "validate",
            "another first tag",
        ),
    ]
}

#[test]
fn what_keeps_its_constraints_is_published_and_read() {
    assert_eq!(decode(&encode(parcel()).unwrap()).unwrap(), parcel());
    // At the other bounds, and without what is optional.
    let other = ParcelSent {
        aggregate_id: 1_000_000,
        label: Some("😀😀😀😀😀".into()),
        tags: vec!["bé".into(), "😀😀😀😀".into(), String::new()],
        languages: vec![],
        weight: 70.0,
        celsius: None,
        price: amount("999.99"),
        fee: Some(amount("999.9999")),
        tip: None,
        serial: None,
        months: vec![],
        content: vec![],
        ..parcel()
    };
    assert_eq!(decode(&encode(other.clone()).unwrap()).unwrap(), other);
    let bare = ParcelSent {
        label: None,
        fee: None,
        ..other
    };
    assert_eq!(decode(&encode(bare.clone()).unwrap()).unwrap(), bare);
}

#[test]
fn a_reader_refuses_what_breaks_a_constraint_and_names_path_and_rule() {
    for (field, json, _, path, rule, expected) in violations() {
        let poison = decode(&with(field, json)).expect_err(path);
        assert_eq!(poison.reason(), PoisonReason::InvalidField, "{path}");
        assert_eq!(poison.path(), path);
        assert_eq!(poison.rule(), Some(rule), "{path}");
        assert_eq!(poison.expected(), expected, "{path}");
        assert_eq!(
            poison.to_string(),
            format!("invalid_field ({rule}) at {path}: expected {expected}")
        );
    }
}

#[test]
fn a_publisher_refuses_the_same_with_the_same_words() {
    for (_, _, change, path, rule, expected) in violations() {
        let mut bad = parcel();
        change(&mut bad);
        let error = encode(bad).expect_err(path);
        assert_eq!(
            error,
            EncodeError::Invalid {
                path: path.to_owned(),
                rule,
                expected: expected.into()
            }
        );
        assert_eq!(
            error.to_string(),
            format!(
                "{path} breaks the rule `{rule}`: expected {expected}; mend the value before \
                 publishing"
            )
        );
    }
}

#[test]
fn a_fault_of_the_type_names_no_rule() {
    let poison = decode(&with("label", serde_json::json!(7))).unwrap_err();
    assert_eq!(poison.rule(), None);
    assert_eq!(
        poison.to_string(),
        "invalid_field at $.label: expected text"
    );
}

#[test]
fn a_validate_function_that_panics_makes_the_event_poison() {
    #[derive(Debug, Event)]
    #[event(
        kind = "parcel.lost.v1",
        aggregate = "Parcel",
        topic = "parcels.lost",
        unlocked
    )]
    #[event(validate = of_three, crate = "factum_event")]
    struct ParcelLost {
        #[event(aggregate_id)]
        parcel_id: u32,
        places: Vec<String>,
    }

    fn of_three(parcel: &ParcelLost) -> Result<(), Invalid> {
        let _ = &parcel.places[2];
        Ok(())
    }

    let bytes = br#"{"eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"parcel.lost.v1",
        "occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Parcel","aggregateId":"7",
        "parcelId":7,"places":["canary-4711"]}"#;
    match Registry::new().with::<ParcelLost>().decode(Some(bytes)) {
        Decoded::Poison(poison) => {
            assert_eq!((poison.path(), poison.rule()), ("$", Some("validate")));
            assert!(!format!("{poison} {poison:?}").contains("canary"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn case_58_a_secret_in_a_constrained_field_shows_in_no_error() {
    const SECRET: &str = "canary4711";
    let mut bad: Vec<(&str, serde_json::Value, Change)> = vec![
        ("label", SECRET.into(), |p| p.label = Some(SECRET.into())),
        ("track", SECRET.into(), |p| p.track = SECRET.into()),
        ("tags", vec![SECRET].into(), |p| {
            p.tags = vec![SECRET.into()];
        }),
        ("tags", vec![SECRET; 4].into(), |p| {
            p.tags = vec![SECRET.into(); 4];
        }),
        ("to", SECRET.into(), |p| p.to = SECRET.into()),
        ("languages", vec![SECRET].into(), |p| {
            p.languages = vec![SECRET.into()];
        }),
        ("currency", SECRET.into(), |p| p.currency = SECRET.into()),
        ("weight", 4711.0.into(), |p| p.weight = 4711.0),
        ("celsius", 4711.into(), |p| p.celsius = Some(4711.0)),
        ("price", "4711".into(), |p| p.price = amount("4711")),
        ("fee", 4711.into(), |p| p.fee = Some(amount("4711"))),
        ("tip", 4711.into(), |p| {
            p.tip = Some("4711".parse().unwrap());
        }),
        ("months/0", 4711.into(), |p| {
            p.months[0] = NonZeroU16::new(4711);
        }),
        ("content/0/broken", 4711.into(), |p| {
            p.content[0].broken = 4711;
        }),
    ];
    bad.push(("aggregateId", "4711000".into(), |p| {
        p.aggregate_id = 4_711_000;
    }));
    // No value of the type can hold it.
    let poison = decode(&with("state", SECRET.into())).unwrap_err();
    let mut texts = format!("{poison} {poison:?}\n");
    for (field, json, change) in bad {
        let poison = decode(&with(field, json)).expect_err(field);
        assert!(poison.rule().is_some(), "{field}");
        writeln!(texts, "{poison} {poison:?}").unwrap();
        let mut parcel = parcel();
        change(&mut parcel);
        let error = encode(parcel).expect_err(field);
        writeln!(texts, "{error} {error:?}").unwrap();
    }
    assert!(
        !texts.contains("canary") && !texts.contains("4711"),
        "{texts}"
    );
}

fn shape_of<'a>(contract: &'a Contract, field: &str) -> &'a Shape {
    let found = contract.fields.iter().find(|shape| shape.name == field);
    &found.unwrap_or_else(|| panic!("{field}")).shape
}

#[test]
fn a_constraint_narrows_the_contract() {
    let contract = ParcelSent::contract();
    let shape = |field| shape_of(&contract, field).clone();
    let text = |min_chars, max_chars, pattern: Option<&str>| Shape::Text {
        min_chars,
        max_chars,
        pattern: pattern.map(str::to_owned),
    };
    let integer = |min, max, not_zero, text| Shape::Integer {
        min,
        max,
        not_zero,
        text,
    };
    let bound = |value: &str, exclusive| {
        Some(AmountBound {
            value: value.to_owned(),
            exclusive,
        })
    };
    let amounts = |min, max| Shape::Amount {
        min,
        max,
        text: false,
    };
    let array = |items, min_items, max_items| Shape::Array {
        items: Box::new(items),
        min_items,
        max_items,
    };
    assert_eq!(shape("aggregateId"), integer(1, 1_000_000, false, true));
    assert_eq!(shape("label"), text(Some(2), Some(5), None));
    assert_eq!(shape("track"), text(None, None, Some("[A-Z]{3}-[0-9]+")));
    assert_eq!(
        shape("tags"),
        array(text(None, Some(4), Some("[a-zé😀]*")), Some(1), Some(3))
    );
    assert_eq!(shape("to"), Shape::Code(CodeList::Country));
    assert_eq!(
        shape("languages"),
        array(Shape::Code(CodeList::Language), None, None)
    );
    assert_eq!(shape("currency"), Shape::Code(CodeList::Currency));
    assert_eq!(
        shape("weight"),
        Shape::Double {
            min: Some(0.5),
            max: Some(70.0)
        }
    );
    assert_eq!(
        shape("celsius"),
        Shape::Double {
            min: Some(-5.0),
            max: Some(40.0)
        }
    );
    assert_eq!(
        shape("price"),
        amounts(bound("0.01", false), bound("999.99", false))
    );
    assert_eq!(shape("fee"), amounts(bound("0", true), bound("1000", true)));
    // The type's own bound stays.
    assert_eq!(shape("tip"), amounts(bound("0", true), bound("50", false)));
    assert_eq!(
        shape("serial"),
        integer(7, i128::from(u64::MAX), false, true)
    );
    assert_eq!(
        shape("months"),
        array(
            Shape::Nullable(Box::new(integer(1, 12, false, false))),
            None,
            None
        )
    );
    assert_eq!(
        shape("state"),
        Shape::Choice {
            values: vec!["packed".into(), "handed_over".into(), "LOST!".into()],
            open: false
        }
    );
    let inside = &contract.definitions["Content"];
    assert_eq!(inside[0].shape, text(Some(1), None, None));
    assert_eq!(
        inside[1].shape,
        integer(1, i128::from(u32::MAX), false, false)
    );
}

#[test]
fn of_two_bounds_of_an_amount_the_narrower_counts() {
    #[derive(Debug, Snapshot)]
    #[snapshot(crate = "factum_event")]
    struct Prices {
        #[snapshot(range(min = 0))]
        same: PositiveAmount,
        #[snapshot(range(greater_than = "-1"))]
        wider: PositiveAmount,
        #[snapshot(range(min = "0.10"))]
        narrower: PositiveAmount,
    }
    #[derive(Debug, Event)]
    #[event(
        kind = "price.set.v1",
        aggregate = "Price",
        topic = "prices.set",
        unlocked
    )]
    #[event(crate = "factum_event")]
    struct PriceSet {
        #[event(aggregate_id)]
        price_id: u32,
        prices: Prices,
    }
    let contract = PriceSet::contract();
    let bounds: Vec<(String, bool)> = contract.definitions["Prices"]
        .iter()
        .map(|field| match &field.shape {
            Shape::Amount {
                min: Some(min),
                max: None,
                ..
            } => (min.value.clone(), min.exclusive),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        bounds,
        [
            ("0".into(), true),
            ("0".into(), true),
            ("0.1".into(), false)
        ]
    );
}

#[test]
fn the_lists_of_codes_are_those_of_the_standards() {
    for (list, count, known, unknown) in [
        (
            CodeList::Country,
            249,
            ["DE", "US", "TR", "ZW"],
            ["de", "DEU", "XX", "UK"],
        ),
        (
            CodeList::Language,
            184,
            ["de", "en", "tr", "zu"],
            ["DE", "deu", "xx", "e"],
        ),
        (
            CodeList::Currency,
            184,
            ["EUR", "USD", "TRY", "ZWG"],
            ["eur", "XYZ", "EU", "EURO"],
        ),
    ] {
        let codes = list.codes();
        assert_eq!(codes.len(), count, "{list:?}");
        assert!(
            codes.is_sorted() && codes.iter().all(|code| list.contains(code)),
            "{list:?}"
        );
        for code in known {
            assert!(list.contains(code) && codes.contains(&code), "{code}");
        }
        for code in unknown {
            assert!(!list.contains(code) && !codes.contains(&code), "{code}");
        }
    }
}

/// An enum that may grow.
#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
enum Status {
    Paid,
    PartlyRefunded,
    #[snapshot(name = "Sent Back")]
    SentBack,
    #[snapshot(other)]
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
enum Colour {
    Red,
    #[event(other)]
    Unknown(String),
}

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "invoice.settled.v1",
    aggregate = "Invoice",
    topic = "invoices.settled",
    unlocked,
    crate = "factum_event"
)]
struct InvoiceSettled {
    #[event(aggregate_id)]
    invoice_id: u32,
    status: Status,
    before: Option<Status>,
    all: Vec<Status>,
    by_day: BTreeMap<String, Status>,
    state: Option<State>,
    colour: Colour,
}

fn settled(status: &str) -> InvoiceSettled {
    match Registry::new()
        .with::<InvoiceSettled>()
        .decode(Some(&settled_json(status)))
    {
        Decoded::Event(event) => event.downcast::<InvoiceSettled>().unwrap().into_event(),
        other => panic!("{other:?}"),
    }
}

fn settled_json(status: &str) -> Vec<u8> {
    format!(
        r#"{{"eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"invoice.settled.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Invoice","aggregateId":"7","invoiceId":7,"status":{status},"before":"paid","all":[{status},"partly_refunded","Sent Back"],"byDay":{{"mon":{status}}},"state":"LOST!","colour":"red"}}"#
    )
    .into_bytes()
}

fn written(event: InvoiceSettled) -> Result<Vec<u8>, EncodeError> {
    event
        .occurred_at(time::macros::datetime!(2026-06-01 12:00 UTC))
        .with_id("01935c3e-7c1a-7000-8000-000000000001".parse().unwrap())
        .encode()
}

#[test]
fn case_47_a_new_value_of_a_growing_enum_is_kept_and_written_back() {
    for text in [
        "refunded_v2",
        "",
        "Paid",
        "PAID",
        "sent back",
        "ünbekannt \"😀\" \u{1}",
    ] {
        let json = serde_json::to_string(text).unwrap();
        let event = settled(&json);
        assert_eq!(event.status, Status::Other(text.to_owned()));
        assert_eq!(event.all[0], event.status);
        assert_eq!(event.by_day["mon"], event.status);
        // Not a byte differs.
        let bytes = written(event).unwrap();
        assert_eq!(
            String::from_utf8(bytes).unwrap().into_bytes(),
            settled_json(&json)
        );
    }
    let known = settled("\"paid\"");
    assert_eq!(known.status, Status::Paid);
    assert_eq!(known.all[1..], [Status::PartlyRefunded, Status::SentBack]);
    assert_eq!(written(known).unwrap(), settled_json("\"paid\""));
}

#[test]
fn a_catch_all_that_holds_a_named_value_is_not_published() {
    let mut event = settled("\"paid\"");
    // It would be read back as `Status::Paid`, and so as another value.
    event.all[1] = Status::Other("paid".into());
    let error = written(event).unwrap_err();
    assert_eq!(
        error.to_string(),
        "$.all[1] breaks the rule `choice`: expected the variant that names this value, not the \
         catch-all; mend the value before publishing"
    );
    let mut event = settled("\"paid\"");
    event.colour = Colour::Unknown("a\0b".into());
    assert!(matches!(written(event), Err(EncodeError::Nul { path }) if path == "$.colour"));
}

#[test]
fn a_value_that_a_closed_enum_doesnt_name_is_poison() {
    let json = String::from_utf8(settled_json("\"paid\"")).unwrap();
    let registry = Registry::new().with::<InvoiceSettled>();
    let poison = |state: &str| {
        let json = json.replace("\"LOST!\"", state);
        match registry.decode(Some(json.as_bytes())) {
            Decoded::Poison(poison) => poison,
            other => panic!("{other:?}"),
        }
    };
    for value in ["\"canary\"", "\"Packed\"", "\"lost\"", "\"\""] {
        let poison = poison(value);
        assert_eq!(poison.rule(), Some("choice"));
        assert_eq!(
            poison.to_string(),
            "invalid_field (choice) at $.state: expected one of \"packed\", \"handed_over\", \"LOST!\""
        );
        assert!(!format!("{poison:?}").contains("canary"));
    }
    assert_eq!(poison("7").path(), "$.state");
    assert_eq!(poison("7").rule(), None);
}
