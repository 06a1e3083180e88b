//! Writing an event as JSON, and what makes it impossible.

use std::borrow::Cow;

use crate::aggregate_id::AggregateIdError;
use crate::constraint::{Place, Violation, rule};
use crate::path::Path;
use crate::snapshot::{Snapshot, SnapshotText};

/// Why an event can't be written.
///
/// Every variant names where, and none quotes the value. The remedy is in the text. Nothing has
/// been written to the database when this comes back from `publish`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string holds U+0000, which PostgreSQL can't store as text.
    #[error("{path} holds U+0000, which PostgreSQL refuses in text: remove it before publishing")]
    Nul {
        /// Where, such as `$.customer.name`.
        path: String,
    },
    /// A floating-point number is infinite or not a number; JSON has neither.
    #[error(
        "{path} is infinite or not a number, and JSON has neither: leave the field out (`Option`)"
    )]
    NonFinite {
        /// Where.
        path: String,
    },
    /// An integer lies beyond ±(2^53 - 1), so JavaScript would read another one.
    #[error(
        "{path} is an integer beyond 2^53-1, which JavaScript reads as another one: declare the \
         field as text with `#[event(text)]`"
    )]
    UnsafeInteger {
        /// Where.
        path: String,
    },
    /// An amount has more digits than a double keeps, so another language would read another sum.
    #[error(
        "{path} is an amount that a double can't hold exactly: declare the field as text with \
         `#[event(text)]`"
    )]
    InexactNumber {
        /// Where.
        path: String,
    },
    /// A time lies outside the years 1 to 9999 in UTC, which RFC 3339 can't write.
    #[error("{path} lies outside the years 0001 to 9999 in UTC: use a time within them")]
    TimeOutOfRange {
        /// Where.
        path: String,
    },
    /// The aggregate id can't be a key.
    #[error("$.aggregateId: {0}")]
    AggregateId(#[from] AggregateIdError),
    /// Two fields have one name on the wire; every reader would refuse the event.
    #[error("{path} is written twice: rename one of the two fields")]
    DuplicateField {
        /// Where.
        path: String,
    },
    /// Objects and arrays nest deeper than readers accept.
    #[error("{path} is nested more than {limit} deep: flatten the event")]
    TooDeep {
        /// Where.
        path: String,
        /// How many levels are allowed.
        limit: u32,
    },
    /// A value breaks a constraint of its field, so every reader would refuse the event.
    #[error(
        "{path} breaks the rule `{rule}`: expected {expected}; mend the value before publishing"
    )]
    Invalid {
        /// Where.
        path: String,
        /// The rule's stable name, as in [`Poison::rule`](crate::Poison::rule).
        rule: &'static str,
        /// What the rule asks for.
        expected: Cow<'static, str>,
    },
    /// The event is larger than readers accept.
    #[error(
        "the event is {bytes} bytes and at most {limit} are allowed: publish a reference instead"
    )]
    TooLarge {
        /// The size of the event in bytes.
        bytes: usize,
        /// How many bytes are allowed.
        limit: usize,
    },
}

/// A proof that one value was written.
///
/// Only a [`ValueWriter`] makes it, so a [`Snapshot::write`] that returns has written a value, and
/// since a writer is used up by writing, it has written one only.
#[derive(Debug)]
#[must_use = "return it from `Snapshot::write`"]
pub struct Written(());

/// The text so far.
pub(crate) struct Output {
    bytes: Vec<u8>,
    depth: u32,
    max_depth: u32,
}

impl Output {
    pub(crate) fn new(max_depth: u32) -> Output {
        Output {
            bytes: Vec::with_capacity(512),
            depth: 0,
            max_depth,
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn string(&mut self, text: &str) {
        self.bytes.push(b'"');
        let mut plain = 0;
        for (at, byte) in text.bytes().enumerate() {
            let escape: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                b'\n' => b"\\n",
                b'\r' => b"\\r",
                b'\t' => b"\\t",
                0x08 => b"\\b",
                0x0c => b"\\f",
                0..=0x1f => &[
                    b'\\',
                    b'u',
                    b'0',
                    b'0',
                    b'0' + (byte >> 4),
                    b"0123456789abcdef"[usize::from(byte & 0xf)],
                ],
                _ => continue,
            };
            self.bytes.extend_from_slice(&text.as_bytes()[plain..at]);
            self.bytes.extend_from_slice(escape);
            plain = at + 1;
        }
        self.bytes.extend_from_slice(&text.as_bytes()[plain..]);
        self.bytes.push(b'"');
    }
}

/// Writes one JSON value; it is used up by that.
#[must_use = "a value must be written"]
pub struct ValueWriter<'w> {
    output: &'w mut Output,
    path: Path<'w>,
}

impl<'w> ValueWriter<'w> {
    pub(crate) fn root(output: &'w mut Output) -> ValueWriter<'w> {
        ValueWriter {
            output,
            path: Path::Root,
        }
    }

    /// Where the value will stand, such as `$.items[3].price`.
    pub fn path(&self) -> String {
        self.path.render()
    }

    /// The place, for checks.
    #[doc(hidden)]
    pub fn place(&self) -> Place<'w> {
        Place(self.path)
    }

    /// Writes the text that the catch-all of an enum keeps. One that a variant names would be read back as
    /// that variant, and so as another value than the one published.
    #[doc(hidden)]
    pub fn other(self, text: &str, named: &[&str]) -> Result<Written, EncodeError> {
        if named.contains(&text) {
            return Err(EncodeError::from(Violation {
                path: self.path(),
                rule: rule::CHOICE,
                expected: "the variant that names this value, not the catch-all".into(),
            }));
        }
        self.text(text)
    }

    /// Writes `null`.
    pub fn null(self) -> Written {
        self.output.raw("null");
        Written(())
    }

    /// Writes `true` or `false`.
    pub fn boolean(self, value: bool) -> Written {
        self.output.raw(if value { "true" } else { "false" });
        Written(())
    }

    /// Writes a string.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Nul`] if it holds U+0000.
    pub fn text(self, value: &str) -> Result<Written, EncodeError> {
        if crate::json::has_nul(value) {
            return Err(EncodeError::Nul { path: self.path() });
        }
        self.output.string(value);
        Ok(Written(()))
    }

    /// Writes an integer as a number.
    ///
    /// # Errors
    ///
    /// [`EncodeError::UnsafeInteger`] beyond ±(2^53 - 1).
    pub fn integer(self, value: i128) -> Result<Written, EncodeError> {
        if value.unsigned_abs() > crate::number::MAX_SAFE_INTEGER as u128 {
            return Err(EncodeError::UnsafeInteger { path: self.path() });
        }
        self.output.raw(&value.to_string());
        Ok(Written(()))
    }

    /// Writes a floating-point number in its shortest form that reads back as the same one.
    ///
    /// # Errors
    ///
    /// [`EncodeError::NonFinite`] if it is infinite or not a number.
    pub fn float(self, value: f64) -> Result<Written, EncodeError> {
        if !value.is_finite() {
            return Err(EncodeError::NonFinite { path: self.path() });
        }
        // Debug prints the shortest form too, and uses an exponent where that is shorter.
        self.output.raw(&format!("{value:?}"));
        Ok(Written(()))
    }

    /// Writes digits that the caller has checked to be a JSON number.
    pub(crate) fn number(self, digits: &str) -> Written {
        self.output.raw(digits);
        Written(())
    }

    /// Writes an array.
    ///
    /// # Errors
    ///
    /// Those of the items, and [`EncodeError::TooDeep`].
    pub fn array<'t, T: Snapshot + 't>(
        self,
        items: impl IntoIterator<Item = &'t T>,
    ) -> Result<Written, EncodeError> {
        self.items(items, T::write)
    }

    /// Writes an array of values in their text form.
    pub(crate) fn text_array<'t, T: SnapshotText + 't>(
        self,
        items: impl IntoIterator<Item = &'t T>,
    ) -> Result<Written, EncodeError> {
        self.items(items, T::write_text)
    }

    fn items<'t, T: 't>(
        self,
        items: impl IntoIterator<Item = &'t T>,
        write: impl Fn(&T, ValueWriter<'_>) -> Result<Written, EncodeError>,
    ) -> Result<Written, EncodeError> {
        let ValueWriter { output, path } = self.enter()?;
        output.raw("[");
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                output.raw(",");
            }
            let at = ValueWriter {
                output: &mut *output,
                path: Path::Index(&path, index),
            };
            let Written(()) = write(item, at)?;
        }
        output.raw("]");
        output.depth -= 1;
        Ok(Written(()))
    }

    /// Writes an object whose fields `fields` writes.
    ///
    /// # Errors
    ///
    /// Those of `fields`, and [`EncodeError::TooDeep`].
    pub fn object(
        self,
        fields: impl FnOnce(&mut ObjectWriter<'_>) -> Result<(), EncodeError>,
    ) -> Result<Written, EncodeError> {
        let ValueWriter { output, path } = self.enter()?;
        output.raw("{");
        let mut writer = ObjectWriter {
            output,
            path,
            names: Vec::new(),
            empty: true,
        };
        fields(&mut writer)?;
        writer.output.raw("}");
        writer.output.depth -= 1;
        Ok(Written(()))
    }

    fn enter(self) -> Result<Self, EncodeError> {
        if self.output.depth == self.output.max_depth {
            let limit = self.output.max_depth;
            return Err(EncodeError::TooDeep {
                path: self.path(),
                limit,
            });
        }
        self.output.depth += 1;
        Ok(self)
    }
}

/// Writes the fields of one JSON object.
pub struct ObjectWriter<'w> {
    output: &'w mut Output,
    path: Path<'w>,
    /// The declared names written so far: few, so a list beats a set.
    names: Vec<&'static str>,
    empty: bool,
}

impl ObjectWriter<'_> {
    /// The place, for checks.
    #[doc(hidden)]
    pub fn place(&self) -> Place<'_> {
        Place(self.path)
    }

    /// Writes a field, or nothing if the value is absent ([`Snapshot::is_absent`]).
    ///
    /// # Errors
    ///
    /// Those of the value, and [`EncodeError::DuplicateField`] if `name` was written before.
    pub fn field<T: Snapshot>(&mut self, name: &'static str, value: &T) -> Result<(), EncodeError> {
        self.declared(name, value.is_absent(), |writer| value.write(writer))
    }

    /// Writes a field in its text form, as `#[event(text)]` declares it.
    ///
    /// # Errors
    ///
    /// As [`field`](Self::field).
    pub fn text_field<T: SnapshotText>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.declared(name, value.is_absent(), |writer| value.write_text(writer))
    }

    /// Writes a text field without making a `String` first.
    pub(crate) fn borrowed_text(
        &mut self,
        name: &'static str,
        value: &str,
    ) -> Result<(), EncodeError> {
        self.declared(name, false, |writer| writer.text(value))
    }

    /// What [`field`](Self::field) does, for the derives: they name the type itself, so that the
    /// compiler reports a type that can't stand in an event once, and where the type is written.
    #[doc(hidden)]
    pub fn declared(
        &mut self,
        name: &'static str,
        absent: bool,
        write: impl FnOnce(ValueWriter<'_>) -> Result<Written, EncodeError>,
    ) -> Result<(), EncodeError> {
        if self.names.contains(&name) {
            let path = Path::Field(&self.path, name).render();
            return Err(EncodeError::DuplicateField { path });
        }
        self.names.push(name);
        if absent {
            return Ok(());
        }
        self.key(name);
        let path = Path::Field(&self.path, name);
        let Written(()) = write(ValueWriter {
            output: &mut *self.output,
            path,
        })?;
        Ok(())
    }

    /// Writes an entry of a map, whose keys are data and never equal to each other.
    pub(crate) fn entry<T: Snapshot>(&mut self, key: &str, value: &T) -> Result<(), EncodeError> {
        if crate::json::has_nul(key) {
            return Err(EncodeError::Nul {
                path: Path::Entry(&self.path).render(),
            });
        }
        self.key(key);
        let path = Path::Entry(&self.path);
        let Written(()) = value.write(ValueWriter {
            output: &mut *self.output,
            path,
        })?;
        Ok(())
    }

    fn key(&mut self, name: &str) {
        if !self.empty {
            self.output.raw(",");
        }
        self.empty = false;
        self.output.string(name);
        self.output.raw(":");
    }
}
