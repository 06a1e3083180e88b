//! How every task prints.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal, progress is a line as often as this.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Data on stdout, everything else on stderr. A copy is the same screen.
#[derive(Clone)]
pub(crate) struct Screen {
    json: bool,
    colour: bool,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// Shown while something runs, on a terminal only.
    bar: Option<ProgressBar>,
    last_plain: Instant,
}

/// A word of a table, with the colour that goes beside it: the word alone says it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Ok,
    Failed,
    Skipped,
}

impl Word {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Word::Ok => "ok",
            Word::Failed => "FAILED",
            Word::Skipped => "skipped",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Word::Ok => "\x1b[32m",
            Word::Failed => "\x1b[31m",
            Word::Skipped => "\x1b[33m",
        }
    }
}

impl Screen {
    pub(crate) fn new(json: bool) -> Screen {
        let colour = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let inner = Inner {
            bar: None,
            last_plain: Instant::now(),
        };
        Screen {
            json,
            colour,
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    /// `always` or `never`: what programs that we run are told about colour.
    pub(crate) fn colour(&self) -> &'static str {
        if self.colour { "always" } else { "never" }
    }

    /// A line of data.
    pub(crate) fn data(&self, line: impl Display) {
        // A reader that has gone away, such as `head`, is no reason to fail.
        self.above_the_bar(|| drop(writeln!(io::stdout(), "{line}")));
    }

    /// A line that is not data.
    pub(crate) fn note(&self, line: impl Display) {
        self.above_the_bar(|| drop(writeln!(io::stderr(), "{line}")));
    }

    pub(crate) fn error(&self, failure: &anyhow::Error) {
        self.note(format_args!("error: {failure:#}"));
    }

    /// The last line of stdout, if JSON was asked for.
    pub(crate) fn end(&self, json: &serde_json::Value) {
        if self.json {
            self.data(json);
        }
    }

    /// A table: aligned on a terminal, else with tabs and full values.
    pub(crate) fn table(&self, head: &[&str], rows: &[(Vec<String>, Option<Word>)]) {
        let is_terminal = io::stdout().is_terminal();
        let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
        for (cells, _) in rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String], word: Option<Word>| -> String {
            if !is_terminal {
                return cells.join("\t");
            }
            let mut text = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()) + 2);
                match word {
                    Some(word) if self.colour && cell == word.text() => {
                        text.push_str(&format!("{}{cell}\x1b[0m{padding}", word.colour()));
                    }
                    _ => text.push_str(&format!("{cell}{padding}")),
                }
            }
            text.trim_end().to_owned()
        };
        let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
        self.data(line(&head, None));
        for (cells, word) in rows {
            self.data(line(cells, *word));
        }
    }

    /// Shows what runs now: a bar on a terminal, else a line.
    pub(crate) fn begin(&self, what: &str) {
        let mut inner = self.lock();
        if io::stderr().is_terminal() {
            let bar = inner.bar.get_or_insert_with(|| {
                let bar = ProgressBar::no_length();
                bar.enable_steady_tick(Duration::from_millis(120));
                bar
            });
            bar.reset();
            bar.set_style(
                ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect(TEMPLATE),
            );
            bar.set_message(what.to_owned());
        } else {
            inner.last_plain = Instant::now();
            drop(inner);
            self.note(format_args!("== {what}"));
        }
    }

    /// How far it is.
    pub(crate) fn advance(&self, what: &str, done: u64, of: u64) {
        let mut inner = self.lock();
        if let Some(bar) = &inner.bar {
            if bar.length() != Some(of) {
                let template = "{spinner} {msg} [{bar:30}] {pos}/{len} {elapsed}";
                bar.set_style(
                    ProgressStyle::with_template(template)
                        .expect(TEMPLATE)
                        .progress_chars("#>-"),
                );
                bar.set_length(of);
            }
            bar.set_message(what.to_owned());
            bar.set_position(done.min(of));
        } else if inner.last_plain.elapsed() >= PLAIN_EVERY {
            inner.last_plain = Instant::now();
            drop(inner);
            self.note(format_args!("   {what}: {done} of {of}"));
        }
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = self.lock().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn above_the_bar(&self, print: impl FnOnce()) {
        match &self.lock().bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const TEMPLATE: &str = "the template is a literal that was tried";
