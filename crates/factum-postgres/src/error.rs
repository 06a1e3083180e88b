use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::outbox::PublishError;

/// What kind of trouble the database is in: what the caller does next depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server can't be reached, is starting or stopping, has no connection left, or the
    /// dedup window has no partition for today. Not the event's fault: wait, then try again;
    /// nothing is counted or set aside.
    Unavailable,
    /// Another transaction was in the way (SQLSTATE 40001 or 40P01). Run the whole transaction
    /// again.
    Conflict,
    /// A lock wasn't granted within `lock_timeout` (SQLSTATE 55P03). Try again later.
    LockTimeout,
    /// Everything else: a broken statement, a violated constraint, a missing right.
    Other,
}

/// Wrong user or password, no such database, one that takes no connections, a missing right.
const REFUSALS: [&str; 5] = ["28000", "28P01", "3D000", "55000", "42501"];

/// A failed statement or connection.
///
/// Its text names what was being done, the SQLSTATE, and the table, column and constraint; never
/// a value of a row, a parameter or a password. For that reason it has no
/// [`source`](Error::source): PostgreSQL's own text quotes values.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseError {
    kind: ErrorKind,
    what: Cow<'static, str>,
    cause: String,
    mend: Option<Cow<'static, str>>,
    /// The server's, or empty.
    code: String,
}

impl DatabaseError {
    /// What the caller does next.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the server answers but doesn't let this role work: wrong user or password, no such database, one that
    /// takes no connections, a missing right.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        REFUSALS.contains(&self.code.as_str())
    }

    pub(crate) fn new(what: impl Into<Cow<'static, str>>, err: &sqlx::Error) -> Self {
        Self {
            kind: kind_of(err),
            what: what.into(),
            cause: describe_sqlx(err),
            mend: mend_of(err).map(Cow::Borrowed),
            code: code(err).to_owned(),
        }
    }

    pub(crate) fn plain(
        kind: ErrorKind,
        what: impl Into<Cow<'static, str>>,
        cause: impl Into<String>,
        mend: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind,
            what: what.into(),
            cause: cause.into(),
            mend: Some(mend.into()),
            code: String::new(),
        }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "can't {}: {}", self.what, self.cause)?;
        match &self.mend {
            Some(mend) => write!(f, "; {mend}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseError({:?}: {self})", self.kind)
    }
}

impl Error for DatabaseError {}

/// Finds a database error anywhere in an error's chain and says what kind it is; `None` when
/// there is none.
///
/// ```
/// use factum_postgres::{ErrorKind, classify};
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// assert_eq!(classify(&refused), None); // not a database's error: nobody knows whose it is
/// ```
#[must_use]
pub fn classify(err: &(dyn Error + 'static)) -> Option<ErrorKind> {
    find(err).map(|found| match found {
        Found::Sqlx(err) => kind_of(err),
        Found::Postgres(err) => kind_of_code(err),
        Found::Ours(err) => err.kind,
    })
}

/// Describes a database error found anywhere in an error's chain: SQLSTATE, table, column and
/// constraint, without a single value. `None` when there is none.
///
/// Fit for storing in a dead letter (semantics "Decode": an error text never quotes a value).
#[must_use]
pub fn describe(err: &(dyn Error + 'static)) -> Option<String> {
    find(err).map(|found| match found {
        Found::Sqlx(err) => describe_sqlx(err),
        Found::Postgres(err) => describe_postgres(err),
        Found::Ours(err) => err.to_string(),
    })
}

enum Found<'a> {
    Sqlx(&'a sqlx::Error),
    Postgres(&'a PgDatabaseError),
    Ours(&'a DatabaseError),
}

fn find<'a>(err: &'a (dyn Error + 'static)) -> Option<Found<'a>> {
    let mut link = Some(err);
    while let Some(err) = link {
        if let Some(err) = err.downcast_ref::<sqlx::Error>() {
            return Some(Found::Sqlx(err));
        }
        // SeaORM wraps it so.
        if let Some(err) = err.downcast_ref::<Arc<sqlx::Error>>() {
            return Some(Found::Sqlx(err));
        }
        if let Some(err) = err.downcast_ref::<PgDatabaseError>() {
            return Some(Found::Postgres(err));
        }
        if let Some(err) = err.downcast_ref::<DatabaseError>() {
            return Some(Found::Ours(err));
        }
        // Transparent, so not its own source.
        if let Some(PublishError::Database(err)) = err.downcast_ref::<PublishError>() {
            return Some(Found::Ours(err));
        }
        link = err.source();
    }
    None
}

/// The server's answer inside a sqlx error, when it did answer.
pub(crate) fn answer(err: &sqlx::Error) -> Option<&PgDatabaseError> {
    err.as_database_error()
        .and_then(|err| err.try_downcast_ref::<PgDatabaseError>())
}

/// The SQLSTATE of a sqlx error, or an empty text.
pub(crate) fn code(err: &sqlx::Error) -> &str {
    answer(err).map_or("", PgDatabaseError::code)
}

/// Whether the connection is of no use after this error: the server ended it, or nobody knows
/// what it still sends. Anything but an ordinary answer of the server counts.
pub(crate) fn ends_connection(err: &sqlx::Error) -> bool {
    answer(err).is_none_or(|err| matches!(err.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

fn kind_of(err: &sqlx::Error) -> ErrorKind {
    match err {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ErrorKind::Unavailable,
        sqlx::Error::Database(_) => answer(err).map_or(ErrorKind::Other, kind_of_code),
        _ => ErrorKind::Other,
    }
}

fn kind_of_code(err: &PgDatabaseError) -> ErrorKind {
    match err.code() {
        "40001" | "40P01" => ErrorKind::Conflict,
        "55P03" => ErrorKind::LockTimeout,
        // Shutdown, crash, "cannot connect now", too many connections, lost connections, and
        // a session ended for idling (25P03, 57P05).
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" => ErrorKind::Unavailable,
        code if code.starts_with("08") => ErrorKind::Unavailable,
        _ => ErrorKind::Other,
    }
}

fn mend_of(err: &sqlx::Error) -> Option<&'static str> {
    match code(err) {
        "42P01" => Some("run the migrations (`factum migrate up`)"),
        "42P10" => Some("the table's key isn't Factum's: run the schema check (`factum doctor`)"),
        "42501" => Some("grant the right to the role that the service connects as"),
        "28P01" | "28000" => Some("check the user and the password in DATABASE_URL"),
        "3D000" => Some("create the database, or name another in DATABASE_URL"),
        "55000" => {
            Some("let the database take connections (ALTER DATABASE … ALLOW_CONNECTIONS true)")
        }
        "53300" => Some("raise max_connections of the server or lower that of the services"),
        "55P03" => Some("another transaction holds the lock for longer than lock_timeout"),
        _ => None,
    }
}

fn describe_sqlx(err: &sqlx::Error) -> String {
    match err {
        sqlx::Error::Database(_) => match answer(err) {
            Some(err) => describe_postgres(err),
            None => "the database answered with an error".to_owned(),
        },
        // The system's own words ("Connection refused"), which hold no value.
        sqlx::Error::Io(err) => match err.raw_os_error() {
            Some(_) => format!("connection: {err}"),
            None => format!("connection: {}", err.kind()),
        },
        sqlx::Error::Tls(_) => "the TLS handshake failed".to_owned(),
        sqlx::Error::PoolTimedOut => "no connection came free in time".to_owned(),
        sqlx::Error::PoolClosed => "the connections are closed".to_owned(),
        sqlx::Error::RowNotFound => "no row came back".to_owned(),
        sqlx::Error::ColumnNotFound(name) => format!("column {name} isn't in the result"),
        sqlx::Error::ColumnDecode { index, .. } => format!("column {index} can't be decoded"),
        sqlx::Error::ColumnIndexOutOfBounds { index, len } => {
            format!("column {index} of {len} doesn't exist")
        }
        sqlx::Error::TypeNotFound { type_name } => format!("type {type_name} doesn't exist"),
        sqlx::Error::Protocol(_) => "the driver and the server misunderstood each other".to_owned(),
        sqlx::Error::Encode(_) => "a parameter can't be encoded".to_owned(),
        sqlx::Error::Decode(_) => "a value can't be decoded".to_owned(),
        sqlx::Error::Configuration(_) => "the connection settings can't be used".to_owned(),
        _ => "the driver failed".to_owned(),
    }
}

fn describe_postgres(err: &PgDatabaseError) -> String {
    let mut text = format!("SQLSTATE {}", err.code());
    if let Some(name) = condition(err.code()) {
        text.push_str(&format!(" ({name})"));
    }
    let places = [
        ("table", err.table()),
        ("column", err.column()),
        ("constraint", err.constraint()),
    ];
    for (what, name) in places {
        if let Some(name) = name {
            text.push_str(&format!(", {what} {name}"));
        }
    }
    // These messages name an object, a role or a database, never a value of a row.
    if matches!(
        err.code(),
        "42P01" | "42501" | "42P10" | "3D000" | "28000" | "28P01" | "53300"
    ) || err.code().starts_with("57P")
    {
        text.push_str(&format!(": {}", err.message()));
    }
    text
}

/// PostgreSQL's name of the conditions that people meet most; the code alone says the rest.
fn condition(code: &str) -> Option<&'static str> {
    Some(match code {
        "22001" => "string_data_right_truncation",
        "22003" => "numeric_value_out_of_range",
        "22007" => "invalid_datetime_format",
        "22012" => "division_by_zero",
        "22021" => "character_not_in_repertoire",
        "22P02" => "invalid_text_representation",
        "22P05" => "untranslatable_character",
        "23502" => "not_null_violation",
        "23503" => "foreign_key_violation",
        "23505" => "unique_violation",
        "23514" => "check_violation",
        "23P01" => "exclusion_violation",
        "25001" => "active_sql_transaction",
        "25006" => "read_only_sql_transaction",
        "25P01" => "no_active_sql_transaction",
        "25P02" => "in_failed_sql_transaction",
        "25P03" => "idle_in_transaction_session_timeout",
        "28000" => "invalid_authorization_specification",
        "28P01" => "invalid_password",
        "3B001" => "invalid_savepoint_specification",
        "3D000" => "invalid_catalog_name",
        "40001" => "serialization_failure",
        "40P01" => "deadlock_detected",
        "42501" => "insufficient_privilege",
        "42601" => "syntax_error",
        "42703" => "undefined_column",
        "42804" => "datatype_mismatch",
        "42883" => "undefined_function",
        "42P01" => "undefined_table",
        "42P07" => "duplicate_table",
        "42P10" => "invalid_column_reference",
        "53100" => "disk_full",
        "53200" => "out_of_memory",
        "53300" => "too_many_connections",
        "55P03" => "lock_not_available",
        "57014" => "query_canceled",
        "57P01" => "admin_shutdown",
        "57P02" => "crash_shutdown",
        "57P03" => "cannot_connect_now",
        "57P05" => "idle_session_timeout",
        _ => return None,
    })
}
