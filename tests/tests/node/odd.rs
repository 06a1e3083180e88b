//! Contracts that are hard to write down well: they are formatted and compiled, and never sent.

use std::collections::BTreeMap;

use factum::{AmountBound, CodeList, Contract, FieldShape, Shape};

fn list(items: Shape) -> Shape {
    Shape::Array {
        items: Box::new(items),
        min_items: Some(1),
        max_items: Some(100),
    }
}

fn nullable(inner: Shape) -> Shape {
    Shape::Nullable(Box::new(inner))
}

fn choice(values: &[&str], open: bool) -> Shape {
    Shape::Choice {
        values: values.iter().map(|value| (*value).to_owned()).collect(),
        open,
    }
}

fn text(pattern: &str) -> Shape {
    Shape::Text {
        min_chars: Some(1),
        max_chars: Some(4_000_000_000),
        pattern: Some(pattern.to_owned()),
    }
}

fn amount(min: Option<(&str, bool)>, max: Option<(&str, bool)>) -> Shape {
    let bound = |(value, exclusive): (&str, bool)| AmountBound {
        value: value.to_owned(),
        exclusive,
    };
    Shape::Amount {
        min: min.map(bound),
        max: max.map(bound),
        text: true,
    }
}

const DAYS: &[&str] = &[
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "it's",
    "a \"day\"",
    "\\",
];

/// Shapes that make short lines, long ones, and ones of just about eighty characters.
fn shapes() -> Vec<Shape> {
    let long = "a".repeat(90);
    let shapes = vec![
        Shape::Boolean,
        Shape::Integer {
            min: i128::from(i64::MIN),
            max: i128::from(i64::MAX),
            not_zero: true,
            text: true,
        },
        Shape::Double {
            min: None,
            max: Some(1.5e300),
        },
        Shape::Double {
            min: Some(-0.25),
            max: None,
        },
        amount(None, None),
        amount(Some(("0", true)), Some(("99999999.99", false))),
        amount(None, Some(("1", true))),
        text("[A-Z]{3}-[0-9]{4}"),
        text(r#"["'\\/`$]{1,3}"#),
        text("(?:'|\"\")+"),
        text(&long),
        Shape::Code(CodeList::Country),
        Shape::Code(CodeList::Language),
        choice(&["one"], false),
        choice(DAYS, false),
        choice(DAYS, true),
        Shape::Map {
            values: Box::new(nullable(list(nullable(choice(DAYS, true))))),
        },
        Shape::Object("Part".to_owned()),
        Shape::Object("OddlyNamedThingHappenedV1".to_owned()),
    ];
    let nested = shapes.clone().into_iter().flat_map(|shape| {
        [
            list(nullable(shape.clone())),
            Shape::Map {
                values: Box::new(list(list(shape))),
            },
        ]
    });
    shapes.iter().cloned().chain(nested).collect()
}

/// Each shape under names of many lengths, so that lines break at each of their places.
fn fields(stem: &str) -> Vec<FieldShape> {
    let mut fields = Vec::new();
    for (place, shape) in shapes().into_iter().enumerate() {
        for length in [1, 20 + place % 20, 60] {
            let name = format!("{stem}{place}{}", "x".repeat(length));
            fields.push(FieldShape::new(&name, shape.clone()));
            let name = format!("{name}Maybe");
            fields.push(FieldShape::new(&name, nullable(shape.clone())));
        }
    }
    fields
}

fn contract(event_type: &str, aggregate: &str, name: &str) -> Contract {
    let part = vec![
        // In itself, through another.
        FieldShape::new("others", list(Shape::Object("Other".to_owned()))),
        FieldShape::new("type", Shape::Uuid),
    ];
    let other = vec![FieldShape::new(
        "part",
        nullable(Shape::Object("Part".to_owned())),
    )];
    Contract {
        event_type: event_type.to_owned(),
        aggregate_type: aggregate.to_owned(),
        topic: "t.odd".to_owned(),
        restricted: true,
        name: name.to_owned(),
        supersedes: Some("oddly-named-thing.happened.v0".to_owned()),
        aggregate_id: "odd0x".to_owned(),
        fields: Vec::new(),
        definitions: BTreeMap::from([
            ("Part".to_owned(), part),
            ("Other".to_owned(), other),
            // As the event itself is called, and without a field.
            ("OddlyNamedThingHappenedV1".to_owned(), Vec::new()),
        ]),
    }
}

/// Two versions of one fact, one with its aggregate id in the envelope only, one without any field.
pub(crate) fn contracts() -> [Contract; 3] {
    let mut first = contract(
        "oddly-named-thing.happened.v1",
        "OddlyNamedThing",
        "OddlyNamedThingHappened",
    );
    first.fields = fields("odd");
    let mut second = contract(
        "oddly-named-thing.happened.v2",
        "OddlyNamedThing",
        "OddlyNamedThingHappened",
    );
    second.aggregate_id = "aggregateId".to_owned();
    second.fields = vec![FieldShape::new("aggregateId", Shape::Uuid)];
    let mut third = contract("t.v.v1", "HTTPThing", "V");
    third.aggregate_id = "aggregateId".to_owned();
    third.definitions.clear();
    third.fields = vec![FieldShape::new(
        "aggregateId",
        Shape::Integer {
            min: 0,
            max: i128::from(u64::MAX),
            not_zero: false,
            text: true,
        },
    )];
    [first, second, third]
}
