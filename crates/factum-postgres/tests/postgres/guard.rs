use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use factum_event::EventId;
use factum_postgres::DedupVerdict::{Duplicate, Fresh};
use factum_postgres::{
    CommitError, Database, DatabaseSettings, ErrorKind, RollbackError, Session, TransactionId,
};
use sqlx::Connection;

use crate::dedup::deferred;
use crate::fixture::{Fixture, LIMIT, effect, ids, settings, swallowed, typed};

/// After whatever happened: the session's connection serves the next batch.
async fn goes_on(fixture: &Fixture, session: &mut Session) {
    let [id] = ids();
    let before = fixture.effects().await;
    session.begin().await.unwrap();
    let dedup = session.dedup("billing", &[id]).await.unwrap();
    assert_eq!(dedup.verdicts, [Fresh]);
    let mut savepoint = session.conn().begin().await.unwrap();
    effect(&mut savepoint, id).await;
    savepoint.commit().await.unwrap();
    session.commit(dedup.xid).await.unwrap();
    assert_eq!(fixture.effects().await, before + 1);
}

fn ended(result: Result<(), CommitError>) -> bool {
    match result {
        Err(CommitError::TransactionEnded { committed }) => committed,
        other => panic!("expected TransactionEnded, found {other:?}"),
    }
}

fn ended_before_failure(result: Result<(), RollbackError>) -> bool {
    match result {
        Err(RollbackError::TransactionEnded { committed }) => committed,
        other => panic!("expected TransactionEnded, found {other:?}"),
    }
}

#[tokio::test]
async fn a_swallowed_sql_error_loses_no_event() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    effect(session.conn(), id).await;
    swallowed(session.conn()).await;
    let err = session.commit(dedup.xid).await.unwrap_err();
    assert!(matches!(err, CommitError::SwallowedError), "{err:?}");
    assert!(err.to_string().contains("swallowed"), "{err}");
    assert_eq!((fixture.processed().await, fixture.effects().await), (0, 0));
    goes_on(&fixture, &mut session).await;
    // What PostgreSQL and the driver say without the guard: all is well.
    let mut bare = fixture.connect().await;
    let mut tx = bare.begin().await.unwrap();
    swallowed(&mut tx).await;
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_typed_commit_is_found() {
    let fixture = Fixture::new().await;
    for commit in ["COMMIT", "END", "COMMIT; BEGIN; COMMIT"] {
        let [id] = ids();
        let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
        effect(session.conn(), id).await;
        typed(session.conn(), commit).await;
        let err = session.commit(dedup.xid).await;
        assert!(format!("{err:?}").contains("TransactionEnded"), "{err:?}");
        assert!(ended(err), "{commit}");
        goes_on(&fixture, &mut session).await;
    }
    assert_eq!((fixture.processed().await, fixture.effects().await), (6, 6));
}

#[tokio::test]
async fn a_typed_rollback_is_found() {
    let fixture = Fixture::new().await;
    for rollback in ["ROLLBACK", "ABORT", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"] {
        let before = fixture.effects().await;
        let [id] = ids();
        let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
        effect(session.conn(), id).await;
        typed(session.conn(), rollback).await;
        assert!(!ended(session.commit(dedup.xid).await), "{rollback}");
        assert_eq!(fixture.effects().await, before, "{rollback}");
        goes_on(&fixture, &mut session).await;
    }
}

#[tokio::test]
async fn what_follows_a_typed_commit_in_a_second_transaction_stands_too() {
    let fixture = Fixture::new().await;
    for commit in ["COMMIT; BEGIN", "COMMIT AND CHAIN"] {
        let before = fixture.effects().await;
        let batch = ids::<3>();
        let (mut session, dedup) = fixture.deduped("billing", &batch).await;
        effect(session.conn(), batch[0]).await;
        typed(session.conn(), commit).await;
        effect(session.conn(), batch[1]).await;
        effect(session.conn(), batch[2]).await;
        assert!(ended(session.commit(dedup.xid).await), "{commit}");
        assert_eq!(fixture.effects().await, before + 3, "{commit}");
        assert_eq!(fixture.handle("billing", &batch).await, [Duplicate; 3]);
        goes_on(&fixture, &mut session).await;
    }
}

#[tokio::test]
async fn events_of_a_second_transaction_that_failed_run_again() {
    let fixture = Fixture::new().await;
    let batch = ids::<3>();
    let (mut session, dedup) = fixture.deduped("billing", &batch).await;
    typed(session.conn(), "COMMIT; BEGIN").await;
    effect(session.conn(), batch[2]).await;
    swallowed(session.conn()).await;
    assert!(ended(session.commit(dedup.xid).await));
    assert_eq!((fixture.processed().await, fixture.effects().await), (0, 0));
    assert_eq!(fixture.handle("billing", &batch).await, [Fresh; 3]);
    goes_on(&fixture, &mut session).await;
}

#[tokio::test]
async fn events_of_a_second_transaction_that_cant_be_committed_run_again() {
    let fixture = Fixture::new().await;
    let batch = ids::<2>();
    let (mut session, dedup) = fixture.deduped("billing", &batch).await;
    fixture
        .sql(deferred("RAISE EXCEPTION USING ERRCODE = '23514'"))
        .await;
    typed(session.conn(), "COMMIT; BEGIN").await;
    effect(session.conn(), batch[1]).await;
    assert!(ended(session.commit(dedup.xid).await));
    fixture.sql("DROP TRIGGER deferred ON effect").await;
    assert_eq!(fixture.handle("billing", &batch).await, [Fresh; 2]);
}

#[tokio::test]
async fn savepoints_of_the_handlers_own_pass() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    let conn = session.conn();

    let mut kept = conn.begin().await.unwrap();
    effect(&mut kept, id).await;
    let mut nested = kept.begin().await.unwrap();
    effect(&mut nested, id).await;
    nested.commit().await.unwrap();
    kept.commit().await.unwrap();

    let mut undone = conn.begin().await.unwrap();
    effect(&mut undone, id).await;
    swallowed(&mut undone).await;
    undone.rollback().await.unwrap();

    let mut dropped = conn.begin().await.unwrap();
    effect(&mut dropped, id).await;
    drop(dropped);

    typed(conn, "SAVEPOINT mine").await;
    swallowed(conn).await;
    typed(conn, "ROLLBACK TO SAVEPOINT mine").await;
    typed(conn, "SAVEPOINT left_open").await;
    effect(conn, id).await;

    // Dropped last: its rollback is still to be sent when COMMIT comes.
    let mut dropped = conn.begin().await.unwrap();
    effect(&mut dropped, id).await;
    drop(dropped);

    session.commit(dedup.xid).await.unwrap();
    assert_eq!(fixture.effects().await, 3);
    goes_on(&fixture, &mut session).await;
}

#[tokio::test]
async fn a_savepoint_released_behind_the_drivers_back_loses_no_event() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    let mut savepoint = session.conn().begin().await.unwrap();
    effect(&mut savepoint, id).await;
    typed(&mut savepoint, "RELEASE SAVEPOINT _sqlx_savepoint_1").await;
    drop(savepoint);
    let err = session.commit(dedup.xid).await.unwrap_err();
    assert!(matches!(err, CommitError::SwallowedError), "{err:?}");
    assert_eq!((fixture.processed().await, fixture.effects().await), (0, 0));
    goes_on(&fixture, &mut session).await;
}

#[tokio::test]
async fn a_typed_commit_inside_a_savepoint_object_is_found() {
    let fixture = Fixture::new().await;
    for (sql, second) in [("COMMIT", false), ("COMMIT; BEGIN", true)] {
        let [id] = ids();
        let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
        let mut savepoint = session.conn().begin().await.unwrap();
        typed(&mut savepoint, sql).await;
        // Its rollback fails later: there is no such savepoint any more.
        drop(savepoint);
        assert!(ended(session.commit(dedup.xid).await), "{sql}");
        // The failed rollback spoilt the second transaction: the event runs again.
        let expected = if second { Fresh } else { Duplicate };
        assert_eq!(fixture.handle("billing", &[id]).await, [expected], "{sql}");
        goes_on(&fixture, &mut session).await;
    }
}

#[tokio::test]
async fn a_refused_commit_is_told_apart_and_nothing_stands() {
    let fixture = Fixture::new().await;
    // 22012 is the guard's own error too.
    for code in ["23503", "22012", "25P01"] {
        fixture
            .sql(deferred(&format!(
                "RAISE EXCEPTION USING ERRCODE = '{code}'"
            )))
            .await;
        let [id] = ids();
        let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
        effect(session.conn(), id).await;
        let err = session.commit(dedup.xid).await.unwrap_err();
        match (code, &err) {
            // Only a trigger that lies about its error looks like a typed ROLLBACK.
            ("25P01", CommitError::TransactionEnded { committed: false }) => {}
            (_, CommitError::Database(err)) => assert!(err.to_string().contains(code), "{err}"),
            _ => panic!("{code}: {err:?}"),
        }
        fixture.sql("DROP FUNCTION at_commit CASCADE").await;
        assert_eq!(fixture.effects().await, 0, "{code}");
        goes_on(&fixture, &mut session).await;
        fixture.sql("TRUNCATE effect").await;
    }
}

/// A batch of four whose last handler fails, after the second one typed `sql`.
async fn fails_at_the_last(
    fixture: &Fixture,
    batch: &[EventId; 4],
    sql: Option<&'static str>,
    last: impl AsyncFnOnce(&mut Session),
) -> (Session, Result<(), RollbackError>) {
    let (mut session, dedup) = fixture.deduped("billing", batch).await;
    effect(session.conn(), batch[0]).await;
    effect(session.conn(), batch[1]).await;
    if let Some(sql) = sql {
        typed(session.conn(), sql).await;
    }
    effect(session.conn(), batch[2]).await;
    last(&mut session).await;
    let result = session
        .rollback_after_failure("billing", dedup.xid, &batch[3..])
        .await;
    (session, result)
}

#[tokio::test]
async fn on_failure_an_ordinary_rollback_leaves_nothing() {
    let fixture = Fixture::new().await;
    let batch = ids();
    let (mut session, result) = fails_at_the_last(&fixture, &batch, None, async |_| {}).await;
    result.unwrap();
    assert_eq!((fixture.processed().await, fixture.effects().await), (0, 0));
    goes_on(&fixture, &mut session).await;

    // After an SQL error too.
    let batch = ids();
    let failing = async |session: &mut Session| swallowed(session.conn()).await;
    let (mut session, result) = fails_at_the_last(&fixture, &batch, None, failing).await;
    result.unwrap();
    assert_eq!((fixture.processed().await, fixture.effects().await), (1, 1));
    goes_on(&fixture, &mut session).await;
}

#[tokio::test]
async fn on_failure_after_a_typed_commit_the_unfinished_events_are_taken_back() {
    let fixture = Fixture::new().await;
    for commit in ["COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN"] {
        let before = fixture.effects().await;
        let batch = ids();
        let (mut session, result) =
            fails_at_the_last(&fixture, &batch, Some(commit), async |_| {}).await;
        assert!(ended_before_failure(result), "{commit}");
        assert_eq!(
            fixture.effects().await,
            before + 3,
            "{commit}: the finished ones stand"
        );
        let verdicts = fixture.handle("billing", &batch).await;
        assert_eq!(
            verdicts,
            [Duplicate, Duplicate, Duplicate, Fresh],
            "{commit}"
        );
        goes_on(&fixture, &mut session).await;
    }
}

#[tokio::test]
async fn on_failure_with_an_sql_error_after_a_typed_commit_no_event_is_lost() {
    let fixture = Fixture::new().await;
    let failing = async |session: &mut Session| swallowed(session.conn()).await;

    // Without a transaction, each write stands for itself.
    let batch = ids();
    let (mut session, result) = fails_at_the_last(&fixture, &batch, Some("COMMIT"), failing).await;
    assert!(ended_before_failure(result));
    let verdicts = fixture.handle("billing", &batch).await;
    assert_eq!(verdicts, [Duplicate, Duplicate, Duplicate, Fresh]);
    goes_on(&fixture, &mut session).await;

    // The second transaction is lost, and with it what the third event wrote: all run again.
    let batch = ids();
    let (mut session, result) =
        fails_at_the_last(&fixture, &batch, Some("COMMIT; BEGIN"), failing).await;
    assert!(ended_before_failure(result));
    assert_eq!(fixture.handle("billing", &batch).await, [Fresh; 4]);
    goes_on(&fixture, &mut session).await;
}

#[tokio::test]
async fn on_failure_after_a_typed_rollback_nothing_stands() {
    let fixture = Fixture::new().await;
    for rollback in ["ROLLBACK", "ROLLBACK; BEGIN"] {
        let batch = ids();
        let (mut session, result) =
            fails_at_the_last(&fixture, &batch, Some(rollback), async |_| {}).await;
        assert!(!ended_before_failure(result), "{rollback}");
        assert_eq!(
            fixture.handle("billing", &batch).await,
            [Fresh; 4],
            "{rollback}"
        );
        goes_on(&fixture, &mut session).await;
    }
}

#[tokio::test]
async fn what_is_taken_back_is_this_transactions_alone() {
    let fixture = Fixture::new().await;
    let batch = ids::<4>();
    assert_eq!(fixture.handle("billing", &batch[..1]).await, [Fresh]);
    assert_eq!(fixture.handle("mailer", &batch).await, [Fresh; 4]);
    let (mut session, dedup) = fixture.deduped("billing", &batch).await;
    assert_eq!(dedup.verdicts, [Duplicate, Fresh, Fresh, Fresh]);
    typed(session.conn(), "COMMIT").await;
    let result = session
        .rollback_after_failure("billing", dedup.xid, &batch)
        .await;
    assert!(ended_before_failure(result));
    assert_eq!(fixture.handle("mailer", &batch).await, [Duplicate; 4]);
    assert_eq!(
        fixture.handle("billing", &batch).await,
        [Duplicate, Fresh, Fresh, Fresh]
    );
}

#[tokio::test]
async fn dedup_rows_are_taken_back_even_if_the_connection_is_lost() {
    let fixture = Fixture::new().await;
    let batch = ids::<2>();
    let (mut session, dedup) = fixture.deduped("billing", &batch).await;
    typed(session.conn(), "COMMIT").await;
    terminate(&fixture, &mut session).await;
    let result = session
        .rollback_after_failure("billing", dedup.xid, &batch[1..])
        .await;
    assert!(ended_before_failure(result));
    assert!(session.is_closed());
    // Nobody knows what else was lost with the connection.
    assert_eq!(fixture.handle("billing", &batch).await, [Fresh; 2]);
}

#[tokio::test]
async fn a_severed_session_waits_for_the_outcome_of_what_was_under_way() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    {
        // A handler at its time limit, in the middle of a COMMIT of its own.
        let sql = "SELECT pg_sleep(0.5); COMMIT";
        let typing = sqlx::raw_sql(sql).execute(session.conn());
        let cut = tokio::time::timeout(std::time::Duration::from_millis(100), typing).await;
        assert!(cut.is_err());
    }
    session.sever();
    let result = session
        .rollback_after_failure("billing", dedup.xid, &[id])
        .await;
    // Either the server noticed the closed socket in time, or the COMMIT was found.
    match result {
        Err(RollbackError::Database(_)) => {}
        other => assert!(ended_before_failure(other)),
    }
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
}

#[tokio::test]
async fn a_connection_lost_before_commit_is_an_unknown_outcome_and_a_rerun_decides() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, dedup) = fixture.deduped("billing", &[id]).await;
    effect(session.conn(), id).await;
    terminate(&fixture, &mut session).await;
    let err = session.commit(dedup.xid).await.unwrap_err();
    assert!(
        matches!(&err, CommitError::Unknown(err) if err.kind() == ErrorKind::Unavailable),
        "{err:?}"
    );
    assert!(session.is_closed());
    assert_eq!(
        session.begin().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
    assert_eq!(fixture.effects().await, 1);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_an_unknown_outcome_and_a_rerun_decides() {
    let fixture = Fixture::new().await;
    let mute = Arc::new(AtomicBool::new(false));
    let db = Database::connect(&fixture.through_a_proxy(Arc::clone(&mute)).await)
        .await
        .unwrap();
    let mut session = Session::open(&db).await.unwrap();
    let [id] = ids();
    session.begin().await.unwrap();
    let dedup = session.dedup("billing", &[id]).await.unwrap();
    effect(session.conn(), id).await;
    mute.store(true, Ordering::SeqCst);
    let err = session.commit(dedup.xid).await.unwrap_err();
    assert!(matches!(err, CommitError::Unknown(_)), "{err:?}");
    // The server did commit.
    assert_eq!(fixture.handle("billing", &[id]).await, [Duplicate]);
    assert_eq!(fixture.effects().await, 1);
}

/// Ends the session's backend, as a restart of the server does.
async fn terminate(fixture: &Fixture, session: &mut Session) {
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(session.conn())
        .await
        .unwrap();
    // PostgreSQL 14 and newer wait for the end.
    let ended: bool = sqlx::query_scalar("SELECT pg_terminate_backend($1, 10000)")
        .bind(pid)
        .fetch_one(&mut fixture.connect().await)
        .await
        .unwrap();
    assert!(ended);
}

#[tokio::test]
async fn a_session_discarded_in_the_middle_of_a_statement_frees_its_locks() {
    let fixture = Fixture::new().await;
    let [id] = ids();
    let (mut session, _) = fixture.deduped("billing", &[id]).await;
    {
        let sleeping = sqlx::raw_sql("SELECT pg_sleep(600)").execute(session.conn());
        // A handler at its time limit: dropped while the server is at work.
        let cut = tokio::time::timeout(std::time::Duration::from_millis(100), sleeping).await;
        assert!(cut.is_err());
    }
    session.discard();
    let begun = std::time::Instant::now();
    assert_eq!(fixture.handle("billing", &[id]).await, [Fresh]);
    assert!(
        begun.elapsed() < LIMIT,
        "the server noticed within its check interval"
    );
}

#[tokio::test]
async fn the_connections_of_ended_sessions_count_no_more() {
    let fixture = Fixture::new().await;
    let one = DatabaseSettings {
        max_connections: 1,
        ..settings(&fixture.database)
    };
    let db = Database::connect(&one).await.unwrap();
    for end in 0..3 {
        let session = Session::open(&db).await.unwrap();
        match end {
            0 => session.close().await,
            1 => session.discard(),
            _ => drop(session),
        }
    }
    db.ping().await.unwrap();
}

#[tokio::test]
async fn the_server_has_nothing_to_warn_of() {
    let fixture = Fixture::new().await;
    let warnings = Warnings::default();
    // Of this thread alone, and this test's runtime has no other.
    let _guard = tracing::subscriber::set_default(warnings.clone());

    let (mut session, dedup) = fixture.deduped("billing", &ids::<3>()).await;
    session.commit(dedup.xid).await.unwrap();
    goes_on(&fixture, &mut session).await;
    session.begin().await.unwrap();
    session.rollback().await.unwrap();
    session.rollback().await.unwrap();
    for sql in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN",
        "SELECT 1",
    ] {
        for swallow in [false, true] {
            for fails in [false, true] {
                let [id] = ids();
                session.begin().await.unwrap();
                let dedup = session.dedup("billing", &[id]).await.unwrap();
                typed(session.conn(), sql).await;
                if swallow {
                    swallowed(session.conn()).await;
                }
                if fails {
                    let _ = session
                        .rollback_after_failure("billing", dedup.xid, &[id])
                        .await;
                } else {
                    let _ = session.commit(dedup.xid).await;
                }
                assert!(!session.is_closed(), "{sql} {swallow} {fails}");
            }
        }
    }
    session.close().await;
    assert_eq!(
        warnings.0.load(Ordering::SeqCst),
        0,
        "notices of the server"
    );

    // They would be seen.
    typed(&mut fixture.connect().await, "ROLLBACK").await;
    assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
}

/// Counts the server's warnings, which the driver logs.
#[derive(Clone, Default)]
struct Warnings(Arc<std::sync::atomic::AtomicU32>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sqlx::postgres::notice"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        if *event.metadata().level() <= tracing::Level::WARN {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
#[should_panic(expected = "call Session::begin first")]
async fn a_handler_gets_no_connection_without_a_transaction() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    let _ = session.conn();
}

#[tokio::test]
async fn a_transaction_id_shows_as_postgresql_writes_it() {
    let fixture = Fixture::new().await;
    let (mut session, dedup) = fixture.deduped("billing", &[]).await;
    let xid: TransactionId = dedup.xid;
    let text: String = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
        .fetch_one(session.conn())
        .await
        .unwrap();
    assert_eq!(xid.to_string(), text);
}
