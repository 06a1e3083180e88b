use factum_event::EventId;
use factum_postgres::DedupVerdict::{Duplicate, Fresh, OutOfWindow};
use factum_postgres::{
    CommitError, Database, DatabaseSettings, DedupVerdict, ErrorKind, Session, Window, classify,
    new_event_id,
};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::fixture::{Fixture, effect, ids, settings, unix_ms};

#[tokio::test]
async fn listing_fault_01_case_1_a_duplicate_is_told_by_the_rows_that_came_back() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
    assert_eq!(fixture.handle("billing", &[id]).await, [Duplicate]);
    assert_eq!(fixture.handle("billing", &[id]).await, [Duplicate]);
    assert_eq!(fixture.effects().await, 1);

    // As the measurement had it: 2,000 duplicates, all of them charged again.
    let many = ids::<2_000>();
    assert!(
        fixture
            .handle("billing", &many)
            .await
            .iter()
            .all(|verdict| *verdict == Fresh)
    );
    assert!(
        fixture
            .handle("billing", &many)
            .await
            .iter()
            .all(|verdict| *verdict == Duplicate)
    );
    assert_eq!(fixture.effects().await, 2_001);
}

#[tokio::test]
async fn listing_fault_02_case_2_one_event_gives_one_row_also_across_partitions() {
    let fixture = Fixture::of(Window::default()).await;
    // Either side of a partition's bound, and of whatever month's end lies in the window.
    let now = OffsetDateTime::now_utc();
    for days in 0..29 {
        let midnight =
            unix_ms((now - time::Duration::days(days)).replace_time(time::Time::MIDNIGHT));
        let batch = [EventId::floor(midnight - 1), EventId::floor(midnight)];
        assert_eq!(fixture.handle("billing", &batch).await, [Fresh, Fresh]);
        for _ in 0..2 {
            assert_eq!(
                fixture.handle("billing", &batch).await,
                [Duplicate, Duplicate]
            );
        }
    }
    assert_eq!(fixture.processed().await, 58);
    assert_eq!(fixture.effects().await, 58);
    let parts = "SELECT count(DISTINCT tableoid) FROM processed_event";
    assert_eq!(fixture.count(parts).await, 30);
}

#[tokio::test]
async fn listing_fault_04_case_6_two_consumers_in_one_database_both_handle_an_event() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
    assert_eq!(fixture.handle("mailer", &[id]).await, [Fresh]);
    assert_eq!(fixture.handle("mailer", &[id]).await, [Duplicate]);
    assert_eq!(fixture.effects().await, 2);
}

#[tokio::test]
async fn case_4_a_duplicate_is_a_success_and_the_next_event_is_handled() {
    let fixture = Fixture::new().await;
    let [a, b] = ids();
    for (id, verdict) in [(a, Fresh), (a, Duplicate), (b, Fresh)] {
        assert_eq!(fixture.handle("billing", &[id]).await, [verdict]);
    }
    assert_eq!(fixture.effects().await, 2);
}

#[tokio::test]
async fn case_5_duplicates_inside_and_before_a_batch_dont_spoil_it() {
    let fixture = Fixture::new().await;
    let mut batch = ids::<497>().to_vec();
    let seen = batch[10..15].to_vec();
    assert_eq!(fixture.handle("billing", &seen).await, [Fresh; 5]);

    // Three more, in any order and place.
    let inside = [batch[0], batch[300], batch[12]];
    batch.insert(400, inside[0]);
    batch.push(inside[1]);
    batch.push(inside[2]);
    batch.reverse();

    let verdicts = fixture.handle("billing", &batch).await;
    assert_eq!(verdicts.len(), 500);
    assert_eq!(
        verdicts.iter().filter(|verdict| **verdict == Fresh).count(),
        492
    );
    // In a batch the first one counts.
    let of = |id: EventId| -> Vec<_> {
        batch
            .iter()
            .zip(&verdicts)
            .filter(|(given, _)| **given == id)
            .map(|(_, v)| *v)
            .collect()
    };
    assert_eq!(of(inside[0]), [Fresh, Duplicate]);
    assert_eq!(of(inside[1]), [Fresh, Duplicate]);
    assert_eq!(of(inside[2]), [Duplicate, Duplicate]);
    assert_eq!(fixture.effects().await, 497);
}

#[tokio::test]
async fn case_7_the_second_of_two_waits_and_then_sees_a_duplicate() {
    let fixture = Fixture::new().await;
    second_waits_then_sees_a_duplicate(&fixture).await;
}

async fn second_waits_then_sees_a_duplicate(fixture: &Fixture) {
    let [id] = ids();
    let mut first = Session::open(&fixture.db).await.unwrap();
    let mut second = Session::open(&fixture.db).await.unwrap();
    first.begin().await.unwrap();
    second.begin().await.unwrap();

    let dedup = first.dedup("billing", &[id]).await.unwrap();
    assert_eq!(dedup.verdicts, [Fresh]);
    effect(first.conn(), id).await;
    let waiting = tokio::spawn(async move {
        let dedup = second.dedup("billing", &[id]).await.unwrap();
        (second, dedup)
    });
    fixture.until_one_waits_for_a_lock().await;
    first.commit(dedup.xid).await.unwrap();

    let (mut second, dedup) = waiting.await.unwrap();
    assert_eq!(dedup.verdicts, [Duplicate]);
    second.commit(dedup.xid).await.unwrap();
    assert_eq!(fixture.effects().await, 1);
}

#[tokio::test]
async fn case_7_the_second_of_two_handles_the_event_if_the_first_rolls_back() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut first, dedup) = fixture.deduped("billing", &[id]).await;
    effect(first.conn(), id).await;
    let mut second = Session::open(&fixture.db).await.unwrap();
    second.begin().await.unwrap();
    let waiting = tokio::spawn(async move { second.dedup("billing", &[id]).await.unwrap() });
    fixture.until_one_waits_for_a_lock().await;
    first
        .rollback_after_failure("billing", dedup.xid, &[id])
        .await
        .unwrap();
    assert_eq!(waiting.await.unwrap().verdicts, [Fresh]);
}

#[tokio::test]
async fn case_8_a_database_at_repeatable_read_changes_nothing() {
    let fixture = Fixture::new().await;
    let name = fixture.database.name();
    fixture
        .sql(format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
        ))
        .await;
    let db = Database::connect(&settings(&fixture.database))
        .await
        .unwrap();
    let fixture = Fixture { db, ..fixture };
    second_waits_then_sees_a_duplicate(&fixture).await;

    // Also after a handler has changed the connection's default.
    let (mut session, dedup) = fixture.deduped("billing", &ids::<1>()).await;
    sqlx::raw_sql("SET default_transaction_isolation = 'serializable'")
        .execute(session.conn())
        .await
        .unwrap();
    session.commit(dedup.xid).await.unwrap();
    session.begin().await.unwrap();
    let level: String = sqlx::query_scalar("SHOW transaction_isolation")
        .fetch_one(session.conn())
        .await
        .unwrap();
    assert_eq!(level, "read committed");
}

#[tokio::test]
async fn case_8_a_serialization_failure_is_a_conflict_and_no_fault_of_the_event() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    // What a concurrent duplicate meets at REPEATABLE READ.
    let insert = async |conn: &mut PgConnection| {
        sqlx::query(
            "INSERT INTO processed_event (consumer_group, event_id) VALUES ('billing', $1) \
             ON CONFLICT DO NOTHING",
        )
        .bind(id.as_uuid())
        .execute(conn)
        .await
    };
    let mut late = fixture.connect().await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM processed_event")
        .execute(&mut late)
        .await
        .unwrap();
    insert(&mut fixture.connect().await).await.unwrap();
    let err = insert(&mut late).await.unwrap_err();
    assert_eq!(classify(&err), Some(ErrorKind::Conflict));
}

#[tokio::test]
async fn a_conflict_at_commit_is_told_apart() {
    let fixture = Fixture::new().await;
    fixture
        .sql(deferred("RAISE EXCEPTION USING ERRCODE = '40001'"))
        .await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    effect(session.conn(), id).await;
    let err = session.commit(dedup.xid).await.unwrap_err();
    assert!(matches!(err, CommitError::Conflict), "{err:?}");
    assert_eq!((fixture.processed().await, fixture.effects().await), (0, 0));
    // The same session goes on.
    fixture.sql("DROP TRIGGER deferred ON effect").await;
    session.begin().await.unwrap();
    let dedup = session.dedup("billing", &[id]).await.unwrap();
    assert_eq!(dedup.verdicts, [Fresh]);
    session.commit(dedup.xid).await.unwrap();
}

/// A trigger on `effect` that runs at COMMIT.
pub(crate) fn deferred(body: &str) -> String {
    format!(
        "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN {body}; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON effect \
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()"
    )
}

#[tokio::test]
async fn a_deadlock_between_handlers_is_a_conflict() {
    let fixture = Fixture::new().await;
    fixture
        .sql("CREATE TABLE account (id int PRIMARY KEY); INSERT INTO account VALUES (1), (2)")
        .await;
    let lock = async |session: &mut Session, id: i32| {
        sqlx::query("SELECT FROM account WHERE id = $1 FOR UPDATE")
            .bind(id)
            .execute(session.conn())
            .await
    };
    let (mut one, _) = fixture.deduped("billing", &ids::<1>()).await;
    let (mut two, _) = fixture.deduped("billing", &ids::<1>()).await;
    lock(&mut one, 1).await.unwrap();
    lock(&mut two, 2).await.unwrap();
    let waiting =
        tokio::spawn(async move { lock(&mut one, 2).await.map(drop).map_err(|err| (one, err)) });
    fixture.until_one_waits_for_a_lock().await;
    let second = lock(&mut two, 1).await;
    // The server takes one of them.
    let err = match second {
        Err(err) => err,
        Ok(_) => {
            two.rollback().await.unwrap();
            waiting.await.unwrap().map_err(|(_, err)| err).unwrap_err()
        }
    };
    assert_eq!(classify(&err), Some(ErrorKind::Conflict));
}

#[tokio::test]
async fn batches_that_share_ids_in_opposite_orders_dont_deadlock() {
    let fixture = Fixture::new().await;
    for _ in 0..20 {
        let forth = ids::<200>().to_vec();
        let back: Vec<_> = forth.iter().rev().copied().collect();
        let (one, two) = tokio::join!(
            fixture.handle("billing", &forth),
            fixture.handle("billing", &back)
        );
        let fresh = one
            .iter()
            .chain(&two)
            .filter(|verdict| **verdict == Fresh)
            .count();
        assert_eq!(fresh, 200);
    }
    assert_eq!(fixture.effects().await, 4_000);
}

#[tokio::test]
async fn an_id_outside_the_window_has_a_verdict_and_the_rest_of_the_batch_is_done() {
    let fixture = Fixture::new().await;
    let [a, b, seen] = ids();
    assert_eq!(fixture.handle("billing", &[seen]).await, [Fresh]);
    let now = OffsetDateTime::now_utc();
    let old = EventId::floor(unix_ms(now - time::Duration::days(32)));
    let future = EventId::floor(unix_ms(now + time::Duration::days(30)));
    let batch = [old, b, future, a, old, seen, a, EventId::floor(0)];
    let expected = [
        OutOfWindow,
        Fresh,
        OutOfWindow,
        Fresh,
        OutOfWindow,
        Duplicate,
        Duplicate,
        OutOfWindow,
    ];
    assert_eq!(fixture.handle("billing", &batch).await, expected);
    assert_eq!(fixture.effects().await, 3);
    // And a batch of nothing else.
    assert_eq!(fixture.handle("billing", &[old]).await, [OutOfWindow]);
    assert_eq!(fixture.effects().await, 3);
}

#[tokio::test]
async fn case_10_an_event_of_a_dropped_partition_is_out_of_the_window() {
    let fixture = Fixture::of(Window::default()).await;
    let day = OffsetDateTime::now_utc() - time::Duration::days(10);
    let id = EventId::floor(unix_ms(day));
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
    let date = day.date();
    fixture
        .sql(format!(
            "DROP TABLE processed_event_{:04}{:02}{:02}",
            date.year(),
            u8::from(date.month()),
            date.day()
        ))
        .await;
    assert_eq!(fixture.handle("billing", &[id]).await, [OutOfWindow]);
    assert_eq!(fixture.effects().await, 1);
}

#[tokio::test]
async fn a_missing_partition_for_today_is_maintenances_fault_and_no_verdict() {
    let fixture = Fixture::empty().await;
    factum_postgres::migration::up(&fixture.db).await.unwrap();
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.begin().await.unwrap();
    let err = session.dedup("billing", &ids::<1>()).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unavailable);
    assert!(err.to_string().contains("no partition for today"), "{err}");
    assert!(err.to_string().contains("maintain"), "{err}");
    session.rollback().await.unwrap();
    session.close().await;
}

#[tokio::test]
async fn an_empty_batch_has_a_transaction_id_too() {
    let fixture = Fixture::new().await;
    let (mut session, dedup) = fixture.deduped("billing", &[]).await;
    assert!(dedup.verdicts.is_empty());
    assert_eq!(session.transaction_id().await.unwrap(), dedup.xid);
    session.commit(dedup.xid).await.unwrap();
}

#[tokio::test]
async fn the_wait_for_a_concurrent_duplicate_has_a_limit() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (first, _) = fixture.deduped("billing", &[id]).await;
    let short = DatabaseSettings {
        lock_timeout: std::time::Duration::from_millis(50),
        ..settings(&fixture.database)
    };
    let mut second = Session::open(&Database::connect(&short).await.unwrap())
        .await
        .unwrap();
    second.begin().await.unwrap();
    let err = second.dedup("billing", &[id]).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::LockTimeout);
    second.rollback().await.unwrap();
    drop(first);
}

#[tokio::test]
async fn dedup_comes_right_after_begin_or_not_at_all() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.dedup("billing", &[id]).await.unwrap_err();
    session.begin().await.unwrap();
    session.begin().await.unwrap_err();
    effect(session.conn(), id).await;
    // It may have to begin anew, which would drop that effect.
    session.dedup("billing", &[id]).await.unwrap_err();
    session.rollback().await.unwrap();
    session.transaction_id().await.unwrap_err();
    assert_eq!(fixture.effects().await, 0);
}

#[tokio::test]
async fn many_lanes_with_many_duplicates_have_each_effect_once() {
    let fixture = Fixture::new().await;
    let events: Vec<EventId> = (0..300).map(|_| new_event_id()).collect();
    let lane = async |lane: usize| {
        for batch in 0..12 {
            let from = (batch * 25 + lane * 40) % 275;
            fixture.handle("billing", &events[from..from + 25]).await;
        }
    };
    tokio::join!(lane(0), lane(1), lane(2), lane(3));
    let twice =
        "SELECT count(*) FROM (SELECT event_id FROM effect GROUP BY 1 HAVING count(*) > 1) t";
    assert_eq!(fixture.count(twice).await, 0);
    assert_eq!(fixture.effects().await, fixture.processed().await);
}

/// Ids of a foreign producer: version 4.
fn foreign<const N: usize>() -> [EventId; N] {
    std::array::from_fn(|_| {
        let random = uuid::Builder::from_random_bytes(fastrand::u128(..).to_be_bytes());
        EventId::foreign(random.into_uuid()).unwrap()
    })
}

async fn handle_foreign(fixture: &Fixture, consumer: &str, ids: &[EventId]) -> Vec<DedupVerdict> {
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.keep_foreign_ids(Some(30));
    session.begin().await.unwrap();
    let dedup = session.dedup(consumer, ids).await.unwrap();
    session.commit(dedup.xid).await.unwrap();
    session.close().await;
    dedup.verdicts
}

const FOREIGN: &str = "SELECT count(*) FROM processed_foreign_event";

#[tokio::test]
async fn foreign_ids_are_remembered_for_their_days_in_a_table_of_their_own() {
    let fixture = Fixture::new().await;
    let [a, b] = foreign();
    let [c] = ids();
    let old = EventId::floor(1_732_419_419_162);
    assert_eq!(
        handle_foreign(&fixture, "billing", &[a, c, old, a, b]).await,
        [Fresh, Fresh, OutOfWindow, Duplicate, Fresh]
    );
    assert_eq!(
        (fixture.processed().await, fixture.count(FOREIGN).await),
        (1, 2)
    );
    assert_eq!(
        handle_foreign(&fixture, "billing", &[b, c, a]).await,
        [Duplicate; 3]
    );
    assert_eq!(
        handle_foreign(&fixture, "mail", &[a]).await,
        [Fresh],
        "another consumer"
    );
    let days = "SELECT count(*) FROM processed_foreign_event WHERE keep_until = processed_at + interval '30 d'";
    assert_eq!(fixture.count(days).await, 3);

    // A row goes with its time, and the event with it: that is the policy's limit.
    fixture
        .sql("UPDATE processed_foreign_event SET keep_until = now() - interval '1 s' WHERE consumer_group = 'billing'")
        .await;
    let report =
        factum_postgres::apply_retention(&fixture.db, &factum_postgres::Retention::default())
            .await
            .unwrap();
    assert_eq!(report.foreign_ids, 2);
    assert_eq!(
        handle_foreign(&fixture, "billing", &[a, b, c]).await,
        [Fresh, Fresh, Duplicate]
    );
}

#[tokio::test]
async fn a_concurrent_foreign_duplicate_waits_and_sees_the_outcome() {
    let fixture = Fixture::new().await;
    let [a] = foreign();
    let mut first = Session::open(&fixture.db).await.unwrap();
    first.keep_foreign_ids(Some(30));
    first.begin().await.unwrap();
    let dedup = first.dedup("billing", &[a]).await.unwrap();
    assert_eq!(dedup.verdicts, [Fresh]);
    let other = async { handle_foreign(&fixture, "billing", &[a]).await };
    let ending = async {
        fixture.until_one_waits_for_a_lock().await;
        first.commit(dedup.xid).await.unwrap();
    };
    let (verdicts, ()) = tokio::join!(other, ending);
    assert_eq!(verdicts, [Duplicate]);
}

#[tokio::test]
async fn a_foreign_id_whose_key_is_parked_waits_behind_it_unless_it_was_handled() {
    let fixture = Fixture::new().await;
    let [a, b] = foreign();
    let [c] = ids();
    assert_eq!(handle_foreign(&fixture, "billing", &[b]).await, [Fresh]);
    fixture
        .sql("INSERT INTO parked_key (consumer, topic, key, next_attempt_at) VALUES ('billing', 'orders', 'k', now())")
        .await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.keep_foreign_ids(Some(30));
    session.begin().await.unwrap();
    let events: [(EventId, &[u8]); 3] = [(a, b"k"), (b, b"other"), (c, b"k")];
    let dedup = session
        .dedup_unless_parked("billing", "orders", &events)
        .await
        .unwrap();
    assert_eq!(
        dedup.verdicts,
        [DedupVerdict::Parked, Duplicate, DedupVerdict::Parked]
    );
    session.commit(dedup.xid).await.unwrap();
    assert_eq!(fixture.count(FOREIGN).await, 1);
}

#[tokio::test]
async fn a_handlers_commit_takes_the_rows_of_unfinished_foreign_ids_back() {
    let fixture = Fixture::new().await;
    let [a, b] = foreign();
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.keep_foreign_ids(Some(30));
    session.begin().await.unwrap();
    let dedup = session.dedup("billing", &[a, b]).await.unwrap();
    crate::fixture::typed(session.conn(), "COMMIT").await;
    let ended = session
        .rollback_after_failure("billing", dedup.xid, &[b])
        .await;
    assert!(ended.is_err());
    assert_eq!(
        handle_foreign(&fixture, "billing", &[a, b]).await,
        [Duplicate, Fresh]
    );
}

#[tokio::test]
async fn a_foreign_id_without_a_policy_is_no_event_of_the_session() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.begin().await.unwrap();
    let refused = session.dedup("billing", &foreign::<1>()).await.unwrap_err();
    assert!(refused.to_string().contains("foreign ids"), "{refused}");
}
