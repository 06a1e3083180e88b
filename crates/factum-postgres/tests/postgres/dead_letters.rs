use factum_postgres::{DeadLetter, Session, new_event_id};
use sqlx::Row;
use sqlx::postgres::PgRow;
use time::macros::datetime;

use crate::fixture::Fixture;

fn letter(offset: i64) -> DeadLetter<'static> {
    DeadLetter {
        consumer: "billing",
        topic: "orders.confirmed",
        partition: 3,
        offset,
        key: Some(b"key"),
        value: Some(b"{\xff}"),
        headers: &[],
        event_id: None,
        event_type: None,
        reason: "not_utf8",
        path: None,
        error: None,
        attempts: 0,
        first_failed_at: None,
        build: "",
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

async fn rows(fixture: &Fixture) -> Vec<PgRow> {
    sqlx::query("SELECT * FROM dead_letter ORDER BY id")
        .fetch_all(&mut fixture.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_dead_letter_keeps_the_record_byte_for_byte() {
    let fixture = Fixture::new().await;
    let id = new_event_id();
    let headers = [
        ("event-id".to_owned(), Some(b"\x00\xff".to_vec())),
        ("empty".to_owned(), None),
    ];
    write(
        &fixture,
        &[DeadLetter {
            headers: &headers,
            event_id: Some(id),
            event_type: Some("order.confirmed.v1"),
            path: Some("$.items[3].price"),
            error: Some("handler failed"),
            attempts: 8,
            build: "1.4.2",
            first_failed_at: Some(datetime!(2026-11-30 12:00 UTC)),
            ..letter(1 << 60)
        }],
    )
    .await;
    let rows = rows(&fixture).await;
    let row = &rows[0];
    assert_eq!(row.get::<String, _>("consumer"), "billing");
    assert_eq!(row.get::<String, _>("topic"), "orders.confirmed");
    assert_eq!(row.get::<i32, _>("partition"), 3);
    assert_eq!(row.get::<i64, _>("record_offset"), 1 << 60);
    assert_eq!(row.get::<Vec<u8>, _>("key"), b"key");
    assert_eq!(row.get::<Vec<u8>, _>("value"), b"{\xff}");
    assert_eq!(
        row.get::<Vec<String>, _>("header_names"),
        ["event-id", "empty"]
    );
    assert_eq!(
        row.get::<Vec<Option<Vec<u8>>>, _>("header_values"),
        [Some(b"\x00\xff".to_vec()), None]
    );
    assert_eq!(row.get::<uuid::Uuid, _>("event_id"), id.as_uuid());
    assert_eq!(row.get::<String, _>("event_type"), "order.confirmed.v1");
    assert_eq!(row.get::<String, _>("reason"), "not_utf8");
    assert_eq!(row.get::<String, _>("path"), "$.items[3].price");
    assert_eq!(row.get::<String, _>("path_group"), "$.items[].price");
    assert_eq!(row.get::<i64, _>("payload_bytes"), 3);
    assert_eq!(row.get::<String, _>("build"), "1.4.2");
    assert_eq!(row.get::<String, _>("state"), "open");
    assert_eq!(row.get::<String, _>("error"), "handler failed");
    assert_eq!(row.get::<i32, _>("attempts"), 8);
    let first: time::OffsetDateTime = row.get("first_seen");
    assert_eq!(first, datetime!(2026-11-30 12:00 UTC));
}

#[tokio::test]
async fn the_same_record_again_updates_its_row() {
    let fixture = Fixture::new().await;
    write(
        &fixture,
        &[
            DeadLetter {
                attempts: 8,
                ..letter(7)
            },
            letter(8),
        ],
    )
    .await;
    let before: time::OffsetDateTime = rows(&fixture).await[0].get("last_seen");
    write(
        &fixture,
        &[DeadLetter {
            attempts: 2,
            reason: "permanent",
            ..letter(7)
        }],
    )
    .await;
    let rows = rows(&fixture).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(
        rows[0].get::<i32, _>("attempts"),
        8,
        "the most that it took"
    );
    assert_eq!(rows[0].get::<String, _>("reason"), "permanent");
    assert!(rows[0].get::<time::OffsetDateTime, _>("last_seen") > before);
    assert!(rows[0].get::<time::OffsetDateTime, _>("first_seen") <= before);
    // Another consumer's letter about the same record is another one.
    write(
        &fixture,
        &[DeadLetter {
            consumer: "mailer",
            ..letter(7)
        }],
    )
    .await;
    assert_eq!(fixture.count("SELECT count(*) FROM dead_letter").await, 3);
}

#[tokio::test]
async fn a_tombstone_and_an_empty_value_are_told_apart() {
    let fixture = Fixture::new().await;
    write(
        &fixture,
        &[
            DeadLetter {
                key: None,
                value: None,
                ..letter(1)
            },
            DeadLetter {
                key: Some(b""),
                value: Some(b""),
                ..letter(2)
            },
        ],
    )
    .await;
    let rows = rows(&fixture).await;
    assert_eq!(rows[0].get::<Option<Vec<u8>>, _>("value"), None);
    assert_eq!(rows[0].get::<Option<Vec<u8>>, _>("key"), None);
    assert_eq!(rows[1].get::<Option<Vec<u8>>, _>("value"), Some(vec![]));
    assert_eq!(rows[1].get::<Option<Vec<u8>>, _>("key"), Some(vec![]));
}

#[tokio::test]
async fn case_50_a_nul_in_a_text_doesnt_spoil_the_transaction() {
    let fixture = Fixture::new().await;
    let headers = [("a\0b".to_owned(), Some(b"\0".to_vec()))];
    write(
        &fixture,
        &[DeadLetter {
            headers: &headers,
            value: Some(b"x\0y"),
            event_type: Some("order\0"),
            path: Some("$.\0"),
            error: Some("\0"),
            ..letter(1)
        }],
    )
    .await;
    let rows = rows(&fixture).await;
    assert_eq!(rows[0].get::<Vec<u8>, _>("value"), b"x\0y");
    assert_eq!(
        rows[0].get::<Vec<String>, _>("header_names"),
        ["a\u{fffd}b"]
    );
    assert_eq!(rows[0].get::<String, _>("error"), "\u{fffd}");
}

#[tokio::test]
async fn case_41_what_is_added_is_cut_and_the_headers_are_kept_whole() {
    let fixture = Fixture::new().await;
    let long = "ä".repeat(20_000);
    let headers: Vec<_> = (0..200)
        .map(|_| (long.clone(), Some(long.clone().into_bytes())))
        .collect();
    write(
        &fixture,
        &[DeadLetter {
            headers: &headers,
            event_type: Some(&long),
            path: Some(&long),
            error: Some(&long),
            build: &long,
            ..letter(1)
        }],
    )
    .await;
    let rows = rows(&fixture).await;
    let names: Vec<String> = rows[0].get("header_names");
    let values: Vec<Vec<u8>> = rows[0].get("header_values");
    assert_eq!((names.len(), values.len()), (200, 200));
    assert!(names.iter().all(|name| *name == long));
    assert!(values.iter().all(|value| value == long.as_bytes()));
    assert_eq!(rows[0].get::<String, _>("build").len(), 254);
    assert_eq!(rows[0].get::<String, _>("error").len(), 1024);
    assert_eq!(rows[0].get::<String, _>("path").len(), 1024);
    assert_eq!(rows[0].get::<String, _>("event_type").len(), 254);
}

#[tokio::test]
async fn a_dead_letter_goes_with_its_transaction() {
    let fixture = Fixture::new().await;
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.dead_letter(&letter(1)).await.unwrap_err();
    session.begin().await.unwrap();
    session.dead_letter(&letter(1)).await.unwrap();
    session.rollback().await.unwrap();
    assert!(rows(&fixture).await.is_empty());
}
