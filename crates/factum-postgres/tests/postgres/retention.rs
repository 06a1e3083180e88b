//! What goes with time, and that nobody waits for it.

#![allow(clippy::print_stdout, reason = "the measurements of a soak")]

use std::time::{Duration, Instant};

use factum_postgres::{
    ClaimLimit, Database, RelayStore, Retention, RetentionReport, Window, apply_retention,
    dead_letter_groups, fold_dead_letter_groups, maintain,
};
use sqlx::Connection as _;
use time::OffsetDateTime;

use crate::fixture::{Fixture, LIMIT, ids, settings};
use crate::load::Load;

/// As `FACTUM_TEST_SOAK=1` asks: the sizes of the public cases, which take minutes.
fn is_soak() -> bool {
    std::env::var("FACTUM_TEST_SOAK").is_ok_and(|value| value == "1")
}

async fn applied(fixture: &Fixture) -> RetentionReport {
    applied_with(fixture, Retention::default()).await
}

async fn applied_with(fixture: &Fixture, retention: Retention) -> RetentionReport {
    apply_retention(&fixture.db, &retention).await.unwrap()
}

/// Rows of the outbox that were published ten days ago.
async fn published(fixture: &Fixture, rows: u32) {
    fixture
        .sql(format!(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at, \
                                 created_at, published_at) \
             SELECT gen_random_uuid(), 'order.confirmed.v1', 'Order', 'o', 'orders', n::text, repeat('x', 300)::bytea, \
                    now(), now() - interval '10 d', now() - interval '10 d' FROM generate_series(1, {rows}) AS n"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_39_three_cleaners_under_load_delete_in_bounded_batches_and_nobody_waits() {
    let fixture = Fixture::new().await;
    let rows = if is_soak() { 5_000_000 } else { 100_000 };
    // Each statement that deletes writes down how many.
    fixture
        .sql(
            "CREATE TABLE deletion (rows bigint, transaction xid8); \
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO deletion SELECT count(*), pg_current_xact_id() FROM gone; RETURN NULL; END $$; \
             CREATE TRIGGER note AFTER DELETE ON outbox REFERENCING OLD TABLE AS gone \
               FOR EACH STATEMENT EXECUTE FUNCTION note()",
        )
        .await;
    published(&fixture, rows).await;

    let load = Load::start(&fixture).await;
    let begun_at = Instant::now();
    let mut reports = Vec::new();
    // The run of a process ends after ten minutes, and the next goes on.
    loop {
        let (a, b, c) = tokio::join!(applied(&fixture), applied(&fixture), applied(&fixture));
        let leaders = [a, b, c].iter().filter(|report| report.leader).count();
        let deleted: u64 = [a, b, c].iter().map(|report| report.outbox).sum();
        reports.push(leaders);
        if deleted == 0 {
            break;
        }
    }
    let took = begun_at.elapsed();
    let written = load.stop().await;
    println!(
        "{rows} rows in {took:.1?}; beside it {} transactions, the longest {:.1?}",
        written.transactions, written.longest
    );

    assert_eq!(reports[0], 1, "one leader at a time");
    assert_eq!(written.waits, Vec::<String>::new());
    assert!(written.transactions > 0);
    let left = "SELECT count(*) FROM outbox WHERE topic = 'orders'";
    assert_eq!(fixture.count(left).await, 0);
    let live = "SELECT count(*) FROM outbox WHERE topic = 'live'";
    assert_eq!(fixture.count(live).await, i64::from(written.transactions));
    assert!(fixture.count("SELECT max(rows) FROM deletion").await <= 1_000);
    let of_one =
        "SELECT max(n) FROM (SELECT count(*) AS n FROM deletion GROUP BY transaction) AS every";
    assert_eq!(
        fixture.count(of_one).await,
        1,
        "each in its own transaction"
    );
    let sum = "SELECT sum(rows)::bigint FROM deletion";
    assert_eq!(fixture.count(sum).await, i64::from(rows));
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(fixture.count(deadlocks).await, 0);
}

#[tokio::test]
async fn an_outbox_row_goes_only_when_it_was_published_long_ago() {
    let fixture = Fixture::new().await;
    published(&fixture, 2_500).await;
    fixture
        .sql(
            "UPDATE outbox SET published_at = NULL WHERE id % 5 = 0; \
             UPDATE outbox SET published_at = NULL, set_aside_at = now() - interval '9 d' WHERE id % 5 = 1; \
             UPDATE outbox SET published_at = NULL, not_before = now() + interval '1 d' WHERE id % 5 = 2; \
             UPDATE outbox SET published_at = now() - interval '71 h' WHERE id % 5 = 3",
        )
        .await;
    let report = applied(&fixture).await;
    assert_eq!(
        (report.leader, report.outbox, report.unfinished),
        (true, 500, false)
    );
    let stay = "SELECT count(*) FROM outbox WHERE id % 5 <> 4";
    assert_eq!(fixture.count(stay).await, 2_000);
    assert_eq!(fixture.count("SELECT count(*) FROM outbox").await, 2_000);
    assert_eq!(applied(&fixture).await.outbox, 0, "nothing more is due");
}

/// What one claim reads, in pages, however it finds its rows.
async fn pages_of_a_claim(fixture: &Fixture) -> i64 {
    const READ: &str = "SELECT (heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint \
                        FROM pg_statio_user_tables WHERE relname = 'outbox'";
    const CLAIMS: i64 = 20;
    // Everybody's figures are in once his connection is closed.
    let quiet = async || {
        let mut before = fixture.count(READ).await;
        factum_testing::eventually(LIMIT, "figures that stand still", async || {
            let now = fixture.count(READ).await;
            std::mem::replace(&mut before, now) == now
        })
        .await;
        before
    };
    let before = quiet().await;
    let db = Database::connect(&settings(&fixture.database))
        .await
        .unwrap();
    let relay = RelayStore::new(db.clone(), "r".to_owned(), Duration::from_secs(30));
    let lease = relay.join().await.unwrap();
    let limit = ClaimLimit {
        rows: 100,
        bytes: 1 << 20,
    };
    for _ in 0..CLAIMS {
        let claimed = relay.claim(&lease, &lease.slots(), limit, &[]).await;
        assert_eq!(claimed.unwrap().len(), 10);
    }
    relay.leave(lease).await.unwrap();
    db.close().await;
    factum_testing::eventually(LIMIT, "the claims' figures", async || {
        fixture.count(READ).await > before
    })
    .await;
    (quiet().await - before) / CLAIMS
}

#[tokio::test]
async fn case_22_a_claim_costs_the_same_however_many_rows_were_published() {
    let fixture = Fixture::new().await;
    let rows: u32 = if is_soak() { 5_000_000 } else { 50_000 };
    const FEW: u32 = 2_000;
    // The test does it, so that its reading doesn't count as a claim's.
    fixture
        .sql("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        .await;
    const TEN_WAIT: &str = "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
         SELECT gen_random_uuid(), 't', 'A', 'a', 'orders', n::text, '', now() FROM generate_series(1, 10) AS n";
    let beside = async |rows: u32| {
        published(&fixture, rows).await;
        // They were waiting, and were sent: each has left an entry in the indexes that claims walk.
        fixture
            .sql("UPDATE outbox SET published_at = NULL; UPDATE outbox SET published_at = now() - interval '10 d'")
            .await;
        fixture.sql(TEN_WAIT).await;
        // What autovacuum runs, with the table's own settings.
        fixture.sql("VACUUM ANALYZE outbox").await;
        pages_of_a_claim(&fixture).await
    };
    let few = beside(FEW).await;
    fixture
        .sql("DELETE FROM outbox WHERE published_at IS NULL")
        .await;
    let many = beside(rows - FEW - 10).await;
    println!("pages of a claim: {few} beside {FEW}, {many} beside {rows} published rows");
    assert!(many <= few + 8, "{few} pages grew to {many}");

    let report = applied(&fixture).await;
    assert_eq!(report.outbox, u64::from(rows - 10));
    fixture.sql("VACUUM ANALYZE outbox").await;
    let after = pages_of_a_claim(&fixture).await;
    println!("and {after} after they were deleted");
    // With few rows left PostgreSQL may look each of the 64 slots up by itself: some pages for each, whatever was there.
    assert!(after <= 64 * 6, "{few} pages grew to {after}");
}

/// A vacuum that finds few dead rows in a long table would leave the entries of the claim's indexes for ever.
#[tokio::test]
async fn case_22_a_vacuum_of_the_outbox_always_cleans_its_indexes() {
    let fixture = Fixture::new().await;
    let told = "SELECT count(*) FROM pg_class WHERE oid = 'outbox'::regclass AND 'vacuum_index_cleanup=on' = ANY(reloptions)";
    assert_eq!(fixture.count(told).await, 1);
}

const EVERYTHING: &str = "\
    INSERT INTO dead_letter (consumer, topic, partition, record_offset, reason, state, state_at, first_seen, last_seen) \
      SELECT 'billing', 't', 0, n, 'permanent', CASE n % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'replayed' ELSE 'discarded' END, \
             CASE WHEN n % 3 > 0 THEN now() - make_interval(days => n / 100) END, now() - interval '60 d', now() - make_interval(days => n / 100) \
      FROM generate_series(0, 5999) AS n; \
    INSERT INTO outbound_call (service, consumer, event_id, event_type, aggregate_id, endpoint, method, path, idempotency_key, state, finished_at) \
      SELECT 's', 'c', gen_random_uuid(), 't', 'a', 'e', 'POST', '/', 'k', state, \
             CASE WHEN state IN ('done', 'resolved') THEN now() - interval '1 d' * days END \
      FROM unnest(ARRAY['pending', 'answered', 'done', 'set_aside', 'unknown', 'resolved']) AS state, unnest(ARRAY[89, 91]) AS days; \
    INSERT INTO replay_run (consumer, state, created_by, good_until, ended_at) \
      SELECT 'c-' || state || days, state, 'ana', now() - interval '1 d' * days, CASE WHEN state IN ('stopped', 'done') THEN now() - interval '1 d' * days END \
      FROM unnest(ARRAY['checking', 'planned', 'running', 'paused', 'stopped', 'done']) AS state, unnest(ARRAY[89, 91]) AS days; \
    INSERT INTO replay_item (run_id, dead_letter_id, topic, partition, record_offset) \
      SELECT id, n, 't', 0, n FROM replay_run, generate_series(1, 600) AS n; \
    INSERT INTO audit (at, actor, via, action) SELECT now() - interval '1 d' * n, 'ana', 'cli', 'look' FROM generate_series(1, 400) AS n; \
    INSERT INTO parked_key (consumer, topic, key, next_attempt_at, parked_at) VALUES ('c', 't', 'k', now() - interval '400 d', now() - interval '400 d'); \
    INSERT INTO parked_event (consumer, topic, key, partition, record_offset, value, event_id, event_type, parked_at) \
      VALUES ('c', 't', 'k', 0, 0, '', gen_random_uuid(), 't', now() - interval '400 d'); \
    INSERT INTO processed_foreign_event (consumer_group, event_id, processed_at, keep_until) \
      SELECT 'c', gen_random_uuid(), now() - interval '30 d', now() + interval '1 h' * n FROM generate_series(-1499, 1500) AS n";

#[tokio::test]
async fn what_is_settled_goes_with_time_and_what_waits_stays() {
    let fixture = Fixture::new().await;
    fixture.sql(EVERYTHING).await;
    fold_dead_letter_groups(&fixture.db).await.unwrap();
    let report = applied(&fixture).await;
    assert_eq!(
        report,
        RetentionReport {
            leader: true,
            outbox: 0,
            // Of 4,000 that are settled, those for longer than thirty days.
            dead_letters: 2_000,
            calls: 2,
            // Items and their runs: four of the six states, those of 91 days.
            replays: 4 * 600 + 4,
            // What is to be kept until this very moment is over.
            foreign_ids: 1_500,
            audit: 0,
            unfinished: false,
        }
    );
    let counts = [
        (
            "SELECT count(*) FROM dead_letter WHERE state = 'open'",
            2_000,
        ),
        (
            "SELECT count(*) FROM dead_letter WHERE state <> 'open'",
            2_000,
        ),
        ("SELECT count(*) FROM outbound_call", 10),
        ("SELECT count(*) FROM replay_run", 8),
        ("SELECT count(*) FROM replay_item", 8 * 600),
        ("SELECT count(*) FROM audit", 400),
        ("SELECT count(*) FROM parked_key", 1),
        ("SELECT count(*) FROM parked_event", 1),
        ("SELECT count(*) FROM processed_foreign_event", 1_500),
    ];
    for (sql, rows) in counts {
        assert_eq!(fixture.count(sql).await, rows, "{sql}");
    }
    assert_exact(&fixture).await;
    assert_eq!(
        applied(&fixture).await,
        RetentionReport {
            leader: true,
            ..RetentionReport::default()
        },
        "nothing more is due"
    );
}

/// Groups and deltas say what the letters say.
async fn assert_exact(fixture: &Fixture) {
    for _ in 0..2 {
        let groups = dead_letter_groups(&fixture.db, None).await.unwrap();
        let told =
            |of: fn(&factum_postgres::DeadLetterGroup) -> i64| groups.iter().map(of).sum::<i64>();
        let of_state = async |sql| fixture.count(sql).await;
        let open = of_state("SELECT count(*) FROM dead_letter WHERE state = 'open'").await;
        let replayed = of_state("SELECT count(*) FROM dead_letter WHERE state = 'replayed'").await;
        let discarded =
            of_state("SELECT count(*) FROM dead_letter WHERE state = 'discarded'").await;
        assert_eq!(
            (
                told(|g| g.open),
                told(|g| g.replayed),
                told(|g| g.discarded)
            ),
            (open, replayed, discarded)
        );
        fold_dead_letter_groups(&fixture.db).await.unwrap();
    }
}

#[tokio::test]
async fn open_letters_and_the_audit_go_only_when_somebody_says_so() {
    let fixture = Fixture::new().await;
    fixture.sql(EVERYTHING).await;
    let day = Duration::from_secs(24 * 60 * 60);
    let report = applied_with(
        &fixture,
        Retention {
            open_dead_letters: Some(day * 30),
            audit: Some(day * 365),
            ..Retention::default()
        },
    )
    .await;
    assert_eq!((report.dead_letters, report.audit), (3_000, 36));
    assert_exact(&fixture).await;
    // Nobody else takes a row out of the audit.
    let mut conn = fixture.connect().await;
    for sql in [
        "DELETE FROM audit",
        "UPDATE audit SET actor = 'bob'",
        "TRUNCATE audit",
    ] {
        let refused = sqlx::raw_sql(sql).execute(&mut conn).await.unwrap_err();
        assert!(
            refused.to_string().contains("takes new rows only"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn locked_rows_are_passed_over_and_a_locked_table_is_left_to_the_next_run() {
    let fixture = Fixture::new().await;
    published(&fixture, 1_500).await;
    fixture.sql(EVERYTHING).await;
    let mut replay = fixture.connect().await;
    let mut open = replay.begin().await.unwrap();
    sqlx::query("SELECT FROM dead_letter WHERE record_offset IN (5998, 5999) FOR UPDATE")
        .execute(&mut *open)
        .await
        .unwrap();
    let report = applied(&fixture).await;
    assert_eq!((report.dead_letters, report.unfinished), (1_998, false));

    sqlx::query("LOCK TABLE outbound_call IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *open)
        .await
        .unwrap();
    published(&fixture, 10).await;
    let report = applied(&fixture).await;
    assert!(report.unfinished);
    assert_eq!((report.outbox, report.calls), (10, 0));
    open.rollback().await.unwrap();
    let report = applied(&fixture).await;
    assert_eq!((report.dead_letters, report.unfinished), (2, false));
}

/// Who holds what maintenance has to wait for.
#[derive(Debug, Clone, Copy)]
enum Bystander {
    /// A transaction that reads and has not come to its end.
    Long,
    /// A session that began a transaction, wrote, and was forgotten.
    IdleInTransaction,
}

async fn nobody_waits_beside(bystander: Bystander) {
    // The connections' own limit would end it after some seconds; this one is somebody else's.
    let window = Window {
        keep_days: 6,
        ahead_days: 7,
    };
    let fixture = Fixture::of(window).await;
    published(&fixture, if is_soak() { 1_000_000 } else { 20_000 }).await;
    let mut other = fixture.connect().await;
    let mut open = other.begin().await.unwrap();
    let sql = match bystander {
        Bystander::Long => {
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM processed_event, outbox WHERE false"
        }
        Bystander::IdleInTransaction => {
            "INSERT INTO processed_event SELECT 'forgotten', event_id FROM outbox WHERE false; \
             SELECT count(*) FROM processed_event; UPDATE outbox SET attempts = 1 WHERE id = 1"
        }
    };
    sqlx::raw_sql(sql).execute(&mut *open).await.unwrap();

    let alone = if is_soak() {
        let load = Load::start(&fixture).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        load.stop().await.transactions
    } else {
        0
    };
    let load = Load::start(&fixture).await;
    let begun_at = Instant::now();
    let later = OffsetDateTime::now_utc() + time::Duration::days(2);
    let retention = Retention::default();
    let (maintained, retained) = tokio::join!(
        maintain(&fixture.db, &window, later),
        apply_retention(&fixture.db, &retention)
    );
    let took = begun_at.elapsed();
    let written = load.stop().await;
    let (maintained, retained) = (maintained.unwrap(), retained.unwrap());
    println!(
        "{bystander:?}: maintenance took {took:.1?}; {} transactions beside it, the longest {:.1?}",
        written.transactions, written.longest
    );
    assert_eq!(written.waits, Vec::<String>::new());
    // Partitions whose table somebody uses wait for him, and nobody waits with them.
    assert_eq!(
        (maintained.created.len(), maintained.postponed.len()),
        (2, 2)
    );
    assert!(retained.outbox >= 19_999, "{retained:?}");
    if is_soak() {
        let (before, beside) = (
            f64::from(alone) / 10.0,
            f64::from(written.transactions) / took.as_secs_f64(),
        );
        println!("{before:.0} transactions/s alone, {beside:.0} beside maintenance");
        assert!(beside > 0.8 * before, "a drop of more than 20 %");
    }
    open.rollback().await.unwrap();
    let report = maintain(&fixture.db, &window, later).await.unwrap();
    assert_eq!((report.dropped.len(), report.postponed.len()), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_long_transaction_open_no_writer_waits_for_maintenance() {
    nobody_waits_beside(Bystander::Long).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_session_idle_in_transaction_no_writer_waits_for_maintenance() {
    nobody_waits_beside(Bystander::IdleInTransaction).await;
}

/// The oldest partition goes while consumers write; `FACTUM_TEST_SOAK=1` fills it with a million rows first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_partition_is_dropped_and_no_writer_waits() {
    let window = Window {
        keep_days: 2,
        ahead_days: 2,
    };
    let fixture = Fixture::of(window).await;
    let rows = if is_soak() { 1_000_000 } else { 20_000 };
    fixture
        .sql(format!(
            "INSERT INTO processed_event (consumer_group, event_id) \
             SELECT 'c', (lpad(to_hex((extract(epoch FROM date_trunc('day', now() AT TIME ZONE 'UTC') - interval '36 h') * 1000)::bigint), 12, '0') \
                          || '7' || lpad(to_hex(n % 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid \
             FROM generate_series(1, {rows}) AS n"
        ))
        .await;
    let load = Load::start(&fixture).await;
    let later = OffsetDateTime::now_utc() + time::Duration::days(1);
    let begun_at = Instant::now();
    let report = maintain(&fixture.db, &window, later).await.unwrap();
    let took = begun_at.elapsed();
    let written = load.stop().await;
    println!(
        "dropped {} with {rows} rows in {took:.1?}; the longest of {} transactions took {:.1?}",
        report.dropped[0], written.transactions, written.longest
    );
    assert_eq!(report.dropped.len(), 1);
    assert_eq!(written.waits, Vec::<String>::new());
    if is_soak() {
        assert!(
            written.longest < Duration::from_millis(100),
            "{:?}",
            written.longest
        );
    }
    assert_eq!(fixture.handle("c", &ids::<1>()).await.len(), 1);
}
