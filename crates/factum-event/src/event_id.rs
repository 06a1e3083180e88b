//! The id of an event: a UUID of version 7 (IDEM-1).

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::contract::{Shape, Shapes};
use crate::encode::{EncodeError, ValueWriter, Written};
use crate::poison::Poison;
use crate::read::JsonValue;
use crate::snapshot::{Snapshot, parse_hyphenated};

/// The id of an event, the same in every version of one fact: a UUID of version 7 and of the
/// RFC 9562 variant (IDEM-1).
///
/// It is what consumers deduplicate by. Its time part places it in a partition of the dedup table;
/// it is never used to order events.
///
/// ```
/// # use factum_event::EventId;
/// let id: EventId = "01935c3e-7c1a-7000-8000-000000000001".parse()?;
/// assert_eq!(id.to_string(), "01935c3e-7c1a-7000-8000-000000000001");
/// assert_eq!(id.unix_millis(), 1_732_419_419_162);
/// assert!("305ea1e4-de37-4d00-93ea-2524ddeceb97".parse::<EventId>().is_err()); // version 4
/// # Ok::<(), factum_event::EventIdError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Uuid);

impl EventId {
    /// The largest time that an id can hold, in milliseconds since 1970: in the year 10889.
    pub const MAX_UNIX_MILLIS: u64 = (1 << 48) - 1;

    /// The smallest id of a millisecond, for the bounds of partitions by time.
    ///
    /// A time beyond [`MAX_UNIX_MILLIS`](Self::MAX_UNIX_MILLIS) counts as that.
    ///
    /// ```
    /// # use factum_event::EventId;
    /// assert_eq!(
    ///     EventId::floor(1_732_419_419_162).to_string(),
    ///     "01935c3e-7c1a-7000-8000-000000000000",
    /// );
    /// ```
    pub fn floor(unix_millis: u64) -> EventId {
        EventId::from_parts(unix_millis.min(Self::MAX_UNIX_MILLIS), 0)
    }

    /// An id of a foreign producer: a UUID of any version, which a consumer takes only by a policy of its own. One of
    /// version 7 is an id as every other.
    ///
    /// # Errors
    ///
    /// It is not of the RFC 9562 variant, or of no version from 1 to 8.
    ///
    /// ```
    /// # use factum_event::EventId;
    /// let uuid = uuid::uuid!("305ea1e4-de37-4d00-93ea-2524ddeceb97");
    /// assert!(EventId::try_from(uuid).is_err());
    /// assert!(EventId::foreign(uuid)?.is_foreign());
    /// # Ok::<(), factum_event::EventIdError>(())
    /// ```
    pub fn foreign(uuid: Uuid) -> Result<EventId, EventIdError> {
        let is_sound = (1..=8).contains(&uuid.get_version_num())
            && uuid.get_variant() == uuid::Variant::RFC4122;
        is_sound.then_some(EventId(uuid)).ok_or(EventIdError)
    }

    /// Whether it is of another version than 7: it then says no time, and no partition of the dedup table is its own.
    pub fn is_foreign(self) -> bool {
        !EventId::is_valid(self.0)
    }

    /// The time part, in milliseconds since 1970: when the id was made, not when the event happened. Of a
    /// [foreign](Self::is_foreign) id it says nothing.
    pub fn unix_millis(self) -> u64 {
        (self.0.as_u128() >> 80) as u64
    }

    /// The id as a plain UUID, for binding in SQL.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }

    /// `tail` are the 74 bits after the time that the version and the variant leave free.
    fn from_parts(unix_millis: u64, tail: u128) -> EventId {
        let rand_a = tail >> 62;
        let rand_b = tail & ((1 << 62) - 1);
        EventId(Uuid::from_u128(
            u128::from(unix_millis) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b,
        ))
    }

    fn is_valid(uuid: Uuid) -> bool {
        uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122
    }
}

/// A text or UUID is not an event id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an event id: expected a UUID of version 7 in its hyphenated form (IDEM-1)")]
pub struct EventIdError;

impl TryFrom<Uuid> for EventId {
    type Error = EventIdError;

    fn try_from(uuid: Uuid) -> Result<Self, EventIdError> {
        if EventId::is_valid(uuid) {
            Ok(EventId(uuid))
        } else {
            Err(EventIdError)
        }
    }
}

impl From<EventId> for Uuid {
    fn from(id: EventId) -> Uuid {
        id.0
    }
}

/// Takes the hyphenated form only; upper-case digits are read and written back in lower case.
impl FromStr for EventId {
    type Err = EventIdError;

    fn from_str(text: &str) -> Result<Self, EventIdError> {
        parse_hyphenated(text).ok_or(EventIdError)?.try_into()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0.as_hyphenated(), f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventId({self})")
    }
}

impl Snapshot for EventId {
    const EXPECTED: &'static str = "a UUID of version 7 in its hyphenated form";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::EventId
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        self.0.write(out)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text(Self::EXPECTED)?
            .parse()
            .map_err(|_| from.invalid(Self::EXPECTED))
    }
}

/// Makes event ids that ascend strictly, whatever the clock does (public case 56).
///
/// It is a pure state machine: time and randomness are arguments. One per process is the point;
/// `factum` keeps that one, and a test can have its own.
///
/// While the clock stands still or steps back, ids keep the last time and count up by a random step,
/// so that the next one can't be guessed from the last. A process whose clock was far ahead and is
/// mended goes on with the old time until the clock catches up: restart it to end that.
///
/// ```
/// # use factum_event::EventIdSource;
/// let mut source = EventIdSource::new();
/// let first = source.next(1_732_419_419_162, [7; 10]);
/// let second = source.next(1_732_419_404_162, [3; 10]); // the clock stepped back by 15 s
/// assert!(first < second);
/// ```
#[derive(Debug, Clone, Default)]
pub struct EventIdSource {
    last: Option<(u64, u128)>,
}

impl EventIdSource {
    const TAIL_BITS: u32 = 74;

    /// A source that has made no id yet.
    pub const fn new() -> EventIdSource {
        EventIdSource { last: None }
    }

    /// The next id: larger than every id before it.
    ///
    /// `now_unix_millis` is the clock in milliseconds since 1970, at most
    /// [`EventId::MAX_UNIX_MILLIS`]; `random` must be fresh for each call.
    ///
    /// # Panics
    ///
    /// When the ids are used up: after 2^42 of them in the year 10889.
    pub fn next(&mut self, now_unix_millis: u64, random: [u8; 10]) -> EventId {
        let now = now_unix_millis.min(EventId::MAX_UNIX_MILLIS);
        let mut bytes = [0; 16];
        bytes[6..].copy_from_slice(&random);
        let random = u128::from_be_bytes(bytes) & ((1 << Self::TAIL_BITS) - 1);

        let (millis, tail) = match self.last {
            Some((last, tail)) if now <= last => {
                // At most 2^32 at once, so a millisecond has room for 2^41 ids in the mean.
                let next = tail + 1 + (random & 0xffff_ffff);
                if next >> Self::TAIL_BITS == 0 {
                    (last, next)
                } else {
                    (last + 1, random)
                }
            }
            _ => (now, random),
        };
        assert!(
            millis <= EventId::MAX_UNIX_MILLIS,
            "event ids end in the year 10889"
        );
        self.last = Some((millis, tail));
        EventId::from_parts(millis, tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_780_000_000_000;

    /// Random bytes without a generator: a multiplicative sequence is varied enough.
    fn random(seed: u64) -> [u8; 10] {
        let mixed = u128::from(seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        mixed.to_be_bytes()[..10].try_into().unwrap()
    }

    #[test]
    fn case_56_ids_ascend_within_a_millisecond() {
        let mut source = EventIdSource::new();
        let ids: Vec<EventId> = (0..10_000)
            .map(|seed| source.next(NOW, random(seed)))
            .collect();
        assert!(
            ids.is_sorted_by(|a, b| a < b),
            "an id is not larger than the one before it"
        );
        assert!(ids.iter().all(|id| id.unix_millis() == NOW));
        assert!(
            ids.iter()
                .all(|id| EventId::try_from(id.as_uuid()) == Ok(*id))
        );
    }

    #[test]
    fn case_56_ids_ascend_while_the_clock_steps_back() {
        let mut source = EventIdSource::new();
        let before = source.next(NOW, random(0));
        let mut last = before;
        for step in 0..1_000 {
            let id = source.next(NOW - 15_000 + step, random(step + 1));
            assert!(id > last, "step {step}");
            last = id;
        }
        assert_eq!(last.unix_millis(), NOW, "the time never goes back");
        let after = source.next(NOW + 1, random(5_000));
        assert!(after > last);
        assert_eq!(after.unix_millis(), NOW + 1, "the clock has caught up");
    }

    #[test]
    fn case_56_a_full_millisecond_flows_into_the_next() {
        let mut source = EventIdSource::new();
        let full = source.next(NOW, [0xff; 10]);
        let next = source.next(NOW, random(1));
        assert!(next > full);
        assert_eq!(next.unix_millis(), NOW + 1);
        let same_clock = source.next(NOW, random(2));
        assert!(same_clock > next);
    }

    #[test]
    fn case_56_the_next_id_is_not_the_last_plus_one() {
        let mut source = EventIdSource::new();
        let first = source.next(NOW, random(0)).as_uuid().as_u128();
        let second = source.next(NOW, random(1)).as_uuid().as_u128();
        assert!(second - first > 1_000);
    }

    #[test]
    fn case_56_only_version_7_and_its_variant_are_event_ids() {
        for text in [
            "305ea1e4-de37-4d00-93ea-2524ddeceb97",   // version 4
            "00000000-0000-0000-0000-000000000000",   // nil
            "ffffffff-ffff-ffff-ffff-ffffffffffff",   // max
            "01935c3e-7c1a-7000-d000-000000000001",   // variant d
            "01935c3e-7c1a-7000-c000-000000000001",   // variant c
            "01935c3e-7c1a-7000-0000-000000000001",   // variant of the NCS
            "01935c3e-7c1a-0000-8000-000000000001",   // version 0
            "01935c3e-7c1a-9000-8000-000000000001",   // version 9
            "01935c3e7c1a70008000000000000001",       // without hyphens
            "{01935c3e-7c1a-7000-8000-000000000001}", // braced
            "urn:uuid:01935c3e-7c1a-7000-8000-000000000001",
            "01935c3e-7c1a-7000-8000-000000000001 ",
            " 01935c3e-7c1a-7000-8000-00000000001",
            "01935c3e-7c1a-7000-8000-00000000000g",
            "01935c3e-7c1a-7000-8000-00000000000é",
            "01935c3e-7c1a7-000-8000-000000000001",
            "",
        ] {
            assert_eq!(text.parse::<EventId>(), Err(EventIdError), "{text:?}");
        }
        // Far in the past and in the future are ids; whether they lie in the dedup window is not
        // theirs to say.
        for (text, millis) in [
            ("00000000-0000-7000-8000-000000000000", 0),
            (
                "ffffffff-ffff-7fff-bfff-ffffffffffff",
                EventId::MAX_UNIX_MILLIS,
            ),
        ] {
            assert_eq!(text.parse::<EventId>().unwrap().unix_millis(), millis);
        }
        let upper: EventId = "01935C3E-7C1A-7000-8000-00000000000A".parse().unwrap();
        assert_eq!(upper.to_string(), "01935c3e-7c1a-7000-8000-00000000000a");
    }

    #[test]
    fn a_floor_is_below_every_id_of_its_millisecond_and_above_all_earlier() {
        let mut source = EventIdSource::new();
        assert!(source.next(NOW - 1, [0xff; 10]) < EventId::floor(NOW));
        assert!(EventId::floor(NOW) <= source.next(NOW, [0; 10]));
        assert_eq!(
            EventId::floor(u64::MAX),
            EventId::floor(EventId::MAX_UNIX_MILLIS)
        );
        assert!(EventId::try_from(EventId::floor(0).as_uuid()).is_ok());
    }
}
