//! A server that is away.

use std::fmt;
use std::time::{Duration, Instant};

/// The first pause of the whole relay when a server is away; it doubles up to the last.
const TROUBLE_FIRST: Duration = Duration::from_millis(50);
const TROUBLE_LAST: Duration = Duration::from_secs(1);
/// How often a trouble that lasts is logged again.
const TROUBLE_LOGGED_EVERY: Duration = Duration::from_secs(30);

/// A server that is away: how long to pause, and what to say how often.
#[derive(Debug)]
pub(super) struct Trouble {
    with: &'static str,
    since: Option<Instant>,
    logged_at: Option<Instant>,
    pause: Duration,
}

impl Trouble {
    pub(super) fn new(with: &'static str) -> Trouble {
        Trouble {
            with,
            since: None,
            logged_at: None,
            pause: TROUBLE_FIRST,
        }
    }

    /// Logs the trouble, at first and from time to time.
    pub(super) fn note(&mut self, error: &dyn fmt::Display) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        if self
            .logged_at
            .is_none_or(|at| now - at >= TROUBLE_LOGGED_EVERY)
        {
            self.logged_at = Some(now);
            tracing::warn!(error = %error, "the relay has trouble with {} and tries again", self.with);
        }
    }

    /// How long to wait before the next try.
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(TROUBLE_LAST);
        jittered(pause)
    }

    pub(super) fn pause(&mut self, error: &dyn fmt::Display) -> Duration {
        self.note(error);
        self.next_pause()
    }

    pub(super) fn over(&mut self) {
        if let Some(since) = self.since {
            tracing::info!(
                seconds = since.elapsed().as_secs_f64(),
                "the relay's trouble with {} is over",
                self.with
            );
        }
        *self = Trouble::new(self.with);
    }
}

/// Between a half and the whole, so that relays and keys don't come back all at once.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
