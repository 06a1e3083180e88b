//! Ctrl-C, and what else asks the bench to end.

use std::time::Duration;

use anyhow::{Context as _, Result};
use factum_testing::tool;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::display;

/// How long the bench may take to clean up before it is left: servers and contenders still end, since they
/// watch us.
const CLEAN_UP: Duration = Duration::from_secs(25);

/// From now on a signal interrupts everything that was started. The bench then fails at the next thing it does,
/// drops its servers and ends.
pub(crate) fn watch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watching for Ctrl-C")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let again = tool::is_interrupted();
            tool::interrupt();
            if again {
                continue;
            }
            display::note("interrupted: ending what runs");
            std::thread::spawn(|| {
                std::thread::sleep(CLEAN_UP);
                std::process::exit(130);
            });
        }
    });
    Ok(())
}
