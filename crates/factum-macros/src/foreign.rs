//! EVT-X2: types that no event carries, where their names say what should stand there instead.

use syn::{PathSegment, Type};

use crate::attribute::Errors;
use crate::wire_type::{arguments, named};

/// Reports a type that is known to have no place in an event. What is not known gets the trait's text.
///
/// A user's own type may have the same name, and be fine: so a name alone is taken for a sign only where nobody
/// would call a type of the domain so, and otherwise the path or the angle brackets must say it, too.
pub(crate) fn check(ty: &Type, errors: &mut Errors) -> bool {
    let mend = match ty {
        Type::Group(group) => return check(&group.elem, errors),
        Type::Paren(paren) => return check(&paren.elem, errors),
        Type::Reference(reference) => match named(&reference.elem) {
            Some(segment) if segment.ident == "str" => {
                "an event owns its values, so that it can be read back: write `String`"
            }
            _ => {
                "an event owns its values, so that it can be read back: write the type without `&`"
            }
        },
        Type::Tuple(_) => {
            "in an event every value has a name, so that more can be added later: write a struct with \
             `#[derive(Snapshot)]`"
        }
        Type::Array(_) | Type::Slice(_) => "in JSON a list has no fixed length: write `Vec`",
        Type::Path(path) if path.qself.is_none() => {
            let segments = &path.path.segments;
            let Some(last) = segments.last() else {
                return false;
            };
            if last.ident == "BTreeMap"
                && let [key, _] = arguments(last)[..]
                && named(key).is_some_and(is_plain_key)
            {
                let mend = "in JSON the keys of an object are text: write `BTreeMap<String, _>`";
                errors.push_on(key, format!("{mend} (EVT-X2)"));
                return true;
            }
            if last.ident == "Option"
                && let [held] = arguments(last)[..]
                && named(held).is_some_and(|held| held.ident == "Option")
            {
                let mend = "in JSON a value is there or absent, and there is no third way: remove one `Option`";
                errors.push_on(ty, format!("{mend} (EVT-X2)"));
                return true;
            }
            let holder = (segments.len() > 1).then(|| segments[0].ident.to_string());
            match known(last, holder.as_deref()) {
                Some(mend) => mend,
                // Each argument, so that a wrong type in a list is marked itself.
                None => {
                    let mut found = false;
                    for ty in arguments(last) {
                        found |= check(ty, errors);
                    }
                    return found;
                }
            }
        }
        _ => return false,
    };
    errors.push_on(ty, format!("{mend} (EVT-X2)"));
    true
}

/// Whether [`check`] reports the type.
pub(crate) fn is_foreign(ty: &Type) -> bool {
    check(ty, &mut Errors::default())
}

fn is_plain_key(key: &PathSegment) -> bool {
    const KEYS: &[&str] = &[
        "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
        "Uuid", "char", "bool",
    ];
    KEYS.iter().any(|name| key.ident == name)
}

/// What to write instead of a type of this name. `holder` is the first part of its path, if it has several.
fn known(ty: &PathSegment, holder: Option<&str>) -> Option<&'static str> {
    const ROW: &str = "a row is how a table looks today, and an event is for ever: write a struct with \
                       `#[derive(Snapshot)]` that holds the columns which tell the fact";
    const INSTANT: &str = "an event's times are `time::OffsetDateTime`, an instant: write that";
    const DATE: &str = "an event's dates are `time::Date`: write that";
    const LOCAL: &str = "a time without an offset is a different instant to each reader: write `time::OffsetDateTime`";
    const CLOCK: &str =
        "this is a clock's reading, which no other machine can read: write `time::OffsetDateTime`";
    const SHARED: &str =
        "an event owns its values, so that it can be read back: write the type itself";
    const MONEY: &str = "an exact decimal in an event is an `Amount`, and `Money` with its currency: write one of them";
    const UNORDERED: &str = "the order of a set or a hash map differs from run to run, and equal events must have equal \
                             bytes: write `Vec` or `BTreeMap<String, _>`";
    const JSON: &str = "JSON of any form is no contract, since nobody could rely on a field: write a struct with \
                        `#[derive(Snapshot)]`, or `BTreeMap<String, _>` if the keys are data";
    const TIME_SPAN: &str = "JSON has no duration: write an integer whose name says the unit, such as `timeout_ms: u32`";

    let name = ty.ident.to_string();
    let has_arguments = !ty.arguments.is_none();
    let from = |holders: &[&str]| holder.is_some_and(|holder| holders.contains(&holder));
    let mend = match name.as_str() {
        "f32" => {
            "a float of 32 bits is another number in JSON: write `Amount` for money and other exact values, or `f64` \
                  with `float = \"…\"` for what is measured"
        }
        "usize" => {
            "the size of a `usize` differs from machine to machine: write `u32`, or `u64` as text"
        }
        "isize" => {
            "the size of an `isize` differs from machine to machine: write `i32`, or `i64` as text"
        }
        "u128" | "i128" => {
            "no other language reads an integer of 128 bits: write `Uuid` if it is an id, or `Amount` with \
                            `text`"
        }
        "char" => "in JSON a character is a text: write `String`",
        "str" => "an event owns its values, so that it can be read back: write `String`",
        "HashMap" | "HashSet" | "BTreeSet" | "IndexMap" | "IndexSet" => UNORDERED,
        "VecDeque" | "LinkedList" => "in JSON there is one kind of list: write `Vec`",
        "Rc" | "Arc" | "Cow" | "RefCell" | "Cell" | "Mutex" | "RwLock" if has_arguments => SHARED,
        "DateTime" if has_arguments => INSTANT,
        "NaiveDate" => DATE,
        "NaiveDateTime" | "PrimitiveDateTime" => LOCAL,
        "NaiveTime" => "a time of day is a text in an event: write `String`",
        "SystemTime" => CLOCK,
        "Instant" if from(&["std", "tokio", "time"]) => CLOCK,
        "Duration" if from(&["std", "core", "time", "chrono", "tokio"]) => TIME_SPAN,
        "BigDecimal" => MONEY,
        "Decimal" if from(&["rust_decimal"]) => MONEY,
        "Value" | "Map" | "RawValue" if from(&["serde_json"]) => JSON,
        "PgRow" | "SqliteRow" | "MySqlRow" | "AnyRow" => ROW,
        "Row" if from(&["sqlx", "tokio_postgres", "postgres", "rusqlite"]) => ROW,
        "Json" if from(&["sqlx"]) => {
            "`sqlx::types::Json` is a column's form: write the type inside it"
        }
        "PathBuf" | "OsString" => {
            "a path means nothing on another machine: write a `String`, such as a URL"
        }
        "Url" if from(&["url"]) => "a URL is a text in an event: write `String`",
        "Bytes" | "BytesMut" if from(&["bytes"]) => {
            "JSON has no bytes: write a `String` in base64, or publish a reference"
        }
        _ => return None,
    };
    Some(mend)
}
