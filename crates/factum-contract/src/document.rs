//! JSON documents of a contract: read as the derived decoder reads them, without the Rust type; and made up, as a
//! producer of the contract could write them.

use std::collections::BTreeMap;
use std::fmt;

use factum_event::__private::read_record;
use factum_event::{
    AggregateId, Amount, AmountBound, CodeList, Contract, Currency, DecodeLimits, EventId,
    FieldShape, JsonValue, Money, ObjectReader, Poison, Shape, Snapshot as _,
};
use regex::Regex;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

mod pattern;

/// How deep made-up documents nest. A snapshot that must hold itself has no document at all.
const MAX_DEPTH: u32 = 12;

/// The most items, entries or characters that a made-up document gets for a bound's sake.
pub(crate) const MAX_MADE_UP: u32 = 4_096;

const EVENT_ID: &str = "01935c3e-7c1a-7000-8000-000000000001";
const INSTANT: &str = "2026-06-01T12:00:00Z";
const DATE: &str = "2026-06-01";
const UUID: &str = "6f1e2c0a-3b0e-4a8f-9d51-2f6c1b7e9a10";

/// A JSON value. Numbers are text, so that none is rounded; objects keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean(bool),
    /// A number as it is written.
    Number(String),
    /// Text.
    Text(String),
    /// A list.
    Array(Vec<Document>),
    /// An object, in order.
    Object(Vec<(String, Document)>),
}

impl Document {
    fn text(text: &str) -> Document {
        Document::Text(text.to_owned())
    }

    /// The value of a field of an object.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Document> {
        match self {
            Document::Object(fields) => fields
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }
}

/// JSON on one line.
impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str, f: &mut fmt::Formatter<'_>| {
            f.write_str(&serde_json::Value::from(text).to_string())
        };
        match self {
            Document::Null => f.write_str("null"),
            Document::Boolean(value) => write!(f, "{value}"),
            Document::Number(digits) => f.write_str(digits),
            Document::Text(text) => quoted(text, f),
            Document::Array(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Document::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index > 0 { "," } else { "" })?;
                    quoted(name, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Reads a record's value as a consumer of the contract does: the same verdict as that of the derived decoder, the
/// same reason and path. `Ok(false)` for an event of another type, which a consumer skips.
///
/// One limit: of an aggregate id whose Rust type has a text form of its own (an own `ToAggregateId`), the contract
/// knows the form on the wire only, and the key is compared with that.
///
/// ```
/// # use factum_contract::document;
/// # use factum_event::{Contract, FieldShape, Shape};
/// # let contract = Contract {
/// #     event_type: "order.confirmed.v1".to_owned(),
/// #     aggregate_type: "Order".to_owned(),
/// #     topic: "orders.confirmed".to_owned(),
/// #     restricted: false,
/// #     name: "OrderConfirmed".to_owned(),
/// #     supersedes: None,
/// #     aggregate_id: "orderId".to_owned(),
/// #     fields: vec![FieldShape::new("orderId", Shape::Uuid), FieldShape::new("paid", Shape::Boolean)],
/// #     definitions: Default::default(),
/// # };
/// let document = document::sample(&contract).unwrap().to_string();
/// assert_eq!(document::read(&contract, document.as_bytes()), Ok(true));
/// let other = document.replace("\"paid\":true", "\"paid\":1");
/// let poison = document::read(&contract, other.as_bytes()).unwrap_err();
/// assert_eq!(poison.to_string(), "invalid_field at $.paid: expected true or false");
/// ```
///
/// # Errors
///
/// [`Poison`] as the decoder's: reason, path and expectation, never a value.
pub fn read(contract: &Contract, record: &[u8]) -> Result<bool, Poison> {
    read_record(
        record,
        &contract.event_type,
        &contract.aggregate_type,
        DecodeLimits::default(),
        |object, key| read_event(contract, object, key),
    )
}

fn read_event(contract: &Contract, object: &ObjectReader<'_>, key: &str) -> Result<bool, Poison> {
    let definitions = &contract.definitions;
    let mut key_fits = true;
    for field in &contract.fields {
        if field.name == ENVELOPES_OWN {
            let value = object
                .get(ENVELOPES_OWN)
                .ok_or_else(|| object.missing(ENVELOPES_OWN, "an id"))?;
            key_fits &= read_value(&field.shape, definitions, &value).is_ok()
                && key_text(&field.shape, &value).as_deref() == Some(key);
            if !key_fits {
                return Ok(false);
            }
            continue;
        }
        read_field(field, definitions, object)?;
        if field.name == contract.aggregate_id
            && let Some(value) = object.get(&field.name)
        {
            key_fits = key_text(&field.shape, &value).as_deref() == Some(key);
        }
    }
    Ok(key_fits)
}

/// The aggregate id when the event has no other name for it: then it stands in the envelope alone.
const ENVELOPES_OWN: &str = "aggregateId";

/// The key that a field's value makes.
fn key_text(shape: &Shape, value: &JsonValue<'_>) -> Option<String> {
    match shape {
        Shape::Integer { .. } => value.integer_or_text("").ok().map(|id| id.to_string()),
        Shape::Uuid => Uuid::read(value).ok().map(|id| id.to_string()),
        Shape::EventId => EventId::read(value).ok().map(|id| id.to_string()),
        _ => value.text("").ok().map(str::to_owned),
    }
}

fn read_field(
    field: &FieldShape,
    definitions: &BTreeMap<String, Vec<FieldShape>>,
    object: &ObjectReader<'_>,
) -> Result<(), Poison> {
    match object.get(&field.name) {
        Some(value) if field.optional && value.is_null() => Ok(()),
        Some(value) => read_value(&field.shape, definitions, &value),
        None if field.optional => Ok(()),
        None => Err(object.missing(&field.name, expectation(&field.shape))),
    }
}

fn read_value(
    shape: &Shape,
    definitions: &BTreeMap<String, Vec<FieldShape>>,
    value: &JsonValue<'_>,
) -> Result<(), Poison> {
    let require = |holds: bool| {
        if holds {
            Ok(())
        } else {
            Err(value.invalid(expectation(shape)))
        }
    };
    match shape {
        Shape::Boolean => value.boolean().map(drop),
        Shape::Integer {
            min,
            max,
            not_zero,
            text,
        } => {
            let integer = if *text {
                value.integer_or_text("")
            } else {
                value.integer("")
            };
            let fits = integer.is_ok_and(|i| (*min..=*max).contains(&i) && !(*not_zero && i == 0));
            require(fits)
        }
        Shape::Double { min, max } => {
            let number = f64::read(value)?;
            require(min.is_none_or(|min| number >= min) && max.is_none_or(|max| number <= max))
        }
        Shape::Amount { min, max, .. } => {
            let amount = Amount::read(value)?;
            require(within(&amount, min.as_ref(), max.as_ref()))
        }
        Shape::Money { .. } => Money::read(value).map(drop),
        Shape::Text {
            min_chars,
            max_chars,
            pattern,
        } => {
            let text = value.text("text")?;
            require(text_fits(text, *min_chars, *max_chars, pattern.as_deref()))
        }
        Shape::Uuid => Uuid::read(value).map(drop),
        Shape::EventId => EventId::read(value).map(drop),
        Shape::AggregateId => AggregateId::read(value).map(drop),
        Shape::Instant => OffsetDateTime::read(value).map(drop),
        Shape::Date => Date::read(value).map(drop),
        Shape::Code(CodeList::Currency) => Currency::read(value).map(drop),
        Shape::Code(list) => require(value.text("").is_ok_and(|text| list.contains(text))),
        Shape::Choice { values, open } => require(
            value
                .text("")
                .is_ok_and(|text| *open || values.iter().any(|v| v == text)),
        ),
        Shape::Array {
            items,
            min_items,
            max_items,
        } => {
            let count = value
                .items("an array", |item| read_value(items, definitions, item))?
                .len();
            require(
                min_items.is_none_or(|min| count >= min as usize)
                    && max_items.is_none_or(|max| count <= max as usize),
            )
        }
        Shape::Map { values } => value
            .object("an object")?
            .entries(|_, entry| read_value(values, definitions, entry))
            .map(drop),
        Shape::Nullable(inner) => {
            if value.is_null() {
                Ok(())
            } else {
                read_value(inner, definitions, value)
            }
        }
        Shape::Object(name) => {
            let object = value.object("an object")?;
            let fields = definitions.get(name).map(Vec::as_slice).unwrap_or_default();
            fields
                .iter()
                .try_for_each(|field| read_field(field, definitions, &object))
        }
    }
}

fn within(amount: &Amount, min: Option<&AmountBound>, max: Option<&AmountBound>) -> bool {
    let above = min.is_none_or(|bound| match bound.value.parse::<Amount>() {
        Ok(least) => *amount > least || (*amount == least && !bound.exclusive),
        Err(_) => false,
    });
    let below = max.is_none_or(|bound| match bound.value.parse::<Amount>() {
        Ok(most) => *amount < most || (*amount == most && !bound.exclusive),
        Err(_) => false,
    });
    above && below
}

/// Characters are Unicode scalar values; a pattern matches the whole text.
fn text_fits(text: &str, min: Option<u32>, max: Option<u32>, pattern: Option<&str>) -> bool {
    let chars = text.chars().count();
    min.is_none_or(|min| chars >= min as usize)
        && max.is_none_or(|max| chars <= max as usize)
        && pattern.is_none_or(|pattern| compiled(pattern).is_ok_and(|regex| regex.is_match(text)))
}

fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!(r"\A(?:{pattern})\z"))
}

/// Whether a reader can do something with it.
pub(crate) fn is_pattern(pattern: &str) -> bool {
    compiled(pattern).is_ok()
}

/// What a reader of the shape expects, as a noun.
pub(crate) fn expectation(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => bool::EXPECTED.to_owned(),
        Shape::Integer {
            min,
            max,
            not_zero,
            text,
        } => {
            let zero = if *not_zero { " other than 0" } else { "" };
            let as_text = if *text { ", as text" } else { "" };
            format!("an integer from {min} to {max}{zero}{as_text}")
        }
        Shape::Double { min, max } => {
            format!("a number{}", range(min.as_ref(), max.as_ref()))
        }
        Shape::Amount { min, max, .. } => {
            let bound = |bound: &AmountBound| {
                let more = if bound.exclusive { " (excluded)" } else { "" };
                format!("{}{more}", bound.value)
            };
            let (min, max) = (min.as_ref().map(bound), max.as_ref().map(bound));
            format!("a decimal amount{}", range(min.as_ref(), max.as_ref()))
        }
        Shape::Money { .. } => Money::EXPECTED.to_owned(),
        Shape::Text {
            min_chars,
            max_chars,
            pattern,
        } => {
            let length = match (min_chars, max_chars) {
                (None, None) => String::new(),
                (Some(min), None) => format!(" of at least {}", counted(*min, "character")),
                (None, Some(max)) => format!(" of at most {}", counted(*max, "character")),
                (Some(min), Some(max)) => format!(" of {min} to {}", counted(*max, "character")),
            };
            let form = pattern.as_ref().map(|p| format!(" that matches {p}"));
            format!("text{length}{}", form.unwrap_or_default())
        }
        Shape::Uuid => Uuid::EXPECTED.to_owned(),
        Shape::EventId => EventId::EXPECTED.to_owned(),
        Shape::AggregateId => AggregateId::EXPECTED.to_owned(),
        Shape::Instant => "an RFC 3339 time".to_owned(),
        Shape::Date => "a date".to_owned(),
        Shape::Code(list) => match list {
            CodeList::Country => "a country code (ISO 3166-1 alpha-2)".to_owned(),
            CodeList::Language => "a language code (ISO 639-1)".to_owned(),
            _ => "a currency code (ISO 4217)".to_owned(),
        },
        Shape::Choice { open: true, .. } => "text".to_owned(),
        Shape::Choice { values, .. } => {
            let quoted: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
            format!("one of {}", quoted.join(", "))
        }
        Shape::Array {
            min_items,
            max_items,
            ..
        } => match (min_items, max_items) {
            (None, None) => "an array".to_owned(),
            (Some(min), None) => format!("an array of at least {}", counted(*min, "item")),
            (None, Some(max)) => format!("an array of at most {}", counted(*max, "item")),
            (Some(min), Some(max)) => format!("an array of {min} to {}", counted(*max, "item")),
        },
        Shape::Nullable(inner) => format!("{}, or null", expectation(inner)),
        Shape::Map { .. } | Shape::Object(_) => "an object".to_owned(),
    }
}

fn counted(number: u32, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn range<T: fmt::Display>(min: Option<&T>, max: Option<&T>) -> String {
    match (min, max) {
        (None, None) => String::new(),
        (Some(min), None) => format!(" of at least {min}"),
        (None, Some(max)) => format!(" of at most {max}"),
        (Some(min), Some(max)) => format!(" from {min} to {max}"),
    }
}

/// Where choices come from while a document is made up: each call gives a number below the one given.
type Choose<'c> = &'c mut dyn FnMut(u64) -> u64;

/// The plainest event that a producer of the contract can write: envelope, required fields, short values.
///
/// `None` when there is none, because a snapshot must hold itself or no text matches a pattern.
#[must_use]
pub fn sample(contract: &Contract) -> Option<Document> {
    Maker::plain(contract).event(&[], None)
}

/// Any event that a producer of the contract can write; `choose` gives a number below the one that it is given.
///
/// `None` as with [`sample`], and when no text could be found for a pattern.
///
/// ```
/// # use factum_contract::document;
/// # use factum_event::{Contract, FieldShape, Shape};
/// # let contract = Contract {
/// #     event_type: "order.confirmed.v1".to_owned(),
/// #     aggregate_type: "Order".to_owned(),
/// #     topic: "orders.confirmed".to_owned(),
/// #     restricted: false,
/// #     name: "OrderConfirmed".to_owned(),
/// #     supersedes: None,
/// #     aggregate_id: "orderId".to_owned(),
/// #     fields: vec![FieldShape::new("orderId", Shape::Uuid), FieldShape::new("paid", Shape::Boolean)],
/// #     definitions: Default::default(),
/// # };
/// let mut state = 7_u64;
/// let document = document::arbitrary(&contract, &mut |below| {
///     state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
///     (state >> 33) % below
/// });
/// assert_eq!(document::read(&contract, document.unwrap().to_string().as_bytes()), Ok(true));
/// ```
pub fn arbitrary(contract: &Contract, choose: &mut dyn FnMut(u64) -> u64) -> Option<Document> {
    let maker = Maker {
        contract,
        choose: Some(choose),
    };
    maker.event(&[], None)
}

/// A step from an object to what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Item,
    Entry,
}

/// What stands at the end of a path.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    Value(Document),
    Absent,
}

/// The plainest event in which `standing` is what stands at the end of `path`.
pub(crate) fn sample_with(
    contract: &Contract,
    path: &[Step],
    standing: &Standing,
) -> Option<Document> {
    Maker::plain(contract).event(path, Some(standing))
}

/// The plainest event in which what stands at the end of `path` is there, also where it is optional.
pub(crate) fn sample_along(contract: &Contract, path: &[Step]) -> Option<Document> {
    Maker::plain(contract).event(path, None)
}

/// Some values of a shape, other than the plainest.
pub(crate) fn several(contract: &Contract, shape: &Shape) -> Vec<Document> {
    const COUNT: u64 = 48;
    let made = (1..=COUNT).map(|seed| {
        let mut state = seed;
        let mut choose = |below: u64| {
            // A linear congruential generator is good enough to look here and there, and always the same.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below.max(1)
        };
        Maker {
            contract,
            choose: Some(&mut choose),
        }
        .value(shape, 0)
    });
    made.flatten().collect()
}

/// A plain value of a shape.
pub(crate) fn sample_value(contract: &Contract, shape: &Shape) -> Option<Document> {
    Maker::plain(contract).value(shape, 0)
}

/// What a reader expects, and where within the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) expected: String,
    /// The path from the value on, such as `[0].price`; empty for the value itself.
    pub(crate) below: String,
}

impl Refusal {
    /// Of the value itself.
    pub(crate) fn of(shape: &Shape) -> Refusal {
        Refusal {
            expected: expectation(shape),
            below: String::new(),
        }
    }
}

/// Reads one value as a reader of `shape` does.
pub(crate) fn reads_value(
    contract: &Contract,
    shape: &Shape,
    value: &Document,
) -> Result<(), Refusal> {
    let event = Document::Object(vec![
        ("eventId".to_owned(), Document::text(EVENT_ID)),
        ("eventType".to_owned(), Document::text("a.b.v1")),
        ("occurredAt".to_owned(), Document::text(INSTANT)),
        ("aggregateType".to_owned(), Document::text("A")),
        ("aggregateId".to_owned(), Document::text("1")),
        ("value".to_owned(), value.clone()),
    ]);
    let limits = DecodeLimits::default();
    let text = event.to_string();
    read_record(
        text.as_bytes(),
        "a.b.v1",
        "A",
        limits,
        |object, _| match object.get("value") {
            Some(value) => read_value(shape, &contract.definitions, &value).map(|()| true),
            None => Ok(true),
        },
    )
    .map(drop)
    .map_err(|poison| Refusal {
        expected: poison.expected().to_owned(),
        below: poison
            .path()
            .strip_prefix("$.value")
            .unwrap_or_default()
            .to_owned(),
    })
}

/// Makes documents up.
struct Maker<'c> {
    contract: &'c Contract,
    /// `None` for the plainest.
    choose: Option<Choose<'c>>,
}

impl<'c> Maker<'c> {
    fn plain(contract: &'c Contract) -> Maker<'c> {
        Maker {
            contract,
            choose: None,
        }
    }

    fn pick(&mut self, below: u64) -> u64 {
        match &mut self.choose {
            Some(choose) if below > 1 => choose(below).min(below - 1),
            _ => 0,
        }
    }

    fn event(mut self, path: &[Step], standing: Option<&Standing>) -> Option<Document> {
        let contract = self.contract;
        let mut fields = self.fields(&contract.fields, 0, path, standing)?;
        let own = fields
            .iter()
            .position(|(name, _)| *name == contract.aggregate_id);
        let key = match own.map(|at| &fields[at].1) {
            Some(Document::Text(text) | Document::Number(text)) => text.clone(),
            _ => "1".to_owned(),
        };
        fields.retain(|(name, _)| name != ENVELOPES_OWN);
        let mut event = vec![
            ("eventId".to_owned(), Document::text(EVENT_ID)),
            ("eventType".to_owned(), Document::text(&contract.event_type)),
            ("occurredAt".to_owned(), Document::text(INSTANT)),
            (
                "aggregateType".to_owned(),
                Document::text(&contract.aggregate_type),
            ),
            (ENVELOPES_OWN.to_owned(), Document::Text(key)),
        ];
        event.append(&mut fields);
        Some(Document::Object(event))
    }

    fn fields(
        &mut self,
        fields: &[FieldShape],
        depth: u32,
        path: &[Step],
        standing: Option<&Standing>,
    ) -> Option<Vec<(String, Document)>> {
        let mut made = Vec::new();
        for field in fields {
            let on_path = matches!(path.first(), Some(Step::Field(name)) if *name == field.name);
            let value = if on_path {
                match (&path[1..], standing) {
                    ([], Some(Standing::Absent)) => None,
                    (rest, standing) => Some(self.along(&field.shape, depth, rest, standing)?),
                }
            } else if depth == 0 && field.name == self.contract.aggregate_id {
                Some(self.key(&field.shape)?)
            } else if !field.optional {
                Some(self.value(&field.shape, depth)?)
            } else if depth < 4 && self.pick(2) == 1 {
                self.value(&field.shape, depth)
            } else {
                None
            };
            made.extend(value.map(|value| (field.name.clone(), value)));
        }
        Some(made)
    }

    /// A value that can be the key of the record: text of 1 to 255 bytes (PROD-2).
    fn key(&mut self, shape: &Shape) -> Option<Document> {
        /// Of 4 bytes at most each.
        const MAX_CHARS: u32 = 60;
        match shape {
            Shape::Text {
                min_chars,
                max_chars,
                pattern,
            } => {
                let least = min_chars.unwrap_or(0).max(1);
                let most = max_chars.unwrap_or(MAX_CHARS).min(MAX_CHARS.max(least));
                self.text(least, Some(most), pattern.as_deref())
                    .map(Document::Text)
            }
            shape => self.value(shape, 0),
        }
    }

    /// A value in which `standing` stands at the end of `path`.
    fn along(
        &mut self,
        shape: &Shape,
        depth: u32,
        path: &[Step],
        standing: Option<&Standing>,
    ) -> Option<Document> {
        let Some(step) = path.first() else {
            return match standing {
                Some(Standing::Value(value)) => Some(value.clone()),
                _ => self.value(shape, depth),
            };
        };
        match (shape, step) {
            (Shape::Nullable(inner), _) => self.along(inner, depth, path, standing),
            (
                Shape::Array {
                    items,
                    min_items,
                    max_items,
                },
                Step::Item,
            ) => {
                if *max_items == Some(0) {
                    return None;
                }
                let mut made = vec![self.along(items, depth + 1, &path[1..], standing)?];
                while (made.len() as u32) < min_items.unwrap_or(0).min(MAX_MADE_UP) {
                    made.push(self.value(items, depth + 1)?);
                }
                Some(Document::Array(made))
            }
            (Shape::Map { values }, Step::Entry) => {
                let value = self.along(values, depth + 1, &path[1..], standing)?;
                Some(Document::Object(vec![("key".to_owned(), value)]))
            }
            (Shape::Object(name), Step::Field(_)) => {
                let fields = self.contract.definitions.get(name)?;
                self.fields(fields, depth + 1, path, standing)
                    .map(Document::Object)
            }
            // A path that was not found in this contract.
            _ => self.value(shape, depth),
        }
    }

    fn value(&mut self, shape: &Shape, depth: u32) -> Option<Document> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match shape {
            Shape::Boolean => Document::Boolean(self.pick(2) == 0),
            Shape::Integer {
                min,
                max,
                not_zero,
                text,
            } => {
                let value = self.integer(*min, *max, *not_zero)?;
                if *text {
                    Document::Text(value.to_string())
                } else {
                    Document::Number(value.to_string())
                }
            }
            Shape::Double { min, max } => {
                let (least, most) = (min.unwrap_or(f64::MIN), max.unwrap_or(f64::MAX));
                let nice = [0.5, 1.0, -2.25, 1e21, 5e-324, least, most];
                let at = self.pick(nice.len() as u64) as usize;
                let mut found = nice.iter().cycle().skip(at).take(nice.len());
                let value = found.find(|value| (least..=most).contains(*value))?;
                Document::Number(format!("{value:?}"))
            }
            Shape::Amount { min, max, text } => self.amount(min.as_ref(), max.as_ref(), *text)?,
            Shape::Money { text } => Document::Object(vec![
                ("amount".to_owned(), self.amount(None, None, *text)?),
                ("currency".to_owned(), self.code(CodeList::Currency)),
            ]),
            Shape::Text {
                min_chars,
                max_chars,
                pattern,
            } => {
                Document::Text(self.text(min_chars.unwrap_or(0), *max_chars, pattern.as_deref())?)
            }
            Shape::Uuid => {
                let low = u128::from(self.pick(u64::MAX));
                match low {
                    0 => Document::text(UUID),
                    low => Document::Text(Uuid::from_u128(low << 40 | low).to_string()),
                }
            }
            Shape::EventId => {
                let millis = 1_732_419_419_162 + self.pick(1 << 40);
                match millis {
                    1_732_419_419_162 => Document::text(EVENT_ID),
                    millis => Document::Text(EventId::floor(millis).to_string()),
                }
            }
            Shape::AggregateId => Document::Text(self.text(1, Some(60), None)?),
            Shape::Instant => Document::text(
                [INSTANT, "2026-06-01T12:00:00.123Z", "0001-01-01T00:00:00Z"]
                    [self.pick(3) as usize],
            ),
            Shape::Date => {
                Document::text([DATE, "2024-02-29", "9999-12-31"][self.pick(3) as usize])
            }
            Shape::Code(list) => self.code(*list),
            Shape::Choice { values, open } => {
                let count = values.len() as u64 + u64::from(*open);
                let at = self.pick(count) as usize;
                match values.get(at) {
                    Some(value) => Document::text(value),
                    None if *open => Document::Text(unknown_choice(values)),
                    None => return None,
                }
            }
            Shape::Array {
                items,
                min_items,
                max_items,
            } => {
                let least = min_items.unwrap_or(0);
                let most = max_items.unwrap_or(u32::MAX).min(least.saturating_add(3));
                if least > most || least > MAX_MADE_UP {
                    return None;
                }
                let more = if depth < 5 {
                    self.pick(u64::from(most - least) + 1) as u32
                } else {
                    0
                };
                let made: Option<Vec<Document>> = (0..least + more)
                    .map(|_| self.value(items, depth + 1))
                    .collect();
                match made {
                    Some(items) => Document::Array(items),
                    // Of what has no value there can still be none.
                    None if least == 0 => Document::Array(Vec::new()),
                    None => return None,
                }
            }
            Shape::Map { values } => {
                let count = if depth < 5 { self.pick(3) } else { 0 };
                let entries = (0..count).filter_map(|at| {
                    self.value(values, depth + 1)
                        .map(|value| (format!("key {at}"), value))
                });
                Document::Object(entries.collect())
            }
            Shape::Nullable(inner) => {
                if depth > 5 || self.pick(3) == 1 {
                    Document::Null
                } else {
                    self.value(inner, depth).unwrap_or(Document::Null)
                }
            }
            Shape::Object(name) => {
                let fields = self.contract.definitions.get(name)?;
                Document::Object(self.fields(fields, depth + 1, &[], None)?)
            }
        })
    }

    fn integer(&mut self, min: i128, max: i128, not_zero: bool) -> Option<i128> {
        let fits = |value: i128| (min..=max).contains(&value) && !(not_zero && value == 0);
        let random = i128::from(self.pick(1 << 40)) - (1 << 39);
        let near = min.saturating_add(i128::from(self.pick(1 << 20)));
        let nice = [1, min, max, near, random, 0, -1, 42];
        let at = self.pick(nice.len() as u64) as usize;
        let mut found = nice.into_iter().cycle().skip(at).take(nice.len());
        found.find(|value| fits(*value))
    }

    fn amount(
        &mut self,
        min: Option<&AmountBound>,
        max: Option<&AmountBound>,
        text: bool,
    ) -> Option<Document> {
        let mut nice: Vec<String> = ["10.5", "0.01", "-3", "0", "999999999999", "1"]
            .map(str::to_owned)
            .to_vec();
        nice.extend([min, max].into_iter().flatten().map(|b| b.value.clone()));
        for bound in [min, max].into_iter().flatten() {
            nice.extend(beside(bound));
        }
        let at = self.pick(nice.len() as u64) as usize;
        let mut found = nice.iter().cycle().skip(at).take(nice.len());
        let fits = |value: &&String| value.parse().is_ok_and(|a| within(&a, min, max));
        found.find(fits).map(|value| amount_document(value, text))
    }

    fn code(&mut self, list: CodeList) -> Document {
        let at = self.pick(3) as usize;
        Document::text(match list {
            CodeList::Country => ["DE", "FR", "JP"][at],
            CodeList::Language => ["de", "fr", "ja"][at],
            _ => ["EUR", "USD", "JPY"][at],
        })
    }

    fn text(&mut self, min: u32, max: Option<u32>, pattern: Option<&str>) -> Option<String> {
        let most = max.unwrap_or(u32::MAX).min(min.saturating_add(12));
        if min > most || min > MAX_MADE_UP {
            return None;
        }
        if let Some(pattern) = pattern {
            let fits = |text: &String| {
                text_fits(text, Some(min), max, Some(pattern)) && !text.contains('\0')
            };
            return (0..64).find_map(|attempt| {
                pattern::matching(pattern, attempt, &mut |below| self.pick(below))
                    .filter(|text| fits(text))
            });
        }
        if self.choose.is_none() {
            return Some(plain_text(min, max));
        }
        const LETTERS: [char; 10] = ['a', 'Z', '0', ' ', 'é', '"', '\\', '😀', '\n', '/'];
        let length = u64::from(min) + self.pick(u64::from(most - min) + 1);
        Some(
            (0..length)
                .map(|_| LETTERS[self.pick(10) as usize])
                .collect(),
        )
    }
}

/// `text` where it fits, and else as many `a` as must be.
pub(crate) fn plain_text(min: u32, max: Option<u32>) -> String {
    let length = 4.clamp(min, max.unwrap_or(u32::MAX).max(min));
    if length == 4 {
        "text".to_owned()
    } else {
        "a".repeat(length as usize)
    }
}

/// A value that is not among the named ones.
pub(crate) fn unknown_choice(values: &[String]) -> String {
    let mut name = "another".to_owned();
    while values.contains(&name) {
        name.push_str("_one");
    }
    name
}

/// An amount in its shortest form, as producers write it.
pub(crate) fn amount_document(value: &str, text: bool) -> Document {
    let shortest = value
        .parse::<Amount>()
        .map_or_else(|_| value.to_owned(), |amount| amount.to_string());
    if text {
        Document::Text(shortest)
    } else {
        Document::Number(shortest)
    }
}

/// Amounts just beside a bound.
pub(crate) fn beside(bound: &AmountBound) -> Vec<String> {
    let Ok(amount) = bound.value.parse::<Amount>() else {
        return Vec::new();
    };
    let Ok(step) = Amount::from_minor(1, 2) else {
        return Vec::new();
    };
    [amount.checked_add(&step), amount.checked_sub(&step)]
        .into_iter()
        .flatten()
        .map(|amount| amount.to_string())
        .collect()
}
