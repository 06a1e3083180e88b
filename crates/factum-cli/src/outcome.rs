//! How a command ends: a text for people, an object for programs, an exit code.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::plain;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is done, or all is well.
    Done = 0,
    /// It failed, or it found something that is not well, such as a pending migration.
    Failed = 1,
    /// It was called wrongly; also clap's own code.
    Usage = 2,
    /// The database can't be reached: start it, or try again later.
    Away = 3,
    /// It was understood and is refused, for a reason with a name: nothing was done.
    Refused = 4,
    /// Ctrl-C.
    Interrupted = 130,
}

/// What a command has to say at its end.
#[derive(Debug)]
pub(crate) struct Report {
    /// For people, on stdout; empty for nothing.
    pub(crate) text: String,
    pub(crate) exit: Exit,
    /// The fields of the closing JSON object; `None` without `--json`.
    pub(crate) json: Option<Map<String, Value>>,
}

/// Why a command failed: what, where, and what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    /// `None` where `what` is a list whose every entry says it.
    pub(crate) hint: Option<Hint>,
    pub(crate) exit: Exit,
    /// Whether the closing JSON object was asked for, and its schema.
    pub(crate) schema: Option<&'static str>,
    /// The name of a refusal, and why there is one.
    pub(crate) refusal: Option<Box<Refusal>>,
}

/// Why something that was understood isn't done.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// A stable name: `DLQ-NO-INSTANCE`.
    pub(crate) code: &'static str,
    pub(crate) why: String,
}

/// Where it happened, and what to do.
#[derive(Debug)]
pub(crate) struct Hint {
    pub(crate) place: String,
    pub(crate) mend: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(refusal) => write!(f, "error[{}]: {}", refusal.code, self.what)?,
            None => write!(f, "error: {}", self.what)?,
        }
        let Some(Hint { place, mend }) = &self.hint else {
            return Ok(());
        };
        write!(f, "\n  where: {place}")?;
        if let Some(refusal) = &self.refusal {
            write!(f, "\n  why:   {}", refusal.why)?;
        }
        write!(f, "\n  mend:  {mend}")
    }
}

/// Starts the closing JSON object.
pub(crate) fn json(schema: &'static str, exit: Exit) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("schema".to_owned(), schema.into());
    fields.insert("ok".to_owned(), (exit == Exit::Done).into());
    fields
}

/// The closing JSON object of a list.
pub(crate) fn closing(
    schema: &'static str,
    exit: Exit,
    name: &str,
    rows: usize,
    more: bool,
) -> Map<String, Value> {
    let mut fields = json(schema, exit);
    fields.insert(name.to_owned(), rows.into());
    fields.insert("more".to_owned(), more.into());
    fields
}

/// Prints, and gives the exit code.
///
/// Whoever reads it may have gone, as `head` does: then nothing is left to be said.
pub(crate) fn finish(result: Result<Report, Failure>) -> ExitCode {
    let (exit, closing) = match result {
        Ok(report) => {
            if !report.text.is_empty() {
                let _ = writeln!(io::stdout(), "{}", plain::lines(&report.text));
            }
            (report.exit, report.json)
        }
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{}", plain::lines(&failure.to_string()));
            let closing = failure.schema.map(|schema| {
                let mut fields = json(schema, failure.exit);
                fields.insert("error".to_owned(), failure.what.into());
                if let Some(refusal) = failure.refusal {
                    let Refusal { code, why } = *refusal;
                    fields.insert("code".to_owned(), code.into());
                    fields.insert("why".to_owned(), why.into());
                }
                if let Some(Hint { place, mend }) = failure.hint {
                    fields.insert("where".to_owned(), place.into());
                    fields.insert("mend".to_owned(), mend.into());
                }
                fields
            });
            (failure.exit, closing)
        }
    };
    if let Some(fields) = closing {
        let _ = writeln!(
            io::stdout(),
            "{}",
            plain::line(&Value::Object(fields).to_string())
        );
    }
    ExitCode::from(exit as u8)
}
