//! Personal data (EVT-X3, SEC-3), and what is known of it while compiling.

use std::fmt;

use crate::contract::{Content, Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::{Snapshot, SnapshotText};

/// A value that tells something of a person, such as an e-mail address (EVT-X3, SEC-3).
///
/// It is on the wire as the value itself. In Rust it shows itself to nobody who doesn't ask for it by name:
/// `Debug` prints `Personal(…)`, there is no `Display`, and it doesn't turn into the value by itself. So a log
/// line can't hold it by accident, and `grep expose` finds every place that reads it.
///
/// An event that holds one, however deep, compiles only if it declares its topic as one that few may read:
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::Personal;
/// use uuid::Uuid;
///
/// #[derive(Debug, Event)]
/// #[event(
///     kind = "customer.registered.v1", aggregate = "Customer", topic = "customers.registered",
///     restricted,
///     # unlocked,
/// )]
/// struct CustomerRegistered {
///     #[event(aggregate_id)]
///     customer_id: Uuid,
///     email: Personal<String>,
/// }
///
/// let event = CustomerRegistered {
///     customer_id: Uuid::from_u128(7),
///     email: Personal::new("jane@example.com".to_owned()),
/// };
/// assert!(format!("{event:?}").ends_with("email: Personal(…) }"));
/// assert_eq!(event.email.expose(), "jane@example.com");
/// ```
///
/// It is no aggregate id: that is the key of the Kafka record and stands in logs and metrics. Faults of an event
/// name the place of the value and never the value, as everywhere.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Personal<T>(T);

impl<T> Personal<T> {
    /// Marks a value as personal data.
    pub const fn new(value: T) -> Personal<T> {
        Personal(value)
    }

    /// The value, for those who need it and won't log it.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// The value, without its mark.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> fmt::Debug for Personal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Personal(…)")
    }
}

impl<T: Snapshot> Snapshot for Personal<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const CONTENT: Content = Content {
        personal: Some("Personal<T>"),
        ..T::CONTENT
    };

    fn shape(shapes: &mut Shapes) -> Shape {
        T::shape(shapes)
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        self.0.write(out)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        T::read(from).map(Personal)
    }

    fn is_absent(&self) -> bool {
        self.0.is_absent()
    }

    fn absent() -> Option<Self> {
        T::absent().map(Personal)
    }
}

impl<T: SnapshotText> SnapshotText for Personal<T> {
    fn text_shape(shapes: &mut Shapes) -> Shape {
        T::text_shape(shapes)
    }

    fn write_text(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        self.0.write_text(out)
    }

    fn read_text(from: &JsonValue<'_>) -> Result<Self, Poison> {
        T::read_text(from).map(Personal)
    }
}

/// The place of the personal data in a field of a snapshot: `Customer.email`, and the same wherever a `Customer`
/// is nested.
#[doc(hidden)]
#[must_use]
pub const fn personal_at(field: &'static str, content: Content) -> Option<&'static str> {
    match content.personal {
        // A place has a dot; the mark itself has none.
        Some(nested) if has_dot(nested.as_bytes()) => Some(nested),
        Some(_) => Some(field),
        None => None,
    }
}

const fn has_dot(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'.' {
            return true;
        }
        at += 1;
    }
    false
}

/// The first place there is.
#[doc(hidden)]
#[must_use]
pub const fn first_personal(places: &[Option<&'static str>]) -> Option<&'static str> {
    let mut at = 0;
    while at < places.len() {
        if places[at].is_some() {
            return places[at];
        }
        at += 1;
    }
    None
}

/// The place, or nothing where there is no personal data.
#[doc(hidden)]
#[must_use]
pub const fn personal_place(content: Content) -> &'static str {
    match content.personal {
        Some(place) => place,
        None => "",
    }
}

/// The bytes of all parts: an error text of the compiler that names a place can only be put together while
/// compiling.
#[doc(hidden)]
#[must_use]
pub const fn length_of(parts: &[&str]) -> usize {
    let mut length = 0;
    let mut at = 0;
    while at < parts.len() {
        length += parts[at].len();
        at += 1;
    }
    length
}

/// All parts in one, of [`length_of`] bytes.
#[doc(hidden)]
#[must_use]
pub const fn concatenate<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let mut all = [0; LENGTH];
    let mut written = 0;
    let mut at = 0;
    while at < parts.len() {
        let part = parts[at].as_bytes();
        let mut byte = 0;
        while byte < part.len() {
            all[written] = part[byte];
            written += 1;
            byte += 1;
        }
        at += 1;
    }
    all
}

/// The text of [`concatenate`].
#[doc(hidden)]
#[must_use]
pub const fn as_text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // Parts are texts, and so are texts one behind the other.
        Err(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn personal_data_shows_itself_only_to_those_who_ask() {
        let email = Personal::new("jane@example.com".to_owned());
        assert_eq!(format!("{email:?}"), "Personal(…)");
        assert_eq!(format!("{email:#?}"), "Personal(…)");
        assert_eq!(email.expose(), "jane@example.com");
        assert_eq!(email.clone(), email);
        assert_eq!(email.into_inner(), "jane@example.com");
    }

    #[test]
    fn every_holder_of_personal_data_says_so() {
        assert!(<Personal<String> as Snapshot>::CONTENT.personal.is_some());
        assert!(
            <Option<Vec<Box<Personal<u8>>>> as Snapshot>::CONTENT
                .personal
                .is_some()
        );
        type Labels = std::collections::BTreeMap<String, Personal<String>>;
        assert!(Labels::CONTENT.personal.is_some());
        assert!(
            <Option<Vec<String>> as Snapshot>::CONTENT
                .personal
                .is_none()
        );
        // What else it holds is still to be declared.
        let float = Content {
            personal: Some("Personal<T>"),
            ..f64::CONTENT
        };
        assert_eq!(<Personal<f64> as Snapshot>::CONTENT, float);
        assert_ne!(f64::CONTENT, Content::PLAIN);
    }

    #[test]
    fn a_place_is_that_of_the_innermost_snapshot() {
        let with = |personal| Content {
            personal,
            ..Content::PLAIN
        };
        assert_eq!(
            personal_at("Customer.email", with(Some("Personal<T>"))),
            Some("Customer.email")
        );
        assert_eq!(
            personal_at("Order.customer", with(Some("Customer.email"))),
            Some("Customer.email")
        );
        assert_eq!(personal_at("Order.note", with(None)), None);
        assert_eq!(
            first_personal(&[None, Some("A.b"), Some("C.d")]),
            Some("A.b")
        );
        assert_eq!(first_personal(&[]), None);
    }

    #[test]
    fn parts_are_put_together() {
        const PARTS: [&str; 3] = ["a “", "Kä.b", "”"];
        const TEXT: [u8; length_of(&PARTS)] = concatenate(&PARTS);
        assert_eq!(as_text(&TEXT), "a “Kä.b”");
    }
}
