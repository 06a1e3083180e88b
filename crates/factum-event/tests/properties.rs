//! What holds for every event and for every record.

use std::collections::BTreeMap;
use std::num::{NonZeroI8, NonZeroU64};

use factum_event::{
    AggregateId, Amount, Currency, Decoded, Envelope, EventId, Money, PositiveAmount, Registry,
};
use factum_macros::{Event, Snapshot};
use proptest::prelude::*;
use serde_json::value::RawValue;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

/// Every type that may stand in an event: alone, absent, in lists, in maps and nested.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "thing.described.v1",
    aggregate = "Thing",
    topic = "things.described",
    unlocked,
    crate = "factum_event"
)]
struct ThingDescribed {
    #[event(aggregate_id)]
    thing_ref: String,
    scalars: Scalars,
    money: Sums,
    maybe: Option<Scalars>,
    many: Vec<Sums>,
    grid: Vec<Vec<Option<i32>>>,
    labels: BTreeMap<String, String>,
    counts: BTreeMap<String, Option<u16>>,
    tree: Tree,
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Scalars {
    flag: bool,
    tiny: u8,
    #[snapshot(range(min = -9_007_199_254_740_991, max = 9_007_199_254_740_991))]
    signed: i64,
    #[snapshot(range(min = 0, max = 9_007_199_254_740_991))]
    unsigned: u64,
    #[snapshot(text)]
    big: u64,
    #[snapshot(text)]
    bigs: Vec<Option<i64>>,
    #[snapshot(range(min = 1, max = 9_007_199_254_740_991))]
    not_zero: NonZeroU64,
    small_not_zero: NonZeroI8,
    #[snapshot(float = "floats must be shown to work")]
    float: f64,
    text: String,
    uuid: Uuid,
    event: EventId,
    aggregate: AggregateId,
    at: OffsetDateTime,
    on: Date,
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Sums {
    amount: Amount,
    positive: Option<PositiveAmount>,
    money: Money,
    currency: Currency,
    #[snapshot(text)]
    exact: Amount,
    #[snapshot(text)]
    exact_money: Option<Money>,
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Tree {
    name: String,
    branches: Vec<Tree>,
}

const MAX_SAFE: i64 = (1 << 53) - 1;

/// Any text that can be stored: every character but U+0000, escapes and astral ones among them.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        prop::collection::vec(
            prop_oneof![
                prop::char::range('\u{1}', '\u{7f}'),
                prop::sample::select(vec![
                    '"', '\\', '/', '\n', '\u{2028}', 'é', '😀', '\u{ffff}'
                ]),
                any::<char>(),
            ],
            0..12
        )
        .prop_map(|characters| characters.into_iter().collect()),
    ]
    .prop_map(|text| text.replace('\0', ""))
}

fn id_text() -> impl Strategy<Value = String> {
    text().prop_filter("an id has 1 to 255 bytes", |text| {
        (1..=255).contains(&text.len())
    })
}

/// 15 digits always fit a double.
fn number_amount() -> impl Strategy<Value = Amount> {
    (-999_999_999_999_999_i64..=999_999_999_999_999, 0_u32..=22)
        .prop_map(|(units, places)| Amount::from_minor(units, places).unwrap())
}

/// Any amount within the limits.
fn exact_amount() -> impl Strategy<Value = Amount> {
    (any::<bool>(), "[0-9]{1,38}", 0_i32..=38).prop_filter_map(
        "within the limits",
        |(negative, digits, places)| {
            let digits = digits.trim_start_matches('0');
            let digits = if digits.is_empty() { "0" } else { digits };
            let sign = if negative { "-" } else { "" };
            format!("{sign}{digits}e-{places}").parse().ok()
        },
    )
}

fn currency() -> impl Strategy<Value = Currency> {
    prop::sample::select(Currency::all().collect::<Vec<_>>())
}

fn event_id() -> impl Strategy<Value = EventId> {
    any::<u128>().prop_map(|bits| {
        let version_and_variant = bits & !(0xf << 76) & !(0x3 << 62) | 0x7 << 76 | 0b10 << 62;
        EventId::try_from(Uuid::from_u128(version_and_variant)).unwrap()
    })
}

/// Any instant of the years 1 to 9999, to the microsecond, in UTC.
fn instant() -> impl Strategy<Value = OffsetDateTime> {
    (-62_135_596_800_i64..=253_402_300_799, 0_u32..1_000_000).prop_map(|(seconds, micros)| {
        let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        at.replace_microsecond(micros).unwrap()
    })
}

fn scalars() -> impl Strategy<Value = Scalars> {
    let numbers = (
        any::<bool>(),
        any::<u8>(),
        -MAX_SAFE..=MAX_SAFE,
        0..=MAX_SAFE as u64,
        any::<u64>(),
        prop::collection::vec(any::<Option<i64>>(), 0..3),
        1..=MAX_SAFE as u64,
        any::<NonZeroI8>(),
        any::<f64>().prop_filter("JSON has finite numbers", |float| float.is_finite()),
    );
    let others = (text(), any::<u128>(), event_id(), id_text(), instant());
    (numbers, others).prop_map(|(numbers, others)| {
        let (flag, tiny, signed, unsigned, big, bigs, not_zero, small_not_zero, float) = numbers;
        let (text, uuid, event, aggregate, at) = others;
        Scalars {
            flag,
            tiny,
            signed,
            unsigned,
            big,
            bigs,
            not_zero: NonZeroU64::new(not_zero).unwrap(),
            small_not_zero,
            float,
            text,
            uuid: Uuid::from_u128(uuid),
            event,
            aggregate: AggregateId::new(aggregate).unwrap(),
            at,
            on: at.date(),
        }
    })
}

fn sums() -> impl Strategy<Value = Sums> {
    (
        number_amount(),
        prop::option::of(number_amount()),
        number_amount(),
        currency(),
        currency(),
        exact_amount(),
        prop::option::of(exact_amount()),
    )
        .prop_map(
            |(amount, positive, money, first, second, exact, exact_money)| Sums {
                amount,
                positive: positive.and_then(|amount| PositiveAmount::new(amount).ok()),
                money: Money::new(money, first),
                currency: second,
                exact,
                exact_money: exact_money.map(|amount| Money::new(amount, second)),
            },
        )
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = text().prop_map(|name| Tree {
        name,
        branches: Vec::new(),
    });
    leaf.prop_recursive(5, 12, 3, |inner| {
        (text(), prop::collection::vec(inner, 0..3))
            .prop_map(|(name, branches)| Tree { name, branches })
    })
}

fn envelope() -> impl Strategy<Value = Envelope<ThingDescribed>> {
    let event = (
        id_text(),
        scalars(),
        sums(),
        prop::option::of(scalars()),
        prop::collection::vec(sums(), 0..3),
        prop::collection::vec(prop::collection::vec(any::<Option<i32>>(), 0..3), 0..3),
        prop::collection::btree_map(text(), text(), 0..4),
        prop::collection::btree_map(text(), any::<Option<u16>>(), 0..20),
        tree(),
    )
        .prop_map(
            |(thing_ref, scalars, money, maybe, many, grid, labels, counts, tree)| ThingDescribed {
                thing_ref,
                scalars,
                money,
                maybe,
                many,
                grid,
                labels,
                counts,
                tree,
            },
        );
    (event_id(), event, instant()).prop_map(|(id, event, at)| Envelope::new(id, event, at))
}

/// The double nearest to the number at a path. `serde_json`'s own is not always the nearest.
fn number_as_javascript_sees_it(object: &[u8], path: &[&str]) -> f64 {
    let mut at = std::str::from_utf8(object).unwrap();
    for key in path {
        at = serde_json::from_str::<BTreeMap<String, &RawValue>>(at).unwrap()[*key].get();
    }
    at.parse().unwrap()
}

fn registry() -> Registry {
    Registry::new().with::<ThingDescribed>()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn what_is_encoded_decodes_to_the_same_event(envelope in envelope()) {
        let bytes = envelope.encode().unwrap();
        let Decoded::Event(event) = registry().decode(Some(&bytes)) else {
            panic!("not decoded: {}", String::from_utf8_lossy(&bytes));
        };
        prop_assert_eq!(event.id(), envelope.id());
        prop_assert_eq!(event.aggregate_id(), envelope.thing_ref.as_str());
        prop_assert_eq!(event.downcast::<ThingDescribed>().unwrap(), envelope);
    }

    #[test]
    fn what_is_encoded_is_json_to_every_reader(envelope in envelope()) {
        let bytes = envelope.encode().unwrap();
        let seen: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        prop_assert_eq!(seen["aggregateId"].as_str(), Some(envelope.thing_ref.as_str()));
        prop_assert_eq!(seen["scalars"]["signed"].as_f64(), Some(envelope.scalars.signed as f64));
        prop_assert_eq!(seen["scalars"]["text"].as_str(), Some(envelope.scalars.text.as_str()));
        let amount = number_as_javascript_sees_it(&bytes, &["money", "amount"]);
        prop_assert_eq!(format!("{amount:e}").parse::<Amount>().unwrap(), envelope.money.amount.clone());
        prop_assert_eq!(seen.get("maybe").is_some(), envelope.maybe.is_some());
    }

    /// Every change of the bytes has one of the four outcomes, and a changed event is still one that
    /// can be written and read again.
    #[test]
    fn a_damaged_event_has_an_outcome(
        envelope in envelope(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..4),
    ) {
        let mut bytes = envelope.encode().unwrap();
        for (index, damage) in damage {
            let at = index.index(bytes.len());
            match damage {
                Damage::Replace(byte) => bytes[at] = byte,
                Damage::Insert(text) => drop(bytes.splice(at..at, text.bytes())),
                Damage::Cut => bytes.truncate(at.max(1)),
                Damage::Remove => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        match registry().decode(Some(&bytes)) {
            Decoded::Event(event) => {
                let event = event.downcast::<ThingDescribed>().unwrap();
                // An amount sent as a number with many digits can't be sent on as one.
                if let Ok(again) = event.encode() {
                    let Decoded::Event(second) = registry().decode(Some(&again)) else { panic!() };
                    prop_assert_eq!(second.downcast::<ThingDescribed>().unwrap(), event);
                }
            }
            Decoded::Unknown { event_type } => prop_assert!(event_type != "thing.described.v1"),
            Decoded::Poison(poison) => prop_assert!(poison.path().starts_with('$')),
            Decoded::Tombstone => panic!("a value is no tombstone"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_096) })]

    #[test]
    fn any_bytes_have_an_outcome(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(matches!(registry().decode(Some(&bytes)), Decoded::Poison(_)));
    }

    #[test]
    fn an_amount_is_what_its_text_says(amount in exact_amount()) {
        let text = amount.to_string();
        prop_assert_eq!(text.parse::<Amount>().unwrap(), amount.clone());
        // The decimal crate's own parser is the second opinion.
        let second: bigdecimal::BigDecimal = text.parse().unwrap();
        prop_assert_eq!(&second, amount.as_decimal());
        prop_assert_eq!(Amount::from_decimal(&second).unwrap(), amount);
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Replace(u8),
    Insert(&'static str),
    Cut,
    Remove,
}

fn damage() -> impl Strategy<Value = Damage> {
    let inserts = vec![
        "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "9", "-", ".", "e9", "\\u0000", "\\ud800",
        "null", "\0", "é", "\u{feff}", "\"a\":1,", " ",
    ];
    prop_oneof![
        any::<u8>().prop_map(Damage::Replace),
        prop::sample::select(b"\"\\{}[],:0123456789-.eEtfn ".to_vec()).prop_map(Damage::Replace),
        prop::sample::select(inserts).prop_map(Damage::Insert),
        Just(Damage::Cut),
        Just(Damage::Remove),
    ]
}
