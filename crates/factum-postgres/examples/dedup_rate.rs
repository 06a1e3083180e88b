//! How fast dedup is beside so many processed rows, compared with an empty table, on a private server with fsync on.
//!
//! ```sh
//! cargo run --release -p factum-postgres --example dedup_rate -- 20000000
//! ```
//!
//! The rows are spread over a window of 30 days. Both sides take turns. Exit code 1: less than 95 % of the empty table.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a measurement")]

use std::time::Instant;

use factum_event::EventId;
use factum_postgres::{
    Database, DatabaseSettings, DedupVerdict, Session, Window, maintain, migration, new_event_id,
};
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use time::OffsetDateTime;

type Failed = Box<dyn std::error::Error>;

const ROUNDS: usize = 9;
const BATCHES: usize = 200;
const BATCH: usize = 500;
const GOAL: f64 = 0.95;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let rows: u64 = match std::env::args().nth(1) {
        Some(rows) => rows.parse()?,
        None => 1_000_000,
    };
    let settings = [("fsync", "on"), ("full_page_writes", "on")];
    let server = PostgresServer::start_with(&PostgresBinaries::find()?, &settings)?;
    let empty = table(&server, "without_rows", 0).await?;
    let begun_at = Instant::now();
    let full = table(&server, "with_rows", rows).await?;
    eprintln!("{rows} rows were made in {:.0?}", begun_at.elapsed());

    let (mut of_empty, mut of_full) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Each goes first in every second round.
        if round % 2 == 0 {
            of_empty.push(rate(&empty).await?);
            of_full.push(rate(&full).await?);
        } else {
            of_full.push(rate(&full).await?);
            of_empty.push(rate(&empty).await?);
        }
    }
    let (empty, full) = (median(of_empty), median(of_full));
    let ratio = full / empty;
    println!("empty table      {empty:>9.0} events/s");
    println!("{rows:>9} rows   {full:>9.0} events/s, {ratio:.3} of it (goal {GOAL})");
    if ratio < GOAL {
        return Err("below the goal".into());
    }
    Ok(())
}

/// A database with so many processed rows, evenly over the window.
async fn table(server: &PostgresServer, name: &str, rows: u64) -> Result<Database, Failed> {
    let mut conn = PgConnection::connect(&server.url()).await?;
    let create = format!("CREATE DATABASE {name}");
    sqlx::raw_sql(AssertSqlSafe(create))
        .execute(&mut conn)
        .await?;
    let db = Database::connect(&DatabaseSettings::new(server.url_of(name).into())).await?;
    migration::up(&db).await?;
    let window = Window::default();
    let now = OffsetDateTime::now_utc();
    maintain(&db, &window, now).await?;
    let mut conn = PgConnection::connect(&server.url_of(name)).await?;
    let days = u64::from(window.keep_days) + 1;
    for day in 0..days {
        let midnight =
            (now - time::Duration::days(i64::try_from(day)?)).replace_time(time::Time::MIDNIGHT);
        // Today's end with now: what is measured comes behind them, as it does in a running system.
        let end = (midnight + time::Duration::DAY).min(now);
        // Ids ascend within the day, as they do when they come from Kafka.
        sqlx::query(
            "INSERT INTO processed_event (consumer_group, event_id) \
             SELECT 'billing-order-confirmed', \
                    (lpad(to_hex($1 + n * $3 / greatest($2, 1)), 12, '0') || '7' || lpad(to_hex((random() * 4095)::int), 3, '0') \
                     || '8' || lpad(to_hex((random() * 268435455)::int), 7, '0') || lpad(to_hex(n), 8, '0'))::uuid \
             FROM generate_series(1::bigint, $2) AS n ON CONFLICT DO NOTHING",
        )
        .bind(midnight.unix_timestamp() * 1000)
        .bind(i64::try_from(rows / days)?)
        .bind(i64::try_from((end - midnight).whole_milliseconds())? - 1)
        .execute(&mut conn)
        .await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE processed_event")
        .execute(&mut conn)
        .await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut conn).await?;
    Ok(db)
}

/// Events a second of one lane's dedup alone.
async fn rate(db: &Database) -> Result<f64, Failed> {
    let mut session = Session::open(db).await?;
    let begun_at = Instant::now();
    for _ in 0..BATCHES {
        let ids: Vec<EventId> = (0..BATCH).map(|_| new_event_id()).collect();
        session.begin().await?;
        let dedup = session.dedup("billing-order-confirmed", &ids).await?;
        assert!(
            dedup
                .verdicts
                .iter()
                .all(|verdict| *verdict == DedupVerdict::Fresh)
        );
        session.commit(dedup.xid).await?;
    }
    let took = begun_at.elapsed().as_secs_f64();
    session.close().await;
    Ok((BATCHES * BATCH) as f64 / took)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
