//! The database that a command works on.

use std::fmt;

use clap::Args;
use factum_runtime::{Database, DatabaseError, DatabaseSettings};
use serde_json::Value;

use crate::outcome::{self, Exit, Failure, Hint, Report};

/// Connections that a command needs at most: a migration one for itself, one for the partitions.
const CONNECTIONS: u32 = 2;

/// The database. Its URL holds a password, so it is no argument: arguments show in process lists.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The environment variable that holds the database's URL
    #[arg(long, value_name = "NAME", default_value = "DATABASE_URL")]
    database_url_env: String,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

/// What a command did with the database: a text, an exit code, fields for the JSON object.
pub(crate) type Done = (String, Exit, Value);

impl Target {
    /// Connects and does the work. `mend` says of an error what to do, given the variable's name.
    pub(crate) fn with_database<E: From<DatabaseError> + fmt::Display>(
        &self,
        schema: &'static str,
        work: impl AsyncFnOnce(&Database) -> Result<Done, E>,
        mend: fn(&E, &str) -> (Exit, String),
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
            application_name: "factum".to_owned(),
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
