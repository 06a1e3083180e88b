//! Every vector of `tests/conformance/order-confirmed.json` gets its verdict.

use std::num::NonZeroU64;

use base64::Engine as _;
use factum_event::{Currency, Decoded, PositiveAmount, Registry};
use factum_macros::Event;
use serde_json::Value;

/// The contract that the vectors are written for.
#[derive(Debug, Event)]
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
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    order_id: NonZeroU64,
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    customer_id: NonZeroU64,
    // The vectors hold amounts of 34 digits; what was read must be writable again.
    #[event(text)]
    total_amount: PositiveAmount,
    currency: Currency,
}

struct Vector {
    name: String,
    value: Option<Vec<u8>>,
    expect: String,
    reasons: Vec<String>,
}

fn vectors() -> Vec<Vector> {
    let file: Value = serde_json::from_str(include_str!(
        "../../../tests/conformance/order-confirmed.json"
    ))
    .unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    file["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| Vector {
            name: text(&case["name"]),
            value: match &case["value_base64"] {
                Value::Null => None,
                value => Some(
                    base64::prelude::BASE64_STANDARD
                        .decode(value.as_str().unwrap())
                        .unwrap(),
                ),
            },
            expect: text(&case["expect"]),
            reasons: case["reason"]
                .as_array()
                .map(|reasons| reasons.iter().map(text).collect())
                .unwrap_or_default(),
        })
        .collect()
}

/// The verdict on a value, and the reason if it is poison.
fn verdict(registry: &Registry, value: Option<&[u8]>) -> (&'static str, Option<String>) {
    match registry.decode(value) {
        Decoded::Event(_) => ("event", None),
        Decoded::Unknown { .. } => ("unknown", None),
        Decoded::Poison(poison) => ("poison", Some(poison.reason().to_string())),
        Decoded::Tombstone => ("tombstone", None),
    }
}

#[test]
fn every_vector_gets_its_verdict() {
    let registry = Registry::new().with::<OrderConfirmed>();
    let vectors = vectors();
    assert_eq!(
        vectors.len(),
        97,
        "the file of vectors is not the one this test was written for"
    );

    let wrong: Vec<String> = vectors
        .iter()
        .filter_map(|vector| {
            let (verdict, reason) = verdict(&registry, vector.value.as_deref());
            let right = verdict == vector.expect
                && match &reason {
                    Some(reason) => vector.reasons.contains(reason),
                    None => vector.reasons.is_empty(),
                };
            (!right).then(|| {
                let Vector {
                    name,
                    expect,
                    reasons,
                    ..
                } = vector;
                format!("{name}: expected {expect} {reasons:?}, got {verdict} {reason:?}")
            })
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn what_a_vector_decodes_to_is_encoded_to_the_same_event() {
    let registry = Registry::new().with::<OrderConfirmed>();
    let decode = |value: &[u8]| match registry.decode(Some(value)) {
        Decoded::Event(event) => Some(event.downcast::<OrderConfirmed>().unwrap()),
        _ => None,
    };
    let mut decoded = 0;
    for vector in vectors() {
        let Some(first) = vector.value.as_deref().and_then(decode) else {
            continue;
        };
        let second = decode(&first.encode().unwrap()).expect("what is encoded decodes");
        assert_eq!(
            format!("{first:?}"),
            format!("{second:?}"),
            "{}",
            vector.name
        );
        decoded += 1;
    }
    assert!(decoded > 20, "{decoded} vectors decoded");
}

#[test]
fn no_fault_of_a_vector_quotes_its_value() {
    // Values of the vectors that no expectation may hold.
    let values = [
        "A-1",
        "9007199254740993",
        "1e400",
        "01935c3e",
        "24:00",
        "999",
        "€",
        "EURO",
    ];
    let registry = Registry::new().with::<OrderConfirmed>();
    for vector in vectors() {
        if let Decoded::Poison(poison) = registry.decode(vector.value.as_deref()) {
            let text = format!("{poison} {poison:?}");
            for value in values {
                assert!(!text.contains(value), "{}: {text}", vector.name);
            }
        }
    }
}
