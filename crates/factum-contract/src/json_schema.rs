//! JSON Schema, draft 2020-12.

use factum_event::{CodeList, Contract, FieldShape, Shape};

use crate::export::{ExportKind, Exported};
use crate::layout::{Language, Piece, atom, double, json_text};

/// A number in JSON's grammar, as text.
const NUMBER_TEXT: &str = "^-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$";
/// Text without U+0000, which PostgreSQL refuses.
const NO_NUL: &str = "^[^\\u0000]*$";

/// The export as JSON Schema (2020-12): `json-schema/<event type>.schema.json` for each event.
///
/// Objects are open, for unknown fields are ignored (EVT-3). What no schema can say is left to the reader, see
/// `docs/other-languages.md`. The same contracts give the same bytes.
///
/// ```
/// use factum::Event;
/// use factum_contract::JsonSchema;
///
/// #[derive(Event)]
/// #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled", unlocked)]
/// struct OrderCancelled {
///     #[event(aggregate_id)]
///     order_ref: String,
/// }
///
/// let files = JsonSchema::new().export(&[OrderCancelled::contract()]);
/// let schema = &files["json-schema/order.cancelled.v1.schema.json"];
/// assert!(schema.contains(r#""$id": "urn:event:order.cancelled.v1""#));
/// ```
#[derive(Debug, Clone, Default)]
pub struct JsonSchema {}

impl JsonSchema {
    /// The export.
    #[must_use]
    pub fn new() -> JsonSchema {
        JsonSchema::default()
    }

    /// The files.
    #[must_use]
    pub fn export(&self, contracts: &[Contract]) -> Exported {
        contracts
            .iter()
            .map(|contract| {
                let path = format!("json-schema/{}.schema.json", contract.event_type);
                (path, file(contract))
            })
            .collect()
    }
}

fn file(contract: &Contract) -> String {
    let references = |name: &str| format!("#/$defs/{name}");
    let mut entries = vec![
        text("$schema", "https://json-schema.org/draft/2020-12/schema"),
        text("$id", &format!("urn:event:{}", contract.event_type)),
        text("$comment", &ExportKind::JsonSchema.mark()),
    ];
    entries.extend(event(contract, &references));
    if !contract.definitions.is_empty() {
        let definitions = contract
            .definitions
            .iter()
            .map(|(name, fields)| (key(name), Piece::Tall(object(fields, &references))))
            .collect();
        entries.push((key("$defs"), Piece::Tall(definitions)));
    }
    Piece::Tall(entries).print(Language::Json, 0, 0, 0) + "\n"
}

pub(crate) fn key(name: &str) -> String {
    crate::layout::quoted(name)
}

pub(crate) fn text(name: &str, value: &str) -> (String, Piece) {
    (key(name), json_text(value))
}

/// Where a snapshot of that name is described.
pub(crate) type References<'a> = &'a dyn Fn(&str) -> String;

/// The schema of an event with its envelope.
pub(crate) fn event(contract: &Contract, references: References<'_>) -> Vec<(String, Piece)> {
    let own = contract
        .fields
        .iter()
        .find(|field| field.name == "aggregateId");
    let aggregate_id = match own {
        Some(own) => value(&own.shape, references),
        None => value(&Shape::AggregateId, references),
    };
    let constant = |of: &str| vec![text("const", of)];
    let mut properties = vec![
        ("eventId", value(&Shape::EventId, references)),
        ("eventType", constant(&contract.event_type)),
        ("occurredAt", value(&Shape::Instant, references)),
        ("aggregateType", constant(&contract.aggregate_type)),
        ("aggregateId", aggregate_id),
    ];
    let mut required: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    for field in contract.fields.iter().filter(|f| f.name != "aggregateId") {
        properties.push((&field.name, property(field, references)));
        if !field.optional {
            required.push(&field.name);
        }
    }
    let mut entries = vec![text("title", &contract.name)];
    let description = format!("{} of the topic {}", contract.event_type, contract.topic);
    entries.push(text("description", &description));
    entries.extend(with_properties(properties, &required));
    entries
}

/// The schema of a snapshot.
pub(crate) fn object(fields: &[FieldShape], references: References<'_>) -> Vec<(String, Piece)> {
    let properties = fields
        .iter()
        .map(|field| (field.name.as_str(), property(field, references)))
        .collect();
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| !field.optional)
        .map(|field| field.name.as_str())
        .collect();
    with_properties(properties, &required)
}

fn with_properties(
    properties: Vec<(&str, Vec<(String, Piece)>)>,
    required: &[&str],
) -> Vec<(String, Piece)> {
    let properties = properties
        .into_iter()
        .map(|(name, schema)| (key(name), Piece::Tall(schema)))
        .collect();
    let mut entries = vec![
        text("type", "object"),
        (key("properties"), Piece::Tall(properties)),
    ];
    if !required.is_empty() {
        entries.push((key("required"), texts(required.iter().copied())));
    }
    entries
}

fn texts<'t>(items: impl IntoIterator<Item = &'t str>) -> Piece {
    Piece::Array(items.into_iter().map(json_text).collect())
}

fn property(field: &FieldShape, references: References<'_>) -> Vec<(String, Piece)> {
    if field.optional {
        or_null(&field.shape, references)
    } else {
        value(&field.shape, references)
    }
}

fn or_null(shape: &Shape, references: References<'_>) -> Vec<(String, Piece)> {
    let null = Piece::Tall(vec![text("type", "null")]);
    let some = Piece::Tall(value(shape, references));
    vec![(key("anyOf"), Piece::Array(vec![some, null]))]
}

/// A number, or its text. Alternatives, and no array of types: ajv's strict mode refuses those.
fn or_number_text(number: Vec<(String, Piece)>) -> Vec<(String, Piece)> {
    let text = Piece::Tall(text_schema(NUMBER_TEXT));
    let either = Piece::Array(vec![Piece::Tall(number), text]);
    vec![(key("anyOf"), either)]
}

fn text_schema(pattern: &str) -> Vec<(String, Piece)> {
    vec![text("type", "string"), text("pattern", pattern)]
}

fn value(shape: &Shape, references: References<'_>) -> Vec<(String, Piece)> {
    let number = |name: &str, value: String| (key(name), atom(value));
    match shape {
        Shape::Boolean => vec![text("type", "boolean")],
        Shape::Integer {
            min,
            max,
            not_zero,
            text: as_text,
        } => {
            let mut entries = vec![text("type", "integer")];
            entries.push(number("minimum", min.to_string()));
            entries.push(number("maximum", max.to_string()));
            if *not_zero {
                let zero = Piece::Tall(vec![number("const", "0".to_owned())]);
                entries.push((key("not"), zero));
            }
            if *as_text {
                or_number_text(entries)
            } else {
                entries
            }
        }
        Shape::Double { min, max } => {
            let mut entries = vec![text("type", "number")];
            entries.extend(min.map(|min| (key("minimum"), double(min))));
            entries.extend(max.map(|max| (key("maximum"), double(max))));
            entries
        }
        Shape::Amount { min, max, .. } => {
            let mut entries = vec![text("type", "number")];
            let bound = |bound: &factum_event::AmountBound, inclusive, exclusive| {
                let name = if bound.exclusive {
                    exclusive
                } else {
                    inclusive
                };
                number(name, bound.value.clone())
            };
            entries.push(match min {
                Some(min) => bound(min, "minimum", "exclusiveMinimum"),
                None => number("exclusiveMinimum", "-1e18".to_owned()),
            });
            entries.push(match max {
                Some(max) => bound(max, "maximum", "exclusiveMaximum"),
                None => number("exclusiveMaximum", "1e18".to_owned()),
            });
            or_number_text(entries)
        }
        Shape::Money { text: as_text } => {
            let amount = Shape::Amount {
                min: None,
                max: None,
                text: *as_text,
            };
            let properties = vec![
                ("amount", value(&amount, references)),
                (
                    "currency",
                    value(&Shape::Code(CodeList::Currency), references),
                ),
            ];
            with_properties(properties, &["amount", "currency"])
        }
        Shape::Text {
            min_chars,
            max_chars,
            pattern,
        } => {
            let pattern = match pattern {
                Some(pattern) => {
                    format!("^(?![\\s\\S]*\\u0000)(?:{pattern})$")
                }
                None => NO_NUL.to_owned(),
            };
            let mut entries = text_schema(&pattern);
            entries.extend(min_chars.map(|min| number("minLength", min.to_string())));
            entries.extend(max_chars.map(|max| number("maxLength", max.to_string())));
            entries
        }
        Shape::Uuid => text_schema("^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"),
        Shape::EventId => text_schema(
            "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-7[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}$",
        ),
        Shape::AggregateId => {
            let mut entries = text_schema(NO_NUL);
            entries.push(number("minLength", "1".to_owned()));
            entries.push(number("maxLength", "255".to_owned()));
            entries
        }
        Shape::Instant => {
            let mut entries = text_schema(
                "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})$",
            );
            entries.insert(1, text("format", "date-time"));
            entries
        }
        Shape::Date => vec![text("type", "string"), text("format", "date")],
        Shape::Code(list) => vec![(key("enum"), texts(list.codes()))],
        Shape::Choice { open: true, values } => {
            let mut entries = text_schema(NO_NUL);
            entries.push((key("examples"), texts(values.iter().map(String::as_str))));
            entries
        }
        Shape::Choice {
            open: false,
            values,
        } => {
            vec![(key("enum"), texts(values.iter().map(String::as_str)))]
        }
        Shape::Array {
            items,
            min_items,
            max_items,
        } => {
            let mut entries = vec![
                text("type", "array"),
                (key("items"), Piece::Tall(value(items, references))),
            ];
            entries.extend(min_items.map(|min| number("minItems", min.to_string())));
            entries.extend(max_items.map(|max| number("maxItems", max.to_string())));
            entries
        }
        Shape::Map { values } => vec![
            text("type", "object"),
            (
                key("additionalProperties"),
                Piece::Tall(value(values, references)),
            ),
        ],
        Shape::Nullable(inner) => or_null(inner, references),
        Shape::Object(name) => vec![text("$ref", &references(name))],
    }
}
