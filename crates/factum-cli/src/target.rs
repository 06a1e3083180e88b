//! The database that a command works on.

use std::fmt;

use clap::Args;
use factum_runtime::{Database, DatabaseError, DatabaseSettings, ErrorKind, event_readers};
use serde_json::Value;

use crate::list::note;
use crate::outcome::{self, Exit, Failure, Hint, Refusal, Report};

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

/// Why a command on the database doesn't come to its end.
#[derive(Debug)]
pub(crate) enum Trouble {
    Database(DatabaseError),
    /// It is refused, or it failed for a reason with a name.
    Refused {
        exit: Exit,
        code: &'static str,
        what: String,
        place: String,
        why: String,
        mend: String,
    },
}

impl From<DatabaseError> for Trouble {
    fn from(error: DatabaseError) -> Trouble {
        Trouble::Database(error)
    }
}

/// What a command needs before it can work.
struct Ready {
    settings: DatabaseSettings,
    runtime: tokio::runtime::Runtime,
}

impl Target {
    /// Whether stdout is for a program.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Connects and does the work. `mend` says of an error what to do, given the variable's name.
    pub(crate) fn with_database<E: From<DatabaseError> + fmt::Display>(
        &self,
        schema: &'static str,
        work: impl AsyncFnOnce(&Database) -> Result<Done, E>,
        mend: fn(&E, &str) -> (Exit, String),
    ) -> Result<Report, Failure> {
        let Ready { settings, runtime } = self.ready(schema)?;
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
                let (exit, mend) = mend(&error, &self.database_url_env);
                Err(self.failure(schema, exit, error.to_string(), self.place(), &mend))
            }
        }
    }

    /// Connects and does the work, which makes the whole report itself.
    pub(crate) fn report(
        &self,
        schema: &'static str,
        work: impl AsyncFnOnce(&Database) -> Result<Report, Trouble>,
    ) -> Result<Report, Failure> {
        let Ready { settings, runtime } = self.ready(schema)?;
        let result = runtime.block_on(async {
            let db = Database::connect(&settings).await?;
            work(&db).await
        });
        result.map_err(|trouble| match trouble {
            Trouble::Refused {
                exit,
                code,
                what,
                place,
                why,
                mend,
            } => Failure {
                refusal: Some(Box::new(Refusal { code, why })),
                ..self.failure(schema, exit, what, place, &mend)
            },
            Trouble::Database(error) => {
                let name = &self.database_url_env;
                let (exit, mend) = unusable(&error, name).unwrap_or_else(|| {
                    let mend = "if a table is missing, run `factum migrate up`";
                    (Exit::Failed, mend.to_owned())
                });
                self.failure(schema, exit, error.to_string(), self.place(), &mend)
            }
        })
    }

    fn place(&self) -> String {
        format!("the database that {} names", self.database_url_env)
    }

    fn failure(
        &self,
        schema: &'static str,
        exit: Exit,
        what: String,
        place: String,
        mend: &str,
    ) -> Failure {
        Failure {
            what,
            hint: Some(Hint {
                place,
                mend: mend.to_owned(),
            }),
            exit,
            schema: self.json.then_some(schema),
            refusal: None,
        }
    }

    fn ready(&self, schema: &'static str) -> Result<Ready, Failure> {
        let name = &self.database_url_env;
        let url = match std::env::var(name) {
            Ok(url) if !url.trim().is_empty() => url.trim().to_owned(),
            _ => {
                return Err(self.failure(
                    schema,
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
            return Err(self.failure(
                schema,
                Exit::Usage,
                format!("{name} is not a PostgreSQL URL"),
                format!("the environment variable {name}"),
                "write postgres://user:password@host:5432/database, with / ? # @ : and % of the \
                 password percent-encoded",
            ));
        }
        if let Err(why) = readable(&url) {
            return Err(self.failure(
                schema,
                Exit::Usage,
                format!("{name} can't be read: {why}"),
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
        match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => Ok(Ready { settings, runtime }),
            Err(error) => Err(self.failure(
                schema,
                Exit::Failed,
                format!("the runtime does not start: {error}"),
                "this process".to_owned(),
                "look at its limits (open files, threads)",
            )),
        }
    }
}

/// What to do when the database can't be reached or lets nobody in; `None` for other errors.
pub(crate) fn unusable(error: &DatabaseError, variable: &str) -> Option<(Exit, String)> {
    if error.kind() == ErrorKind::Unavailable {
        return Some((
            Exit::Away,
            format!("start PostgreSQL there, or correct host, port and database in {variable}"),
        ));
    }
    error.is_refused().then(|| {
        (
            Exit::Away,
            format!(
                "correct user, password and database in {variable}, or let its role connect and use Factum's tables \
                 (GRANT)"
            ),
        )
    })
}

/// Says so when no consumer of that name has run here: an empty list then means nothing.
pub(crate) async fn note_if_unknown(db: &Database, consumer: &str) -> Result<(), Trouble> {
    let readers = event_readers(db).await?;
    if readers.iter().all(|reader| reader.consumer != consumer) {
        note(&format!(
            "No consumer {consumer} has run here: `factum status` lists their names"
        ));
    }
    Ok(())
}

/// Whether a URL's escapes are pairs of hexadecimal digits and its port is a number. Never quotes the URL.
fn readable(url: &str) -> Result<(), &'static str> {
    let mut parts = url.split('%');
    parts.next();
    for escape in parts {
        let digits = escape.as_bytes().get(..2);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err("a % is not followed by two hexadecimal digits");
        }
    }
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let server = rest.split(['/', '?']).next().unwrap_or("");
    let host = server.rsplit_once('@').map_or(server, |(_, host)| host);
    match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') && port.parse::<u16>().is_err() => {
            Err("its port is no number up to 65535")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cant_be_read_is_told_without_a_word_of_it() {
        for good in [
            "postgres://a:b%40c@localhost:5432/orders",
            "postgres://localhost/orders",
            "postgres://a@[::1]/orders?sslmode=disable",
            "postgres:///orders?host=/run/postgresql",
        ] {
            assert_eq!(readable(good), Ok(()), "{good}");
        }
        for bad in [
            "postgres://a:b%zz@localhost/orders",
            "postgres://a:b%4",
            "postgres://a@localhost:54x2/orders",
            "postgres://a:b/c@localhost/orders",
        ] {
            assert!(readable(bad).is_err(), "{bad}");
        }
    }
}
