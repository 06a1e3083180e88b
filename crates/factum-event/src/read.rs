//! Reading the values of an event that has been found to be strict JSON.

use std::borrow::Cow;

use crate::aggregate_id::{AggregateId, ToAggregateId};
use crate::constraint::{Place, rule};
use crate::json::{Entry, Node};
use crate::number::Decimal;
use crate::path::Path;
use crate::poison::{Poison, PoisonReason};
use crate::snapshot::{Snapshot, SnapshotText};

/// A JSON value with its place in the event.
#[derive(Debug)]
pub struct JsonValue<'a> {
    node: &'a Node<'a>,
    path: Path<'a>,
}

impl<'a> JsonValue<'a> {
    /// Where the value stands, such as `$.items[3].price`.
    pub fn path(&self) -> String {
        self.path.render()
    }

    /// The fault that this value is not what was expected: give the expectation as a noun, such as
    /// `"a postal code"`, and never the value.
    pub fn invalid(&self, expected: impl Into<Cow<'static, str>>) -> Poison {
        Poison::new(PoisonReason::InvalidField, self.path(), expected)
    }

    /// The fault that a text is no value of a closed enum.
    #[doc(hidden)]
    pub fn not_named(&self, expected: &'static str) -> Poison {
        self.invalid(expected).with_rule(rule::CHOICE)
    }

    /// The place, for checks.
    #[doc(hidden)]
    pub fn place(&self) -> Place<'a> {
        Place(self.path)
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.node, Node::Null)
    }

    /// The value of `true` or `false`.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] for anything else.
    pub fn boolean(&self) -> Result<bool, Poison> {
        match self.node {
            Node::True => Ok(true),
            Node::False => Ok(false),
            _ => Err(self.invalid("true or false")),
        }
    }

    /// The characters of a string. U+0000 may be among them here: an event that holds one anywhere
    /// is poison after its fields were read.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] with `expected` for anything but a string.
    pub fn text(&self, expected: &'static str) -> Result<&'a str, Poison> {
        match self.node {
            Node::Text(text) => Ok(text),
            _ => Err(self.invalid(expected)),
        }
    }

    /// The text of a number exactly as it was sent, such as `1e0`.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] with `expected` for anything but a number.
    pub fn number(&self, expected: &'static str) -> Result<&'a str, Poison> {
        match self.node {
            Node::Number(number) => Ok(number),
            _ => Err(self.invalid(expected)),
        }
    }

    /// The value of a number that is an integer, in whatever notation (`15`, `1.5e1`, `15.0`),
    /// within ±(10^38 - 1).
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] with `expected` for anything else.
    pub fn integer(&self, expected: &'static str) -> Result<i128, Poison> {
        Decimal::parse(self.number(expected)?)
            .ok()
            .and_then(Decimal::to_integer)
            .ok_or_else(|| self.invalid(expected))
    }

    /// The characters of a string or the text of a number: for a value that is read in both forms.
    /// An integer as number or as text, of up to 38 digits: see [`ObjectReader::get`].
    #[doc(hidden)]
    pub fn integer_or_text(&self, expected: &'static str) -> Result<i128, Poison> {
        Decimal::parse(self.text_or_number(expected)?)
            .ok()
            .and_then(Decimal::to_integer)
            .ok_or_else(|| self.invalid(expected))
    }

    pub(crate) fn text_or_number(&self, expected: &'static str) -> Result<&'a str, Poison> {
        match self.node {
            Node::Number(number) => Ok(number),
            _ => self.text(expected),
        }
    }

    /// The fields of an object.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] with `expected` for anything but an object.
    pub fn object(&self, expected: &'static str) -> Result<ObjectReader<'_>, Poison> {
        match self.node {
            Node::Object(entries) => Ok(ObjectReader {
                entries,
                path: self.path,
            }),
            _ => Err(self.invalid(expected)),
        }
    }

    /// Reads each item of an array.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::InvalidField`] with `expected` for anything but an array, and the first
    /// error of `read`.
    pub fn items<T>(
        &self,
        expected: &'static str,
        read: impl Fn(&JsonValue<'_>) -> Result<T, Poison>,
    ) -> Result<Vec<T>, Poison> {
        let Node::Array(items) = self.node else {
            return Err(self.invalid(expected));
        };
        items
            .iter()
            .enumerate()
            .map(|(index, node)| {
                read(&JsonValue {
                    node,
                    path: Path::Index(&self.path, index),
                })
            })
            .collect()
    }
}

/// The fields of a JSON object. Fields that nobody asks for are ignored.
#[derive(Debug)]
pub struct ObjectReader<'a> {
    entries: &'a [Entry<'a>],
    path: Path<'a>,
}

impl<'a> ObjectReader<'a> {
    pub(crate) fn root(entries: &'a [Entry<'a>]) -> ObjectReader<'a> {
        ObjectReader {
            entries,
            path: Path::Root,
        }
    }

    /// The place, for checks.
    #[doc(hidden)]
    pub fn place(&self) -> Place<'_> {
        Place(self.path)
    }

    /// Reads a field by its name on the wire. An absent field is what [`Snapshot::absent`] says.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::MissingField`] for an absent field that is required, and those of the value.
    pub fn field<T: Snapshot>(&self, name: &str) -> Result<T, Poison> {
        self.declared(name, T::EXPECTED, T::absent, T::read)
    }

    /// Reads a field that `#[event(text)]` declares as text: as text, or as a number.
    ///
    /// # Errors
    ///
    /// As [`field`](Self::field).
    pub fn text_field<T: SnapshotText>(&self, name: &str) -> Result<T, Poison> {
        self.declared(name, T::EXPECTED, T::absent, T::read_text)
    }

    /// Reads the envelope's `aggregateId` as the event's own field of that name.
    ///
    /// # Errors
    ///
    /// [`PoisonReason::AggregateId`] when the text is not one of the type's.
    pub fn aggregate_id<T: ToAggregateId>(&self) -> Result<T, Poison> {
        match self.value("aggregateId") {
            Some(Node::Text(text)) => AggregateId::new(&**text).ok(),
            _ => None,
        }
        .and_then(|id| T::from_aggregate_id(&id))
        .ok_or_else(|| {
            let path = Path::Field(&self.path, "aggregateId").render();
            let expected = "an aggregate id of the event's own form";
            Poison::new(PoisonReason::AggregateId, path, expected)
        })
    }

    /// What [`field`](Self::field) does, for the derives: see `ObjectWriter::declared`.
    #[doc(hidden)]
    pub fn declared<T>(
        &self,
        name: &str,
        expected: &'static str,
        absent: fn() -> Option<T>,
        read: fn(&JsonValue<'_>) -> Result<T, Poison>,
    ) -> Result<T, Poison> {
        match self.value(name) {
            Some(node) => read(&JsonValue {
                node,
                path: Path::Field(&self.path, name),
            }),
            None => absent().ok_or_else(|| {
                let path = Path::Field(&self.path, name).render();
                Poison::new(PoisonReason::MissingField, path, expected)
            }),
        }
    }

    /// The value of a field, for a reader that knows the contract and no Rust type.
    #[doc(hidden)]
    pub fn get<'s>(&'s self, name: &'s str) -> Option<JsonValue<'s>> {
        self.value(name).map(|node| JsonValue {
            node,
            path: Path::Field(&self.path, name),
        })
    }

    /// The fault of a required field that is absent: see [`get`](Self::get).
    #[doc(hidden)]
    pub fn missing(&self, name: &str, expected: impl Into<Cow<'static, str>>) -> Poison {
        let path = Path::Field(&self.path, name).render();
        Poison::new(PoisonReason::MissingField, path, expected)
    }

    /// Reads every entry as one of a map, whose keys are data.
    #[doc(hidden)]
    pub fn entries<T>(
        &self,
        read: impl Fn(&str, &JsonValue<'_>) -> Result<T, Poison>,
    ) -> Result<Vec<T>, Poison> {
        let path = Path::Entry(&self.path);
        self.entries
            .iter()
            .map(|(key, node)| read(key, &JsonValue { node, path }))
            .collect()
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a Node<'a>> {
        self.entries
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, node)| node)
    }
}
