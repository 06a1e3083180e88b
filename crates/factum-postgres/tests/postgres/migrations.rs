use factum_postgres::migration::{self, Applied, MigrationError};
use factum_postgres::{Database, DatabaseSettings, SchemaProblem, Window, check_schema, maintain};
use sqlx::AssertSqlSafe;
use time::OffsetDateTime;

use crate::fixture::Fixture;

/// How many migrations there are.
const ALL: usize = 9;

#[tokio::test]
async fn migrations_run_once_and_are_safe_to_run_twice() {
    let fixture = Fixture::empty().await;
    let pending = migration::status(&fixture.db).await.unwrap();
    assert!(pending.iter().all(|status| status.applied_at.is_none()));

    let names = [
        "base",
        "event_reader",
        "parking",
        "outbox_record",
        "replay",
        "outbound_call",
        "relay_member",
        "retention",
        "relay_wake",
    ];
    let all: Vec<Applied> = (1..)
        .zip(names)
        .map(|(version, name)| Applied { version, name })
        .collect();
    assert_eq!(migration::up(&fixture.db).await.unwrap(), all);
    assert_eq!(migration::up(&fixture.db).await.unwrap(), []);
    let applied = migration::status(&fixture.db).await.unwrap();
    assert_eq!(applied.len(), pending.len());
    assert!(applied.iter().all(|status| status.applied_at.is_some()));
}

#[tokio::test]
async fn many_instances_may_migrate_at_once() {
    let fixture = Fixture::empty().await;
    let running: Vec<_> = (0..4)
        .map(|_| {
            let db = fixture.db.clone();
            tokio::spawn(async move { migration::up(&db).await.unwrap().len() })
        })
        .collect();
    let mut applied = 0;
    for one in running {
        applied += one.await.unwrap();
    }
    assert_eq!(applied, ALL);
    assert_eq!(fixture.count("SELECT count(*) FROM relay_lease").await, 64);
}

#[tokio::test]
async fn the_printed_sql_runs_by_itself_and_is_known_as_applied() {
    let fixture = Fixture::empty().await;
    // As psql -1 does.
    fixture
        .sql(format!("BEGIN; {} COMMIT;", migration::sql()))
        .await;
    assert_eq!(migration::up(&fixture.db).await.unwrap(), []);
    maintain(&fixture.db, &Window::default(), OffsetDateTime::now_utc())
        .await
        .unwrap();
    assert_eq!(check_schema(&fixture.db).await.unwrap(), []);
}

#[tokio::test]
async fn an_older_schema_is_named_and_brought_up_to_date() {
    let all = migration::sql();
    let (older, _) = all.split_once("-- Factum migration 6").unwrap();
    for with_a_tool in [false, true] {
        let fixture = Fixture::empty().await;
        fixture.sql(format!("BEGIN; {older} COMMIT;")).await;
        maintain(&fixture.db, &Window::default(), OffsetDateTime::now_utc())
            .await
            .unwrap();
        let problems = check_schema(&fixture.db).await.unwrap();
        assert!(
            problems.contains(&SchemaProblem::MigrationPending {
                version: 6,
                name: "outbound_call"
            }),
            "{problems:?}"
        );
        if with_a_tool {
            fixture
                .sql(format!("BEGIN; {} COMMIT;", migration::sql_above(5)))
                .await;
            assert_eq!(migration::up(&fixture.db).await.unwrap(), []);
        } else {
            assert_eq!(migration::up(&fixture.db).await.unwrap().len(), ALL - 5);
        }
        assert_eq!(check_schema(&fixture.db).await.unwrap(), []);
    }
}

/// The standard's listing, and others that don't deduplicate or lose events.
const WRONG: [(&str, &str); 5] = [
    (
        "CREATE TABLE processed_event (event_id uuid, consumer_group text, \
           processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (event_id, processed_at)) \
         PARTITION BY RANGE (processed_at)",
        "isn't partitioned by RANGE (event_id)",
    ),
    (
        "CREATE TABLE processed_event (event_id uuid PRIMARY KEY, consumer_group text, \
           processed_at timestamptz NOT NULL DEFAULT now())",
        "isn't partitioned by RANGE (event_id)",
    ),
    (
        "CREATE TABLE processed_event (event_id uuid PRIMARY KEY, consumer_group text, \
           processed_at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (event_id)",
        "no unique key of exactly (consumer_group, event_id)",
    ),
    (
        "CREATE TABLE processed_event (event_id uuid, consumer_group text, \
           processed_at timestamptz NOT NULL DEFAULT now(), \
           PRIMARY KEY (event_id, consumer_group, processed_at)) PARTITION BY RANGE (event_id)",
        "no unique key of exactly (consumer_group, event_id)",
    ),
    (
        "CREATE TABLE processed_event (event_id uuid UNIQUE, consumer_group text, \
           processed_at timestamptz NOT NULL DEFAULT now(), \
           PRIMARY KEY (event_id, consumer_group)) PARTITION BY RANGE (event_id)",
        "a second consumer would never see the event",
    ),
];

#[tokio::test]
async fn listing_fault_02_case_2_a_table_that_doesnt_deduplicate_is_refused() {
    for (ddl, why) in WRONG {
        let fixture = Fixture::empty().await;
        fixture.sql(ddl).await;
        let err = migration::up(&fixture.db).await.unwrap_err();
        let text = err.to_string();
        assert!(
            matches!(err, MigrationError::WrongProcessedEvent { .. }),
            "{err:?}"
        );
        assert!(text.contains("IDEM-2") && text.contains(why), "{text}");
        let nothing =
            "SELECT count(*) FROM pg_class WHERE relname IN ('outbox', 'factum_migration')";
        assert_eq!(fixture.count(nothing).await, 0, "all or nothing");

        // The printed script refuses it too, and so do the checks of a running system.
        let mut conn = fixture.connect().await;
        let err = sqlx::raw_sql(AssertSqlSafe(migration::sql()))
            .execute(&mut conn)
            .await
            .unwrap_err();
        assert!(err.to_string().contains(why), "{err}");
        let problems = check_schema(&fixture.db).await.unwrap();
        let named = problems
            .iter()
            .find(|p| matches!(p, SchemaProblem::NoRealDedup { .. }));
        let text = named.unwrap().to_string();
        assert!(text.starts_with("IDEM-2: ") && text.contains(why), "{text}");

        // The mend that it names works.
        fixture
            .sql("ALTER TABLE processed_event RENAME TO processed_event_old")
            .await;
        assert_eq!(migration::up(&fixture.db).await.unwrap().len(), ALL);
    }
}

#[tokio::test]
async fn the_published_table_does_accept_an_event_three_times() {
    // Why it is refused.
    let fixture = Fixture::empty().await;
    fixture.sql(WRONG[0].0).await;
    fixture
        .sql("CREATE TABLE nov PARTITION OF processed_event FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
        .await;
    for _ in 0..3 {
        fixture
            .sql(
                "INSERT INTO processed_event VALUES \
                 ('0199c8d7-7c00-7000-8000-000000000000', 'billing') ON CONFLICT DO NOTHING",
            )
            .await;
    }
    assert_eq!(fixture.processed().await, 3);
}

#[tokio::test]
async fn a_table_of_the_right_shape_is_shared() {
    let fixture = Fixture::empty().await;
    fixture
        .sql(
            "CREATE TABLE processed_event (event_id uuid, consumer_group text, \
               processed_at timestamptz NOT NULL DEFAULT now(), \
               PRIMARY KEY (event_id, consumer_group)) PARTITION BY RANGE (event_id)",
        )
        .await;
    assert_eq!(migration::up(&fixture.db).await.unwrap().len(), ALL);
    maintain(&fixture.db, &Window::default(), OffsetDateTime::now_utc())
        .await
        .unwrap();
    assert_eq!(check_schema(&fixture.db).await.unwrap(), []);
    fixture
        .sql("CREATE TABLE effect (event_id uuid, note text)")
        .await;
    let [id] = crate::fixture::ids();
    fixture.handle("billing", &[id]).await;
    fixture.handle("billing", &[id]).await;
    fixture.handle("mailer", &[id]).await;
    assert_eq!(fixture.effects().await, 2);
}

#[tokio::test]
async fn somebody_elses_outbox_is_named_and_left_alone() {
    let fixture = Fixture::empty().await;
    fixture.sql("CREATE TABLE outbox (precious text)").await;
    let err = migration::up(&fixture.db).await.unwrap_err();
    assert!(
        matches!(&err, MigrationError::TableExists { table } if table == "outbox"),
        "{err:?}"
    );
    assert!(err.to_string().contains("outbox"), "{err}");
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 0);
    let nothing =
        "SELECT count(*) FROM pg_class WHERE relname IN ('dead_letter', 'processed_event')";
    assert_eq!(fixture.count(nothing).await, 0);
}

#[tokio::test]
async fn a_role_without_the_right_to_create_tables_may_ask() {
    let fixture = Fixture::new().await;
    let role = format!("{}_role", fixture.database.name());
    fixture
        .sql(format!(
            "REVOKE CREATE ON SCHEMA public FROM public; \
             CREATE ROLE {role} LOGIN PASSWORD 'secret'; \
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
        ))
        .await;
    let (_, rest) = fixture.database.url().split_once('@').unwrap();
    let settings = DatabaseSettings::new(format!("postgres://{role}:secret@{rest}").into());
    let db = Database::connect(&settings).await.unwrap();
    assert_eq!(migration::up(&db).await.unwrap(), []);
    assert_eq!(check_schema(&db).await.unwrap(), []);

    fixture.sql("DROP TABLE factum_migration").await;
    let err = migration::up(&db).await.unwrap_err().to_string();
    assert!(
        err.contains("42501") && err.contains("grant the right"),
        "{err}"
    );
    db.close().await;
    fixture
        .sql(format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}
