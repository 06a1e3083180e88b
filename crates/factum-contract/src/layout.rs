//! Text laid out as prettier lays it out, so that a project that checks its format takes the files as they are.

/// The widest line.
const WIDTH: usize = 80;

/// A piece of TypeScript or JSON.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// What is never broken.
    Atom(String),
    /// A function and its arguments.
    Call(String, Vec<Piece>),
    /// `[…]`
    Array(Vec<Piece>),
    /// `{ key: … }`, on one line if it fits.
    Object(Vec<(String, Piece)>),
    /// An object whose entries always have lines of their own.
    Tall(Vec<(String, Piece)>),
}

/// Whether a comma stands after the last entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    TypeScript,
    Json,
}

pub(crate) fn atom(text: impl Into<String>) -> Piece {
    Piece::Atom(text.into())
}

/// A string of JSON, which is one of TypeScript, too.
pub(crate) fn json_text(text: &str) -> Piece {
    Piece::Atom(quoted(text))
}

pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A string of TypeScript, in the quotes that need fewer escapes.
pub(crate) fn ts_text(text: &str) -> Piece {
    let count = |quote: char| text.chars().filter(|c| *c == quote).count();
    if count('"') <= count('\'') {
        return json_text(text);
    }
    let double = quoted(text);
    let inner = double[1..double.len() - 1]
        .replace("\\\"", "\"")
        .replace('\'', "\\'");
    Piece::Atom(format!("'{inner}'"))
}

impl Piece {
    /// On one line, if it may be.
    fn flat(&self) -> Option<String> {
        let all = |pieces: &[Piece]| -> Option<String> {
            let flat: Option<Vec<String>> = pieces.iter().map(Piece::flat).collect();
            Some(flat?.join(", "))
        };
        match self {
            Piece::Atom(text) => Some(text.clone()),
            Piece::Call(name, arguments) => Some(format!("{name}({})", all(arguments)?)),
            Piece::Array(items) => Some(format!("[{}]", all(items)?)),
            Piece::Tall(entries) | Piece::Object(entries) if entries.is_empty() => {
                Some("{}".to_owned())
            }
            Piece::Tall(_) => None,
            Piece::Object(entries) => {
                let flat: Option<Vec<String>> = entries
                    .iter()
                    .map(|(key, value)| Some(format!("{key}: {}", value.flat()?)))
                    .collect();
                Some(format!("{{ {} }}", flat?.join(", ")))
            }
        }
    }

    /// The text, when `column` characters stand before it on its line and `tail` come after it.
    pub(crate) fn print(
        &self,
        language: Language,
        indent: usize,
        column: usize,
        tail: usize,
    ) -> String {
        if let Some(flat) = self.flat()
            && column + flat.chars().count() + tail <= WIDTH
        {
            return flat;
        }
        let inner = indent + 2;
        let lines = |items: Vec<String>| -> String {
            let last = items.len().saturating_sub(1);
            let mut text = String::from("\n");
            for (place, item) in items.into_iter().enumerate() {
                let comma = if place == last && language == Language::Json {
                    ""
                } else {
                    ","
                };
                text.push_str(&format!("{}{item}{comma}\n", " ".repeat(inner)));
            }
            text + &" ".repeat(indent)
        };
        match self {
            Piece::Atom(text) => text.clone(),
            Piece::Array(items) => {
                let items = items
                    .iter()
                    .map(|item| item.print(language, inner, inner, 1))
                    .collect();
                format!("[{}]", lines(items))
            }
            Piece::Object(entries) | Piece::Tall(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value)| entry(key, value, language, inner))
                    .collect();
                format!("{{{}}}", lines(entries))
            }
            Piece::Call(name, arguments) => {
                if let Some(hugged) = self.hugged(language, indent, column) {
                    return hugged;
                }
                let arguments = arguments
                    .iter()
                    .map(|argument| argument.print(language, inner, inner, 1))
                    .collect();
                format!("{name}({})", lines(arguments))
            }
        }
    }

    /// A call whose last argument opens on the line of its name.
    fn hugged(&self, language: Language, indent: usize, column: usize) -> Option<String> {
        let Piece::Call(name, arguments) = self else {
            return None;
        };
        let (last, others) = arguments.split_last()?;
        if !matches!(last, Piece::Array(_) | Piece::Object(_) | Piece::Tall(_)) {
            return None;
        }
        let mut head = format!("{name}(");
        for other in others {
            head.push_str(&other.flat()?);
            head.push_str(", ");
        }
        // The bracket that opens.
        if column + head.chars().count() + 1 > WIDTH {
            return None;
        }
        let last = last.print(language, indent, usize::MAX / 2, 1);
        Some(format!("{head}{last})"))
    }
}

/// `key: value`; a value whose first line doesn't fit goes below its key.
fn entry(key: &str, value: &Piece, language: Language, indent: usize) -> String {
    let column = indent + key.chars().count() + 2;
    let beside = value.print(language, indent, column, 1);
    let (first, tail) = match beside.split_once('\n') {
        Some((first, _)) => (first, 0),
        None => (beside.as_str(), 1),
    };
    let fits = column + first.chars().count() + tail <= WIDTH;
    if fits || language == Language::Json {
        return format!("{key}: {beside}");
    }
    let below = indent + 2;
    let value = value.print(language, below, below, 1);
    format!("{key}:\n{}{value}", " ".repeat(below))
}

/// A double, as both languages write it.
pub(crate) fn double(of: f64) -> Piece {
    /// Beyond these JavaScript writes exponents, too.
    const PLAIN: std::ops::Range<f64> = 1e-6..1e21;
    let text = if of == 0.0 || PLAIN.contains(&of.abs()) {
        of.to_string()
    } else {
        format!("{of:e}")
    };
    Piece::Atom(text)
}
