//! What a person sees meanwhile: a bar on a terminal, plain lines elsewhere, all on stderr.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The bar, if there is a terminal.
#[derive(Debug)]
pub(crate) struct Display {
    bar: Option<ProgressBar>,
}

impl Display {
    /// For so many runs of contenders.
    pub(crate) fn new(runs: u64) -> Display {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(runs);
            // The template is a literal that was tried.
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} [{bar:30}] {pos}/{len} {elapsed} {msg}")
            {
                bar.set_style(style.progress_chars("#>-"));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Display { bar }
    }

    /// What goes on now.
    pub(crate) fn now(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// A run has ended, and this came of it.
    pub(crate) fn ended(&self, what: impl std::fmt::Display) {
        match &self.bar {
            Some(bar) => {
                bar.println(what.to_string());
                bar.inc(1);
            }
            None => note(what),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A line that is not data.
pub(crate) fn note(line: impl std::fmt::Display) {
    print(io::stderr(), line);
}

/// A line of data.
pub(crate) fn data(line: impl std::fmt::Display) {
    print(io::stdout(), line);
}

fn print(mut to: impl io::Write, line: impl std::fmt::Display) {
    // A reader that has gone away, such as `head`, is no reason to fail.
    let _ = writeln!(to, "{line}");
}

/// Rows with aligned columns.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("  ").trim_end().to_string()
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".to_owned(), "b".to_owned()],
            vec!["long".to_owned(), "µs".to_owned()],
        ];
        assert_eq!(table(&rows), "a     b\nlong  µs");
        assert_eq!(table(&[]), "");
    }
}
