//! `factum migrate up | status | sql`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use factum_runtime::migration::{self, MigrationError, MigrationStatus};
use factum_runtime::{Database, DatabaseError, DatabaseSettings, ErrorKind, Window, maintain};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::outcome::{self, Exit, Failure, Hint, Report};

/// Connections that a migration needs: one for itself, one for the partitions.
const CONNECTIONS: u32 = 2;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply what is pending, and make the first partitions of the dedup window
    #[command(
        after_help = "Forward only, safe to run twice and from many processes at once.\n\n\
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
    },
    /// Say which migrations are applied; exit code 1 when one is pending
    #[command(
        after_help = "Example:\n  factum migrate status --json   # exit code 1: something is pending"
    )]
    Status {
        #[command(flatten)]
        target: Target,
    },
    /// Print the migrations as SQL, for a migration tool of your own
    #[command(
        after_help = "The script begins and commits nothing: run it once, in a transaction.\n\n\
                      Example:\n  factum migrate sql > migrations/0001_factum.sql"
    )]
    Sql {
        /// Print one JSON object with the script in it
        #[arg(long)]
        json: bool,
    },
}

/// The database. Its URL holds a password, so it is no argument: arguments show in process lists.
#[derive(Debug, Args)]
struct Target {
    /// The environment variable that holds the database's URL
    #[arg(long, value_name = "NAME", default_value = "DATABASE_URL")]
    database_url_env: String,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::Up {
            target,
            dedup_window_days,
        } => target.with_database("factum.migrate.up/1", async |db| {
            up(db, *dedup_window_days).await
        }),
        Command::Status { target } => target.with_database("factum.migrate.status/1", status),
        Command::Sql { json } => Ok(sql(*json)),
    }
}

/// What a command did with the database: a text, an exit code, fields for the JSON object.
type Done = (String, Exit, Value);

impl Target {
    fn with_database(
        &self,
        schema: &'static str,
        work: impl AsyncFnOnce(&Database) -> Result<Done, MigrationError>,
    ) -> Result<Report, Failure> {
        let schema_if_asked = self.json.then_some(schema);
        let failure = |exit, what, place: String, mend: &str| Failure {
            what,
            hint: Some(Hint {
                place,
                mend: mend.to_owned(),
            }),
            exit,
            schema: schema_if_asked,
        };
        let name = &self.database_url_env;
        let url = match std::env::var(name) {
            Ok(url) if !url.trim().is_empty() => url.trim().to_owned(),
            _ => {
                return Err(failure(
                    Exit::Usage,
                    format!("{name} is not set"),
                    "the environment".to_owned(),
                    &format!(
                        "set it, for example {name}=postgres://user:password@localhost:5432/orders, \
                         or name another variable with --database-url-env"
                    ),
                ));
            }
        };
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(failure(
                Exit::Usage,
                format!("{name} is not a PostgreSQL URL"),
                format!("the environment variable {name}"),
                "write postgres://user:password@host:5432/database, with / ? # @ : and % of the \
                 password percent-encoded",
            ));
        }
        let settings = DatabaseSettings {
            max_connections: CONNECTIONS,
            application_name: "factum-migrate".to_owned(),
            ..DatabaseSettings::new(url.into())
        };
        let place = format!("the database that {name} names");
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                return Err(failure(
                    Exit::Failed,
                    format!("the runtime does not start: {error}"),
                    "this process".to_owned(),
                    "look at its limits (open files, threads)",
                ));
            }
        };
        let result = runtime.block_on(async {
            let db = Database::connect(&settings).await?;
            work(&db).await
        });
        match result {
            Ok((text, exit, Value::Object(fields))) => Ok(Report {
                text,
                exit,
                json: self.json.then(|| {
                    let mut closing = outcome::json(schema, exit);
                    closing.extend(fields);
                    closing
                }),
            }),
            Ok((text, exit, _)) => Ok(Report {
                text,
                exit,
                json: None,
            }),
            Err(error) => {
                let (exit, mend) = mend(&error, name);
                Err(failure(exit, error.to_string(), place, &mend))
            }
        }
    }
}

fn mend(error: &MigrationError, variable: &str) -> (Exit, String) {
    match error {
        MigrationError::Database(error) if error.kind() == ErrorKind::Unavailable => (
            Exit::Away,
            format!("start PostgreSQL there, or correct host, port and database in {variable}"),
        ),
        MigrationError::Database(_) => (
            Exit::Failed,
            format!("look at the text above; the role in {variable} must own the tables it makes"),
        ),
        _ => (
            Exit::Failed,
            "do what the text above says; nothing was changed".to_owned(),
        ),
    }
}

async fn up(db: &Database, window_days: Option<u32>) -> Result<Done, MigrationError> {
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
    let fields = json!({
        "applied": applied
            .iter()
            .map(|m| json!({"version": m.version, "name": m.name}))
            .collect::<Vec<_>>(),
        "partitions_made": made,
        "partitions_dropped": dropped,
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

fn sql(json: bool) -> Report {
    let script = migration::sql();
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
