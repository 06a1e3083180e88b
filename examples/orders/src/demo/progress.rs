//! Showing how a run goes on: a bar on a terminal, plain lines elsewhere. All on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps between two plain lines, of a hundred.
const PLAIN_EVERY_PERCENT: u64 = 10;

/// The display.
#[derive(Debug)]
pub struct Display {
    /// None where nobody looks at a bar.
    bar: Option<ProgressBar>,
    length: u64,
    next_percent: u64,
}

impl Display {
    /// A display of so many effects.
    pub fn new(length: u64) -> Display {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            let color = if std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) {
                ""
            } else {
                ".green"
            };
            let template =
                format!("{{elapsed:>4}} [{{bar:30{color}}}] {{pos}}/{{len}} effects  {{wide_msg}}");
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Display {
            bar,
            length,
            next_percent: PLAIN_EVERY_PERCENT,
        }
    }

    /// Tells of something that happened.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say(text),
        }
    }

    /// Shows how many effects there are.
    pub fn at(&mut self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            return;
        }
        let percent = position * 100 / self.length.max(1);
        if percent >= self.next_percent {
            self.line(&format!(
                "{percent} %: {position} of {} effects",
                self.length
            ));
            self.next_percent = percent - percent % PLAIN_EVERY_PERCENT + PLAIN_EVERY_PERCENT;
        }
    }

    /// Says what is being waited for.
    pub fn waiting_for(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("waiting for {text}"));
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

/// Writes a line to standard error. Nobody may be listening any more: that is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
