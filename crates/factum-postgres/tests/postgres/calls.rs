//! Calls to other systems: claims, their tokens, their order, and what is recorded.

use std::time::Duration;

use factum_postgres::{
    CallNext, CallOutcome, CallResponse, CallState, CallStore, CallWritten, DueCall, NewCall,
    new_event_id, write_call,
};
use sqlx::Connection as _;

use crate::fixture::Fixture;

const HOUR: Duration = Duration::from_secs(3600);

fn store(fixture: &Fixture, owner: &str) -> CallStore {
    CallStore::new(fixture.db.clone(), "billing".to_owned(), owner.to_owned())
}

/// Writes calls of these aggregates, in order.
async fn write(fixture: &Fixture, aggregates: &[&str], ordered: bool) {
    let mut conn = fixture.connect().await;
    for aggregate_id in aggregates {
        let id = new_event_id();
        let call = NewCall {
            service: "billing",
            consumer: "billing-orders",
            event_id: id,
            event_type: "order.confirmed.v1",
            step: "",
            endpoint: "payments",
            method: "POST",
            path: "/v1/charges",
            headers: &[("x-a".to_owned(), b"1".to_vec())],
            body: b"{}",
            idempotency_key: &id.to_string(),
            traceparent: None,
            aggregate_id,
            ordered,
        };
        let written = write_call(&mut conn, &call).await.unwrap();
        assert!(matches!(written, CallWritten::Now(_)));
        let again = write_call(&mut conn, &call).await.unwrap();
        let (CallWritten::Now(first), CallWritten::Before(second)) = (written, again) else {
            panic!("{written:?}, {again:?}");
        };
        assert_eq!(first, second, "one call for an event and a step");
    }
    conn.close().await.unwrap();
}

async fn claim(store: &CallStore, limit: u32, lease: Duration) -> Vec<DueCall> {
    store
        .claim("payments", limit, lease, HOUR)
        .await
        .unwrap()
        .calls
}

fn outcome(call: &DueCall, next: CallNext) -> CallOutcome {
    CallOutcome {
        id: call.id,
        token: call.token,
        next,
        response: Some(CallResponse {
            status: 200,
            headers: vec![("x-note".to_owned(), "a\0b".to_owned())],
            body: vec![0, 159, 255],
            cut: false,
        }),
        error: None,
    }
}

#[tokio::test]
async fn case_11_a_late_outcome_changes_nothing_once_another_has_claimed_the_call() {
    let fixture = Fixture::new().await;
    write(&fixture, &["a"], false).await;
    let (slow, quick) = (store(&fixture, "slow"), store(&fixture, "quick"));
    // The slow one stands still beyond its lease, which is over at once.
    let [late] = &claim(&slow, 10, Duration::ZERO).await[..] else {
        panic!("one call")
    };
    let mut found = Vec::new();
    factum_testing::eventually(crate::fixture::LIMIT, "the end of the lease", async || {
        found = claim(&quick, 10, HOUR).await;
        !found.is_empty()
    })
    .await;
    let [call] = &found[..] else {
        panic!("one call")
    };
    assert_eq!((call.id, call.attempt), (late.id, 2));
    assert_ne!(call.token, late.token);
    assert_eq!(
        (&call.body, &call.headers, &call.idempotency_key),
        (&late.body, &late.headers, &late.idempotency_key)
    );

    // While the quick one sends, and after it has recorded.
    assert_eq!(
        slow.record(&[outcome(late, CallNext::SetAside)])
            .await
            .unwrap(),
        Vec::<i64>::new()
    );
    assert_eq!(
        quick
            .record(&[outcome(call, CallNext::Done)])
            .await
            .unwrap(),
        [call.id]
    );
    assert_eq!(
        slow.record(&[outcome(late, CallNext::Retry(Duration::ZERO))])
            .await
            .unwrap(),
        Vec::<i64>::new()
    );
    assert_eq!(
        quick
            .record(&[outcome(call, CallNext::SetAside)])
            .await
            .unwrap(),
        Vec::<i64>::new(),
        "it is finished"
    );
    let row = factum_postgres::find_call(&fixture.db, call.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.state, row.status, row.response_bytes),
        (CallState::Done, Some(200), Some(3))
    );
}

#[tokio::test]
async fn a_claimed_call_is_nobody_else_s_and_has_its_first_sending_committed() {
    let fixture = Fixture::new().await;
    write(&fixture, &["a", "b", "c"], false).await;
    let (one, two) = (store(&fixture, "one"), store(&fixture, "two"));
    let first = claim(&one, 2, HOUR).await;
    let second = claim(&two, 10, HOUR).await;
    assert_eq!((first.len(), second.len()), (2, 1));
    assert!(claim(&two, 10, HOUR).await.is_empty());
    for call in first.iter().chain(&second) {
        let row = factum_postgres::find_call(&fixture.db, call.id)
            .await
            .unwrap()
            .unwrap();
        let sent = row.first_sent_at.expect("it is said before a byte is sent");
        assert_eq!(row.key_expires_at, Some(sent + HOUR));
    }
    // Another service's and another endpoint's callers have no part in it.
    let other = CallStore::new(fixture.db.clone(), "shipping".to_owned(), "x".to_owned());
    write(&fixture, &["d"], false).await;
    assert!(claim(&other, 10, HOUR).await.is_empty());
    assert!(
        one.claim("warehouse", 10, HOUR, HOUR)
            .await
            .unwrap()
            .calls
            .is_empty()
    );
    let count =
        |counts: Vec<(CallState, i64)>| counts.into_iter().map(|c| c.1).collect::<Vec<i64>>();
    assert_eq!(count(one.count("payments").await.unwrap()), [4, 0, 0, 0]);
}

#[tokio::test]
async fn an_ordered_call_waits_for_the_one_before_it_whatever_its_state() {
    let fixture = Fixture::new().await;
    write(&fixture, &["a", "a", "b"], true).await;
    let store = store(&fixture, "one");
    let first = claim(&store, 10, HOUR).await;
    assert_eq!(first.len(), 2, "of a the first alone, and b");
    for next in [
        CallNext::Retry(HOUR),
        CallNext::SetAside,
        CallNext::Answered,
    ] {
        fixture.sql("UPDATE outbound_call SET state = 'pending', next_attempt_at = clock_timestamp() WHERE id = 1").await;
        let calls = claim(&store, 10, HOUR).await;
        assert_eq!(
            calls.iter().map(|call| call.id).collect::<Vec<_>>(),
            [1],
            "{next:?}"
        );
        store.record(&[outcome(&calls[0], next)]).await.unwrap();
        assert!(
            claim(&store, 10, HOUR).await.is_empty(),
            "{next:?} holds the second up"
        );
    }
    fixture
        .sql("UPDATE outbound_call SET state = 'unknown' WHERE id = 1")
        .await;
    assert!(
        claim(&store, 10, HOUR).await.is_empty(),
        "so does one in doubt"
    );
    fixture
        .sql("UPDATE outbound_call SET state = 'resolved' WHERE id = 1")
        .await;
    assert_eq!(claim(&store, 10, HOUR).await.len(), 1);
}

#[tokio::test]
async fn a_call_whose_key_has_expired_is_claimed_by_nobody() {
    let fixture = Fixture::new().await;
    write(&fixture, &["a", "b"], false).await;
    let store = store(&fixture, "one");
    assert_eq!(claim(&store, 1, HOUR).await.len(), 1);
    fixture
        .sql("UPDATE outbound_call SET next_attempt_at = clock_timestamp(), key_expires_at = clock_timestamp() WHERE id = 1")
        .await;
    let claimed = store.claim("payments", 10, HOUR, HOUR).await.unwrap();
    assert_eq!(
        (claimed.calls.len(), claimed.unknown),
        (1, 1),
        "the other one alone"
    );
    let row = factum_postgres::find_call(&fixture.db, 1)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((row.state, row.attempts), (CallState::Unknown, 1));
    assert!(row.error.is_some_and(|error| error.contains("reconcile")));
}
