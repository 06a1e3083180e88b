//! The running parts of a service, and the order in which they end.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::service::ServiceError;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Calls,
    Consumer(String),
    Heartbeat,
    Maintenance,
    Relay,
    RelayListener,
    RelayMetrics,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Consumer(name) => write!(f, "consumer `{name}`"),
            Part::Heartbeat => f.write_str("the heartbeat"),
            Part::Calls => f.write_str("the calls"),
            Part::Maintenance => f.write_str("the maintenance"),
            Part::Relay => f.write_str("the relay"),
            Part::RelayListener => f.write_str("the relay's listener"),
            Part::RelayMetrics => f.write_str("the relay's metrics"),
        }
    }
}

/// Parts, each in its own task. Dropped, it cuts them off.
pub(crate) struct Parts {
    tasks: JoinSet<Result<(), ServiceError>>,
    running: HashMap<Id, Part>,
    /// Ends the consumers.
    consuming: CancellationToken,
    /// Ends what serves them; later, so that their last events still leave.
    serving: CancellationToken,
    /// From the beginning of the end to its own end.
    deadline: Duration,
}

impl Parts {
    pub(crate) fn new(deadline: Duration) -> Parts {
        Parts {
            tasks: JoinSet::new(),
            running: HashMap::new(),
            consuming: CancellationToken::new(),
            serving: CancellationToken::new(),
            deadline,
        }
    }

    /// Cancelled once the end has begun.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.consuming.clone()
    }

    /// Starts a part. `work` gets the token that asks it to stop.
    pub(crate) fn start<F>(&mut self, part: Part, work: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), ServiceError>> + Send + 'static,
    {
        let stop = match part {
            Part::Consumer(_) => self.consuming.clone(),
            Part::Calls
            | Part::Heartbeat
            | Part::Maintenance
            | Part::Relay
            | Part::RelayListener
            | Part::RelayMetrics => self.serving.clone(),
        };
        let id = self.tasks.spawn(work(stop)).id();
        self.running.insert(id, part);
    }

    /// Until `shutdown` is ready or a part ends, then until all have ended or the deadline has
    /// passed. The first failure is the result; the later ones are logged.
    pub(crate) async fn run_until(
        mut self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServiceError> {
        let mut shutdown = pin!(shutdown);
        let mut failure = None;
        let mut cut_off_at: Option<Instant> = None;
        while !self.running.is_empty() {
            tokio::select! {
                () = &mut shutdown, if cut_off_at.is_none() => {
                    cut_off_at = Some(self.begin_the_end());
                }
                () = moment(cut_off_at) => {
                    failure.get_or_insert(self.cut_off());
                    break;
                }
                Some(ended) = self.tasks.join_next_with_id() => {
                    let (id, result) = match ended {
                        Ok((id, result)) => (id, Some(result)),
                        Err(panicked) => (panicked.id(), None),
                    };
                    let Some(part) = self.running.remove(&id) else { continue };
                    let error = match result {
                        Some(Ok(())) if cut_off_at.is_some() => None,
                        Some(Ok(())) => Some(ServiceError::Ended { part: part.to_string() }),
                        Some(Err(error)) => Some(error),
                        None => Some(ServiceError::Panicked { part: part.to_string() }),
                    };
                    match error {
                        None => tracing::info!(%part, "stopped"),
                        Some(error) => {
                            tracing::error!(%part, %error, "failed; the service stops");
                            failure.get_or_insert(error);
                            cut_off_at.get_or_insert_with(|| self.begin_the_end());
                        }
                    }
                    if cut_off_at.is_some() {
                        self.end_serving_without_consumers();
                    }
                }
            }
        }
        match failure {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Asks the consumers to end, and gives the moment when everything must have ended.
    fn begin_the_end(&self) -> Instant {
        self.consuming.cancel();
        self.end_serving_without_consumers();
        Instant::now() + self.deadline
    }

    fn end_serving_without_consumers(&self) {
        let consumer = |part: &Part| matches!(part, Part::Consumer(_));
        if !self.running.values().any(consumer) {
            self.serving.cancel();
        }
    }

    fn cut_off(&mut self) -> ServiceError {
        let mut running: Vec<&Part> = self.running.values().collect();
        running.sort();
        let running: Vec<String> = running.into_iter().map(Part::to_string).collect();
        tracing::error!(
            running = running.join(", "),
            "cut off at the shutdown deadline"
        );
        self.tasks.abort_all();
        ServiceError::Deadline {
            running,
            after: self.deadline,
        }
    }
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(25);

    /// What happened, in order.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn add(&self, line: impl Into<String>) {
            self.0.lock().expect("no poison").push(line.into());
        }

        fn lines(&self) -> Vec<String> {
            self.0.lock().expect("no poison").clone()
        }
    }

    fn consumer(name: &str) -> Part {
        Part::Consumer(name.to_owned())
    }

    /// A part that ends some time after it was asked to.
    fn start_orderly(parts: &mut Parts, part: Part, takes: Duration, log: &Log) {
        let log = log.clone();
        let name = part.to_string();
        parts.start(part, |stop| async move {
            stop.cancelled().await;
            log.add(format!("{name} asked"));
            tokio::time::sleep(takes).await;
            log.add(format!("{name} ended"));
            Ok(())
        });
    }

    async fn after(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn consumers_end_before_what_serves_them() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, Part::Relay, Duration::from_secs(1), &log);
        start_orderly(&mut parts, consumer("a-x"), Duration::from_secs(3), &log);
        start_orderly(&mut parts, consumer("a-y"), Duration::from_secs(2), &log);
        assert!(parts.run_until(after(60)).await.is_ok());
        let lines = log.lines();
        assert_eq!(
            lines[2..],
            [
                "consumer `a-y` ended",
                "consumer `a-x` ended",
                "the relay asked",
                "the relay ended"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_alone_is_asked_at_once() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, Part::Relay, Duration::ZERO, &log);
        let started = Instant::now();
        assert!(parts.run_until(after(1)).await.is_ok());
        assert_eq!(started.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_at_the_deadline_is_cut_off_and_named() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, Part::Relay, Duration::ZERO, &log);
        start_orderly(&mut parts, consumer("a-x"), Duration::from_secs(600), &log);
        let started = Instant::now();
        let error = parts.run_until(after(10)).await.expect_err("the deadline");
        assert_eq!(started.elapsed().as_secs(), 35);
        let ServiceError::Deadline { running, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(running, &["consumer `a-x`", "the relay"]);
        assert_eq!(
            error.to_string(),
            "after 25 s of shutting down, consumer `a-x` and the relay still ran and were cut off; \
             nothing is lost. Raise FACTUM_SHUTDOWN_DEADLINE_SECONDS, or shorten the handlers' time limits"
        );
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(log.lines(), ["consumer `a-x` asked"], "it does not go on");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_stops_the_others_and_is_the_result() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, Part::Relay, Duration::ZERO, &log);
        start_orderly(&mut parts, consumer("a-x"), Duration::from_secs(1), &log);
        parts.start(consumer("a-y"), |_| async {
            after(5).await;
            Err(ServiceError::Signals(std::io::Error::other("first")))
        });
        parts.start(consumer("a-z"), |stop| async move {
            stop.cancelled().await;
            Err(ServiceError::Signals(std::io::Error::other("second")))
        });
        let error = parts
            .run_until(std::future::pending())
            .await
            .expect_err("a failure");
        assert!(error.to_string().contains("first"), "{error}");
        assert_eq!(
            log.lines(),
            [
                "consumer `a-x` asked",
                "consumer `a-x` ended",
                "the relay asked",
                "the relay ended"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ends_unasked_is_a_failure() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, Part::Maintenance, Duration::ZERO, &log);
        parts.start(Part::Relay, |_| async { Ok(()) });
        let error = parts
            .run_until(std::future::pending())
            .await
            .expect_err("a failure");
        assert!(
            error.to_string().starts_with("the relay ended although"),
            "{error}"
        );
        assert_eq!(
            log.lines(),
            ["the maintenance asked", "the maintenance ended"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_is_a_failure() {
        let mut parts = Parts::new(DEADLINE);
        parts.start(consumer("a-x"), |_| async {
            panic!("a part's panic, as the test wants it")
        });
        let error = parts
            .run_until(std::future::pending())
            .await
            .expect_err("a failure");
        assert!(
            error.to_string().starts_with("consumer `a-x` panicked"),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_it_cuts_its_parts_off() {
        let log = Log::default();
        let mut parts = Parts::new(DEADLINE);
        start_orderly(&mut parts, consumer("a-x"), Duration::ZERO, &log);
        let run = parts.run_until(std::future::pending());
        assert!(
            tokio::time::timeout(Duration::from_secs(1), run)
                .await
                .is_err()
        );
        after(60).await;
        assert_eq!(log.lines(), Vec::<String>::new());
    }
}
