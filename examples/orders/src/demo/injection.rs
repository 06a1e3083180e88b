//! What the demo puts into the topics besides what the services publish.

use factum::PoisonReason;
use fastrand::Rng;
use serde_json::{Map, Value, json};

/// The header that marks what the demo wrote, so that the checker can tell it from the services' own.
/// A duplicate has no mark: it is the same record, byte for byte.
pub const MARK: &str = "demo";

/// [`MARK`] of an event of an unknown type.
pub const UNKNOWN_TYPE: &str = "unknown-type";

/// [`MARK`] of a record without a value.
pub const TOMBSTONE: &str = "tombstone";

/// Begins the [`MARK`] of a poison; the reason follows.
pub const POISON: &str = "poison:";

/// An event as JSON.
type Event = Map<String, Value>;

/// A way to spoil an event.
type Spoil = fn(&Event) -> Vec<u8>;

/// Every kind of poison, each made from a sound event, and the reason that the consumer must give.
const SPOILERS: [(PoisonReason, Spoil); 16] = [
    (PoisonReason::Empty, |_| Vec::new()),
    (PoisonReason::MalformedJson, |event| {
        let whole = text(event);
        whole[..whole.len() / 2].to_vec()
    }),
    (PoisonReason::NotObject, |event| {
        [b"[", text(event).as_slice(), b"]"].concat()
    }),
    (PoisonReason::Framed, |event| {
        [&[0, 0, 0, 0, 1], text(event).as_slice()].concat()
    }),
    (PoisonReason::NotUtf8, |event| {
        with_raw(event, b"\"note\":\"\xff\"")
    }),
    (PoisonReason::DuplicateKey, |event| {
        with_raw(event, b"\"currency\":\"USD\"")
    }),
    (PoisonReason::MalformedJson, |event| {
        with_raw(event, b"\"note\":\"\\ud800\"")
    }),
    (PoisonReason::Nul, |event| {
        with_raw(event, b"\"note\":\"a\\u0000b\"")
    }),
    (PoisonReason::TooDeep, |event| {
        let note = format!("\"note\":{}{}", "[".repeat(64), "]".repeat(64));
        with_raw(event, note.as_bytes())
    }),
    (PoisonReason::EventType, |event| without(event, "eventType")),
    (PoisonReason::EventId, |event| {
        with(
            event,
            "eventId",
            json!("7a6c9d2e-3d63-4f54-9a53-2f8a2b0c1d11"),
        )
    }),
    (PoisonReason::OccurredAt, |event| {
        with(event, "occurredAt", json!("yesterday"))
    }),
    (PoisonReason::AggregateType, |event| {
        with(event, "aggregateType", json!("Basket"))
    }),
    (PoisonReason::AggregateId, |event| {
        with(event, "aggregateId", json!("somebody-else"))
    }),
    (PoisonReason::MissingField, |event| {
        without(event, "currency")
    }),
    (PoisonReason::InvalidField, |event| {
        with(event, "totalAmount", json!(0))
    }),
];

/// Poisons in each topic and round.
const POISONS_PER_ROUND: u32 = 4;

/// A record to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// The value of [`MARK`].
    pub mark: String,
}

/// The marked records of a round, made from sound records of the topic, each a key and a value:
/// poisons (another four kinds each round), an event of a type that nobody knows, a later version of
/// the topic's own type, and a record without a value.
pub fn injections(rng: &mut Rng, round: u32, sound: &[(&[u8], &[u8])]) -> Vec<Injection> {
    let first = (round * POISONS_PER_ROUND) as usize;
    let poisons = SPOILERS.iter().cycle().skip(first % SPOILERS.len());
    let mut wanted: Vec<(String, Option<Spoil>)> = poisons
        .take(POISONS_PER_ROUND as usize)
        .map(|(reason, spoil)| (format!("{POISON}{reason}"), Some(*spoil)))
        .collect();
    let unknown: Spoil = |event| with(event, "eventType", json!("order.archived.v1"));
    let newer: Spoil = |event| {
        let own = event["eventType"].as_str().unwrap_or_default();
        with(event, "eventType", json!(own.replace(".v1", ".v2")))
    };
    wanted.push((UNKNOWN_TYPE.to_owned(), Some(unknown)));
    wanted.push((UNKNOWN_TYPE.to_owned(), Some(newer)));
    wanted.push((TOMBSTONE.to_owned(), None));

    let mut injections = Vec::new();
    for (mark, spoil) in wanted {
        let Some((key, value)) = rng.choice(sound.iter().copied()) else {
            break;
        };
        let Ok(event) = serde_json::from_slice(value) else {
            continue;
        };
        injections.push(Injection {
            key: key.to_vec(),
            value: spoil.map(|spoil| spoil(&event)),
            mark,
        });
    }
    injections
}

fn text(event: &Event) -> Vec<u8> {
    Value::Object(event.clone()).to_string().into_bytes()
}

fn with(event: &Event, key: &str, value: Value) -> Vec<u8> {
    let mut event = event.clone();
    event.insert(key.to_owned(), value);
    text(&event)
}

fn without(event: &Event, key: &str) -> Vec<u8> {
    let mut event = event.clone();
    event.remove(key);
    text(&event)
}

/// The event with one more member, as it is.
fn with_raw(event: &Event, member: &[u8]) -> Vec<u8> {
    let mut whole = text(event);
    whole.pop();
    [whole.as_slice(), b",", member, b"}"].concat()
}

#[cfg(test)]
mod tests {
    use factum::{Decoded, Registry};

    use super::*;
    use crate::events::OrderConfirmed;

    const SOUND: &[u8] = br#"{"eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"order.confirmed.v1",
        "occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Order","aggregateId":"A-1","orderRef":"A-1",
        "orderId":1,"customerId":2,"totalAmount":10.5,"currency":"EUR"}"#;

    fn rounds(count: u32) -> Vec<Injection> {
        let mut rng = Rng::with_seed(1);
        let sound: [(&[u8], &[u8]); 1] = [(b"A-1", SOUND)];
        (0..count)
            .flat_map(|round| injections(&mut rng, round, &sound))
            .collect()
    }

    #[test]
    fn every_injection_is_what_its_mark_says() {
        let registry = Registry::new().with::<OrderConfirmed>();
        assert!(
            matches!(registry.decode(Some(SOUND)), Decoded::Event(_)),
            "the base is sound"
        );
        for injection in rounds(4) {
            let mark = match registry.decode(injection.value.as_deref()) {
                Decoded::Poison(poison) => format!("{POISON}{}", poison.reason()),
                Decoded::Unknown { .. } => UNKNOWN_TYPE.to_owned(),
                Decoded::Tombstone => TOMBSTONE.to_owned(),
                Decoded::Event(_) => "sound".to_owned(),
            };
            assert_eq!(mark, injection.mark);
        }
    }

    #[test]
    fn four_rounds_have_every_kind_of_poison() {
        let injections = rounds(4);
        let poisons = injections
            .iter()
            .filter(|i| i.mark.starts_with(POISON))
            .count();
        assert_eq!(poisons, SPOILERS.len());
        assert_eq!(injections.len(), 4 * (4 + 3));
    }
}
