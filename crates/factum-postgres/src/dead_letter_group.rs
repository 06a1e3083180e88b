//! How many dead letters there are, by consumer, type, reason and path: exact, without a hot row and without counting.
//!
//! The triggers of table `dead_letter` write the deltas, for every program that changes a letter in any language: no
//! statement of Factum's inserts into `dead_letter_delta`.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{Connection, Row};
use time::OffsetDateTime;

use crate::database::Database;
use crate::error::DatabaseError;

/// Groups of one consumer. Letters of further ones count in its group "other".
const GROUPS: i64 = 10_000;
/// Groups that are read at most.
const MAX_ROWS: i64 = 100_000;
/// Deltas that one transaction folds.
const FOLD_BATCH: i64 = 5_000;
/// Transactions of one call.
const FOLD_BATCHES: u32 = 20;
/// For reading, and for each transaction of folding.
const LIMIT: Duration = Duration::from_secs(30);

/// Advisory lock "factum", folding. Two folders of one consumer's last free group would disagree what is "other".
const LOCK: i64 = 0x6661_6374_756d_0003;

/// Dead letters of one consumer, type of event, reason and path, see [`dead_letter_groups`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterGroup {
    /// A short name, made from the four parts below: four letters and digits, more where two groups would share them.
    pub id: String,
    /// The consumer's stable name.
    pub consumer: String,
    /// The event's type; empty if it couldn't be read.
    pub event_type: String,
    /// A stable name: `DeadLetterReason::as_str`; `other` beyond the limit of groups.
    pub reason: String,
    /// The place inside the value, its indices taken out: `$.items[].price`; empty where there is none.
    pub path_group: String,
    /// Letters that wait for a person.
    pub open: i64,
    /// Letters that were replayed.
    pub replayed: i64,
    /// Letters that were discarded.
    pub discarded: i64,
    /// When a letter of it was first seen.
    pub first_at: OffsetDateTime,
    /// When a letter of it was last seen.
    pub last_at: OffsetDateTime,
}

/// Every group, of one consumer or of all, the one with the most open letters first. The counts are exact at the
/// moment of the one statement that reads them, however much is written and folded meanwhile.
///
/// A consumer has 10,000 groups at most; letters of further ones count in a group with the reason and path `other`
/// and no type. 100,000 groups are read at most.
///
/// # Errors
/// No connection, or the statement failed or took longer than 30 s.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// for group in factum_postgres::dead_letter_groups(&db, None).await? {
///     println!("{}  {}  {}  {} open", group.id, group.reason, group.path_group, group.open);
/// }
/// # Ok(()) }
/// ```
pub async fn dead_letter_groups(
    db: &Database,
    consumer: Option<&str>,
) -> Result<Vec<DeadLetterGroup>, DatabaseError> {
    let failed = |err: sqlx::Error| DatabaseError::new("read the groups of dead letters", &err);
    let mut held = db.hold().await?;
    let rows = held
        .answered_within(LIMIT, async |conn| {
            sqlx::query(READ)
                .bind(GROUPS)
                .bind(MAX_ROWS)
                .fetch_all(conn)
                .await
        })
        .await
        .map_err(failed)?;
    held.give_back();
    let read = |row: &sqlx::postgres::PgRow| {
        Ok(DeadLetterGroup {
            id: String::new(),
            consumer: row.try_get(0)?,
            event_type: row.try_get(1)?,
            reason: row.try_get(2)?,
            path_group: row.try_get(3)?,
            open: row.try_get(4)?,
            replayed: row.try_get(5)?,
            discarded: row.try_get(6)?,
            first_at: row.try_get(7)?,
            last_at: row.try_get(8)?,
        })
    };
    let mut groups: Vec<DeadLetterGroup> = rows
        .iter()
        .map(read)
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    // Before any are left out: a group has one id, whoever asks.
    name(&mut groups);
    groups.retain(|group| consumer.is_none_or(|consumer| consumer == group.consumer));
    Ok(groups)
}

/// Folds deltas into their groups, 100,000 at most, and says how many. Any number of processes may call it: one works,
/// the others find its lock and do nothing.
///
/// # Errors
/// No connection, or a statement failed. What was folded before stays folded; nothing is counted twice or lost.
pub async fn fold_dead_letter_groups(db: &Database) -> Result<u64, DatabaseError> {
    let mut held = db.hold().await?;
    let mut folded = 0;
    for _ in 0..FOLD_BATCHES {
        let batch = held
            .answered_within(LIMIT, async |conn| {
                let mut tx = conn.begin().await?;
                let alone: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
                    .bind(LOCK)
                    .fetch_one(&mut *tx)
                    .await?;
                // A statement of its own: its snapshot must know what the last folder did.
                let batch: i64 = match alone {
                    false => 0,
                    true => {
                        sqlx::query_scalar(FOLD)
                            .bind(GROUPS)
                            .bind(FOLD_BATCH)
                            .fetch_one(&mut *tx)
                            .await?
                    }
                };
                tx.commit().await?;
                Ok(batch)
            })
            .await
            .map_err(|err| DatabaseError::new("fold the counts of dead letters", &err))?;
        folded += batch.unsigned_abs();
        if batch < FOLD_BATCH {
            break;
        }
    }
    held.give_back();
    Ok(folded)
}

/// Where a delta counts: in its own group if that is known or there is room, else in "other". Groups never go, so what
/// once counted as other does so ever after.
macro_rules! target {
    () => {
        "SELECT d.consumer, \
                CASE WHEN own THEN d.event_type ELSE '' END AS event_type, \
                CASE WHEN own THEN d.reason ELSE 'other' END AS reason, \
                CASE WHEN own THEN d.path_group ELSE 'other' END AS path_group, \
                d.open, d.replayed, d.discarded, d.first_at, d.at \
         FROM (SELECT delta.*, \
                      g.consumer IS NOT NULL OR coalesce(size.groups, 0) + dense_rank() OVER new_groups <= $1 AS own \
               FROM delta \
               LEFT JOIN dead_letter_group g USING (consumer, event_type, reason, path_group) \
               LEFT JOIN (SELECT consumer, count(*) AS groups FROM dead_letter_group \
                          WHERE consumer IN (SELECT consumer FROM delta) GROUP BY consumer) AS size USING (consumer) \
               WINDOW new_groups AS (PARTITION BY consumer, g.consumer IS NULL \
                                     ORDER BY event_type, reason, path_group)) AS d"
    };
}

const READ: &str = concat!(
    "WITH delta AS ( \
        SELECT consumer, event_type, reason, path_group, sum(open)::bigint AS open, \
               sum(replayed)::bigint AS replayed, sum(discarded)::bigint AS discarded, \
               min(first_at) AS first_at, max(at) AS at \
        FROM dead_letter_delta GROUP BY 1, 2, 3, 4) \
     SELECT consumer, event_type, reason, path_group, sum(open)::bigint AS open, sum(replayed)::bigint, \
            sum(discarded)::bigint, min(first_at), max(last_at) AS last_at \
     FROM (SELECT consumer, event_type, reason, path_group, open, replayed, discarded, first_at, last_at \
           FROM dead_letter_group \
           UNION ALL \
           ",
    target!(),
    ") AS every \
     GROUP BY 1, 2, 3, 4 \
     ORDER BY open DESC, last_at DESC, 1, 2, 3, 4 \
     LIMIT $2"
);

const FOLD: &str = concat!(
    "WITH taken AS ( \
        DELETE FROM dead_letter_delta WHERE id IN (SELECT id FROM dead_letter_delta ORDER BY id LIMIT $2) \
        RETURNING *), \
     delta AS ( \
        SELECT consumer, event_type, reason, path_group, sum(open)::bigint AS open, \
               sum(replayed)::bigint AS replayed, sum(discarded)::bigint AS discarded, \
               min(first_at) AS first_at, max(at) AS at \
        FROM taken GROUP BY 1, 2, 3, 4), \
     folded AS ( \
        INSERT INTO dead_letter_group AS known \
          (consumer, event_type, reason, path_group, open, replayed, discarded, first_at, last_at) \
        SELECT consumer, event_type, reason, path_group, sum(open), sum(replayed), sum(discarded), \
               min(first_at), max(at) \
        FROM (",
    target!(),
    ") AS every \
        GROUP BY 1, 2, 3, 4 \
        ON CONFLICT (consumer, event_type, reason, path_group) DO UPDATE SET \
          open = known.open + excluded.open, replayed = known.replayed + excluded.replayed, \
          discarded = known.discarded + excluded.discarded, \
          first_at = least(known.first_at, excluded.first_at), \
          last_at = greatest(known.last_at, excluded.last_at)) \
     SELECT count(*) FROM taken"
);

/// Gives each group the shortest id that no other has: a prefix of four letters or more of its hash.
fn name(groups: &mut [DeadLetterGroup]) {
    let hashes: Vec<String> = groups.iter().map(hash).collect();
    let mut places: Vec<usize> = (0..hashes.len()).collect();
    places.sort_unstable_by(|a, b| hashes[*a].cmp(&hashes[*b]));
    let shared: HashMap<usize, usize> = places
        .windows(2)
        .map(|pair| (pair[0], pair[1], common(&hashes[pair[0]], &hashes[pair[1]])))
        .fold(HashMap::new(), |mut longest, (a, b, shared)| {
            for place in [a, b] {
                let known = longest.entry(place).or_insert(0);
                *known = shared.max(*known);
            }
            longest
        });
    for (place, group) in groups.iter_mut().enumerate() {
        let length = shared.get(&place).map_or(4, |shared| (shared + 1).max(4));
        let hash = &hashes[place];
        group.id = hash[..length.min(hash.len())].to_owned();
    }
}

/// How many letters two texts begin with together.
fn common(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// Twelve letters and digits that a group's four parts always give: FNV-1a in base 32, without i, l, o and u.
fn hash(group: &DeadLetterGroup) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let parts = [
        &group.consumer,
        &group.event_type,
        &group.reason,
        &group.path_group,
    ];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // A byte that no text holds ends each part.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    // The last bytes reach the high bits of FNV too little.
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..12)
        .map(|place| char::from(DIGITS[(hash >> (59 - 5 * place) & 31) as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(consumer: &str, path_group: &str) -> DeadLetterGroup {
        DeadLetterGroup {
            id: String::new(),
            consumer: consumer.to_owned(),
            event_type: "order.confirmed.v1".to_owned(),
            reason: "missing_field".to_owned(),
            path_group: path_group.to_owned(),
            open: 1,
            replayed: 0,
            discarded: 0,
            first_at: OffsetDateTime::UNIX_EPOCH,
            last_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_groups_id_never_changes() {
        let mut groups = [group("billing", "$.total.currency")];
        name(&mut groups);
        assert_eq!(groups[0].id, "mpwj");
    }

    #[test]
    fn ten_thousand_groups_have_ids_of_their_own() {
        let mut groups: Vec<_> = (0..10_000)
            .map(|n| group("billing", &format!("$.field{n}")))
            .collect();
        name(&mut groups);
        let mut ids: Vec<&str> = groups.iter().map(|group| group.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| (4..=8).contains(&id.len())));
        let short = ids.iter().filter(|id| id.len() == 4).count();
        assert!(short > 9_000, "{short} of the ids are short");
        assert!(
            groups
                .iter()
                .all(|group| hash(group).starts_with(&group.id)),
            "what is longer begins with what it was"
        );
    }

    #[test]
    fn the_parts_of_a_group_dont_run_into_each_other() {
        assert_ne!(hash(&group("a", "bc")), hash(&group("ab", "c")));
    }
}
