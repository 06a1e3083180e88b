use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use factum_postgres::{
    DeadLetter, DeadLetterGroup, Session, dead_letter_groups, fold_dead_letter_groups,
    open_dead_letters,
};
use factum_testing::eventually;
use sqlx::{AssertSqlSafe, Connection};

use crate::fixture::{Fixture, LIMIT};

/// Groups whose count, with its deltas, isn't what counting the letters gives: none, in any snapshot.
const WRONG: &str = "\
    SELECT count(*) FROM \
      (SELECT consumer, coalesce(event_type, '') AS event_type, reason, path_group, \
              count(*) FILTER (WHERE state = 'open') AS open, count(*) FILTER (WHERE state = 'replayed') AS replayed, \
              count(*) FILTER (WHERE state = 'discarded') AS discarded \
       FROM dead_letter GROUP BY 1, 2, 3, 4) AS letters \
    FULL JOIN \
      (SELECT consumer, event_type, reason, path_group, sum(open) AS open, sum(replayed) AS replayed, \
              sum(discarded) AS discarded \
       FROM (SELECT consumer, event_type, reason, path_group, open, replayed, discarded FROM dead_letter_group \
             UNION ALL \
             SELECT consumer, event_type, reason, path_group, open, replayed, discarded FROM dead_letter_delta) AS e \
       GROUP BY 1, 2, 3, 4) AS counted USING (consumer, event_type, reason, path_group) \
    WHERE (coalesce(letters.open, 0), coalesce(letters.replayed, 0), coalesce(letters.discarded, 0)) \
          <> (coalesce(counted.open, 0), coalesce(counted.replayed, 0), coalesce(counted.discarded, 0))";

fn letter(offset: i64) -> DeadLetter<'static> {
    DeadLetter {
        consumer: "billing",
        topic: "orders.confirmed",
        partition: 3,
        offset,
        key: Some(b"key"),
        value: Some(b"{}"),
        headers: &[],
        event_id: None,
        event_type: Some("order.confirmed.v1"),
        reason: "missing_field",
        path: Some("$.items[3].price"),
        error: None,
        attempts: 1,
        first_failed_at: None,
        build: "1.4.2",
    }
}

async fn write(fixture: &Fixture, letters: &[DeadLetter<'_>]) {
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.begin().await.unwrap();
    let xid = session.transaction_id().await.unwrap();
    for letter in letters {
        session.dead_letter(letter).await.unwrap();
    }
    session.commit(xid).await.unwrap();
    session.close().await;
}

async fn groups(fixture: &Fixture) -> Vec<DeadLetterGroup> {
    dead_letter_groups(&fixture.db, None).await.unwrap()
}

/// Reason, place and counts of each group.
fn shown(groups: &[DeadLetterGroup]) -> Vec<String> {
    let mut shown: Vec<String> = groups
        .iter()
        .map(|g| {
            let DeadLetterGroup {
                reason, path_group, ..
            } = g;
            format!(
                "{reason} {path_group} {}/{}/{}",
                g.open, g.replayed, g.discarded
            )
        })
        .collect();
    shown.sort();
    shown
}

#[tokio::test]
async fn letters_are_counted_by_their_group_folded_or_not() {
    let fixture = Fixture::new().await;
    write(
        &fixture,
        &[
            letter(1),
            DeadLetter {
                path: Some("$.items[9].price"),
                ..letter(2)
            },
            DeadLetter {
                reason: "permanent",
                path: None,
                ..letter(3)
            },
        ],
    )
    .await;
    let expected = ["missing_field $.items[].price 2/0/0", "permanent  1/0/0"];
    let before = groups(&fixture).await;
    assert_eq!(shown(&before), expected);
    assert_eq!(before[0].open, 2, "the largest first");
    assert_eq!(fold_dead_letter_groups(&fixture.db).await.unwrap(), 3);
    assert_eq!(groups(&fixture).await, before, "ids and times included");
    let deltas = "SELECT count(*) FROM dead_letter_delta";
    assert_eq!(fixture.count(deltas).await, 0);
    let mut open = open_dead_letters(&fixture.db, "billing").await.unwrap();
    open.sort();
    assert_eq!(
        open,
        [("missing_field".to_owned(), 2), ("permanent".to_owned(), 1)]
    );
    let other = dead_letter_groups(&fixture.db, Some("mailer"))
        .await
        .unwrap();
    assert!(other.is_empty(), "each consumer has its own");
}

#[tokio::test]
async fn a_letter_counts_where_it_stands_now() {
    let fixture = Fixture::new().await;
    write(&fixture, &[letter(1), letter(2)]).await;
    fixture
        .sql("UPDATE dead_letter SET state = 'replayed' WHERE record_offset = 1")
        .await;
    fixture
        .sql("UPDATE dead_letter SET state = 'discarded' WHERE record_offset = 2")
        .await;
    assert_eq!(
        shown(&groups(&fixture).await),
        ["missing_field $.items[].price 0/1/1"]
    );
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    let seen = groups(&fixture).await[0].last_at;
    // They fail again: one as before, one for another reason.
    write(
        &fixture,
        &[
            letter(1),
            DeadLetter {
                reason: "permanent",
                path: None,
                ..letter(2)
            },
        ],
    )
    .await;
    let expected = ["missing_field $.items[].price 1/0/0", "permanent  1/0/0"];
    assert_eq!(shown(&groups(&fixture).await), expected);
    let states = "SELECT count(*) FROM dead_letter WHERE state = 'open' AND state_at IS NOT NULL";
    assert_eq!(fixture.count(states).await, 2, "both are open again");
    // Once more: nothing changes but when it was seen.
    write(&fixture, &[letter(1)]).await;
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    let groups = groups(&fixture).await;
    assert_eq!(shown(&groups), expected);
    let missing = groups.iter().find(|g| g.reason == "missing_field").unwrap();
    assert!(missing.last_at > seen && missing.first_at <= seen);
    fixture.sql("DELETE FROM dead_letter").await;
    assert_eq!(
        fixture.count(WRONG).await,
        0,
        "what is deleted isn't counted"
    );
}

#[tokio::test]
async fn counts_are_exact_at_every_moment() {
    let fixture = Arc::new(Fixture::new().await);
    let running = Arc::new(AtomicBool::new(true));
    let written = Arc::new(AtomicU32::new(0));
    let writers = (0..4_u64).map(|seed| {
        let (fixture, running) = (Arc::clone(&fixture), Arc::clone(&running));
        let written = Arc::clone(&written);
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut conn = fixture.connect().await;
            while running.load(Ordering::Relaxed) {
                // Few letters, so that writers meet: in one order, so that they don't deadlock.
                let offset = random.i64(0..20);
                match random.u8(0..6) {
                    0..3 => {
                        let reason = ["missing_field", "permanent"][random.usize(0..2)];
                        let again = DeadLetter { reason, ..letter(offset) };
                        write(&fixture, &[again, letter(offset + 100)]).await;
                    }
                    3 => {
                        let sql = "UPDATE dead_letter SET state = 'replayed' WHERE record_offset = $1 AND state = 'open'";
                        sqlx::query(sql).bind(offset).execute(&mut conn).await.unwrap();
                    }
                    4 => {
                        let sql = "UPDATE dead_letter SET state = 'discarded' WHERE record_offset = $1 AND state = 'open'";
                        sqlx::query(sql).bind(offset).execute(&mut conn).await.unwrap();
                    }
                    _ => {
                        let sql = "DELETE FROM dead_letter WHERE record_offset = $1";
                        sqlx::query(sql).bind(offset).execute(&mut conn).await.unwrap();
                    }
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let folders = (0..2).map(|_| {
        let (fixture, running) = (Arc::clone(&fixture), Arc::clone(&running));
        tokio::spawn(async move {
            while running.load(Ordering::Relaxed) {
                fold_dead_letter_groups(&fixture.db).await.unwrap();
            }
        })
    });
    let tasks: Vec<_> = writers.chain(folders).collect();
    let mut conn = fixture.connect().await;
    let mut looks = 0;
    eventually(LIMIT, "50 changes", async || {
        let wrong: i64 = sqlx::query_scalar(WRONG)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(wrong, 0, "at look {looks}");
        looks += 1;
        written.load(Ordering::Relaxed) >= 50
    })
    .await;
    assert!(looks > 5, "it was looked at while it changed");
    running.store(false, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    assert_eq!(fixture.count(WRONG).await, 0);
    let open: i64 = groups(&fixture).await.iter().map(|g| g.open).sum();
    let counted = fixture.count("SELECT count(*) FROM dead_letter WHERE state = 'open'");
    assert_eq!(open, counted.await);
    conn.close().await.unwrap();
}

#[tokio::test]
async fn beyond_ten_thousand_groups_letters_count_as_other() {
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "INSERT INTO dead_letter_group (consumer, event_type, reason, path_group, first_at, last_at) \
             SELECT 'billing', '', 'missing_field', '$.f' || n, now(), now() FROM generate_series(1, 9999) AS n",
        )
        .await;
    let of = |offset, reason| DeadLetter {
        reason,
        path: None,
        ..letter(offset)
    };
    write(&fixture, &[of(1, "a"), of(2, "b"), of(3, "c")]).await;
    let counted = async || -> Vec<String> {
        let mut groups = groups(&fixture).await;
        groups.retain(|g| g.open != 0 || g.replayed != 0);
        shown(&groups)
    };
    let expected = ["a  1/0/0", "other other 2/0/0"];
    assert_eq!(counted().await, expected, "before they are folded");
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    assert_eq!(counted().await, expected, "and after");
    // What counted as other goes from there, too.
    fixture
        .sql("UPDATE dead_letter SET state = 'replayed' WHERE reason IN ('a', 'b')")
        .await;
    let expected = ["a  0/1/0", "other other 1/1/0"];
    assert_eq!(counted().await, expected);
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    assert_eq!(counted().await, expected);
    // Another consumer has groups of its own.
    write(
        &fixture,
        &[DeadLetter {
            consumer: "mailer",
            ..letter(1)
        }],
    )
    .await;
    let of_mailer = dead_letter_groups(&fixture.db, Some("mailer"))
        .await
        .unwrap();
    assert_eq!(shown(&of_mailer), ["missing_field $.items[].price 1/0/0"]);
}

#[tokio::test]
async fn what_one_process_folds_another_leaves_alone() {
    let fixture = Fixture::new().await;
    write(&fixture, &[letter(1)]).await;
    let mut folder = fixture.connect().await;
    let lock = format!("SELECT pg_advisory_lock({})", 0x6661_6374_756d_0003_i64);
    sqlx::raw_sql(AssertSqlSafe(lock))
        .execute(&mut folder)
        .await
        .unwrap();
    assert_eq!(fold_dead_letter_groups(&fixture.db).await.unwrap(), 0);
    folder.close().await.unwrap();
    eventually(LIMIT, "the lock to be free", async || {
        fold_dead_letter_groups(&fixture.db).await.unwrap() == 1
    })
    .await;
}
