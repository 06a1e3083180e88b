//! Texts of others, made fit for a terminal: a name in a table must not move the cursor or turn a line round.

use std::borrow::Cow;

/// A text within a line: every control character is written as an escape, `\u001b`.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// A text of several lines: line breaks and tabs stay.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// Within JSON texts the escape is JSON's own, so that a JSON document stays what it is.
fn escaped(text: &str, stays: fn(char) -> bool) -> Cow<'_, str> {
    let is_harmful = |c: char| !stays(c) && (c.is_control() || turns_a_line(c));
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            plain.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

/// Separators of lines, and marks that change the direction of what follows.
fn turns_a_line(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_that_it_would_obey() {
        assert_eq!(
            line("a\u{1b}[2J\n\tb\u{9b}\u{202e}"),
            "a\\u001b[2J\\u000a\\u0009b\\u009b\\u202e"
        );
        assert_eq!(lines("a\tb\n\u{1b}"), "a\tb\n\\u001b");
        assert!(matches!(line("order.confirmed.v1 äöü"), Cow::Borrowed(_)));
    }
}
