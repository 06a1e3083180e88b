use factum_postgres::{SchemaProblem, check_schema, migration};

use crate::fixture::Fixture;

async fn problems(fixture: &Fixture) -> Vec<SchemaProblem> {
    check_schema(&fixture.db).await.unwrap()
}

#[tokio::test]
async fn a_sound_database_has_no_problems() {
    let fixture = Fixture::new().await;
    assert_eq!(problems(&fixture).await, []);
}

#[tokio::test]
async fn pending_migrations_are_the_only_problems_of_an_empty_database() {
    let fixture = Fixture::empty().await;
    let problems = problems(&fixture).await;
    assert_eq!(
        problems,
        [
            (1, "base"),
            (2, "event_reader"),
            (3, "parking"),
            (4, "outbox_record"),
            (5, "replay"),
            (6, "outbound_call"),
            (7, "relay_member"),
            (8, "retention"),
            (9, "relay_wake"),
        ]
        .map(|(version, name)| SchemaProblem::MigrationPending { version, name })
    );
    assert!(
        problems[0].to_string().contains("factum migrate up"),
        "{}",
        problems[0]
    );
}

#[tokio::test]
async fn a_window_without_today_is_a_problem() {
    let fixture = Fixture::empty().await;
    migration::up(&fixture.db).await.unwrap();
    assert_eq!(
        problems(&fixture).await,
        [SchemaProblem::NoPartitionForToday]
    );
}

#[tokio::test]
async fn each_damage_is_named_with_its_rule_and_its_mend() {
    let damages = [
        (
            "DROP TABLE dead_letter",
            "RTRY-5: table dead_letter is missing",
        ),
        (
            "DROP TABLE processed_event",
            "IDEM-2: table processed_event is missing",
        ),
        (
            "ALTER TABLE outbox DROP COLUMN published_at",
            "OBX-X3: table outbox has no column published_at of type timestamp with time zone",
        ),
        (
            "ALTER TABLE dead_letter ALTER COLUMN value TYPE text USING ''",
            "RTRY-5: table dead_letter has no column value of type bytea",
        ),
        (
            "DROP INDEX outbox_unpublished",
            "CREATE INDEX CONCURRENTLY outbox_unpublished ON outbox (slot, id) WHERE published_at IS NULL",
        ),
        (
            "DROP INDEX outbox_claim",
            "CREATE INDEX CONCURRENTLY outbox_claim ON outbox (id) WHERE published_at IS NULL",
        ),
        (
            "ALTER TABLE outbox DROP CONSTRAINT outbox_event_id_event_type_key",
            "IDEM-1: table outbox has no unique key of exactly (event_id, event_type)",
        ),
        (
            "ALTER TABLE dead_letter DROP CONSTRAINT \
             dead_letter_consumer_topic_partition_record_offset_key",
            "RTRY-5: table dead_letter has no unique key of exactly (consumer, topic, ",
        ),
        (
            "DROP TABLE event_reader",
            "EVT-3: table event_reader is missing",
        ),
        (
            "ALTER TABLE event_reader DROP CONSTRAINT event_reader_pkey",
            "EVT-3: table event_reader has no unique key of exactly (consumer, event_type, taken_as, newest)",
        ),
        (
            "DELETE FROM relay_lease WHERE slot = 7",
            "OBX-2: relay_lease lacks some of its 64 slots",
        ),
        (
            "ALTER TABLE processed_event DROP CONSTRAINT processed_event_pkey",
            "IDEM-2: table processed_event has no unique key of exactly",
        ),
    ];
    for (damage, expected) in damages {
        let fixture = Fixture::new().await;
        fixture.sql(damage).await;
        let problems = problems(&fixture).await;
        assert!(
            problems
                .iter()
                .any(|problem| problem.to_string().contains(expected)),
            "{damage}: {problems:?}"
        );
        let text = problems[0].to_string();
        assert!(text.starts_with(problems[0].rule()), "{text}");
    }
}

#[tokio::test]
async fn the_mends_work_as_they_are_written() {
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "DELETE FROM relay_lease WHERE slot = 7; \
             ALTER TABLE outbox DROP CONSTRAINT outbox_event_id_event_type_key; \
             ALTER TABLE outbox DROP COLUMN set_aside_at CASCADE; \
             ALTER TABLE dead_letter DROP CONSTRAINT \
             dead_letter_consumer_topic_partition_record_offset_key; \
             CREATE TABLE rest PARTITION OF processed_event DEFAULT",
        )
        .await;
    fixture.sql("DROP INDEX outbox_unpublished").await;
    let found = problems(&fixture).await;
    assert_eq!(found.len(), 7);
    for problem in found {
        let text = problem.to_string();
        let statement = text.split('`').nth(1).unwrap().to_owned();
        fixture.sql(statement).await;
    }
    assert_eq!(problems(&fixture).await, []);
}
