//! What wakes a relay that finds nothing to send: the time for its next look, or a notification of the database's.

use std::sync::Arc;
use std::time::Duration;

use factum_postgres::{Database, DatabaseError, RelayListener};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::metric;

/// How long a relay finds nothing before it sleeps. Transactions that take longer between INSERT and COMMIT may be
/// heard of only by the next look, so this is longer than most.
const QUIET: Duration = Duration::from_millis(200);
/// How often a relay looks by itself while it sleeps.
const SLEEPING_POLL: Duration = Duration::from_secs(1);
/// How often a connection on which nothing is heard is asked whether it lives.
const PING_EVERY: Duration = Duration::from_secs(30);
/// The pause before the listener connects again; it doubles up to the last.
const CONNECT_FIRST: Duration = Duration::from_millis(100);
const CONNECT_LAST: Duration = Duration::from_secs(5);

/// How a relay that has nothing to send learns of new rows: `FACTUM_RELAY_WAKE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayWake {
    /// It looks again after its `idle_poll`. No writer pays anything for it.
    #[default]
    Poll,
    /// It sleeps, looks once a second, and is notified (`LISTEN`). Writers pay a look for each INSERT statement, and
    /// the first ones after a silence a NOTIFY. It needs `factum migrate up --relay-wake listen`.
    Listen,
}

impl RelayWake {
    /// `poll` or `listen`, as `FACTUM_RELAY_WAKE` has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RelayWake::Poll => "poll",
            RelayWake::Listen => "listen",
        }
    }
}

/// What ended a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WokenBy {
    /// It was time for another look.
    Poll,
    /// The database told of new rows.
    Notification,
}

/// What writers do when they insert rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// They notify nobody of this relay.
    Silent,
    /// They have notified since then.
    Notify(Instant),
    /// One has notified, and now they are silent.
    HaveNotified,
}

/// The relay's end: it rests here after a claim that found nothing. Clones share what they know, so that several
/// tasks of one relay may rest.
#[derive(Clone)]
pub(crate) struct Wake {
    /// Since when no claim has found anything; `None` while some do, and while there is no lease.
    quiet: Arc<watch::Sender<Option<Instant>>>,
    writers: watch::Receiver<Writers>,
    sleeping_poll: Duration,
    polls: metrics::Counter,
    notifications: metrics::Counter,
}

impl Wake {
    /// One that nobody notifies.
    pub(crate) fn polling(service: &str) -> Wake {
        Wake::new(service, watch::Sender::new(Writers::Silent).subscribe())
    }

    /// One that its [`Listener`] notifies, which has to run.
    pub(crate) fn listening(service: &str, db: Database) -> (Wake, Listener) {
        let writers = watch::Sender::new(Writers::Silent);
        let wake = Wake::new(service, writers.subscribe());
        let listener = Listener {
            db,
            quiet: wake.quiet.subscribe(),
            relay: Arc::clone(&wake.quiet),
            writers,
        };
        (wake, listener)
    }

    fn new(service: &str, writers: watch::Receiver<Writers>) -> Wake {
        let counter = |by| metrics::counter!(metric::RELAY_WAKEUPS_TOTAL, "service" => service.to_owned(), "by" => by);
        Wake {
            quiet: Arc::new(watch::Sender::new(None)),
            writers,
            sleeping_poll: SLEEPING_POLL,
            polls: counter("poll"),
            notifications: counter("notification"),
        }
    }

    /// A claim found something, or this relay sends nothing for now: writers need not notify it.
    pub(crate) fn busy(&self) {
        self.quiet.send_if_modified(|quiet| quiet.take().is_some());
    }

    /// Waits for the next claim after one that was begun at `asked_at` and found nothing: for `poll`, or while writers
    /// notify for longer, until one does.
    pub(crate) async fn rest(&self, asked_at: Instant, poll: Duration) -> WokenBy {
        self.quiet.send_if_modified(|quiet| {
            let begins = quiet.is_none();
            quiet.get_or_insert(asked_at);
            begins
        });
        let mut writers = self.writers.clone();
        let now = *writers.borrow_and_update();
        let woken_by = match now {
            // A claim from before writers began to notify may have missed a row of which nobody told.
            Writers::Notify(since) if since <= asked_at => tokio::select! {
                Ok(()) = writers.changed() => match *writers.borrow() {
                    Writers::HaveNotified => WokenBy::Notification,
                    Writers::Silent | Writers::Notify(_) => WokenBy::Poll,
                },
                () = sleep(self.sleeping_poll) => WokenBy::Poll,
            },
            Writers::Notify(_) | Writers::Silent | Writers::HaveNotified => {
                sleep(poll).await;
                WokenBy::Poll
            }
        };
        match woken_by {
            WokenBy::Poll => self.polls.increment(1),
            WokenBy::Notification => self.notifications.increment(1),
        }
        woken_by
    }
}

/// The database's end: says when the relay sleeps, and hears of new rows. While its connection is away, the relay
/// looks as often as without it.
pub(crate) struct Listener {
    db: Database,
    quiet: watch::Receiver<Option<Instant>>,
    relay: Arc<watch::Sender<Option<Instant>>>,
    writers: watch::Sender<Writers>,
}

impl Listener {
    /// Until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.keep_listening() => {}
        }
        self.writers.send_replace(Writers::Silent);
    }

    async fn keep_listening(&mut self) {
        let mut pause = CONNECT_FIRST;
        let mut away = false;
        loop {
            let error = match RelayListener::connect(&self.db).await {
                Ok(listener) => {
                    if away {
                        tracing::info!("the relay's listener hears of new rows again");
                    }
                    (pause, away) = (CONNECT_FIRST, false);
                    self.listen(listener).await
                }
                Err(error) => error,
            };
            // At least none of whom this relay would hear.
            self.writers.send_replace(Writers::Silent);
            if !away {
                away = true;
                tracing::warn!(%error, "the relay's listener has no connection and tries again; until then the relay polls");
            }
            sleep(pause).await;
            pause = (pause * 2).min(CONNECT_LAST);
        }
    }

    /// Sleeps and wakes with the relay until the connection is lost.
    async fn listen(&mut self, mut listener: RelayListener) -> DatabaseError {
        loop {
            self.quiet_for(QUIET).await;
            if let Err(error) = listener.sleep().await {
                return error;
            }
            self.writers.send_replace(Writers::Notify(Instant::now()));
            tokio::select! {
                heard = hear(&mut listener) => {
                    if let Err(error) = heard {
                        return error;
                    }
                    self.writers.send_replace(Writers::HaveNotified);
                }
                _ = self.quiet.wait_for(Option::is_none) => {
                    self.writers.send_replace(Writers::Silent);
                }
            }
            // Whatever the next claim finds: writers notify again only after another silence.
            self.relay.send_if_modified(|quiet| {
                let resting = quiet.is_some();
                *quiet = resting.then(Instant::now);
                resting
            });
            if let Err(error) = listener.wake().await {
                return error;
            }
        }
    }

    /// Until the relay has found nothing for so long.
    async fn quiet_for(&mut self, wanted: Duration) {
        loop {
            let since = *self.quiet.borrow_and_update();
            // Its sender is held here as well, so a change is all that ends this.
            match since {
                None => drop(self.quiet.changed().await),
                Some(since) => tokio::select! {
                    () = sleep_until(since + wanted) => return,
                    _ = self.quiet.changed() => {}
                },
            }
        }
    }
}

async fn hear(listener: &mut RelayListener) -> Result<(), DatabaseError> {
    loop {
        match timeout(PING_EVERY, listener.notified()).await {
            Ok(heard) => return heard,
            Err(_) => listener.ping().await?,
        }
    }
}

#[cfg(test)]
mod tests;
