//! The accounts that order, and where their orders pass.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use factum::sqlx::{self, PgConnection};

use super::order::Trouble;

/// How many accounts there are: some in every slot of the outbox and in every partition.
const ACCOUNTS: usize = 1_200;

/// All accounts, by their number from 0.
#[derive(Debug)]
pub struct Accounts {
    names: Vec<String>,
    places: Vec<Place>,
    numbers: HashMap<String, usize>,
}

/// Where an account's orders pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The slot of the outbox.
    pub slot: i16,
    /// The partition of the topic.
    pub partition: usize,
    /// Whether none of its orders fails: then an effect comes from a partition's lane, and from no retry.
    pub is_quiet: bool,
}

impl Accounts {
    /// Asks the database for their slots.
    ///
    /// # Errors
    ///
    /// It refuses.
    pub async fn find(
        conn: &mut PgConnection,
        partitions: u32,
        trouble: Trouble,
    ) -> Result<Accounts> {
        let names = names();
        // As the outbox's column has it.
        let slots: Vec<i16> = sqlx::query_scalar(
            "SELECT (hashtextextended(name, 0) & 63)::smallint
               FROM unnest($1::text[]) WITH ORDINALITY AS a (name, place) ORDER BY place",
        )
        .bind(&names)
        .fetch_all(conn)
        .await
        .context("asking for the accounts' slots")?;
        Ok(Accounts::new(names, slots, partitions, trouble))
    }

    fn new(names: Vec<String>, slots: Vec<i16>, partitions: u32, trouble: Trouble) -> Accounts {
        let places = names.iter().zip(slots).map(|(name, slot)| Place {
            slot,
            partition: partition_of(name, partitions),
            is_quiet: !trouble.meets(name),
        });
        Accounts {
            places: places.collect(),
            numbers: names.iter().cloned().zip(0..).collect(),
            names,
        }
    }

    /// Accounts in slots that no database was asked for.
    #[cfg(test)]
    pub(super) fn in_slots(partitions: u32, trouble: Trouble) -> Accounts {
        let slots = (0..64).cycle().take(ACCOUNTS).collect();
        Accounts::new(names(), slots, partitions, trouble)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// The account's name.
    pub fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// Where its orders pass.
    pub fn place(&self, number: usize) -> Place {
        self.places[number]
    }

    /// The number of the account with this name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }
}

fn names() -> Vec<String> {
    (1..=ACCOUNTS)
        .map(|number| format!("account-{number}"))
        .collect()
}

/// The partition of a key, as every client of Kafka computes it: murmur2.
fn partition_of(key: &str, partitions: u32) -> usize {
    const M: u32 = 0x5bd1_e995;
    let bytes = key.as_bytes();
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(word)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^= hash >> 15;
    ((hash & 0x7fff_ffff) % partitions) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_s_partition_is_that_of_kafka_s_own_client() {
        // org.apache.kafka.common.utils.Utils.murmur2 gives these for the words.
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("abc", 479_470_107),
        ] {
            let expected = (hash.cast_unsigned() & 0x7fff_ffff) % 12;
            assert_eq!(partition_of(key, 12), expected as usize, "{key}");
        }
    }
}
