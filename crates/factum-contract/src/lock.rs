//! The lock file: `contracts/<kind>.json` beside a crate's `Cargo.toml`, the contract of an event as it was
//! published.
//!
//! It is committed, so that a review shows what changes on the wire, and so that the gate has something to compare
//! with (EVT-3). The text is canonical: one contract has one text, with a `format` number, in the order of
//! declaration, without dates or places in the source. Bounds are text, so that no reader rounds them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use factum_event::{Amount, AmountBound, CodeList, Contract, EventType, FieldShape, Shape};
use serde::{Deserialize, Serialize};

use crate::document;

/// The folder of the lock files, beside a crate's `Cargo.toml`.
pub const FOLDER: &str = "contracts";

/// The version of the lock file's own form, its `format`.
pub const FORMAT: u32 = 1;

/// The largest lock file that is read, in bytes.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Where the lock file of an event type lies: `contracts/order.confirmed.v1.json` below `crate_folder`.
///
/// ```
/// # use std::path::Path;
/// let path = factum_contract::lock::path(Path::new("orders"), "order.confirmed.v1");
/// assert_eq!(path, Path::new("orders/contracts/order.confirmed.v1.json"));
/// ```
#[must_use]
pub fn path(crate_folder: &Path, event_type: &str) -> PathBuf {
    crate_folder.join(FOLDER).join(format!("{event_type}.json"))
}

/// The contract as the text of its lock file, which ends with a line break.
///
/// ```
/// # use factum_contract::lock;
/// # use factum_event::{Contract, FieldShape, Shape};
/// let contract = Contract {
///     event_type: "order.confirmed.v1".to_owned(),
///     aggregate_type: "Order".to_owned(),
///     topic: "orders.confirmed".to_owned(),
///     restricted: false,
///     name: "OrderConfirmed".to_owned(),
///     supersedes: None,
///     aggregate_id: "orderId".to_owned(),
///     fields: vec![FieldShape::new("orderId", Shape::Uuid)],
///     definitions: Default::default(),
/// };
/// let text = lock::to_text(&contract);
/// assert!(text.contains(r#""kind": "order.confirmed.v1""#));
/// assert_eq!(lock::from_text(&text).unwrap(), contract);
/// ```
#[must_use]
pub fn to_text(contract: &Contract) -> String {
    let file = File::from(contract);
    let mut text = serde_json::to_string_pretty(&file)
        .unwrap_or_else(|_| unreachable!("text, integers and lists are JSON"));
    text.push('\n');
    text
}

/// The contract that a lock file's text holds.
///
/// # Errors
///
/// [`LockFault`] when the text is not such a file: it says where, and what to do.
pub fn from_text(text: &str) -> Result<Contract, LockFault> {
    if text.len() > MAX_BYTES {
        return Err(LockFault::TooLarge { bytes: text.len() });
    }
    if text.lines().any(|line| line.starts_with("<<<<<<<")) {
        return Err(LockFault::Conflict);
    }
    /// Read first and alone: what else stands in a file of another format is not known.
    #[derive(Deserialize)]
    struct Header {
        format: Option<u64>,
    }
    let damaged = |error: serde_json::Error| LockFault::Damaged {
        line: error.line(),
        column: error.column(),
        what: without_position(&error),
    };
    let header: Header = serde_json::from_str(text).map_err(damaged)?;
    match header.format {
        Some(format) if format == u64::from(FORMAT) => {}
        format => return Err(LockFault::Format { format }),
    }
    let file: File = serde_json::from_str(text).map_err(damaged)?;
    let contract = Contract::from(file);
    check(&contract)?;
    Ok(contract)
}

/// Reads a lock file. `None` when there is none.
///
/// # Errors
///
/// [`LockError`] with the file's path: it can't be read, is damaged, or holds another event type than its name says.
pub fn read(path: &Path) -> Result<Option<Contract>, LockError> {
    let fault = |fault| LockError {
        path: path.to_owned(),
        fault,
    };
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(LockFault::Io { error })),
    };
    read_bytes(path, &bytes).map(Some)
}

/// The contract of a lock file whose bytes come from elsewhere, such as git. `path` names it in an error, and its
/// file name must fit the event type.
///
/// # Errors
///
/// As [`read`].
pub fn read_bytes(path: &Path, bytes: &[u8]) -> Result<Contract, LockError> {
    let fault = |fault| LockError {
        path: path.to_owned(),
        fault,
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        fault(LockFault::Damaged {
            line,
            column: good.iter().rev().take_while(|byte| **byte != b'\n').count() + 1,
            what: "the text is not UTF-8".to_owned(),
        })
    })?;
    let contract = from_text(text).map_err(fault)?;
    if path.file_stem().and_then(|name| name.to_str()) != Some(contract.event_type.as_str()) {
        return Err(fault(LockFault::Misnamed {
            event_type: contract.event_type,
        }));
    }
    Ok(contract)
}

/// Writes a lock file, and the folder when there is none. Whoever reads at the same time sees the old file or the
/// new one, never a part.
///
/// # Errors
///
/// [`LockError`] when the folder or the file can't be written.
pub fn write(path: &Path, contract: &Contract) -> Result<(), LockError> {
    /// Two threads of one process must not write into one file.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let fault = |error| LockError {
        path: path.to_owned(),
        fault: LockFault::Io { error },
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(fault)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Hidden, and not named `.json`: it is no lock file for anyone.
    let unfinished = folder.join(format!(
        ".{}.{}-{number}",
        contract.event_type,
        std::process::id()
    ));
    let done =
        fs::write(&unfinished, to_text(contract)).and_then(|()| fs::rename(&unfinished, path));
    if done.is_err() {
        // It may not even be there; the error that counts is the first.
        let _ = fs::remove_file(&unfinished);
    }
    done.map_err(fault)
}

/// A lock file can't be read or written: which one, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct LockError {
    /// The lock file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: LockFault,
}

/// What is wrong with a lock file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockFault {
    /// The operating system refuses.
    #[error("the lock file can't be read or written: {error}")]
    Io {
        /// What it says.
        error: io::Error,
    },
    /// More than [`MAX_BYTES`].
    #[error(
        "the lock file has {bytes} bytes, and at most {MAX_BYTES} are read; restore it from git"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A merge was not finished.
    #[error(
        "the lock file holds the marks of an unfinished merge (`<<<<<<<`): take the version of the branch that is \
         merged into (`git checkout --ours` or `--theirs`), then run `FACTUM_CONTRACTS=update cargo test`"
    )]
    Conflict,
    /// `format` is missing, or not the one that is known.
    #[error("{}", unknown_format(*.format))]
    Format {
        /// What the file says.
        format: Option<u64>,
    },
    /// It is no contract.
    #[error(
        "line {line}, column {column}: the lock file is damaged: {what}. It is written by `FACTUM_CONTRACTS=update \
         cargo test` and never by hand: restore it from git (`git checkout -- <file>`)"
    )]
    Damaged {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What doesn't fit.
        what: String,
    },
    /// It is JSON of the right form that describes no contract.
    #[error(
        "the lock file is damaged: {what}. It is written by `FACTUM_CONTRACTS=update cargo test` and never by hand: \
         restore it from git (`git checkout -- <file>`)"
    )]
    Senseless {
        /// What doesn't fit.
        what: String,
    },
    /// The file is called otherwise than the event type that it holds.
    #[error(
        "the lock file holds the contract of `{event_type}`: call it {event_type}.json, or restore it from git"
    )]
    Misnamed {
        /// The event type in it.
        event_type: String,
    },
}

fn unknown_format(format: Option<u64>) -> String {
    match format {
        Some(format) if format > u64::from(FORMAT) => format!(
            "the lock file has format {format}, and this version of Factum knows {FORMAT}: update Factum to the \
             version that wrote it"
        ),
        Some(format) => format!(
            "the lock file has format {format}, which no version of Factum writes: restore it from git \
             (`git checkout -- <file>`)"
        ),
        None => "the lock file lacks `format`, so it is none: restore it from git (`git checkout -- <file>`), or \
                 move it out of the folder `contracts`, which holds lock files alone"
            .to_owned(),
    }
}

/// serde_json's text without ` at line 3 column 7`, which stands elsewhere.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// What the form alone doesn't say.
fn check(contract: &Contract) -> Result<(), LockFault> {
    let senseless = |what: String| LockFault::Senseless { what };
    if contract.event_type.parse::<EventType>().is_err() {
        return Err(senseless(format!(
            "`{}` is no event type (EVT-2)",
            contract.event_type
        )));
    }
    if !contract
        .fields
        .iter()
        .any(|field| field.name == contract.aggregate_id)
    {
        return Err(senseless(format!(
            "`aggregate_id` names `{}`, which is not among the fields (PROD-2)",
            contract.aggregate_id
        )));
    }
    let mut pending: Vec<&Shape> = contract
        .definitions
        .values()
        .chain([&contract.fields])
        .flatten()
        .map(|field| &field.shape)
        .collect();
    while let Some(shape) = pending.pop() {
        match shape {
            Shape::Array { items: inner, .. } | Shape::Map { values: inner } => pending.push(inner),
            Shape::Nullable(inner) => pending.push(inner),
            Shape::Object(name) if !contract.definitions.contains_key(name) => {
                return Err(senseless(format!(
                    "the snapshot `{name}` is not among the definitions"
                )));
            }
            Shape::Text {
                pattern: Some(pattern),
                ..
            } if !document::is_pattern(pattern) => {
                return Err(senseless(format!("`{pattern}` is no pattern")));
            }
            Shape::Amount { min, max, .. } => {
                for bound in [min, max].into_iter().flatten() {
                    if bound.value.parse::<Amount>().is_err() {
                        return Err(senseless(format!("`{}` is no amount", bound.value)));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The file's form. Its own types, so that a renaming in Rust never changes files that are committed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    kind: String,
    name: String,
    aggregate: String,
    aggregate_id: String,
    topic: String,
    restricted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    supersedes: Option<String>,
    fields: Vec<Field>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    snapshots: BTreeMap<String, Vec<Field>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    name: String,
    #[serde(default, skip_serializing_if = "is_false")]
    optional: bool,
    shape: Form,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Form {
    Boolean {},
    Integer {
        #[serde(with = "number")]
        min: i128,
        #[serde(with = "number")]
        max: i128,
        #[serde(default, skip_serializing_if = "is_false")]
        not_zero: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        text: bool,
    },
    Double {
        #[serde(default, skip_serializing_if = "Option::is_none", with = "bound")]
        min: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "bound")]
        max: Option<f64>,
    },
    Amount {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<Bound>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<Bound>,
        #[serde(default, skip_serializing_if = "is_false")]
        text: bool,
    },
    Money {
        #[serde(default, skip_serializing_if = "is_false")]
        text: bool,
    },
    Text {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_chars: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pattern: Option<String>,
    },
    Uuid {},
    EventId {},
    AggregateId {},
    Instant {},
    Date {},
    Code {
        list: Codes,
    },
    Choice {
        values: Vec<String>,
        #[serde(default, skip_serializing_if = "is_false")]
        open: bool,
    },
    Array {
        items: Box<Form>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_items: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_items: Option<u32>,
    },
    Map {
        values: Box<Form>,
    },
    Nullable {
        value: Box<Form>,
    },
    Object {
        snapshot: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    value: String,
    #[serde(default, skip_serializing_if = "is_false")]
    exclusive: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Codes {
    Currency,
    Country,
    Language,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

mod number {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &i128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        let text = String::deserialize(from)?;
        text.parse()
            .map_err(|_| de::Error::custom("expected an integer as text, such as \"0\""))
    }
}

mod bound {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(&format_args!("{value:?}")),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        let text = String::deserialize(from)?;
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(de::Error::custom(
                "expected a number as text, such as \"0.5\"",
            )),
        }
    }
}

impl From<&Contract> for File {
    fn from(contract: &Contract) -> File {
        File {
            format: FORMAT,
            kind: contract.event_type.clone(),
            name: contract.name.clone(),
            aggregate: contract.aggregate_type.clone(),
            aggregate_id: contract.aggregate_id.clone(),
            topic: contract.topic.clone(),
            restricted: contract.restricted,
            supersedes: contract.supersedes.clone(),
            fields: contract.fields.iter().map(Field::from).collect(),
            snapshots: contract
                .definitions
                .iter()
                .map(|(name, fields)| (name.clone(), fields.iter().map(Field::from).collect()))
                .collect(),
        }
    }
}

impl From<File> for Contract {
    fn from(file: File) -> Contract {
        let fields = |fields: Vec<Field>| fields.into_iter().map(FieldShape::from).collect();
        Contract {
            event_type: file.kind,
            aggregate_type: file.aggregate,
            topic: file.topic,
            restricted: file.restricted,
            name: file.name,
            supersedes: file.supersedes,
            aggregate_id: file.aggregate_id,
            fields: fields(file.fields),
            definitions: file
                .snapshots
                .into_iter()
                .map(|(name, of)| (name, fields(of)))
                .collect(),
        }
    }
}

impl From<&FieldShape> for Field {
    fn from(field: &FieldShape) -> Field {
        Field {
            name: field.name.clone(),
            optional: field.optional,
            shape: Form::from(&field.shape),
        }
    }
}

impl From<Field> for FieldShape {
    fn from(field: Field) -> FieldShape {
        FieldShape {
            name: field.name,
            optional: field.optional,
            shape: field.shape.into(),
        }
    }
}

impl From<&Shape> for Form {
    fn from(shape: &Shape) -> Form {
        let boxed = |shape: &Shape| Box::new(Form::from(shape));
        let bound = |bound: &Option<AmountBound>| {
            bound.as_ref().map(|bound| Bound {
                value: bound.value.clone(),
                exclusive: bound.exclusive,
            })
        };
        match shape {
            Shape::Boolean => Form::Boolean {},
            Shape::Integer {
                min,
                max,
                not_zero,
                text,
            } => Form::Integer {
                min: *min,
                max: *max,
                not_zero: *not_zero,
                text: *text,
            },
            Shape::Double { min, max } => Form::Double {
                min: *min,
                max: *max,
            },
            Shape::Amount { min, max, text } => Form::Amount {
                min: bound(min),
                max: bound(max),
                text: *text,
            },
            Shape::Money { text } => Form::Money { text: *text },
            Shape::Text {
                min_chars,
                max_chars,
                pattern,
            } => Form::Text {
                min_chars: *min_chars,
                max_chars: *max_chars,
                pattern: pattern.clone(),
            },
            Shape::Uuid => Form::Uuid {},
            Shape::EventId => Form::EventId {},
            Shape::AggregateId => Form::AggregateId {},
            Shape::Instant => Form::Instant {},
            Shape::Date => Form::Date {},
            Shape::Code(list) => Form::Code {
                list: match list {
                    CodeList::Currency => Codes::Currency,
                    CodeList::Country => Codes::Country,
                    CodeList::Language => Codes::Language,
                    other => unreachable!("the lock file has no name for {other:?}"),
                },
            },
            Shape::Choice { values, open } => Form::Choice {
                values: values.clone(),
                open: *open,
            },
            Shape::Array {
                items,
                min_items,
                max_items,
            } => Form::Array {
                items: boxed(items),
                min_items: *min_items,
                max_items: *max_items,
            },
            Shape::Map { values } => Form::Map {
                values: boxed(values),
            },
            Shape::Nullable(inner) => Form::Nullable {
                value: boxed(inner),
            },
            Shape::Object(snapshot) => Form::Object {
                snapshot: snapshot.clone(),
            },
        }
    }
}

impl From<Form> for Shape {
    fn from(form: Form) -> Shape {
        let boxed = |form: Box<Form>| Box::new(Shape::from(*form));
        let bound = |bound: Option<Bound>| {
            bound.map(|Bound { value, exclusive }| AmountBound { value, exclusive })
        };
        match form {
            Form::Boolean {} => Shape::Boolean,
            Form::Integer {
                min,
                max,
                not_zero,
                text,
            } => Shape::Integer {
                min,
                max,
                not_zero,
                text,
            },
            Form::Double { min, max } => Shape::Double { min, max },
            Form::Amount { min, max, text } => Shape::Amount {
                min: bound(min),
                max: bound(max),
                text,
            },
            Form::Money { text } => Shape::Money { text },
            Form::Text {
                min_chars,
                max_chars,
                pattern,
            } => Shape::Text {
                min_chars,
                max_chars,
                pattern,
            },
            Form::Uuid {} => Shape::Uuid,
            Form::EventId {} => Shape::EventId,
            Form::AggregateId {} => Shape::AggregateId,
            Form::Instant {} => Shape::Instant,
            Form::Date {} => Shape::Date,
            Form::Code { list } => Shape::Code(match list {
                Codes::Currency => CodeList::Currency,
                Codes::Country => CodeList::Country,
                Codes::Language => CodeList::Language,
            }),
            Form::Choice { values, open } => Shape::Choice { values, open },
            Form::Array {
                items,
                min_items,
                max_items,
            } => Shape::Array {
                items: boxed(items),
                min_items,
                max_items,
            },
            Form::Map { values } => Shape::Map {
                values: boxed(values),
            },
            Form::Nullable { value } => Shape::Nullable(boxed(value)),
            Form::Object { snapshot } => Shape::Object(snapshot),
        }
    }
}
