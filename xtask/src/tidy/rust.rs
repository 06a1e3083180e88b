//! Rust source as far as the rules need it: which text is code, which is a string.

/// A source file taken apart. Comments are blanks in `code`, and so is the inside of strings; lines
/// keep their numbers.
#[derive(Debug)]
pub(super) struct Source {
    code: String,
    /// Line, from 1, and contents as written.
    strings: Vec<(usize, String)>,
    /// The line, from 1, where the unit tests begin: by convention the last thing in a file.
    tests_from: usize,
}

impl Source {
    pub(super) fn parse(text: &str) -> Source {
        let (code, strings) = take_apart(text);
        let lines: Vec<&str> = code.lines().collect();
        let tests_from = lines.iter().enumerate().position(|(place, line)| {
            // Attributes may stand between the condition and the module.
            line.trim() == "#[cfg(test)]"
                && lines[place + 1..]
                    .iter()
                    .map(|next| next.trim())
                    .find(|next| !next.is_empty() && !next.starts_with("#["))
                    .is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        });
        Source {
            code,
            strings,
            tests_from: tests_from.map_or(usize::MAX, |place| place + 1),
        }
    }

    /// Lines of code, from 1, tests included.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .lines()
            .enumerate()
            .map(|(place, line)| (place + 1, line))
    }

    /// Lines of code before the unit tests.
    pub(super) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(line, _)| *line < self.tests_from)
    }

    /// Strings before the unit tests.
    pub(super) fn product_strings(&self) -> impl Iterator<Item = (usize, &str)> {
        let before_tests = |(line, _): &&(usize, String)| *line < self.tests_from;
        self.strings
            .iter()
            .filter(before_tests)
            .map(|(line, text)| (*line, text.as_str()))
    }
}

/// Whether `line` holds `word` with nothing of an identifier right before or after it.
pub(super) fn names(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let grows_left = word.starts_with(is_part) && before.is_some_and(is_part);
        let grows_right = word.ends_with(is_part) && after.is_some_and(is_part);
        !grows_left && !grows_right
    })
}

fn take_apart(text: &str) -> (String, Vec<(usize, String)>) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut strings = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let follows_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        let (length, string) = match rest {
            ['/', '/', ..] => (until(rest, 2, &['\n']), None),
            ['/', '*', ..] => (block_comment(rest), None),
            ['"', ..] => plain_string(rest),
            ['b' | 'c', '"', ..] if !follows_word => shifted(plain_string(&rest[1..]), 1),
            ['r', '"' | '#', ..] if !follows_word => raw_string(rest, 1),
            ['b' | 'c', 'r', '"' | '#', ..] if !follows_word => raw_string(rest, 2),
            ['\'', '\\', ..] => (until(rest, 3, &['\'']) + 1, None),
            ['\'', _, '\'', ..] => (3, None),
            // Code, a lifetime's tick included.
            [c, ..] => {
                code.push(*c);
                line += usize::from(*c == '\n');
                at += 1;
                continue;
            }
            [] => break,
        };
        if let Some(string) = string {
            strings.push((line, string));
            code.push('"');
        }
        let length = length.clamp(1, rest.len());
        for c in &rest[..length] {
            if *c == '\n' {
                code.push('\n');
                line += 1;
            }
        }
        code.push(' ');
        at += length;
    }
    (code, strings)
}

/// The place of the first of `ends` at or after `from`, or the end of the text.
fn until(text: &[char], from: usize, ends: &[char]) -> usize {
    let tail = text.get(from..).unwrap_or_default();
    tail.iter()
        .position(|c| ends.contains(c))
        .map_or(text.len(), |place| from + place)
}

fn block_comment(text: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn plain_string(text: &[char]) -> (usize, Option<String>) {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            '"' => return (at + 1, Some(text[1..at].iter().collect())),
            _ => at += 1,
        }
    }
    (text.len(), Some(text[1..].iter().collect()))
}

fn raw_string(text: &[char], prefix: usize) -> (usize, Option<String>) {
    let hashes = text[prefix..].iter().take_while(|c| **c == '#').count();
    let start = prefix + hashes + 1;
    if text.get(start - 1) != Some(&'"') {
        // r#name, an identifier.
        return (1, None);
    }
    let mut end: Vec<char> = vec!['"'];
    end.resize(hashes + 1, '#');
    let body = &text[start..];
    match body.windows(end.len()).position(|window| window == end) {
        Some(length) => (
            start + length + end.len(),
            Some(body[..length].iter().collect()),
        ),
        None => (text.len(), Some(body.iter().collect())),
    }
}

fn shifted((length, string): (usize, Option<String>), by: usize) -> (usize, Option<String>) {
    (length + by, string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_strings_and_comments_are_told_apart() {
        let source = Source::parse(
            "// rdkafka in a comment\n\
             /* and /* nested */ rdkafka */ let a = \"rdkafka \\\" in a string\";\n\
             let b = r#\"raw \" string\"#; let c = b\"bytes\"; let d = '\"'; let e = '\\'';\n\
             fn f<'a>(x: &'a str) {} // SELECT\n\
             let g = \"two\n\
             lines\"; use rdkafka;\n",
        );
        let code: Vec<&str> = source.lines().map(|(_, line)| line).collect();
        assert_eq!(code.len(), 6);
        for line in &code[..5] {
            assert!(
                !line.contains("rdkafka") && !line.contains("SELECT"),
                "{line}"
            );
        }
        assert!(code[3].contains("fn f<'a>(x: &'a str) {}"));
        assert!(names(code[5], "rdkafka"));
        let strings: Vec<(usize, &str)> = source.product_strings().collect();
        assert_eq!(
            strings,
            [
                (2, "rdkafka \\\" in a string"),
                (3, "raw \" string"),
                (3, "bytes"),
                (5, "two\nlines"),
            ]
        );
    }

    #[test]
    fn unit_tests_are_not_the_product() {
        let source = Source::parse(
            "fn f() {}\n#[cfg(test)]\n#[path = \"x\"]\nmod tests {\n    fn g() { \"SELECT 1\"; }\n}\n",
        );
        assert_eq!(source.product_lines().count(), 1);
        assert_eq!(source.product_strings().count(), 0);
        assert_eq!(source.lines().count(), 6);
        // A module in a file of its own, or a function, does not end the product.
        let source = Source::parse("#[cfg(test)]\nmod tests;\nfn f() {}\n");
        assert_eq!(source.product_lines().count(), 3);
    }

    #[test]
    fn a_word_is_not_a_part_of_another() {
        assert!(names("use rand::rng;", "rand"));
        assert!(names("std::fs::read", "std::fs"));
        assert!(!names("let operand = 1;", "rand"));
        assert!(!names("std::fsync()", "std::fs"));
        assert!(names("a.todo!()", "todo!"));
        assert!(!names("my_todo!()", "todo!"));
    }

    #[test]
    fn a_file_that_ends_inside_a_string_ends() {
        for text in ["\"open", "r#\"open\"", "/* open", "'", "b\"", "r#", "'\\"] {
            Source::parse(text);
        }
    }
}
