//! The type of an event: `<aggregate>.<event>.v<N>` (EVT-2).

use std::fmt;
use std::str::FromStr;

/// The type of an event as the standard writes it: `<aggregate>.<event>.v<N>` (EVT-2).
///
/// Aggregate and event are words of lower-case letters, digits, `-` and `_` that begin with a letter;
/// the version is 1 or more, without a leading zero. At most 128 bytes in all.
///
/// ```
/// # use factum_event::EventType;
/// let kind: EventType = "order.confirmed.v1".parse()?;
/// assert_eq!((kind.aggregate(), kind.event(), kind.version()), ("order", "confirmed", 1));
/// assert_eq!(kind.to_string(), "order.confirmed.v1");
/// assert!("order.confirmed".parse::<EventType>().is_err());
/// # Ok::<(), factum_event::EventTypeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType {
    aggregate: String,
    event: String,
    version: u32,
}

impl EventType {
    /// The most bytes that the text of a type may have.
    pub const MAX_BYTES: usize = 128;

    /// The first part, such as `order`.
    pub fn aggregate(&self) -> &str {
        &self.aggregate
    }

    /// The second part, such as `confirmed`: a verb in the past tense (EVT-1).
    pub fn event(&self) -> &str {
        &self.event
    }

    /// The number after `v`, 1 or more.
    pub fn version(&self) -> u32 {
        self.version
    }
}

/// A text is not an event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an event type: expected \"<aggregate>.<event>.v<N>\" in lower case, such as \
     \"order.confirmed.v1\", of at most 128 bytes (EVT-2)"
)]
pub struct EventTypeError;

impl FromStr for EventType {
    type Err = EventTypeError;

    fn from_str(text: &str) -> Result<Self, EventTypeError> {
        let mut parts = text.split('.');
        let (Some(aggregate), Some(event), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(EventTypeError);
        };
        let digits = version.strip_prefix('v').ok_or(EventTypeError)?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        let version = digits.parse().map_err(|_| EventTypeError)?;
        if plain && is_word(aggregate) && is_word(event) && text.len() <= Self::MAX_BYTES {
            Ok(EventType {
                aggregate: aggregate.to_owned(),
                event: event.to_owned(),
                version,
            })
        } else {
            Err(EventTypeError)
        }
    }
}

fn is_word(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_lowercase())
        && part
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.v{}", self.aggregate, self.event, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_and_written_back() {
        for text in [
            "order.confirmed.v1",
            "customer-order.paid_out.v12",
            "a.b.v4294967295",
        ] {
            assert_eq!(text.parse::<EventType>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_type_is_refused() {
        for text in [
            "",
            "order",
            "order.confirmed",
            "order.confirmed.1",
            "order.confirmed.v",
            "order.confirmed.v0",
            "order.confirmed.v01",
            "order.confirmed.v+1",
            "order.confirmed.v-1",
            "order.confirmed.v4294967296",
            "order.confirmed.v1.x",
            "Order.confirmed.v1",
            "order.Confirmed.v1",
            "order.confirmed.V1",
            ".confirmed.v1",
            "order..v1",
            "1order.confirmed.v1",
            "order.con firmed.v1",
            "order.confirmed.v1 ",
            "örder.confirmed.v1",
            &format!("{}.confirmed.v1", "a".repeat(128)),
        ] {
            assert_eq!(text.parse::<EventType>(), Err(EventTypeError), "{text:?}");
        }
    }
}
