//! What an event looks like on the wire, as plain data: derived from the Rust types, and the one source of the
//! lock file, of the gate and of every export.

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap};

use crate::number::MAX_SAFE_INTEGER;

/// The contract of an event type: what its producers write and its consumers read (EVT-2, EVT-3).
///
/// It is derived, see [`Event::contract`](crate::Event::contract). The envelope's fields are not in it: they are
/// the same in every contract.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    /// The type on the wire, such as `order.confirmed.v1`.
    pub event_type: String,
    /// The type of the aggregate, such as `Order`.
    pub aggregate_type: String,
    /// The topic.
    pub topic: String,
    /// Whether the topic is declared as restricted, so that personal data may stand in the event (SEC-3).
    pub restricted: bool,
    /// The Rust struct's name, which other languages get, too.
    pub name: String,
    /// The event type that this one takes the place of, if any.
    pub supersedes: Option<String>,
    /// The wire name of the field that is the aggregate id. `aggregateId` is the envelope's own; the field
    /// stands among `fields` then, too, with the form that it has there.
    pub aggregate_id: String,
    /// The business fields, in the order of declaration.
    pub fields: Vec<FieldShape>,
    /// The snapshots that the fields carry, by the names that [`Shape::Object`] refers to.
    pub definitions: BTreeMap<String, Vec<FieldShape>>,
}

/// A field of an event or a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldShape {
    /// The name on the wire.
    pub name: String,
    /// Whether writers may leave it out. Readers then take `null` for an absent one.
    pub optional: bool,
    /// What it holds when it is there and not `null`.
    pub shape: Shape,
}

impl FieldShape {
    /// A field; one whose shape may be `null` is optional.
    #[must_use]
    pub fn new(name: &str, shape: Shape) -> FieldShape {
        let (optional, shape) = match shape {
            Shape::Nullable(inner) => (true, *inner),
            shape => (false, shape),
        };
        FieldShape {
            name: name.to_owned(),
            optional,
            shape,
        }
    }
}

/// The form of a value on the wire.
///
/// Each is what readers take. What writers write is narrower in places that no contract changes: an instant is
/// written in UTC, an amount in its shortest form.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// An integer, both bounds included.
    Integer {
        /// The least.
        min: i128,
        /// The greatest.
        max: i128,
        /// Whether 0 is refused though it lies between the bounds.
        not_zero: bool,
        /// Whether it is written as text. Readers take both.
        text: bool,
    },
    /// A floating-point number of 64 bits.
    Double {
        /// The least.
        min: Option<f64>,
        /// The greatest.
        max: Option<f64>,
    },
    /// An exact decimal, read from a number or from text.
    Amount {
        /// The least.
        min: Option<AmountBound>,
        /// The greatest.
        max: Option<AmountBound>,
        /// Whether it is written as text.
        text: bool,
    },
    /// An amount with its currency: `{"amount": 10.5, "currency": "EUR"}`.
    Money {
        /// Whether the amount is written as text.
        text: bool,
    },
    /// Text.
    Text {
        /// The fewest characters (Unicode scalar values).
        min_chars: Option<u32>,
        /// The most characters.
        max_chars: Option<u32>,
        /// A pattern that the whole text matches, without anchors.
        pattern: Option<String>,
    },
    /// A UUID in its hyphenated form.
    Uuid,
    /// A UUID of version 7 in its hyphenated form.
    EventId,
    /// Text of 1 to 255 bytes.
    AggregateId,
    /// An RFC 3339 time with any offset.
    Instant,
    /// A date, `2026-06-01`.
    Date,
    /// A code of a closed, public list.
    Code(CodeList),
    /// One of named values, as text.
    Choice {
        /// The values, in the order of declaration.
        values: Vec<String>,
        /// Whether readers take values beyond the named ones (`#[snapshot(other)]`).
        open: bool,
    },
    /// A list.
    Array {
        /// The form of each item.
        items: Box<Shape>,
        /// The fewest items.
        min_items: Option<u32>,
        /// The most items.
        max_items: Option<u32>,
    },
    /// An object whose keys are data.
    Map {
        /// The form of each value.
        values: Box<Shape>,
    },
    /// `null` or a value: of an item or a map's value, which can't be left out.
    Nullable(Box<Shape>),
    /// A snapshot, by its name among [`Contract::definitions`].
    Object(String),
}

impl Shape {
    /// An integer within the bounds, as a number: within what JavaScript holds.
    pub(crate) fn integer(min: i128, max: i128) -> Shape {
        let safe = i128::from(MAX_SAFE_INTEGER);
        Shape::Integer {
            min: min.max(-safe),
            max: max.min(safe),
            not_zero: false,
            text: false,
        }
    }

    /// Text without a constraint.
    pub(crate) const TEXT: Shape = Shape::Text {
        min_chars: None,
        max_chars: None,
        pattern: None,
    };
}

/// A bound of an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmountBound {
    /// The bound in plain decimal notation, such as `0` or `999.99`.
    pub value: String,
    /// Whether the bound itself is refused.
    pub exclusive: bool,
}

/// A closed, public list of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeList {
    /// ISO 4217, such as `EUR`.
    Currency,
    /// ISO 3166-1 alpha-2, such as `DE`.
    Country,
    /// ISO 639-1, such as `de`.
    Language,
}

/// Collects the snapshots of a contract while it is made. Each is described once, however often and however
/// deep it occurs, in itself too.
#[derive(Debug, Default)]
pub struct Shapes {
    names: HashMap<TypeId, String>,
    definitions: BTreeMap<String, Vec<FieldShape>>,
}

impl Shapes {
    /// The shape of the snapshot `T`. `name` is its Rust name; another type that has the same gets a number.
    pub fn object<T: 'static>(
        &mut self,
        name: &str,
        fields: impl FnOnce(&mut Shapes) -> Vec<FieldShape>,
    ) -> Shape {
        let id = TypeId::of::<T>();
        if let Some(known) = self.names.get(&id) {
            return Shape::Object(known.clone());
        }
        let mut unique = name.to_owned();
        let mut number = 2;
        while self.definitions.contains_key(&unique) {
            unique = format!("{name}{number}");
            number += 1;
        }
        self.names.insert(id, unique.clone());
        // Its name is taken before its fields are described: they may hold the same type.
        self.definitions.insert(unique.clone(), Vec::new());
        let fields = fields(self);
        self.definitions.insert(unique.clone(), fields);
        Shape::Object(unique)
    }

    /// What was collected.
    #[must_use]
    pub fn into_definitions(self) -> BTreeMap<String, Vec<FieldShape>> {
        self.definitions
    }
}

/// What a type holds that an event must declare: known while compiling, so that it is seen through every
/// nested type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Personal data (SEC-3): the place, such as `Customer.email`, or the type's name.
    pub personal: Option<&'static str>,
    /// A floating-point number that no `#[event(float)]` accounts for.
    pub float: bool,
    /// An integer that JavaScript can't hold, unless it is written as text.
    pub large_integer: bool,
}

impl Content {
    /// Nothing that must be declared.
    pub const PLAIN: Content = Content {
        personal: None,
        float: false,
        large_integer: false,
    };
}

/// The form that a field called `aggregate_id` has in the envelope, where every id is text.
#[doc(hidden)]
#[must_use]
pub fn in_envelope(shape: Shape) -> Shape {
    let safe = i128::from(MAX_SAFE_INTEGER);
    match shape {
        // Text has no limit of JavaScript's: an integer that was cut down to it has all of its 64 bits here.
        Shape::Integer {
            min, max, not_zero, ..
        } => Shape::Integer {
            min: if min == -safe {
                i128::from(i64::MIN)
            } else {
                min
            },
            max: match max {
                max if max != safe => max,
                _ if min < 0 => i128::from(i64::MAX),
                _ => i128::from(u64::MAX),
            },
            not_zero,
            text: true,
        },
        Shape::Text { .. } => Shape::AggregateId,
        shape => shape,
    }
}
