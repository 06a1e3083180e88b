//! `factum migrate up | status | sql`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use factum_runtime::migration::{self, MigrationError, MigrationStatus};
use factum_runtime::{Database, DatabaseError, Window, maintain, switch_relay_wake};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::outcome::{self, Exit, Failure, Report};
use crate::target::{Done, Target, unusable};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done; 1 failed, or (`status`) something is pending; 2 wrong usage; 3 the database is away.\n\n\
                  Example:\n  DATABASE_URL=postgres://orders:…@localhost:5432/orders factum migrate up"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

/// `--relay-wake`
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Wake {
    Poll,
    Listen,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply what is pending, and make the first partitions of the dedup window
    #[command(
        after_help = "Forward only, safe to run twice and from many processes at once.\n\n\
                      Exit codes: 0 all are applied; 1 failed; 2 wrong usage; 3 the database is away.\n\n\
                      Example:\n  DATABASE_URL=postgres://orders:…@localhost:5432/orders factum migrate up"
    )]
    Up {
        #[command(flatten)]
        target: Target,
        /// The dedup window in days, as the services have it. Given, the window is also moved:
        /// partitions are made ahead and those behind it dropped. Not given, the partitions of a
        /// new table are made for 30 days, and an older table is left to its services
        #[arg(long, env = "FACTUM_DEDUP_WINDOW_DAYS", value_name = "DAYS",
              value_parser = clap::value_parser!(u32).range(1..=3650))]
        dedup_window_days: Option<u32>,
        /// How relays with nothing to send learn of new rows. `listen` lets inserts into the outbox notify those that
        /// run with FACTUM_RELAY_WAKE=listen, `poll` stops that. Not given, it stays as it is; a new table's is `poll`
        #[arg(long, value_name = "WAY", value_enum)]
        relay_wake: Option<Wake>,
    },
    /// Say which migrations are applied; exit code 1 when one is pending
    #[command(
        after_help = "Exit codes: 0 all are applied; 1 one is pending, or it failed; 2 wrong usage; 3 the database is away.\n\n\
                      Example:\n  factum migrate status --json"
    )]
    Status {
        #[command(flatten)]
        target: Target,
    },
    /// Print the migrations as SQL, for a migration tool of your own
    #[command(
        after_help = "The script begins and commits nothing: run it once, in a transaction.\n\n\
                      Exit codes: 0 printed; 2 wrong usage.\n\n\
                      Example:\n  factum migrate sql > migrations/0001_factum.sql"
    )]
    Sql {
        /// Only the migrations above this one: for a database that has the others, see `status`
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        above: i32,
        /// Print one JSON object with the script in it
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::Up {
            target,
            dedup_window_days,
            relay_wake,
        } => target.with_database(
            "factum.migrate.up/1",
            async |db| up(db, *dedup_window_days, *relay_wake).await,
            mend,
        ),
        Command::Status { target } => target.with_database("factum.migrate.status/1", status, mend),
        Command::Sql { above, json } => Ok(sql(*above, *json)),
    }
}

fn mend(error: &MigrationError, variable: &str) -> (Exit, String) {
    match error {
        MigrationError::Database(error) => unusable(error, variable).unwrap_or_else(|| {
            (
                Exit::Failed,
                format!(
                    "look at the text above; the role in {variable} must own the tables it makes"
                ),
            )
        }),
        _ => (
            Exit::Failed,
            "do what the text above says; nothing was changed".to_owned(),
        ),
    }
}

async fn up(
    db: &Database,
    window_days: Option<u32>,
    relay_wake: Option<Wake>,
) -> Result<Done, MigrationError> {
    let applied = migration::up(db).await?;
    let mut text = String::new();
    for migration in &applied {
        let _ = writeln!(text, "applied {} {}", migration.version, migration.name);
    }
    if applied.is_empty() {
        text.push_str("every migration is applied already\n");
    }
    // The window of an older table is its services' affair: a shorter one given by chance here
    // would drop what they still need.
    let new_table = applied.iter().any(|migration| migration.version == 1);
    let mut made = 0;
    let mut dropped = 0;
    if new_table || window_days.is_some() {
        let window = Window {
            keep_days: window_days.unwrap_or(Window::default().keep_days),
            ..Window::default()
        };
        let report = move_window(db, &window).await?;
        (made, dropped) = (report.created.len(), report.dropped.len());
        if report.leader {
            let _ = write!(
                text,
                "dedup window of {} days: {made} partitions made, {dropped} dropped",
                window.keep_days
            );
        } else {
            text.push_str("dedup window: another process is moving it");
        }
    }
    if let Some(wake) = relay_wake {
        let listen = wake == Wake::Listen;
        let switched = switch_relay_wake(db, listen).await?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let _ = write!(
            text,
            "inserts into the outbox {} relays{}",
            if listen { "notify" } else { "don't notify" },
            if switched { "" } else { " already" }
        );
    }
    let fields = json!({
        "applied": applied
            .iter()
            .map(|m| json!({"version": m.version, "name": m.name}))
            .collect::<Vec<_>>(),
        "partitions_made": made,
        "partitions_dropped": dropped,
        "relay_wake": relay_wake.map(|wake| if wake == Wake::Listen { "listen" } else { "poll" }),
    });
    Ok((text.trim_end().to_owned(), Exit::Done, fields))
}

async fn move_window(
    db: &Database,
    window: &Window,
) -> Result<factum_runtime::MaintenanceReport, DatabaseError> {
    maintain(db, window, OffsetDateTime::now_utc()).await
}

async fn status(db: &Database) -> Result<Done, MigrationError> {
    let known = migration::status(db).await?;
    let pending = known.iter().filter(|m| m.applied_at.is_none()).count();
    let mut text = String::from("version  name                  applied\n");
    for migration in &known {
        let _ = writeln!(
            text,
            "{:<7}  {:<20}  {}",
            migration.version,
            migration.name,
            applied_at(migration).unwrap_or_else(|| "pending".to_owned())
        );
    }
    let _ = write!(text, "{} applied, {pending} pending", known.len() - pending);
    if pending > 0 {
        text.push_str("; `factum migrate up` applies them");
    }
    let exit = if pending == 0 {
        Exit::Done
    } else {
        Exit::Failed
    };
    let fields = json!({
        "migrations": known
            .iter()
            .map(|m| json!({"version": m.version, "name": m.name, "applied_at": applied_at(m)}))
            .collect::<Vec<_>>(),
        "pending": pending,
    });
    Ok((text, exit, fields))
}

fn applied_at(migration: &MigrationStatus) -> Option<String> {
    migration
        .applied_at
        .and_then(|at| at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok())
}

fn sql(above: i32, json: bool) -> Report {
    let script = migration::sql_above(above);
    if json {
        let mut fields = outcome::json("factum.migrate.sql/1", Exit::Done);
        fields.insert("sql".to_owned(), script.into());
        return Report {
            text: String::new(),
            exit: Exit::Done,
            json: Some(fields),
        };
    }
    Report {
        text: script.trim_end().to_owned(),
        exit: Exit::Done,
        json: None,
    }
}
