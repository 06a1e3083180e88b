use factum_postgres::audit::Actor;
use factum_postgres::dead_letter_list::{Letters, letter, page};
use factum_postgres::replay_plan::{
    self, ActionError, NewPlan, Selection, USUAL_LETTERS, USUAL_RATE,
};
use factum_testing::eventually;
use sqlx::Connection as _;

use crate::fixture::{Fixture, LIMIT};

const ANA: Actor<'static> = Actor {
    name: "ana",
    via: "cli",
    reason: "#4411",
};

async fn with_letters(n: u32) -> Fixture {
    let fixture = Fixture::new().await;
    fixture
        .sql(format!(
            "INSERT INTO dead_letter (consumer, topic, partition, record_offset, key, value, reason) \
             SELECT 'billing', 't', 0, n, 'k', 'v', 'permanent' FROM generate_series(1, {n}) AS n; \
             INSERT INTO instance (id, service, build, host, process_id, consumers, seen_at) \
             VALUES (gen_random_uuid(), 'billing', '1', 'h', 1, ARRAY['billing'], now() + interval '1 hour')"
        ))
        .await;
    fixture
}

/// A plan of these letters, as if the service had checked it.
async fn checked(fixture: &Fixture, ids: &[i64]) -> i64 {
    let new = NewPlan {
        selection: Selection::Ids(ids),
        asked: "some",
        rate: USUAL_RATE,
        accept_outside_window: false,
        actor: ANA,
    };
    let plan = replay_plan::plan(&fixture.db, new).await.unwrap();
    fixture
        .sql("UPDATE replay_item SET state = 'ready'; UPDATE replay_run SET state = 'planned' WHERE state = 'checking'")
        .await;
    plan
}

/// What came after the plan was made stays out of it.
#[tokio::test]
async fn a_plan_is_a_fixed_list() {
    let fixture = with_letters(3).await;
    let billing = Letters {
        consumer: Some("billing"),
        ..Letters::OPEN
    };
    let new = NewPlan {
        selection: Selection::Matching(&billing, USUAL_LETTERS),
        asked: "consumer billing",
        rate: 5,
        accept_outside_window: true,
        actor: ANA,
    };
    let plan = replay_plan::plan(&fixture.db, new).await.unwrap();
    fixture
        .sql("INSERT INTO dead_letter (consumer, topic, partition, record_offset, reason) VALUES ('billing', 't', 0, 4, 'permanent')")
        .await;
    let run = replay_plan::run(&fixture.db, plan).await.unwrap().unwrap();
    assert_eq!((run.items.total, run.items.unchecked), (3, 3));
    assert_eq!(
        (run.state.as_str(), run.rate, run.accept_outside_window),
        ("checking", 5, true)
    );
    assert_eq!(run.created_by, "ana");
    let later = replay_plan::start(&fixture.db, plan, None, ANA).await;
    assert!(matches!(later, Err(ActionError::NotChecked)), "{later:?}");
}

/// Both commands find the way free; the index lets one of them.
#[tokio::test]
async fn of_two_runs_that_are_started_at_the_same_moment_one_is_refused_by_name() {
    let fixture = with_letters(2).await;
    let first = checked(&fixture, &[1]).await;
    let second = checked(&fixture, &[2]).await;
    let mut other = fixture.connect().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("UPDATE replay_run SET state = 'running' WHERE id = $1")
        .bind(first)
        .execute(&mut *tx)
        .await
        .unwrap();
    let db = fixture.db.clone();
    let starting = tokio::spawn(async move { replay_plan::start(&db, second, Some(1), ANA).await });
    eventually(LIMIT, "the second waits for the first", async || {
        fixture
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            .await
            == 1
    })
    .await;
    tx.commit().await.unwrap();
    let refused = starting.await.unwrap();
    match refused {
        Err(ActionError::AnotherRun { id, state, .. }) => {
            assert_eq!((id, state.as_str()), (first, "running"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM replay_run WHERE state = 'running'")
            .await,
        1
    );
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM audit WHERE action = 'replay_refused'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_list_that_has_changed_is_discarded_neither_whole_nor_in_part() {
    let fixture = with_letters(3).await;
    let ids = [1, 2, 3];
    let mine = replay_plan::fixed_list(&fixture.db, Selection::Ids(&ids), false)
        .await
        .unwrap();
    let theirs = replay_plan::fixed_list(&fixture.db, Selection::Ids(&[2]), false)
        .await
        .unwrap();
    replay_plan::discard(&fixture.db, &theirs, false, ANA)
        .await
        .unwrap();
    let refused = replay_plan::discard(&fixture.db, &mine, false, ANA).await;
    assert!(
        matches!(
            refused,
            Err(ActionError::Changed {
                expected: 3,
                found: 2,
                wanted: "open"
            })
        ),
        "{refused:?}"
    );
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM dead_letter WHERE state = 'open'")
            .await,
        2
    );
    assert_eq!(fixture.count("SELECT count(*) FROM audit").await, 1);
}

/// Of a payload no more is read than is shown, and of lists nothing.
#[tokio::test]
async fn a_large_payload_is_read_in_part() {
    let fixture = with_letters(1).await;
    fixture
        .sql("UPDATE dead_letter SET value = decode(repeat('61', 1000000), 'hex'), payload_bytes = 1000000")
        .await;
    let one = letter(&fixture.db, 1).await.unwrap().unwrap();
    assert_eq!(one.payload.map(|payload| payload.len()), Some(65_536));
    assert_eq!(one.letter.payload_bytes, 1_000_000);
    let listed = page(&fixture.db, &Letters::OPEN, 0, 50).await.unwrap();
    assert_eq!(listed, [one.letter]);
}

#[tokio::test]
async fn the_audit_takes_new_rows_only() {
    let fixture = with_letters(1).await;
    let list = replay_plan::fixed_list(&fixture.db, Selection::Ids(&[1]), false)
        .await
        .unwrap();
    replay_plan::discard(&fixture.db, &list, false, ANA)
        .await
        .unwrap();
    for change in [
        "UPDATE audit SET actor = 'bob'",
        "DELETE FROM audit",
        "TRUNCATE audit",
    ] {
        let changed = sqlx::query(change)
            .execute(&mut fixture.connect().await)
            .await;
        assert!(changed.is_err(), "{change}");
    }
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM audit WHERE actor = 'ana'")
            .await,
        1
    );
}
