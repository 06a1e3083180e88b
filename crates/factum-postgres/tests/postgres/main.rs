//! `factum-postgres` on a real PostgreSQL: a private server, or the one that
//! `FACTUM_TEST_DATABASE_URL` names. Each test has a database of its own.

mod calls;
mod connections;
mod dead_letter_groups;
mod dead_letters;
mod dedup;
mod fixture;
mod guard;
mod load;
mod maintenance;
mod migrations;
mod outbox;
mod parking;
mod parking_orders;
mod raw_records;
mod readers;
mod relay;
mod relay_orders;
mod relay_wake;
mod replay_plans;
mod retention;
mod schema;
mod versions;
