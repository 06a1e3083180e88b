use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use factum_postgres::{
    ClaimLimit, Database, DatabaseSettings, DedupVerdict, ErrorKind, RelayStore, Session, classify,
    describe,
};
use sqlx::Row;

use crate::fixture::{Fixture, LIMIT, effect, ids, settings};

/// Drops the future after `polls` polls; `None` if it wasn't ready by then.
async fn cut_after<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[tokio::test]
async fn case_63_a_cancelled_begin_poisons_nothing() {
    let fixture = Fixture::new().await;
    let one = DatabaseSettings {
        max_connections: 1,
        ..fixture.through_a_proxy(Arc::default()).await
    };
    let db = Database::connect(&one).await.unwrap();
    let batch = ids::<3>();

    // Connecting polls some 800 times (the driver computes the password's proof in small steps):
    // cancel at the first and at every 50th.
    let mut connected = false;
    for polls in (0..10)
        .chain((10..).step_by(50))
        .take_while(|polls| *polls < 5_000)
    {
        if let Some(session) = cut_after(polls, Session::open(&db)).await {
            session.unwrap().close().await;
            connected = true;
            break;
        }
    }
    assert!(connected);

    // Cancel begin, dedup, handler and commit at each poll.
    let mut cuts = 0;
    loop {
        let mut session = Session::open(&db).await.unwrap();
        let handled = cut_after(cuts, async {
            session.begin().await.unwrap();
            let dedup = session.dedup("cut", &batch).await.unwrap();
            if dedup.verdicts[0] == DedupVerdict::Fresh {
                effect(session.conn(), batch[0]).await;
            }
            session.commit(dedup.xid).await.unwrap();
        })
        .await;
        if handled.is_some() {
            break;
        }
        cuts += 1;
        assert!(cuts < 1_000, "it must come to an end");
    }
    assert!(cuts >= 4, "each statement waits at least once: {cuts}");
    assert_eq!(
        fixture.effects().await,
        1,
        "either cut off and rolled back, or committed once"
    );

    // The one connection runs 100 transactions, each its own.
    let mut session = Session::open(&db).await.unwrap();
    for _ in 0..100 {
        let [id] = ids();
        session.begin().await.unwrap();
        let dedup = session.dedup("billing", &[id]).await.unwrap();
        effect(session.conn(), id).await;
        session.commit(dedup.xid).await.unwrap();
    }
    session.close().await;
    assert_eq!(fixture.effects().await, 101);
}

#[tokio::test]
async fn case_63_a_session_cut_off_in_the_middle_is_closed_and_not_used_again() {
    let fixture = Fixture::new().await;
    let slow = fixture.through_a_proxy(Arc::default()).await;
    let db = Database::connect(&slow).await.unwrap();
    let mut session = Session::open(&db).await.unwrap();
    session.begin().await.unwrap();
    assert!(cut_after(1, session.transaction_id()).await.is_none());
    assert!(session.is_closed());
    session.rollback().await.unwrap();
    assert_eq!(
        session.begin().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

#[tokio::test]
async fn case_63_a_cancelled_statement_of_the_relay_poisons_nothing() {
    let fixture = Fixture::new().await;
    let one = DatabaseSettings {
        max_connections: 1,
        ..fixture.through_a_proxy(Arc::default()).await
    };
    let db = Database::connect(&one).await.unwrap();
    let store = RelayStore::new(db.clone(), "relay".to_owned(), Duration::from_secs(60));
    let lease = store.join().await.unwrap();
    let limit = ClaimLimit {
        rows: 10,
        bytes: 1_000,
    };
    let slots = lease.slots();
    for polls in 0..10 {
        cut_after(polls, store.claim(&lease, &slots, limit, &[])).await;
    }
    for _ in 0..100 {
        let rows = store.claim(&lease, &slots, limit, &[]).await.unwrap();
        assert!(rows.is_empty());
    }
}

#[tokio::test]
async fn an_idle_connection_is_lent_again_and_a_dead_one_replaced() {
    let fixture = Fixture::empty().await;
    let backends = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for _ in 0..20 {
        fixture.db.ping().await.unwrap();
    }
    assert_eq!(fixture.count(backends).await, 1);
    fixture
        .sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    factum_testing::eventually(LIMIT, "a sign of life", async || {
        match fixture.db.ping().await {
            Ok(()) => true,
            Err(err) => {
                assert_eq!(err.kind(), ErrorKind::Unavailable, "{err}");
                false
            }
        }
    })
    .await;
}

#[tokio::test]
async fn connections_have_a_limit_and_the_wait_for_one_too() {
    let fixture = Fixture::empty().await;
    let two = DatabaseSettings {
        max_connections: 2,
        acquire_timeout: Duration::from_secs(4),
        ..settings(&fixture.database)
    };
    let db = Database::connect(&two).await.unwrap();
    let (one, _two) = (
        Session::open(&db).await.unwrap(),
        Session::open(&db).await.unwrap(),
    );
    let begun = Instant::now();
    let err = db.ping().await.unwrap_err();
    assert!(begun.elapsed() < LIMIT);
    assert_eq!(err.kind(), ErrorKind::Unavailable);
    assert!(err.to_string().contains("2 of 2 in use"), "{err}");
    one.close().await;
    db.ping().await.unwrap();

    // Who waits gets the connection of who leaves.
    let session = Session::open(&db).await.unwrap();
    let (pinged, ()) = tokio::join!(db.ping(), session.close());
    pinged.unwrap();
}

#[tokio::test]
async fn a_closed_database_lends_nothing() {
    let fixture = Fixture::empty().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    fixture.db.close().await;
    assert_eq!(
        fixture.db.ping().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    // Who is at work may finish.
    session.begin().await.unwrap();
    session.rollback().await.unwrap();
    session.close().await;
}

#[tokio::test]
async fn every_connection_has_its_limits() {
    let fixture = Fixture::empty().await;
    let name = fixture.database.name();
    fixture
        .sql(format!(
            "ALTER DATABASE {name} SET synchronous_commit = off; \
             ALTER DATABASE {name} SET default_transaction_isolation = serializable; \
             ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'"
        ))
        .await;
    let given = DatabaseSettings {
        lock_timeout: Duration::from_millis(1_500),
        handler_timeout: Duration::from_secs(20),
        application_name: "billing@test".to_owned(),
        ..settings(&fixture.database)
    };
    let db = Database::connect(&given).await.unwrap();
    let mut session = Session::open(&db).await.unwrap();
    session.begin().await.unwrap();
    for (setting, expected) in [
        ("lock_timeout", "1500ms"),
        ("statement_timeout", "35s"),
        ("idle_in_transaction_session_timeout", "40s"),
        ("client_connection_check_interval", "1s"),
        ("default_transaction_isolation", "read committed"),
        ("synchronous_commit", "on"),
        ("TimeZone", "UTC"),
        ("application_name", "billing@test"),
    ] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(session.conn())
            .await
            .unwrap();
        assert_eq!(value, expected, "{setting}");
    }
    // Weaker than "off" there is nothing; what is stronger stays.
    fixture
        .sql(format!(
            "ALTER DATABASE {name} SET synchronous_commit = remote_apply"
        ))
        .await;
    let db = Database::connect(&given).await.unwrap();
    let mut session = Session::open(&db).await.unwrap();
    session.begin().await.unwrap();
    let row = sqlx::query("SHOW synchronous_commit")
        .fetch_one(session.conn())
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>(0), "remote_apply");
}

#[tokio::test]
async fn a_limit_of_zero_is_no_way_to_have_none() {
    let fixture = Fixture::empty().await;
    let none = DatabaseSettings {
        lock_timeout: Duration::ZERO,
        ..settings(&fixture.database)
    };
    let mut session = Session::open(&Database::connect(&none).await.unwrap())
        .await
        .unwrap();
    session.begin().await.unwrap();
    let row = sqlx::query("SHOW lock_timeout")
        .fetch_one(session.conn())
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>(0), "1ms");
}

#[tokio::test]
async fn case_57_no_error_of_connecting_shows_the_password() {
    const CANARY: &str = "canary-4711";
    let fixture = Fixture::empty().await;
    let url = fixture.database.url();
    let (server, database) = url.split_once('@').unwrap().1.split_once('/').unwrap();
    let port = server.rsplit_once(':').unwrap().1;
    for (url, expected) in [
        (
            format!("nonsense {CANARY}"),
            "postgres://user:password@host:5432/database",
        ),
        (
            format!("postgres://factum:{CANARY}@{server}:x/{database}"),
            "DATABASE_URL",
        ),
        (
            format!("postgres://factum:{CANARY}@127.0.0.1:1/orders"),
            "127.0.0.1:1, database orders",
        ),
        (
            format!("postgres://nobody:{CANARY}@{server}/{database}"),
            "DATABASE_URL",
        ),
        (
            format!("postgres://factum:{CANARY}@no-such-host.invalid/{database}"),
            "no-such-host.invalid",
        ),
        (
            format!(
                "postgres://factum:{CANARY}@127.0.0.1:{port}/{database}?sslmode=verify-full&sslrootcert=/{CANARY}"
            ),
            "127.0.0.1",
        ),
    ] {
        let settings = DatabaseSettings {
            acquire_timeout: Duration::from_secs(3),
            ..DatabaseSettings::new(url.clone().into())
        };
        let err = Database::connect(&settings).await.unwrap_err();
        let text = format!("{err} {err:?} {settings:?}");
        assert!(!text.contains(CANARY), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_isnt_there_and_settings_that_cant_be_used_are_told_apart() {
    let at = |url: &str| DatabaseSettings::new(url.into());
    let nobody = Database::connect(&at("postgres://u:p@127.0.0.1:1/orders"))
        .await
        .unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable);
    assert!(nobody.to_string().contains("refused"), "{nobody}");
    let unreadable = Database::connect(&at("orders")).await.unwrap_err();
    assert_eq!(unreadable.kind(), ErrorKind::Other);
    let none = DatabaseSettings {
        max_connections: 0,
        ..at("postgres://u:p@127.0.0.1:1/orders")
    };
    let none = Database::connect(&none).await.unwrap_err();
    assert!(none.to_string().contains("max_connections"), "{none}");

    let fixture = Fixture::empty().await;
    let url = fixture
        .database
        .url()
        .replace(fixture.database.name(), "no_such_database");
    let missing = Database::connect(&at(&url)).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Other);
    assert!(
        missing.to_string().contains("create the database"),
        "{missing}"
    );
}

#[tokio::test]
async fn case_58_an_sql_error_is_described_without_values() {
    let fixture = Fixture::empty().await;
    fixture
        .sql(
            "CREATE TABLE person (email text PRIMARY KEY, age int CONSTRAINT adult CHECK (age > 17)); \
             INSERT INTO person VALUES ('canary-4711', 18)",
        )
        .await;
    let mut conn = fixture.connect().await;
    for (sql, expected) in [
        (
            "SELECT 'canary-4711'::uuid",
            "SQLSTATE 22P02 (invalid_text_representation)",
        ),
        ("SELECT 'canary-4711'::int", "SQLSTATE 22P02"),
        (
            "INSERT INTO person VALUES ('canary-4711', 18)",
            "SQLSTATE 23505 (unique_violation), table person, constraint person_pkey",
        ),
        (
            "INSERT INTO person VALUES ('canary-4711', 7)",
            "SQLSTATE 23514 (check_violation), table person, constraint adult",
        ),
        (
            "SELECT 1 FROM person WHERE email = \"canary-4711\"",
            "SQLSTATE 42703",
        ),
        ("SELECT 'x' canary-4711", "SQLSTATE 42601"),
        ("DO $$ BEGIN RAISE 'canary-4711'; END $$", "SQLSTATE P0001"),
        (
            "SELECT 1 FROM no_such_table",
            "SQLSTATE 42P01 (undefined_table): relation \"no_such_table\"",
        ),
    ] {
        let err = sqlx::raw_sql(sql).execute(&mut conn).await.unwrap_err();
        let text = describe(&err).unwrap();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("canary"), "{text}");
        assert_eq!(classify(&err), Some(ErrorKind::Other));
    }
    // What fails on this side of the wire.
    let err = sqlx::query("SELECT 'canary-4711'")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    let err = err.try_get::<i32, _>(0).unwrap_err();
    assert!(!describe(&err).unwrap().contains("canary"));
}

#[tokio::test]
async fn a_database_error_is_found_wherever_it_hides() {
    #[derive(Debug)]
    struct Wrapped(Box<dyn std::error::Error + Send + Sync>);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("can't save the invoice")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&*self.0)
        }
    }

    let fixture = Fixture::empty().await;
    let mut conn = fixture.connect().await;
    for (code, kind) in [
        ("40001", ErrorKind::Conflict),
        ("40P01", ErrorKind::Conflict),
        ("55P03", ErrorKind::LockTimeout),
        ("57P01", ErrorKind::Unavailable),
        ("57P03", ErrorKind::Unavailable),
        ("53300", ErrorKind::Unavailable),
        ("08006", ErrorKind::Unavailable),
        ("57014", ErrorKind::Other),
        ("23505", ErrorKind::Other),
    ] {
        let sql = format!("DO $$ BEGIN RAISE 'x' USING ERRCODE = '{code}'; END $$");
        let err = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut conn)
            .await
            .unwrap_err();
        let shared = Wrapped(Box::new(std::sync::Arc::new(err)));
        assert_eq!(classify(&shared), Some(kind), "{code}");
        let twice = Wrapped(Box::new(shared));
        assert_eq!(classify(&twice), Some(kind), "{code}");
        assert!(describe(&twice).unwrap().contains(code));
    }
    let nowhere = DatabaseSettings::new("postgres://u:p@127.0.0.1:1/o".into());
    let missing = Database::connect(&nowhere).await.unwrap_err();
    let published = factum_postgres::PublishError::from(missing);
    assert_eq!(classify(&published), Some(ErrorKind::Unavailable));
    assert_eq!(
        classify(&sqlx::Error::PoolTimedOut),
        Some(ErrorKind::Unavailable)
    );
    assert_eq!(classify(&std::fmt::Error), None);
    assert_eq!(describe(&std::fmt::Error), None);
}

/// Connections, of which that many for turns.
async fn with_turns(fixture: &Fixture, max_connections: u32, max_turns: u32) -> Database {
    let settings = DatabaseSettings {
        max_connections,
        max_turns,
        application_name: "turns".to_owned(),
        ..settings(&fixture.database)
    };
    Database::connect(&settings).await.unwrap()
}

#[tokio::test]
async fn turns_go_in_the_order_of_asking_and_nobody_is_overtaken() {
    let fixture = Fixture::empty().await;
    let db = with_turns(&fixture, 3, 1).await;
    let mut session = Session::open_in(&db, db.turn().await).await.unwrap();
    assert!(!db.is_turn_wanted());
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..5 {
        let (its, order) = (db.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let turn = its.turn().await;
            let mut session = Session::open_in(&its, turn).await.unwrap();
            order.lock().unwrap().push(number);
            session.begin().await.unwrap();
            session.rollback().await.unwrap();
            session.give_back();
        }));
        // The next one asks after it.
        db.turn_wanted().await;
        tokio::task::yield_now().await;
    }
    // One that gives up leaves the line to the others.
    {
        let mut gives_up = pin!(db.turn());
        let asked = std::future::poll_fn(|cx| Poll::Ready(gives_up.as_mut().poll(cx).is_ready()));
        assert!(!asked.await, "it waits");
    }
    // Meanwhile statements and sessions of others don't wait behind handlers.
    db.ping().await.unwrap();
    let other = Session::open(&db).await.unwrap();
    other.give_back();
    session.begin().await.unwrap();
    session.rollback().await.unwrap();
    session.give_back();
    // Who asks now is the last.
    let turn = db.turn().await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    drop(turn);
    for task in waiting {
        task.await.unwrap();
    }
    assert!(!db.is_turn_wanted());
}

#[tokio::test]
async fn a_session_given_back_serves_the_next_and_never_a_statement() {
    let fixture = Fixture::new().await;
    let db = with_turns(&fixture, 2, 2).await;
    let pid = async |session: &mut Session| -> i32 {
        session.begin().await.unwrap();
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(session.conn())
            .await
            .unwrap();
        // A handler's own savepoint, whoever had the connection before.
        let mut inner = sqlx::Connection::begin(session.conn()).await.unwrap();
        let [id] = ids();
        effect(&mut inner, id).await;
        inner.rollback().await.unwrap();
        session.rollback().await.unwrap();
        pid
    };
    let mut session = Session::open_in(&db, db.turn().await).await.unwrap();
    let first = pid(&mut session).await;
    session.give_back();
    let mut session = Session::open_in(&db, db.turn().await).await.unwrap();
    assert_eq!(pid(&mut session).await, first);
    // In the middle of a transaction it isn't fit for anybody: the server rolls back.
    session.begin().await.unwrap();
    let [id] = ids();
    effect(session.conn(), id).await;
    session.give_back();
    let mut session = Session::open_in(&db, db.turn().await).await.unwrap();
    assert_ne!(pid(&mut session).await, first);
    session.give_back();
    assert_eq!(fixture.effects().await, 0);
}

#[tokio::test]
async fn idle_connections_of_either_kind_count_against_the_limit() {
    let fixture = Fixture::empty().await;
    let db = with_turns(&fixture, 2, 2).await;
    let backends = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name = 'turns'";
    for _ in 0..3 {
        let sessions = (
            Session::open_in(&db, db.turn().await).await.unwrap(),
            Session::open_in(&db, db.turn().await).await.unwrap(),
        );
        sessions.0.give_back();
        sessions.1.give_back();
        // Both idle ones are for sessions: one goes.
        db.ping().await.unwrap();
        factum_testing::eventually(LIMIT, "two connections", async || {
            fixture.count(backends).await == 2
        })
        .await;
    }
}
