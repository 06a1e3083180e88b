//! Ctrl-C, and what else asks a task to end.

use std::time::Duration;

use anyhow::{Context as _, Result};
use factum_testing::tool;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::screen::Screen;

/// How long what was started may take to end by itself, before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the task may then take to clean up, before it is left: servers still end, since they
/// watch us.
const CLEAN_UP: Duration = Duration::from_secs(25);

/// From now on a signal interrupts everything that the task has started. The task itself then fails
/// at the next thing it does, drops its servers and ends.
pub(crate) fn watch(screen: &Screen) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watching for Ctrl-C")?;
    let screen = screen.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let again = tool::is_interrupted();
            tool::interrupt();
            if !again {
                screen.note("interrupted: ending what runs; once more ends it at once");
                std::thread::spawn(|| {
                    std::thread::sleep(PATIENCE);
                    tool::interrupt();
                    std::thread::sleep(CLEAN_UP);
                    std::process::exit(130);
                });
            }
        }
    });
    Ok(())
}
