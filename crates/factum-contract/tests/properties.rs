//! What holds for every contract, every change and every document.

use std::collections::BTreeMap;

use factum_contract::compatibility::{Side, compare};
use factum_contract::document::{self, Document};
use factum_contract::lock;
use factum_event::{
    AggregateId, Amount, AmountBound, CodeList, Contract, Currency, Decoded, Event, EventId,
    FieldShape, Money, PositiveAmount, Registry, Shape,
};
use factum_macros::{Event, Snapshot};
use proptest::prelude::*;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

/// A number below the one given, from a seed: the same each time.
fn choices(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }
}

fn bounds() -> impl Strategy<Value = (Option<u32>, Option<u32>)> {
    (0_u32..4, 0_u32..5, any::<(bool, bool)>())
        .prop_map(|(least, more, (min, max))| (min.then_some(least), max.then_some(least + more)))
}

fn amount_bound(value: impl Into<String>, exclusive: bool) -> AmountBound {
    AmountBound {
        value: value.into(),
        exclusive,
    }
}

fn leaf() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Boolean),
        (-3_i128..3, 1_i128..6, any::<(bool, bool)>()).prop_map(|(min, more, (not_zero, text))| {
            Shape::Integer {
                min,
                max: min + more,
                not_zero,
                text,
            }
        }),
        any::<(bool, bool)>().prop_map(|(min, max)| Shape::Double {
            min: min.then_some(-1.5),
            max: max.then_some(1e6),
        }),
        any::<(bool, bool, bool, bool)>().prop_map(|(min, max, exclusive, text)| Shape::Amount {
            min: min.then(|| amount_bound("0", exclusive)),
            max: max.then(|| amount_bound("999.99", !exclusive)),
            text,
        }),
        any::<bool>().prop_map(|text| Shape::Money { text }),
        (
            bounds(),
            prop::option::of(prop::sample::select(vec!["[a-z]{2,4}", "A-[0-9]+", "x*"]))
        )
            .prop_map(|((min_chars, max_chars), pattern)| match pattern {
                // A length that contradicts the pattern leaves nothing to write.
                Some(pattern) => Shape::Text {
                    min_chars: None,
                    max_chars: max_chars.map(|max| max + 4),
                    pattern: Some(pattern.to_owned()),
                },
                None => Shape::Text {
                    min_chars,
                    max_chars,
                    pattern: None,
                },
            }),
        Just(Shape::Uuid),
        Just(Shape::EventId),
        Just(Shape::AggregateId),
        Just(Shape::Instant),
        Just(Shape::Date),
        prop::sample::select(vec![
            CodeList::Currency,
            CodeList::Country,
            CodeList::Language
        ])
        .prop_map(Shape::Code),
        (
            prop::sample::subsequence(vec!["card", "cash", "invoice", "voucher"], 1..=4),
            any::<bool>()
        )
            .prop_map(|(values, open)| Shape::Choice {
                values: values.into_iter().map(str::to_owned).collect(),
                open,
            }),
        prop::sample::select(vec!["A", "B"]).prop_map(|name| Shape::Object(name.to_owned())),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    leaf().prop_recursive(2, 6, 1, |inner| {
        prop_oneof![
            (inner.clone(), bounds()).prop_map(|(items, (min_items, max_items))| Shape::Array {
                items: Box::new(items),
                min_items,
                max_items,
            }),
            inner.clone().prop_map(|values| Shape::Map {
                values: Box::new(values)
            }),
            inner.prop_map(|inner| match inner {
                Shape::Nullable(_) => inner,
                inner => Shape::Nullable(Box::new(inner)),
            }),
        ]
    })
}

fn fields(names: &'static [&'static str]) -> impl Strategy<Value = Vec<FieldShape>> {
    prop::sample::subsequence(names, 0..=names.len()).prop_flat_map(|names| {
        let shapes = prop::collection::vec((shape(), any::<bool>()), names.len());
        shapes.prop_map(move |shapes| {
            let field = |(name, (shape, optional)): (&&str, (Shape, bool))| {
                let field = FieldShape::new(name, shape);
                FieldShape {
                    optional: optional || field.optional,
                    ..field
                }
            };
            names.iter().zip(shapes).map(field).collect()
        })
    })
}

/// A snapshot holds itself through optional fields only, so that it has a value.
fn tame(mut fields: Vec<FieldShape>) -> Vec<FieldShape> {
    for field in &mut fields {
        field.optional = true;
    }
    fields
}

fn contract() -> impl Strategy<Value = Contract> {
    (
        fields(&["total", "note", "items", "kind", "labels"]),
        fields(&["count", "price", "parts"]).prop_map(tame),
        fields(&["name", "more"]).prop_map(tame),
        prop::sample::select(vec![Shape::Uuid, Shape::AggregateId, Shape::EventId]),
    )
        .prop_map(|(mut fields, a, b, id)| {
            fields.insert(0, FieldShape::new("orderId", id));
            Contract {
                event_type: "order.confirmed.v1".to_owned(),
                aggregate_type: "Order".to_owned(),
                topic: "orders.confirmed".to_owned(),
                restricted: false,
                name: "OrderConfirmed".to_owned(),
                supersedes: None,
                aggregate_id: "orderId".to_owned(),
                fields,
                definitions: BTreeMap::from([("A".to_owned(), a), ("B".to_owned(), b)]),
            }
        })
}

/// Changes a shape a little.
fn bend(shape: &mut Shape, choose: &mut dyn FnMut(u64) -> u64) {
    match shape {
        Shape::Integer {
            min,
            max,
            not_zero,
            text,
        } => match choose(4) {
            0 => *min -= 1,
            1 => *max += 1,
            2 => *not_zero = !*not_zero,
            _ => *text = !*text,
        },
        Shape::Double { min, .. } => *min = if min.is_none() { Some(0.0) } else { None },
        Shape::Amount { min, text, .. } => match (choose(3), min) {
            (0, _) => *text = !*text,
            (_, Some(bound)) => bound.exclusive = !bound.exclusive,
            (_, min) => *min = Some(amount_bound("-1", false)),
        },
        Shape::Money { text } => *text = !*text,
        Shape::Text {
            min_chars,
            max_chars,
            pattern,
        } => match choose(3) {
            0 => *min_chars = if min_chars.is_none() { Some(0) } else { None },
            1 => *max_chars = max_chars.map(|max| max + 1),
            _ => *pattern = None,
        },
        Shape::Choice { values, open } => match choose(3) {
            0 => values.push("new_one".to_owned()),
            1 if values.len() > 1 => drop(values.pop()),
            _ => *open = !*open,
        },
        Shape::Array {
            items,
            min_items,
            max_items,
        } => match choose(3) {
            0 => *min_items = if min_items.is_none() { Some(0) } else { None },
            1 => *max_items = max_items.map(|max| max + 1),
            _ => bend(items, choose),
        },
        Shape::Map { values } => bend(values, choose),
        Shape::Nullable(inner) => *shape = (**inner).clone(),
        Shape::Uuid => *shape = Shape::EventId,
        Shape::Object(name) if name == "A" => "B".clone_into(name),
        shape => *shape = Shape::Nullable(Box::new(shape.clone())),
    }
}

/// Makes one change somewhere, compatible or not.
fn change(contract: &mut Contract, spare: Shape, choose: &mut dyn FnMut(u64) -> u64) {
    match choose(12) {
        0 => {
            // Other names of snapshots are nobody's affair.
            let renamed = |fields: &mut Vec<FieldShape>| {
                for field in fields {
                    rename(&mut field.shape);
                }
            };
            renamed(&mut contract.fields);
            let definitions = std::mem::take(&mut contract.definitions);
            for (name, mut fields) in definitions {
                renamed(&mut fields);
                contract
                    .definitions
                    .insert(format!("{name}Renamed"), fields);
            }
            return;
        }
        1 => {
            contract.name.push_str("Too");
            return;
        }
        _ => {}
    }
    let list = match choose(3) {
        0 => contract.definitions.get_mut("A"),
        1 => contract.definitions.get_mut("B"),
        _ => Some(&mut contract.fields),
    };
    let Some(list) = list else { return };
    let at = choose(list.len() as u64) as usize;
    let is_key = list.get(at).is_some_and(|field| field.name == "orderId");
    match choose(6) {
        0 => {
            let mut field = FieldShape::new(&format!("added{}", list.len()), spare);
            field.optional = true;
            list.push(field);
        }
        1 => list.reverse(),
        2 if !is_key && !list.is_empty() => drop(list.remove(at)),
        3 if !is_key && !list.is_empty() => list[at].optional = !list[at].optional,
        4 if !is_key && !list.is_empty() => {
            let name = format!("{}Renamed", list[at].name);
            let field = FieldShape::new(&name, list[at].shape.clone());
            list[at] = field;
        }
        _ if !is_key && !list.is_empty() => {
            let field = &mut list[at];
            bend(&mut field.shape, choose);
            let bent = FieldShape::new(&field.name, field.shape.clone());
            field.optional |= bent.optional;
            field.shape = bent.shape;
        }
        _ => {}
    }
}

fn rename(shape: &mut Shape) {
    match shape {
        Shape::Object(name) => name.push_str("Renamed"),
        Shape::Array { items: inner, .. } | Shape::Map { values: inner } => rename(inner),
        Shape::Nullable(inner) => rename(inner),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lock_file_gives_the_contract_back(contract in contract(), restricted: bool) {
        let contract = Contract { restricted, ..contract };
        let text = lock::to_text(&contract);
        prop_assert_eq!(text.lines().last(), Some("}"));
        prop_assert_eq!(&lock::from_text(&text).unwrap(), &contract);
        // As git gives it on Windows.
        prop_assert_eq!(&lock::from_text(&text.replace('\n', "\r\n")).unwrap(), &contract);
    }

    #[test]
    fn what_is_made_up_for_a_contract_is_read_by_it(contract in contract(), seed: u64) {
        if let Some(event) = document::arbitrary(&contract, &mut choices(seed)) {
            let text = event.to_string();
            prop_assert_eq!(document::read(&contract, text.as_bytes()), Ok(true), "{}", text);
        }
    }

    #[test]
    fn a_contract_is_compatible_with_itself(contract in contract()) {
        prop_assert!(compare(&contract, &contract).findings.is_empty());
    }

    /// The heart of the gate: where it says compatible, each side reads what the other writes.
    #[test]
    fn what_is_called_compatible_is_read_by_both_sides(
        old in contract(),
        spare in shape(),
        seed: u64,
    ) {
        let mut choose = choices(seed);
        let mut new = old.clone();
        for _ in 0..=choose(2) {
            change(&mut new, spare.clone(), &mut choose);
        }
        let report = compare(&old, &new);
        if !report.is_breaking() {
            for _ in 0..8 {
                for (writer, reader) in [(&old, &new), (&new, &old)] {
                    if let Some(event) = document::arbitrary(writer, &mut choose) {
                        let text = event.to_string();
                        let read = document::read(reader, text.as_bytes());
                        prop_assert_eq!(read, Ok(true), "{}\n{:#?}\n{:#?}", text, old, new);
                    }
                }
            }
        }
    }

    /// A document that is said to break does: its writers write it, and the side's readers refuse it.
    #[test]
    fn a_counterexample_is_written_by_one_side_and_refused_by_the_other(
        old in contract(),
        spare in shape(),
        seed: u64,
    ) {
        let mut new = old.clone();
        change(&mut new, spare, &mut choices(seed));
        for finding in compare(&old, &new).breaking() {
            let Some(example) = &finding.counterexample else { continue };
            if example.refused.is_none() {
                continue;
            }
            let (writer, reader) = match finding.side {
                Some(Side::OldConsumers) => (&new, &old),
                _ => (&old, &new),
            };
            let text = example.document.as_bytes();
            prop_assert_eq!(document::read(writer, text), Ok(true), "{}", example.document);
            prop_assert!(document::read(reader, text).is_err(), "{:?}", finding);
        }
    }
}

/// Every type that may stand in an event.
#[derive(Debug, Event)]
#[event(
    kind = "thing.described.v1",
    aggregate = "Thing",
    topic = "things.described",
    unlocked,
    crate = "factum_event"
)]
#[allow(dead_code, reason = "only the reader is looked at")]
struct ThingDescribed {
    #[event(aggregate_id)]
    thing_ref: String,
    flag: bool,
    tiny: u8,
    #[event(range(min = -5, max = 9_000_000_000))]
    signed: Option<i64>,
    #[event(text)]
    big: u64,
    #[event(text)]
    bigs: Vec<Option<i64>>,
    not_zero: std::num::NonZeroI8,
    #[event(float = "a measured temperature outside", range(min = -90.5, max = 1000))]
    float: f64,
    uuid: Uuid,
    event: EventId,
    aggregate: AggregateId,
    at: OffsetDateTime,
    on: Option<Date>,
    amount: Amount,
    positive: Option<PositiveAmount>,
    money: Money,
    currency: Currency,
    labels: BTreeMap<String, Option<String>>,
    tree: Option<Tree>,
    #[event(length(min = 1, max = 5))]
    short: Option<String>,
    #[event(pattern = "[A-Z]{2}-[0-9]+")]
    track: Option<String>,
    #[event(code = "country")]
    country: Option<String>,
    #[event(code = "language")]
    languages: Vec<String>,
    #[event(items(min = 1, max = 3), length(max = 4))]
    few: Vec<String>,
    #[event(range(greater_than = 0, max = "99.5"))]
    price: Option<Amount>,
    payment: Option<Payment>,
    channels: Vec<Channel>,
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
enum Payment {
    Card,
    BankTransfer,
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
enum Channel {
    Web,
    #[snapshot(other)]
    Other(String),
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
#[allow(dead_code, reason = "only the reader is looked at")]
struct Tree {
    name: String,
    branches: Vec<Tree>,
}

/// An event whose id has no other name than the envelope's.
#[derive(Debug, Event)]
#[event(
    kind = "count.taken.v1",
    aggregate = "Count",
    topic = "counts.taken",
    unlocked,
    crate = "factum_event"
)]
#[allow(dead_code, reason = "only the reader is looked at")]
struct CountTaken {
    #[event(aggregate_id)]
    aggregate_id: u64,
    count: Option<u32>,
}

/// Replaces one value somewhere by another, or takes it away.
fn spoil(document: &mut Document, choose: &mut dyn FnMut(u64) -> u64) {
    const VALUES: [&str; 14] = [
        "0",
        "-1",
        "256",
        "1.0",
        "1e400",
        "9007199254740993",
        "300.5",
        "-0",
        "18446744073709551616",
        "1e2",
        "0.1",
        "1e18",
        "1E-39",
        "12345678901234567890123456789012345678.9",
    ];
    const TEXTS: [&str; 12] = [
        "",
        "1",
        "-5",
        "01",
        "EUR",
        "eur",
        "2026-02-30",
        "2026-06-01T12:00:00+02:00",
        "01935C3E-7C1A-7000-8000-000000000001",
        "18446744073709551615",
        "a\0b",
        "1e3",
    ];
    match document {
        Document::Object(fields) if !fields.is_empty() && choose(8) > 0 => {
            let at = choose(fields.len() as u64) as usize;
            if choose(6) == 0 {
                drop(fields.remove(at));
            } else {
                spoil(&mut fields[at].1, choose);
            }
        }
        Document::Array(items) if !items.is_empty() && choose(4) > 0 => {
            let at = choose(items.len() as u64) as usize;
            spoil(&mut items[at], choose);
        }
        other => {
            *other = match choose(6) {
                0 => Document::Null,
                1 => Document::Boolean(true),
                2 => Document::Array(vec![]),
                3 => Document::Object(vec![]),
                4 => Document::Number(VALUES[choose(14) as usize].to_owned()),
                _ => Document::Text(TEXTS[choose(12) as usize].to_owned()),
            };
        }
    }
}

/// Reader and decoder say the same of a record, to reason and path.
fn agree<E: Event>(record: &str) -> Result<(), TestCaseError> {
    let by_contract = document::read(&E::contract(), record.as_bytes());
    let by_type = match Registry::new().with::<E>().decode(Some(record.as_bytes())) {
        Decoded::Event(_) => Ok(true),
        Decoded::Unknown { .. } => Ok(false),
        Decoded::Poison(poison) => Err(poison),
        Decoded::Tombstone => unreachable!("there is a value"),
    };
    let place = |poison: factum_event::Poison| (poison.reason(), poison.path().to_owned());
    prop_assert_eq!(
        by_contract.map_err(place),
        by_type.map_err(place),
        "{}",
        record
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_reader_of_a_contract_says_what_the_derived_decoder_says(seed: u64) {
        let mut choose = choices(seed);
        let event = document::arbitrary(&ThingDescribed::contract(), &mut choose);
        let mut event = event.expect("every shape has a value");
        agree::<ThingDescribed>(&event.to_string())?;
        spoil(&mut event, &mut choose);
        agree::<ThingDescribed>(&event.to_string())?;

        let event = document::arbitrary(&CountTaken::contract(), &mut choose);
        let mut event = event.expect("every shape has a value");
        agree::<CountTaken>(&event.to_string())?;
        spoil(&mut event, &mut choose);
        agree::<CountTaken>(&event.to_string())?;
    }
}
