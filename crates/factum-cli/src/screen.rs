//! Where stdout goes: a person's terminal, or another program.

use std::io::{self, IsTerminal as _};

use time::OffsetDateTime;

use crate::list::moment;

/// How texts are written: short for a terminal, in full for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Screen {
    /// The terminal's width in characters; `None` for a pipe or a file.
    pub(crate) width: Option<usize>,
}

impl Screen {
    /// This process's stdout.
    pub(crate) fn stdout() -> Screen {
        let terminal = io::stdout().is_terminal();
        Screen {
            width: terminal.then(|| usize::from(console::Term::stdout().size().1)),
        }
    }

    /// A count: `1,203` on a terminal, `1203` elsewhere.
    pub(crate) fn count(self, n: i64) -> String {
        match self.width {
            Some(_) => thousands(n),
            None => n.to_string(),
        }
    }

    /// A moment: the time of day on a terminal if it is within the last day, else in full.
    pub(crate) fn moment(self, at: OffsetDateTime) -> String {
        let full = moment(at);
        let recent = (OffsetDateTime::now_utc() - at).whole_hours().abs() < 24;
        match full.get(11..19) {
            Some(time) if self.width.is_some() && recent => time.to_owned(),
            _ => full,
        }
    }
}

/// `1,203`.
pub(crate) fn thousands(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::new();
    if n < 0 {
        text.push('-');
    }
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A text of at most `most` characters: `7c1e..09d2`.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(2);
    let tail = kept / 2;
    let head: String = text.chars().take(kept - tail).collect();
    let tail: String = text.chars().skip(length - tail).collect();
    format!("{head}..{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parted_and_words_lose_their_middle() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1203), "1,203");
        assert_eq!(thousands(-1_000_000), "-1,000,000");
        assert_eq!(shortened("7c1e55aa09d2", 10), "7c1e..09d2");
        assert_eq!(shortened("short", 10), "short");
    }

    #[test]
    fn a_program_gets_everything_in_full() {
        let pipe = Screen { width: None };
        let terminal = Screen { width: Some(80) };
        assert_eq!(pipe.count(1203), "1203");
        assert_eq!(terminal.count(1203), "1,203");
        assert_eq!(
            pipe.moment(OffsetDateTime::UNIX_EPOCH),
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(
            terminal.moment(OffsetDateTime::UNIX_EPOCH),
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(terminal.moment(OffsetDateTime::now_utc()).len(), 8);
    }
}
