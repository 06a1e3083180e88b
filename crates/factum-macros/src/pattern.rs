//! `pattern = "…"`: the part of regular expressions that means the same in Rust's `regex`, in JavaScript with
//! the flag `u`, and in JSON Schema, which refers to the latter.

use regex::RegexBuilder;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    Ast, ClassSet, ClassSetItem, Error, ErrorKind, GroupKind, HexLiteralKind, Literal, LiteralKind,
    Repetition, SpecialLiteralKind,
};

/// The longest pattern.
const MAX_PATTERN_BYTES: usize = 1_000;
/// The most memory that a compiled pattern may take.
const MAX_COMPILED_BYTES: usize = 1024 * 1024;

/// What has a meaning of its own outside of brackets, and is literal after a backslash.
const SYNTAX: &str = "^$\\.*+?()[]{}|/";

/// What to write in the place of a pattern, if it is not one.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("the pattern is empty, so that only empty text fits: remove it".to_owned());
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern has at most {MAX_PATTERN_BYTES} bytes"));
    }
    if pattern.chars().any(char::is_control) {
        return Err(
            "a pattern holds no control characters: write `\\n`, `\\t`, `\\r` or `\\u{…}`"
                .to_owned(),
        );
    }
    let ast = Parser::new()
        .parse(pattern)
        .map_err(|error| unread(&error))?;
    check(pattern, &ast)?;
    RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(MAX_COMPILED_BYTES)
        .build()
        .map(|_| ())
        .map_err(|_| {
            "the pattern takes more memory than 1 MiB: repeat less in it, and bound the text with \
             `length(max = …)`"
                .to_owned()
        })
}

fn unread(error: &Error) -> String {
    match error.kind() {
        ErrorKind::UnsupportedLookAround => {
            "look-around takes more than linear time: write what the whole text is".to_owned()
        }
        ErrorKind::UnsupportedBackreference => {
            "back references take more than linear time: write what the whole text is".to_owned()
        }
        kind => format!("not a regular expression: {kind}"),
    }
}

fn check(pattern: &str, ast: &Ast) -> Result<(), String> {
    match ast {
        Ast::Empty(_) => Ok(()),
        Ast::Literal(literal) => check_literal(literal, false),
        Ast::Dot(_) => Err(
            "`.` leaves other line ends out in JavaScript than in Rust: write `[^\\n\\r]`, or the \
             characters that you mean"
                .to_owned(),
        ),
        Ast::Assertion(_) => Err(
            "the whole text must match: remove `^`, `$` and `\\b`, or write `\\^` and `\\$` for the \
             characters"
                .to_owned(),
        ),
        Ast::ClassUnicode(_) => Err(
            "`\\p{…}` changes with each version of Unicode: write the characters, such as \
             `[a-zA-Zà-ÿ]`"
                .to_owned(),
        ),
        Ast::ClassPerl(_) => Err(perl()),
        Ast::ClassBracketed(class) => match &class.kind {
            ClassSet::Item(item) => check_class(item, true),
            ClassSet::BinaryOp(_) => Err(set_operation()),
        },
        Ast::Repetition(repetition) => check_repetition(pattern, repetition),
        Ast::Group(group) => match &group.kind {
            GroupKind::CaptureIndex(_) => check(pattern, &group.ast),
            GroupKind::NonCapturing(flags) if flags.items.is_empty() => {
                check(pattern, &group.ast)
            }
            GroupKind::NonCapturing(_) => Err(flags()),
            GroupKind::CaptureName { .. } => {
                Err("a group needs no name here: write `(…)`".to_owned())
            }
        },
        Ast::Flags(_) => Err(flags()),
        Ast::Alternation(alternation) => {
            alternation.asts.iter().try_for_each(|ast| check(pattern, ast))
        }
        Ast::Concat(concat) => concat.asts.iter().try_for_each(|ast| check(pattern, ast)),
    }
}

fn flags() -> String {
    "JavaScript has no flags inside a pattern: write both cases, such as `[aA]`".to_owned()
}

fn perl() -> String {
    "`\\d`, `\\w` and `\\s` mean other characters in JavaScript than in Rust: write `[0-9]`, \
     `[A-Za-z0-9_]`, `[ \\t]`"
        .to_owned()
}

fn set_operation() -> String {
    "JavaScript knows no `&&`, `--`, `~~`, no brackets and no `[:…:]` inside brackets: write the \
     characters"
        .to_owned()
}

/// `whole` is whether the item is all that the brackets hold.
fn check_class(item: &ClassSetItem, whole: bool) -> Result<(), String> {
    match item {
        ClassSetItem::Empty(_) => Ok(()),
        ClassSetItem::Literal(literal) => {
            if literal.kind == LiteralKind::Verbatim && literal.c == '-' && !whole {
                return Err(
                    "a `-` inside brackets is a character after a backslash alone: write `\\-`"
                        .to_owned(),
                );
            }
            check_literal(literal, true)
        }
        ClassSetItem::Range(range) => {
            check_literal(&range.start, true)?;
            check_literal(&range.end, true)
        }
        ClassSetItem::Ascii(_) | ClassSetItem::Bracketed(_) => Err(set_operation()),
        ClassSetItem::Unicode(_) => {
            Err("`\\p{…}` changes with each version of Unicode: write the \
                                         characters"
                .to_owned())
        }
        ClassSetItem::Perl(_) => Err(perl()),
        ClassSetItem::Union(union) => union
            .items
            .iter()
            .try_for_each(|item| check_class(item, false)),
    }
}

fn check_literal(literal: &Literal, in_brackets: bool) -> Result<(), String> {
    let c = literal.c;
    match &literal.kind {
        // Outside of brackets the others have a meaning, so that they are no literals.
        LiteralKind::Verbatim if "]}".contains(c) && !in_brackets || c == ']' => Err(format!(
            "JavaScript takes `{c}` for a character after a backslash alone: write `\\{c}`"
        )),
        LiteralKind::Verbatim if c == '{' && !in_brackets => Err(
            "JavaScript takes `{` for a character after a backslash alone: write `\\{`".to_owned(),
        ),
        LiteralKind::Verbatim => Ok(()),
        LiteralKind::Meta | LiteralKind::Superfluous
            if SYNTAX.contains(c) || c == '-' && in_brackets =>
        {
            Ok(())
        }
        LiteralKind::Meta | LiteralKind::Superfluous => Err(format!(
            "JavaScript refuses a backslash before `{c}`: write `{c}` alone"
        )),
        LiteralKind::Special(
            SpecialLiteralKind::LineFeed
            | SpecialLiteralKind::CarriageReturn
            | SpecialLiteralKind::Tab,
        ) => Ok(()),
        LiteralKind::HexFixed(HexLiteralKind::X | HexLiteralKind::UnicodeShort)
        | LiteralKind::HexBrace(HexLiteralKind::UnicodeShort) => Ok(()),
        LiteralKind::Special(_)
        | LiteralKind::Octal
        | LiteralKind::HexFixed(_)
        | LiteralKind::HexBrace(_) => Err(
            "JavaScript has another way to write this character: write `\\u{…}` with its number"
                .to_owned(),
        ),
    }
}

fn check_repetition(pattern: &str, repetition: &Repetition) -> Result<(), String> {
    let written = &pattern[repetition.op.span.start.offset..repetition.op.span.end.offset];
    let counts = written
        .strip_prefix('{')
        .and_then(|rest| rest.split('}').next());
    if let Some(counts) = counts {
        let (least, most) = counts.split_once(',').unwrap_or((counts, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if least.is_empty() || !digits(least) || !digits(most) {
            return Err(format!(
                "JavaScript doesn't know `{written}`: write `{{0,3}}`, `{{3}}` or `{{3,}}`"
            ));
        }
    }
    if matches!(*repetition.ast, Ast::Repetition(_)) {
        return Err(format!(
            "JavaScript doesn't repeat a repetition: put what stands before `{written}` in `(…)`"
        ));
    }
    check(pattern, &repetition.ast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_everywhere_is_a_pattern() {
        for pattern in [
            "[A-Z]{3}-[0-9]{4}",
            "(?:a|b|)c+?d*e?",
            "([a-f0-9]{2}:){5}[a-f0-9]{2}",
            r"[^\n\r]{1,200}",
            r"\^\$\\\.\*\+\?\(\)\[\]\{\}\|\/",
            r"[\-\]\\\^.$*+?(){}|&~#@a-z]+",
            r"\x41\u0041\u{1F600}\t\n\r",
            "é😀[à-ÿ]",
            "a b#c&d~e-f,g:h;i<j>k=l!m%n@o'p\"q`r/s_t",
            "[^-]",
            "[-]",
            "x{0,1000}",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn what_differs_between_the_languages_is_none_and_the_text_says_what_to_write() {
        for (pattern, mend) in [
            ("", "remove it"),
            ("a\nb", r"write `\n`"),
            (&"a".repeat(1_001), "at most 1000 bytes"),
            (".+", r"[^\n\r]"),
            ("^a$", "remove `^`, `$`"),
            (r"\bword\b", r"`\b`"),
            (r"\Aa\z", r"remove `^`, `$`"),
            (r"\d+", "[0-9]"),
            (r"\w", "[A-Za-z0-9_]"),
            (r"[\s]", r"[ \t]"),
            (r"\pL", "write the characters"),
            (r"[\p{Greek}]", "write the characters"),
            ("(?i)abc", "both cases"),
            ("(?i:abc)", "both cases"),
            ("(?<year>[0-9]{4})", "needs no name"),
            ("(?P<year>[0-9]{4})", "needs no name"),
            ("(?=a)b", "look-around"),
            ("(?<!a)b", "look-around"),
            (r"(a)\1", "back references"),
            ("[[:alpha:]]", "write the characters"),
            ("[a[bc]]", "write the characters"),
            ("[a-z&&[^b]]", "write the characters"),
            ("[a--b]", "write the characters"),
            ("[a~~b]", "write the characters"),
            ("[a-z-9]", r"`\-`"),
            ("[a-]", r"`\-`"),
            ("[]a]", r"`\]`"),
            ("a]", r"`\]`"),
            ("a}", r"`\}`"),
            (r"a\-b", "`-` alone"),
            (r"a\#b", "`#` alone"),
            (r"\x{41}", r"`\u{…}`"),
            (r"\U00000041", r"`\u{…}`"),
            (r"\a", r"`\u{…}`"),
            ("a**", "`(…)`"),
            ("a{2}{3}", "`(…)`"),
            ("a{ 3 }", "{0,3}"),
            ("a{3, 4}", "{0,3}"),
            ("a{,3}", "not a regular expression"),
            ("(a{1000}){1000}", "1 MiB"),
            ("(a", "not a regular expression"),
            ("a{3,2}", "not a regular expression"),
            ("*", "not a regular expression"),
        ] {
            let message = check_pattern(pattern).expect_err(pattern);
            assert!(message.contains(mend), "{pattern}: {message}");
        }
    }
}
