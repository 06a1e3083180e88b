//! Keys that fail together: they come back at times of their own, after the first failure and after later ones.

use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{Consumer, Retry};
use factum_testing::eventually;
use factum_tests::{Entry as _, LIMIT, On, Recorder, Scene, entry_on_topic};

entry_on_topic!(jitter, "t.jitter");

const CONSUMER: &str = "test-jitter";
/// That all of so many draws lie in one half of their range happens once in half a million times.
const KEYS: usize = 20;
/// Before the second attempt; twice as long before the third.
const DELAY: Duration = Duration::from_hours(1);

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_failed_together_come_back_apart() {
    let scene = Scene::new::<jitter::Posted>(On::Embedded, 1).await;
    let consumer = Consumer::named(CONSUMER)
        .handler::<jitter::Posted>(Recorder::of(CONSUMER))
        .retry(Retry::park().first_delay(DELAY).max_delay(DELAY * 10));
    let running = scene.start([consumer]);
    let events: Vec<jitter::Posted> = (0..KEYS)
        .map(|key| jitter::Posted::entry(&format!("k{key}"), 1, "always"))
        .collect();
    scene.produce(0, &events).await;

    let first = waits(&scene, 1).await;
    assert!(is_spread(&first, DELAY), "{first:?}");
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    let second = waits(&scene, 2).await;
    assert!(is_spread(&second, DELAY * 2), "{second:?}");
    running.stop().await;
}

/// How long each key waits after so many attempts, in seconds; once all of them have failed so often.
async fn waits(scene: &Scene, attempts: i32) -> Vec<f64> {
    let mut conn = scene.database.connect().await;
    let mut waits: Vec<f64> = Vec::new();
    eventually(
        LIMIT,
        &format!("attempt {attempts} of each key"),
        async || {
            waits = sqlx::query_scalar(
            "SELECT extract(epoch FROM next_attempt_at - last_failed_at)::float8 FROM parked_key \
             WHERE attempts = $1",
        )
        .bind(attempts)
        .fetch_all(&mut conn)
        .await
        .expect("the parked keys can be read");
            waits.len() == KEYS
        },
    )
    .await;
    conn.close().await.expect("a connection can be closed");
    waits
}

/// Anywhere from nothing to the longest, which is full jitter.
fn is_spread(waits: &[f64], longest: Duration) -> bool {
    let longest = longest.as_secs_f64();
    // The two times are the clock's at two moments of one statement.
    let within = |wait: &f64| (-1.0..longest + 1.0).contains(wait);
    waits.iter().all(within)
        && waits.iter().any(|wait| *wait < longest / 2.0)
        && waits.iter().any(|wait| *wait > longest / 2.0)
}
