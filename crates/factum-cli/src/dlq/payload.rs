//! A payload's shape with its fault marked: names of fields, and of values their kind.
//!
//! It reads what may be broken, cut, or no JSON at all, and shows no value unless it is told which fields may show
//! theirs.

use std::ops::Range;

use factum_event::{Contract, FieldShape, Shape};

/// Deeper values are not looked into.
const MAX_DEPTH: usize = 64;
/// Fields that one line shows of an object.
const MAX_FIELDS: usize = 12;
/// Characters of a value that are shown.
const MAX_VALUE: usize = 80;
/// Bytes that are shown on either side of the one that isn't JSON.
const BYTES_AROUND: usize = 16;

/// What is shown of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Excerpt {
    /// Lines of the payload's shape, with the mark below the line that it belongs to.
    pub(super) lines: Vec<String>,
}

/// Whose values may be shown.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values<'a> {
    Hidden,
    /// Those of fields that the contract knows. It must not be of a restricted topic: personal data stands only there.
    Known(&'a Contract),
}

/// The shape of the first bytes of a payload of `size` bytes in all, with the fault at `path`.
pub(super) fn excerpt(
    bytes: &[u8],
    size: usize,
    path: Option<&str>,
    values: Values<'_>,
) -> Excerpt {
    if bytes.is_empty() {
        return note("(no bytes)");
    }
    let (text, not_utf8) = match std::str::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            // The last character may be cut.
            let is_cut = error.error_len().is_none() && size > bytes.len();
            (valid, (!is_cut).then(|| error.valid_up_to()))
        }
    };
    let mut reader = Reader { text, at: 0 };
    let root = reader.value(0);
    reader.space();
    let ended = reader.at == text.len();
    let fault = match (&root, not_utf8) {
        (_, Some(at)) => Some(at),
        (Ok(_), None) if ended => None,
        (Ok(_), None) => Some(reader.at),
        (Err(_), None) => Some(reader.at),
    };
    match (root, fault) {
        (Ok(root), None) => of_json(text, &root, path, values),
        (Err(Broken { so_far: Some(root) }), Some(at))
            if at >= text.len() && size > bytes.len() =>
        {
            let mut excerpt = of_json(text, &root, path, values);
            let beyond = format!("(only the first {} of {size} bytes were read)", bytes.len());
            excerpt.lines.push(beyond);
            excerpt
        }
        (_, at) => of_bytes(bytes, at.unwrap_or(0), size),
    }
}

fn note(text: &str) -> Excerpt {
    Excerpt {
        lines: vec![text.to_owned()],
    }
}

/// A JSON value and where it stands.
#[derive(Debug)]
struct Value {
    kind: Kind,
    span: Range<usize>,
}

#[derive(Debug)]
enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    Object(Vec<(String, Value)>),
    Array(Vec<Value>),
    /// Too deep to be looked into.
    Other,
}

/// What isn't JSON, with what was read before.
struct Broken {
    so_far: Option<Value>,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn value(&mut self, depth: usize) -> Result<Value, Broken> {
        self.space();
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') if depth < MAX_DEPTH => return self.object(depth),
            Some(b'[') if depth < MAX_DEPTH => return self.array(depth),
            Some(b'{' | b'[') => {
                self.skip()?;
                Kind::Other
            }
            Some(b'"') => {
                self.string()?;
                Kind::Text
            }
            Some(b'-' | b'0'..=b'9') => {
                while matches!(
                    self.peek(),
                    Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                ) {
                    self.at += 1;
                }
                Kind::Number
            }
            _ => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                let words = [
                    ("null", Kind::Null),
                    ("true", Kind::Boolean),
                    ("false", Kind::Boolean),
                ];
                let word = words.into_iter().find(|(word, _)| rest.starts_with(word));
                let Some((word, kind)) = word else {
                    return Err(Broken { so_far: None });
                };
                self.at += word.len();
                kind
            }
        };
        Ok(Value {
            kind,
            span: start..self.at,
        })
    }

    /// Behind its closing quote; the text between the quotes.
    fn string(&mut self) -> Result<&str, Broken> {
        let start = self.at + 1;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(self.text.get(start..self.at - 1).unwrap_or_default());
                }
                Some(b'\\') if self.at + 1 < self.text.len() => self.at += 2,
                Some(b'\\') | None => {
                    self.at = self.text.len();
                    return Err(Broken { so_far: None });
                }
                Some(byte) if byte < 0x20 => return Err(Broken { so_far: None }),
                Some(_) => self.at += 1,
            }
        }
    }

    /// Behind the bracket that ends what begins here.
    fn skip(&mut self) -> Result<(), Broken> {
        let mut open = 0_usize;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(b'{' | b'[') => open += 1,
                Some(b'}' | b']') => open -= 1,
                Some(_) => {}
                None => return Err(Broken { so_far: None }),
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Broken> {
        let start = self.at;
        let mut fields = Vec::new();
        self.at += 1;
        if !self.take(b'}') {
            loop {
                self.space();
                let name = match self.peek() {
                    Some(b'"') => self.string().map(str::to_owned),
                    _ => Err(Broken { so_far: None }),
                };
                let Ok(name) = name else {
                    return self.broken(Kind::Object(fields), start);
                };
                if !self.take(b':') {
                    return self.broken(Kind::Object(fields), start);
                }
                match self.value(depth + 1) {
                    Ok(value) => fields.push((name, value)),
                    Err(Broken { so_far }) => {
                        fields.extend(so_far.map(|value| (name, value)));
                        return self.broken(Kind::Object(fields), start);
                    }
                }
                if self.take(b',') {
                    continue;
                }
                if self.take(b'}') {
                    break;
                }
                return self.broken(Kind::Object(fields), start);
            }
        }
        Ok(Value {
            kind: Kind::Object(fields),
            span: start..self.at,
        })
    }

    fn array(&mut self, depth: usize) -> Result<Value, Broken> {
        let start = self.at;
        let mut items = Vec::new();
        self.at += 1;
        if !self.take(b']') {
            loop {
                match self.value(depth + 1) {
                    Ok(value) => items.push(value),
                    Err(Broken { so_far }) => {
                        items.extend(so_far);
                        return self.broken(Kind::Array(items), start);
                    }
                }
                if self.take(b',') {
                    continue;
                }
                if self.take(b']') {
                    break;
                }
                return self.broken(Kind::Array(items), start);
            }
        }
        Ok(Value {
            kind: Kind::Array(items),
            span: start..self.at,
        })
    }

    fn broken(&self, kind: Kind, start: usize) -> Result<Value, Broken> {
        Err(Broken {
            so_far: Some(Value {
                kind,
                span: start..self.at,
            }),
        })
    }
}

/// A step of a path such as `$.items[3].price`.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    /// A key that the path doesn't show.
    Hidden,
}

fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[']).unwrap_or(name.len());
            steps.push(Step::Field(name[..end].to_owned()));
            rest = &name[end..];
        } else if let Some((inner, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']'))
        {
            steps.push(inner.parse().map_or(Step::Hidden, Step::Index));
            rest = after;
        } else {
            steps.push(Step::Hidden);
            break;
        }
    }
    steps
}

/// What the contract says of a value.
#[derive(Clone, Copy)]
enum Known<'a> {
    Not,
    Fields(&'a Contract, &'a [FieldShape]),
    Shape(&'a Contract, &'a Shape),
}

impl<'a> Known<'a> {
    /// Follows references and takes `null` off.
    fn resolved(self) -> Known<'a> {
        match self {
            Known::Shape(contract, Shape::Nullable(inner)) => {
                Known::Shape(contract, inner).resolved()
            }
            Known::Shape(contract, Shape::Object(name)) => contract
                .definitions
                .get(name)
                .map_or(Known::Not, |fields| Known::Fields(contract, fields)),
            known => known,
        }
    }

    fn field(self, name: &str) -> Known<'a> {
        match self.resolved() {
            Known::Fields(contract, fields) => fields
                .iter()
                .find(|field| field.name == name)
                .map_or(Known::Not, |field| Known::Shape(contract, &field.shape)),
            Known::Shape(contract, Shape::Map { values }) => Known::Shape(contract, values),
            // Its parts are a number and a code, and nothing else.
            Known::Shape(contract, money @ Shape::Money { .. })
                if matches!(name, "amount" | "currency") =>
            {
                Known::Shape(contract, money)
            }
            _ => Known::Not,
        }
    }

    fn item(self) -> Known<'a> {
        match self.resolved() {
            Known::Shape(contract, Shape::Array { items, .. }) => Known::Shape(contract, items),
            _ => Known::Not,
        }
    }

    /// Whether a value of that kind is what the contract has there: what is something else may be anything.
    fn shows(self, kind: &Kind, text: &str) -> bool {
        let Known::Shape(_, shape) = self.resolved() else {
            return false;
        };
        let is_number = || {
            text.len() <= 42
                && text
                    .bytes()
                    .all(|b| matches!(b, b'"' | b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
        };
        match (shape, kind) {
            (Shape::Boolean, Kind::Boolean) => true,
            (
                Shape::Integer { .. }
                | Shape::Double { .. }
                | Shape::Amount { .. }
                | Shape::Money { .. },
                Kind::Number,
            ) => true,
            (Shape::Integer { .. } | Shape::Amount { .. }, Kind::Text) => is_number(),
            (Shape::Money { .. }, Kind::Text) => is_number() || text.len() <= 5,
            (
                Shape::Text { .. }
                | Shape::Uuid
                | Shape::EventId
                | Shape::AggregateId
                | Shape::Instant
                | Shape::Date
                | Shape::Code(_)
                | Shape::Choice { .. },
                Kind::Text,
            ) => true,
            _ => false,
        }
    }
}

/// Writes lines and remembers where the mark goes.
struct Writer<'a> {
    payload: &'a str,
    line: String,
    mark: Option<Range<usize>>,
}

impl Writer<'_> {
    fn position(&self) -> usize {
        self.line.chars().count()
    }

    /// `path` leads from here to the marked value.
    fn value(&mut self, value: &Value, path: Option<&[Step]>, known: Known<'_>) {
        match (path, &value.kind) {
            (Some([step, rest @ ..]), Kind::Object(fields)) => {
                if let Some(place) = place_of(fields, step) {
                    return self.object(fields, Some((place, rest)), known);
                }
                self.marked(value, known);
            }
            (Some([Step::Index(index), rest @ ..]), Kind::Array(items)) if *index < items.len() => {
                self.line.push_str("[ ");
                if *index > 0 {
                    self.line
                        .push_str(&format!("<{}>, ", counted(*index, "item")));
                }
                self.value(&items[*index], Some(rest), known.item());
                let behind = items.len() - index - 1;
                if behind > 0 {
                    self.line
                        .push_str(&format!(", <{}>", counted(behind, "item")));
                }
                self.line.push_str(" ]");
            }
            (Some(_), _) => self.marked(value, known),
            (None, _) => self.whole(value, known),
        }
    }

    fn marked(&mut self, value: &Value, known: Known<'_>) {
        let start = self.position();
        match &value.kind {
            Kind::Object(fields) => self.object(fields, None, known),
            _ => self.whole(value, known),
        }
        self.mark = Some(start..self.position());
    }

    fn object(
        &mut self,
        fields: &[(String, Value)],
        on: Option<(usize, &[Step])>,
        known: Known<'_>,
    ) {
        if fields.is_empty() {
            self.line.push_str("{ }");
            return;
        }
        let middle = on.map_or(0, |(place, _)| place);
        let first = middle.saturating_sub(MAX_FIELDS / 2);
        let last = (first + MAX_FIELDS).min(fields.len());
        self.line.push_str("{ ");
        if first > 0 {
            self.line
                .push_str(&format!("<{}>, ", counted(first, "field")));
        }
        for (place, (name, value)) in fields.iter().enumerate().take(last).skip(first) {
            if place > first {
                self.line.push_str(", ");
            }
            self.name(name);
            let path = on.filter(|(on, _)| *on == place).map(|(_, rest)| rest);
            self.value(value, path, known.field(name));
        }
        if last < fields.len() {
            self.line
                .push_str(&format!(", <{}>", counted(fields.len() - last, "field")));
        }
        self.line.push_str(" }");
    }

    /// A key is shown when it looks like a name that a programmer chose. Anything else may be data.
    fn name(&mut self, name: &str) {
        let shown = if is_name(name) { name } else { "…" };
        self.line.push_str(&format!("\"{shown}\": "));
    }

    fn whole(&mut self, value: &Value, known: Known<'_>) {
        let text = self.payload.get(value.span.clone()).unwrap_or_default();
        if known.shows(&value.kind, text) {
            let cut: String = text.chars().take(MAX_VALUE).collect();
            let more = if cut.len() < text.len() { "…" } else { "" };
            self.line.push_str(&format!("{cut}{more}"));
            return;
        }
        let kind = match &value.kind {
            Kind::Null => "null".to_owned(),
            Kind::Boolean => "<boolean>".to_owned(),
            Kind::Number => "<number>".to_owned(),
            Kind::Text => "<string>".to_owned(),
            Kind::Object(fields) => format!("<object, {}>", counted(fields.len(), "field")),
            Kind::Array(items) => format!("<list, {}>", counted(items.len(), "item")),
            Kind::Other => "<value>".to_owned(),
        };
        self.line.push_str(&kind);
    }
}

/// `1 item`, `2 items`.
fn counted(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

fn is_name(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && key.len() <= 64
}

fn place_of(fields: &[(String, Value)], step: &Step) -> Option<usize> {
    let Step::Field(wanted) = step else {
        return None;
    };
    fields.iter().position(|(name, _)| name == wanted)
}

fn of_json(payload: &str, root: &Value, path: Option<&str>, values: Values<'_>) -> Excerpt {
    let steps = path.map(steps);
    let missing = steps.as_ref().and_then(|steps| missing(root, steps));
    let known = match values {
        Values::Hidden => Known::Not,
        Values::Known(contract) => Known::Fields(contract, &contract.fields),
    };
    let writer = || Writer {
        payload,
        line: "  ".to_owned(),
        mark: None,
    };
    let mut lines = Vec::new();
    let Kind::Object(fields) = &root.kind else {
        let mut writer = writer();
        writer.value(root, steps.as_deref(), known);
        write(writer, missing.as_deref(), &mut lines);
        return Excerpt { lines };
    };
    let on = match steps.as_deref() {
        Some([step, rest @ ..]) => place_of(fields, step).map(|place| (place, rest)),
        _ => None,
    };
    let everything = matches!(values, Values::Known(_)) || path.is_none();
    if on.is_none() && !everything {
        // The fault is in the event as a whole.
        let mut writer = writer();
        writer.value(root, steps.as_deref(), known);
        write(writer, missing.as_deref(), &mut lines);
        return Excerpt { lines };
    }
    for (place, (name, value)) in fields.iter().enumerate().take(200) {
        let here = on.filter(|(on, _)| *on == place);
        if here.is_none() && !everything {
            continue;
        }
        let mut writer = writer();
        writer.name(name);
        writer.value(value, here.map(|(_, rest)| rest), known.field(name));
        write(writer, missing.as_deref(), &mut lines);
    }
    if everything
        && on.is_none()
        && let Some(missing) = &missing
    {
        lines.push(format!("  {missing}"));
    }
    Excerpt { lines }
}

/// What the mark says: the field that isn't there, or that it is this value.
fn missing(root: &Value, steps: &[Step]) -> Option<String> {
    let mut at = root;
    for step in steps {
        let next = match (&at.kind, step) {
            (Kind::Object(fields), step) => place_of(fields, step).map(|place| &fields[place].1),
            (Kind::Array(items), Step::Index(index)) => items.get(*index),
            _ => None,
        };
        match (next, step) {
            (Some(next), _) => at = next,
            (None, Step::Field(name)) if is_name(name) => {
                return Some(format!("\"{name}\" is missing"));
            }
            (None, _) => return Some("the fault is in here".to_owned()),
        }
    }
    None
}

fn write(writer: Writer<'_>, missing: Option<&str>, lines: &mut Vec<String>) {
    let mark = writer.mark.map(|mark| {
        let carets = "^".repeat(mark.len().max(1));
        let says = missing.unwrap_or("the fault");
        format!("{}{carets} {says}", " ".repeat(mark.start))
    });
    lines.push(writer.line);
    lines.extend(mark);
}

/// Kinds of bytes round the one that isn't JSON.
fn of_bytes(bytes: &[u8], at: usize, size: usize) -> Excerpt {
    let at = at.min(bytes.len());
    let first = at.saturating_sub(BYTES_AROUND);
    let last = (at + BYTES_AROUND).min(bytes.len());
    let kinds: String = bytes[first..last]
        .iter()
        .map(|byte| kind_of(*byte))
        .collect();
    let mark = format!(
        "  {}^ byte {at} of {size} is not JSON",
        " ".repeat(at - first)
    );
    let mark = if at == bytes.len() {
        format!("{mark}: the payload ends here")
    } else {
        format!("{mark}: {}", name_of(bytes[at]))
    };
    Excerpt {
        lines: vec![
            format!("  {kinds}"),
            mark,
            "  (a letter, 9 digit, . punctuation, _ blank, x control, # beyond ASCII)".to_owned(),
        ],
    }
}

fn kind_of(byte: u8) -> char {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' => 'a',
        b'0'..=b'9' => '9',
        b' ' | b'\t' | b'\n' | b'\r' => '_',
        0x21..=0x7e => '.',
        0..=0x1f | 0x7f => 'x',
        _ => '#',
    }
}

fn name_of(byte: u8) -> &'static str {
    match kind_of(byte) {
        'a' => "a letter",
        '9' => "a digit",
        '_' => "a blank",
        '.' => "punctuation",
        'x' => "a control byte",
        _ => "a byte beyond ASCII",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = r#"{"eventId":"sEcReT","orderId":"o-17","total":{"amount":10.50},
        "items":[{"sku":"sEcReT","price":1},{"sku":2,"price":"sEcReT"},{"sku":"x"}],"jane@example.com":true}"#;

    fn hidden(payload: &str, path: Option<&str>) -> String {
        let excerpt = excerpt(payload.as_bytes(), payload.len(), path, Values::Hidden);
        excerpt.lines.join("\n")
    }

    #[test]
    fn a_missing_field_is_marked_below_its_object() {
        assert_eq!(
            hidden(ORDER, Some("$.total.currency")),
            "  \"total\": { \"amount\": <number> }\n           ^^^^^^^^^^^^^^^^^^^^^^ \"currency\" is missing"
        );
        let shown = hidden(ORDER, Some("$.customerId"));
        let (line, mark) = shown.split_once('\n').expect("two lines");
        assert_eq!(
            line,
            "  { \"eventId\": <string>, \"orderId\": <string>, \"total\": <object, 1 field>, \
             \"items\": <list, 3 items>, \"…\": <boolean> }"
        );
        let carets = "^".repeat(line.chars().count() - 2);
        assert_eq!(mark, format!("  {carets} \"customerId\" is missing"));
    }

    #[test]
    fn a_wrong_value_is_marked_itself() {
        assert_eq!(
            hidden(ORDER, Some("$.items[1].price")),
            "  \"items\": [ <1 item>, { \"sku\": <number>, \"price\": <string> }, <1 item> ]\n                                                   ^^^^^^^^ the fault"
        );
        assert_eq!(
            hidden(ORDER, Some("$.orderId")),
            "  \"orderId\": <string>\n             ^^^^^^^^ the fault"
        );
    }

    #[test]
    fn without_a_path_every_field_is_a_line() {
        assert_eq!(
            hidden(ORDER, None),
            "  \"eventId\": <string>\n  \"orderId\": <string>\n  \"total\": <object, 1 field>\n  \"items\": <list, 3 items>\n  \"…\": <boolean>"
        );
    }

    /// Whatever it is given, no value comes out.
    #[test]
    fn no_value_shows_however_broken_the_payload_is() {
        let paths = [
            None,
            Some("$"),
            Some("$.total.currency"),
            Some("$['…']"),
            Some("$.items[*].sku"),
            Some("$.items[7]"),
            Some("nonsense"),
        ];
        for end in 0..=ORDER.len() {
            for path in paths {
                let shown = hidden(&ORDER[..end], path);
                assert!(
                    !shown.contains("sEcReT") && !shown.contains("jane") && !shown.contains("o-17"),
                    "{shown}"
                );
                assert!(!shown.contains("10.50"), "{shown}");
            }
        }
        for byte in 0..=255_u8 {
            let mut payload = ORDER.as_bytes().to_vec();
            payload[20] = byte;
            payload.insert(0, byte);
            let shown = excerpt(&payload, payload.len(), Some("$.total"), Values::Hidden);
            assert!(!shown.lines.join("\n").contains("sEcR"));
        }
    }

    #[test]
    fn what_is_not_json_shows_kinds_of_bytes() {
        let shown = hidden("{\"secret\": 12 \"a\"}", Some("$"));
        assert_eq!(
            shown,
            "  ..aaaaaa.._99_.a..\n                ^ byte 14 of 18 is not JSON: punctuation\n  \
             (a letter, 9 digit, . punctuation, _ blank, x control, # beyond ASCII)"
        );
        let frame = excerpt(&[0, 0, 0, 0, 7, b'{'], 6, None, Values::Hidden);
        assert_eq!(
            frame.lines[1],
            "  ^ byte 0 of 6 is not JSON: a control byte"
        );
        let cut = hidden("{\"a\":\"b", None);
        assert!(cut.contains("the payload ends here"), "{cut}");
    }

    #[test]
    fn of_a_large_payload_the_beginning_is_shown_and_said_to_be_that() {
        let shown = excerpt(
            ORDER.as_bytes(),
            5_000_000,
            Some("$.orderId"),
            Values::Hidden,
        );
        assert_eq!(shown.lines[0], "  \"orderId\": <string>");
        let part = &ORDER[..60];
        let shown = excerpt(
            part.as_bytes(),
            5_000_000,
            Some("$.orderId"),
            Values::Hidden,
        );
        assert_eq!(shown.lines[0], "  \"orderId\": <string>", "{shown:?}");
        assert_eq!(
            shown.lines[2],
            "(only the first 60 of 5000000 bytes were read)"
        );
    }

    #[test]
    fn values_show_where_the_contract_knows_the_field_and_its_form() {
        let contract = Contract {
            event_type: "order.confirmed.v1".into(),
            aggregate_type: "Order".into(),
            topic: "orders.confirmed".into(),
            restricted: false,
            name: "OrderConfirmed".into(),
            supersedes: None,
            aggregate_id: "orderId".into(),
            fields: vec![
                FieldShape::new("orderId", Shape::AggregateId),
                FieldShape::new("total", Shape::Money { text: true }),
                FieldShape::new(
                    "items",
                    Shape::Array {
                        items: Box::new(Shape::Object("Item".into())),
                        min_items: None,
                        max_items: None,
                    },
                ),
            ],
            definitions: [(
                "Item".to_owned(),
                vec![FieldShape::new(
                    "price",
                    Shape::Integer {
                        min: 0,
                        max: 9,
                        not_zero: false,
                        text: false,
                    },
                )],
            )]
            .into(),
        };
        let shown = excerpt(
            ORDER.as_bytes(),
            ORDER.len(),
            Some("$.items[1].price"),
            Values::Known(&contract),
        );
        assert_eq!(
            shown.lines.join("\n"),
            "  \"eventId\": <string>\n  \"orderId\": \"o-17\"\n  \"total\": <object, 1 field>\n  \
             \"items\": [ <1 item>, { \"sku\": <number>, \"price\": <string> }, <1 item> ]\n                                                   \
             ^^^^^^^^ the fault\n  \"…\": <boolean>"
        );
        let shown = excerpt(
            ORDER.as_bytes(),
            ORDER.len(),
            Some("$.total.currency"),
            Values::Known(&contract),
        );
        assert!(
            shown
                .lines
                .contains(&"  \"total\": { \"amount\": 10.50 }".to_owned()),
            "{shown:?}"
        );
    }
}
