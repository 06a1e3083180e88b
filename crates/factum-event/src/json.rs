//! JSON as RFC 8259 defines it, read strictly and without loss: a number stays the text that was
//! sent, a duplicate key is a fault, a lone surrogate is a fault.
//!
//! A parser of our own, because none of the usual ones gives all of that at once: `serde_json` turns
//! numbers into doubles unless a feature changes it for the whole build, and its maps keep the last
//! of two equal keys in silence. The property tests compare this grammar with that of `serde_json`.

use std::borrow::Cow;

use crate::path::{Path, Segment, render_reversed};
use crate::poison::{Poison, PoisonReason};

/// A JSON value that borrows from the text it was read from.
#[derive(Debug)]
pub(crate) enum Node<'a> {
    Null,
    // Not `Bool(bool)`: a byte right beside the tag makes the compiler copy the whole node from an odd address,
    // which stalls the processor at each value of each event.
    True,
    False,
    /// The number as it was written; its syntax is checked.
    Number(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Node<'a>>),
    /// In the order of the text. No key stands twice.
    Object(Vec<Entry<'a>>),
}

pub(crate) type Entry<'a> = (Cow<'a, str>, Node<'a>);

/// Room for the fields of an event, the envelope's five among them; more is made when they are more.
const ROOT_FIELDS: usize = 16;

/// Reads one JSON value that fills the whole text.
///
/// Time is linear in the text but for the sorting of each object's keys; memory is at most about
/// 30 times the text. Recursion is bounded by `max_depth`.
pub(crate) fn parse(text: &str, max_depth: u32) -> Result<Node<'_>, Poison> {
    let mut parser = Parser {
        text,
        bytes: text.as_bytes(),
        at: 0,
        depth: 0,
        max_depth,
    };
    parser.whole().map_err(|fault| {
        let expected = match fault.kind {
            FaultKind::Malformed { at } => Cow::from(format!(
                "JSON (RFC 8259) to the end of the record; it stops to be JSON at byte {at} of {}",
                text.len()
            )),
            FaultKind::TooDeep => Cow::from(format!(
                "objects and arrays nested at most {max_depth} deep"
            )),
            FaultKind::DuplicateKey => Cow::from("each key once"),
        };
        let reason = match fault.kind {
            FaultKind::Malformed { .. } => PoisonReason::MalformedJson,
            FaultKind::TooDeep => PoisonReason::TooDeep,
            FaultKind::DuplicateKey => PoisonReason::DuplicateKey,
        };
        Poison::new(reason, render_reversed(&fault.inside), expected)
    })
}

/// Where the first U+0000 of the document stands, in a key or in a string.
pub(crate) fn find_nul(node: &Node<'_>) -> Option<String> {
    fn walk(node: &Node<'_>, path: Path<'_>) -> Option<String> {
        match node {
            Node::Null | Node::True | Node::False | Node::Number(_) => None,
            Node::Text(text) => has_nul(text).then(|| path.render()),
            Node::Array(items) => items
                .iter()
                .enumerate()
                .find_map(|(index, item)| walk(item, Path::Index(&path, index))),
            Node::Object(entries) => entries.iter().find_map(|(key, value)| {
                let at = Path::Field(&path, key);
                if has_nul(key) {
                    Some(at.render())
                } else {
                    walk(value, at)
                }
            }),
        }
    }
    walk(node, Path::Root)
}

pub(crate) fn has_nul(text: &str) -> bool {
    text.as_bytes().contains(&0)
}

struct Fault {
    kind: FaultKind,
    /// The steps from the fault outwards, added while the error travels up.
    inside: Vec<Segment>,
}

#[derive(Clone, Copy)]
enum FaultKind {
    Malformed { at: usize },
    TooDeep,
    DuplicateKey,
}

impl Fault {
    /// A syntax error has a byte position, which says more than a path.
    fn within(mut self, segment: impl FnOnce() -> Segment) -> Fault {
        if !matches!(self.kind, FaultKind::Malformed { .. }) {
            self.inside.push(segment());
        }
        self
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    max_depth: u32,
}

impl<'a> Parser<'a> {
    fn whole(&mut self) -> Result<Node<'a>, Fault> {
        self.skip_space();
        let mut node = Node::Null;
        self.value(&mut node)?;
        self.skip_space();
        if self.at == self.bytes.len() {
            Ok(node)
        } else {
            Err(self.malformed())
        }
    }

    /// Reads a value to where it stays: handing it up by value would copy it three times, and a copy of what was
    /// written in smaller pieces just now stalls the processor.
    fn value(&mut self, into: &mut Node<'a>) -> Result<(), Fault> {
        *into = match self.peek() {
            Some(b'{') => Node::Object(self.object()?),
            Some(b'[') => Node::Array(self.array()?),
            Some(b'"') => Node::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => Node::Number(self.number()?),
            Some(b't') => self.literal("true", Node::True)?,
            Some(b'f') => self.literal("false", Node::False)?,
            Some(b'n') => self.literal("null", Node::Null)?,
            _ => return Err(self.malformed()),
        };
        Ok(())
    }

    fn literal(&mut self, word: &str, node: Node<'a>) -> Result<Node<'a>, Fault> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(node)
        } else {
            Err(self.malformed())
        }
    }

    fn enter(&mut self) -> Result<(), Fault> {
        if self.depth == self.max_depth {
            return Err(Fault {
                kind: FaultKind::TooDeep,
                inside: Vec::new(),
            });
        }
        self.depth += 1;
        // The opening bracket.
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        // The closing bracket.
        self.at += 1;
    }

    fn array(&mut self) -> Result<Vec<Node<'a>>, Fault> {
        self.enter()?;
        let mut items = Vec::new();
        if self.peek() != Some(b']') {
            loop {
                let index = items.len();
                items.push(Node::Null);
                self.value(&mut items[index])
                    .map_err(|f| f.within(|| Segment::Index(index)))?;
                self.skip_space();
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b']') => break,
                    _ => return Err(self.malformed()),
                }
                self.skip_space();
            }
        }
        self.leave();
        Ok(items)
    }

    fn object(&mut self) -> Result<Vec<Entry<'a>>, Fault> {
        self.enter()?;
        let capacity = if self.depth == 1 { ROOT_FIELDS } else { 0 };
        let mut entries: Vec<Entry<'a>> = Vec::with_capacity(capacity);
        if self.peek() != Some(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.malformed());
                }
                let place = entries.len();
                entries.push((Cow::Borrowed(""), Node::Null));
                let (key, value) = &mut entries[place];
                *key = self.string()?;
                self.skip_space();
                if self.peek() != Some(b':') {
                    return Err(self.malformed());
                }
                self.at += 1;
                self.skip_space();
                self.value(value)
                    .map_err(|f| f.within(|| Segment::field(key)))?;
                self.skip_space();
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b'}') => break,
                    _ => return Err(self.malformed()),
                }
                self.skip_space();
            }
        }
        self.leave();
        match first_duplicate(&entries) {
            None => Ok(entries),
            Some(key) => {
                let inside = vec![Segment::field(key)];
                Err(Fault {
                    kind: FaultKind::DuplicateKey,
                    inside,
                })
            }
        }
    }

    /// A string without its quotes, borrowed when it holds no escape.
    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        // The opening quote.
        self.at += 1;
        let mut start = self.at;
        let mut unescaped: Option<String> = None;
        loop {
            self.at += plain_run(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    let rest = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(match unescaped {
                        None => Cow::Borrowed(rest),
                        Some(mut text) => {
                            text.push_str(rest);
                            Cow::Owned(text)
                        }
                    });
                }
                Some(b'\\') => {
                    let text = unescaped.get_or_insert_default();
                    text.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    let character = self.escape()?;
                    if let Some(text) = &mut unescaped {
                        text.push(character);
                    }
                    start = self.at;
                }
                // RFC 8259: control characters must be escaped. Nothing else ends a plain run.
                _ => return Err(self.malformed()),
            }
        }
    }

    /// What stands after a backslash.
    fn escape(&mut self) -> Result<char, Fault> {
        let character = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.malformed()),
        };
        self.at += 1;
        Ok(character)
    }

    /// What stands after `\u`: four hexadecimal digits, and for a surrogate its other half.
    fn unicode_escape(&mut self) -> Result<char, Fault> {
        let start = self.at;
        let lone = Fault {
            kind: FaultKind::Malformed { at: start },
            inside: Vec::new(),
        };
        let high = self.four_hex_digits()?;
        let code = match high {
            0xd800..=0xdbff => {
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return Err(lone);
                }
                self.at += 2;
                let low = self.four_hex_digits()?;
                if !(0xdc00..=0xdfff).contains(&low) {
                    return Err(lone);
                }
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
            }
            code => code,
        };
        // Fails for a lone low surrogate alone.
        char::from_u32(code).ok_or(lone)
    }

    fn four_hex_digits(&mut self) -> Result<u32, Fault> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.malformed())?;
            self.at += 1;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<&'a str, Fault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.malformed()),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at > start {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn malformed(&self) -> Fault {
        Fault {
            kind: FaultKind::Malformed { at: self.at },
            inside: Vec::new(),
        }
    }
}

/// How many bytes come before the first that can't stand in a string as it is: a quote, a backslash or a
/// control character. Bytes of a multi-byte character are all above 0x7f, so none is taken for one of these.
///
/// Eight bytes at a time: strings are most of an event. A byte of `x` is zero if it borrows when 1 is taken
/// from it. A borrow may run on into higher bytes, so only the lowest one found is sure, and it is the one asked for.
fn plain_run(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let equal = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = below(word, 0x20) | equal(word, b'"') | equal(word, b'\\');
        if found != 0 {
            return place * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let in_rest = rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
    words.len() * 8 + in_rest.unwrap_or(rest.len())
}

/// A few keys are compared with each other; many are sorted first, so that a hostile object with
/// a hundred thousand keys costs no square of it. No hashing: a pure crate has no random seed.
fn first_duplicate<'e>(entries: &'e [Entry<'_>]) -> Option<&'e str> {
    const FEW: usize = 16;
    if entries.len() <= FEW {
        // Most keys differ in length or last letter from all others already.
        let mut seen = 0_u64;
        return entries.iter().enumerate().find_map(|(index, (key, _))| {
            let last = key.as_bytes().last().copied().unwrap_or_default();
            let mark = 1 << ((key.len() * 5 + usize::from(last)) % 64);
            let is_new = seen & mark == 0;
            seen |= mark;
            let is_double = !is_new && entries[..index].iter().any(|(earlier, _)| earlier == key);
            is_double.then_some(&**key)
        });
    }
    let mut keys: Vec<&str> = entries.iter().map(|(key, _)| &**key).collect();
    keys.sort_unstable();
    keys.windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const DEPTH: u32 = 16;

    /// The same value as another parser makes it; `None` where a number is beyond a double.
    fn to_value(node: &Node<'_>) -> Option<Value> {
        Some(match node {
            Node::Null => Value::Null,
            Node::True => Value::Bool(true),
            Node::False => Value::Bool(false),
            Node::Number(number) => serde_json::from_str(number).ok()?,
            Node::Text(text) => Value::String(text.to_string()),
            Node::Array(items) => items
                .iter()
                .map(to_value)
                .collect::<Option<Vec<_>>>()?
                .into(),
            Node::Object(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, value)| Some((key.to_string(), to_value(value)?)))
                    .collect::<Option<_>>()?,
            ),
        })
    }

    /// Ours and `serde_json` agree, but for what only ours refuses and for numbers beyond a double,
    /// which only `serde_json` refuses.
    fn check_against_serde_json(text: &str) {
        let theirs = serde_json::from_str::<Value>(text);
        match parse(text, DEPTH) {
            Ok(node) => match (to_value(&node), theirs) {
                (Some(ours), Ok(theirs)) => assert_eq!(ours, theirs, "{text:?}"),
                (None, Err(error)) => {
                    assert!(
                        error.to_string().contains("number out of range"),
                        "{text:?}: {error}"
                    );
                }
                (ours, theirs) => panic!("{text:?}: ours {ours:?}, theirs {theirs:?}"),
            },
            Err(poison) => match poison.reason() {
                PoisonReason::MalformedJson => assert!(theirs.is_err(), "{text:?}: {poison}"),
                PoisonReason::DuplicateKey => assert!(text.matches('"').count() >= 4, "{text:?}"),
                PoisonReason::TooDeep => {
                    assert!(
                        text.matches(['[', '{']).count() > DEPTH as usize,
                        "{text:?}"
                    );
                }
                reason => panic!("{text:?}: {reason}"),
            },
        }
    }

    #[test]
    fn the_grammar_is_that_of_rfc_8259() {
        for good in [
            "0",
            "-0",
            "1",
            "-1",
            "10",
            "0.0",
            "1.50",
            "1e1",
            "1E+1",
            "1e-01",
            "0e0",
            "-0.0e-0",
            "true",
            "false",
            "null",
            "\"\"",
            "[]",
            "{}",
            "[ ]",
            "{ }",
            " [1 , 2] ",
            "\n{\"a\" : 1}\t\r",
            r#""\"\\\/\b\f\n\r\t\u0041\ud83d\ude00""#,
            "\"\u{7f}\u{80}é😀\"",
            r#"{"":{"":[]}}"#,
        ] {
            assert!(parse(good, DEPTH).is_ok(), "{good}");
            check_against_serde_json(good);
        }
        for bad in [
            "",
            " ",
            "01",
            "-",
            "-01",
            "+1",
            ".5",
            "1.",
            "1.e1",
            "1e",
            "1e+",
            "0x1",
            "1 2",
            "NaN",
            "Infinity",
            "-Infinity",
            "nul",
            "nulls",
            "True",
            "'a'",
            "\"",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\uD83D\"",
            "\"\\uDE00\"",
            "\"\\uD83D\\u0041\"",
            "\"\\uD83D\\uD83D\"",
            "\"\n\"",
            "\"\0\"",
            "[",
            "]",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{",
            "}",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "{\"a\":1,}",
            "{,}",
            "{a:1}",
            "{\"a\" 1}",
            "{\"a\":}",
            "{1:1}",
            "{null:1}",
            "[}",
            "{]",
            "[1]]",
            "{}{}",
            "// c\n1",
            "/**/1",
            "\u{feff}1",
            "\u{a0}1",
            "1\u{b}",
            "\u{c}1",
            "truefalse",
            "\"a\"b",
        ] {
            let poison = parse(bad, DEPTH).unwrap_err();
            assert_eq!(poison.reason(), PoisonReason::MalformedJson, "{bad:?}");
            check_against_serde_json(bad);
        }
    }

    #[test]
    fn the_place_where_json_ends_is_named() {
        let poison = parse(r#"{"a":NaN}"#, DEPTH).unwrap_err();
        assert_eq!(
            poison.to_string(),
            "malformed_json at $: expected JSON (RFC 8259) to the end of the record; it stops to be \
             JSON at byte 5 of 9",
        );
    }

    #[test]
    fn a_text_without_escapes_is_borrowed() {
        let text = r#"["plain","\u0041"]"#;
        let Node::Array(items) = parse(text, DEPTH).unwrap() else {
            panic!()
        };
        assert!(matches!(&items[0], Node::Text(Cow::Borrowed("plain"))));
        assert!(matches!(&items[1], Node::Text(Cow::Owned(text)) if text == "A"));
    }

    #[test]
    fn a_plain_run_ends_at_the_first_byte_that_needs_care() {
        // Every byte at every place of the words, before and behind every other that needs care.
        for stop in 0..=0xff_u8 {
            let needs_care = matches!(stop, b'"' | b'\\' | 0..=0x1f);
            for place in 0..20 {
                for later in [b'"', b'\\', 0x1f, 0x20, 0x80, 0xff, b'a'] {
                    let mut bytes = [b'a'; 21];
                    bytes[place] = stop;
                    bytes[20] = later;
                    if place < 19 {
                        bytes[place + 1] = later;
                    }
                    let expected = bytes
                        .iter()
                        .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
                        .unwrap_or(bytes.len());
                    assert_eq!(plain_run(&bytes), expected, "{bytes:?}");
                    assert!(!needs_care || expected == place);
                }
            }
        }
        assert_eq!(plain_run(b""), 0);
    }

    /// Texts that are nearly JSON: its tokens in any order.
    fn token_soup() -> impl Strategy<Value = String> {
        let tokens = vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\"a\":",
            "\"b\"",
            "\\",
            "\\\"",
            "\\u",
            "\\n",
            "d83d",
            "\\ud83d",
            "\\ude00",
            "\\u0061",
            "0",
            "1",
            "9",
            "-",
            "+",
            ".",
            "e",
            "E",
            "1e400",
            "true",
            "false",
            "null",
            " ",
            "\n",
            "\t",
            "\u{1}",
            "\0",
            "a",
            "é",
            "😀",
            "\u{feff}",
            "{\"a\":1}",
            "[1,2]",
        ];
        prop::collection::vec(prop::sample::select(tokens), 0..24).prop_map(|parts| parts.concat())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_096) })]

        #[test]
        fn nearly_json_is_judged_as_serde_json_judges_it(text in token_soup()) {
            check_against_serde_json(&text);
        }

        #[test]
        fn any_text_is_judged_as_serde_json_judges_it(text in any::<String>()) {
            check_against_serde_json(&text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        #[test]
        fn any_json_is_read_as_serde_json_reads_it(value in any_value(), pretty in any::<bool>()) {
            let text = if pretty {
                serde_json::to_string_pretty(&value)
            } else {
                serde_json::to_string(&value)
            };
            let text = text.unwrap();
            prop_assert!(parse(&text, DEPTH).is_ok(), "{}", text);
            check_against_serde_json(&text);
        }
    }
}
