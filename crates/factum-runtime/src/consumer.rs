//! A consumer: one purpose, one group, one handler per event type.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use factum_event::{Event, EventType, Registry, RegistryError, Retry, TakenType};
use factum_kafka::{GapPolicy, GroupConsumer, GroupSettings, KafkaError, KafkaSettings, StartAt};
use factum_postgres::{Database, InstanceId};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::answer::Calls;
use crate::handler::{BatchHandler, ErasedHandler, Handler, PerBatch, PerEvent};
use crate::keyed_lane::KeyedLane;
use crate::lane::{Lane, LaneError, TombstonePolicy, UnknownPolicy};
use crate::metric::GAPS_TOTAL;
use crate::mirror;
use crate::problem::Problem;
use crate::readers::Readers;
use crate::replay::Replay;
use crate::retrier::Retrier;
use crate::retry_topic::{self, RetryTopics};
use crate::stats::{ConsumerStats, TypeCounter};
use crate::worker::{HandlingContext, ParkedCount};

/// Records in one transaction at most; beyond it a transaction only holds its locks longer.
const DEFAULT_BATCH_LIMIT: usize = 500;
const DEFAULT_HANDLER_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_RETRY_WORKERS: u32 = 4;
const MAX_CONCURRENCY: u32 = 256;
/// Records in flight for each worker, so that one slow key doesn't soon leave the others without work.
const IN_FLIGHT_FOR_EACH_WORKER: usize = 8;
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Beyond the drain deadline: the commit of the last offsets and the good-bye to the group.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// A loop for one purpose: reads the topics of its events, dedups, calls the handlers, commits.
///
/// The name identifies what was processed, for ever: `processed_event` is keyed by it. It is also
/// Kafka's group id (CONS-1: `<service>-<purpose>`), unless [`group`](Consumer::group) sets another.
///
/// A handler of an event that supersedes older versions takes those, too, each made into the new one, unless the
/// consumer has a handler of the older version itself. One fact takes effect once, in whichever version it comes
/// first, because all its versions have one id.
///
/// ```
/// # use factum_runtime::{Consumer, Handler, Tx};
/// # use factum_event::{Envelope, Event, HandlerError, Retry};
/// # struct Billing;
/// # impl<E: Event> Handler<E> for Billing {
/// #     async fn handle(&self, _: &Envelope<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> { Ok(()) }
/// # }
/// # fn build<OrderConfirmed: Event>() -> Consumer {
/// Consumer::named("billing-order-confirmed")
///     .handler::<OrderConfirmed>(Billing)
///     .retry(Retry::park())
/// # }
/// ```
#[must_use = "a consumer does nothing until a service runs it"]
pub struct Consumer {
    name: String,
    group: Option<String>,
    registry: Registry,
    handlers: HashMap<&'static str, Arc<dyn ErasedHandler>>,
    /// Event types that were given a second handler; the start check refuses them.
    doubled: Vec<&'static str>,
    /// Event types whose handler takes slices.
    in_slices: Vec<&'static str>,
    retry: Retry,
    handler_timeout: Duration,
    batch_limit: usize,
    retry_workers: u32,
    concurrency: u32,
    tombstones: TombstonePolicy,
    unknown_types: UnknownPolicy,
    start_at: StartAt,
    on_gap: GapPolicy,
    mirror: bool,
    foreign_ids: ForeignIds,
    stats: Arc<ConsumerStats>,
}

/// What to do with events whose id is a UUID of another version than 7, such as foreign producers make. Such an id says no
/// time, so the dedup table can neither find a partition for it nor tell when it may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ForeignIds {
    /// Set them aside as dead letters with the reason `event_id` (IDEM-1). The default.
    #[default]
    Refuse,
    /// Handle them, and remember each id for so many days from its handling on, 1 to 3,650, in a table of its own. **An
    /// event that comes again later than that has a second effect**, and nothing tells: take more days than the topic's
    /// retention, the retries and the replay horizon together. The start check and `factum doctor` compare them.
    Keep {
        /// Days.
        days: u32,
    },
}

impl ForeignIds {
    /// For how many days ids are remembered, if they are taken.
    pub(crate) fn days(self) -> Option<u32> {
        match self {
            ForeignIds::Refuse => None,
            ForeignIds::Keep { days } => Some(days),
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("event_types", &self.handlers.keys())
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// A consumer of that name, `<service>-<purpose>` in kebab case (CONS-1).
    pub fn named(name: impl Into<String>) -> Self {
        Consumer {
            name: name.into(),
            group: None,
            registry: Registry::new(),
            handlers: HashMap::new(),
            doubled: Vec::new(),
            in_slices: Vec::new(),
            retry: Retry::default(),
            handler_timeout: DEFAULT_HANDLER_TIMEOUT,
            batch_limit: DEFAULT_BATCH_LIMIT,
            retry_workers: DEFAULT_RETRY_WORKERS,
            concurrency: 1,
            tombstones: TombstonePolicy::default(),
            unknown_types: UnknownPolicy::default(),
            start_at: StartAt::default(),
            on_gap: GapPolicy::default(),
            mirror: false,
            foreign_ids: ForeignIds::default(),
            stats: Arc::new(ConsumerStats::default()),
        }
    }

    /// Handles events of type `E` one by one.
    pub fn handler<E: Event>(self, handler: impl Handler<E>) -> Self {
        self.with::<E>(Arc::new(PerEvent(handler, PhantomData)))
    }

    /// Handles events of type `E` in slices: for set-based SQL.
    ///
    /// Not together with [`concurrency`](Self::concurrency): there each transaction holds one event.
    pub fn batch_handler<E: Event>(mut self, handler: impl BatchHandler<E>) -> Self {
        self.in_slices.push(E::EVENT_TYPE);
        self.with::<E>(Arc::new(PerBatch(handler, PhantomData)))
    }

    fn with<E: Event>(mut self, handler: Arc<dyn ErasedHandler>) -> Self {
        if self.handlers.insert(E::EVENT_TYPE, handler).is_some() {
            self.doubled.push(E::EVENT_TYPE);
            return self;
        }
        self.registry = self.registry.with::<E>();
        self
    }

    /// Kafka's group id, where it is not the name, of the same form (CONS-1). What was processed stays known by the
    /// name: under another group the consumer reads its topics from the beginning (CONS-4), and what it had
    /// processed has no second effect. Events older than the dedup window are then set aside as `out_of_window`.
    ///
    /// Two consumers never share a group: each would get a part of the records.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// How transient failures are retried. Default: [`Retry::park`], which keeps the order of each key while every
    /// other key goes on.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Parked keys that this process retries at the same time, 1 to 64; default 4. Each takes a connection to the
    /// database while it has work.
    pub fn retry_workers(mut self, workers: u32) -> Self {
        self.retry_workers = workers;
        self
    }

    /// Handlers of this consumer that run at once in one process, over all its partitions, 1 to 256; default 1 for each
    /// partition. For slow handlers that wait for something: the work of one that computes belongs into more
    /// partitions and processes (CONS-5), and one that blocks its thread holds up everything.
    ///
    /// With 2 or more each event has a transaction of its own, and events of different keys are handled in any order. The
    /// events of one key (an event without a key goes by its aggregate's id) are still handled one after the other, also
    /// through retries and rebalances. An offset moves only below the lowest unfinished record: after a crash, what was
    /// finished above it comes again and is a duplicate. For each partition at most [`batch_limit`](Self::batch_limit)
    /// records (or 8 per worker, if that is more) and about 8 MiB of values are in flight; behind a record that takes
    /// longer than all of these the partition waits.
    ///
    /// Each running handler has a connection to the database, see `FACTUM_DATABASE_MAX_CONNECTIONS`. It can't be had
    /// together with [`batch_handler`](Self::batch_handler): the start check says so.
    ///
    /// ```
    /// # use factum_runtime::{Consumer, Handler, Tx};
    /// # use factum_event::{Envelope, Event, HandlerError};
    /// # struct Scoring;
    /// # impl<E: Event> Handler<E> for Scoring {
    /// #     async fn handle(&self, _: &Envelope<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> { Ok(()) }
    /// # }
    /// # fn build<OrderConfirmed: Event>() -> Consumer {
    /// Consumer::named("billing-order-scoring")
    ///     .handler::<OrderConfirmed>(Scoring)
    ///     .concurrency(32)
    /// # }
    /// ```
    pub fn concurrency(mut self, handlers: u32) -> Self {
        self.concurrency = handlers;
        self
    }

    /// The longest a handler may take for one call; default 30 s. It must stay below
    /// `max.poll.interval.ms` (CONS-6).
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = timeout;
        self
    }

    /// Records in one transaction at most, 1 to 10,000; default 500. When the topic is idle, a
    /// batch is whatever is there: no record waits for others.
    pub fn batch_limit(mut self, limit: usize) -> Self {
        self.batch_limit = limit;
        self
    }

    /// What to do with records without a value.
    pub fn tombstones(mut self, policy: TombstonePolicy) -> Self {
        self.tombstones = policy;
        self
    }

    /// What to do with event types that have no handler here.
    pub fn unknown_types(mut self, policy: UnknownPolicy) -> Self {
        self.unknown_types = policy;
        self
    }

    /// What to do with events whose id is a UUID of another version than 7.
    ///
    /// ```
    /// # use factum_runtime::{Consumer, ForeignIds};
    /// Consumer::named("billing-order-confirmed").foreign_ids(ForeignIds::Keep { days: 30 });
    /// ```
    pub fn foreign_ids(mut self, policy: ForeignIds) -> Self {
        self.foreign_ids = policy;
        self
    }

    /// Where a group without committed offsets begins; default: the earliest record (CONS-4). It is written down
    /// at once. A partition that is added to a topic later is read from its first record, whatever is said here.
    pub fn start_at(mut self, start_at: StartAt) -> Self {
        self.start_at = start_at;
        self
    }

    /// What to do when records are gone that were not read: dropped by the topic's retention, or gone with a topic
    /// that was deleted or made anew (CONS-4). Default: [`GapPolicy::Stop`], with an error that names them. Never is
    /// anything skipped in silence.
    ///
    /// ```
    /// # use factum_runtime::{Consumer, GapPolicy};
    /// // Prices: an old one that is lost is replaced by the next.
    /// let consumer = Consumer::named("shop-price-changed").on_gap(GapPolicy::Earliest);
    /// ```
    pub fn on_gap(mut self, policy: GapPolicy) -> Self {
        self.on_gap = policy;
        self
    }

    /// Sends a copy of each dead letter to `<topic>.dlq`, for tools that look into Kafka: the record byte for byte,
    /// and headers that say why and whence (`x-reason`, `x-path`, `x-consumer`, `x-original-…`, `x-attempt`,
    /// `x-error`). It leaves through the outbox, so some service on this database runs a relay. The table
    /// `dead_letter` stays the truth: a copy may come twice, and replays are not taken from there.
    ///
    /// The topic must exist (CFG-4); it is this consumer's own, see
    /// [`create_topics`](crate::ServiceBuilder::create_topics).
    pub fn mirror_dead_letters(mut self) -> Self {
        self.mirror = true;
        self
    }

    /// The counters. Take them before the consumer goes into a service.
    pub fn stats(&self) -> Arc<ConsumerStats> {
        self.stats.clone()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kafka's group id: the name, unless [`group`](Self::group) says otherwise.
    pub fn group_id(&self) -> &str {
        self.group.as_deref().unwrap_or(&self.name)
    }

    /// The topics of all records that it takes, older versions' too, each once, in alphabetical order.
    pub(crate) fn topics(&self) -> Vec<&'static str> {
        let taken = self.registry.taken_types();
        let mut topics: Vec<_> = taken.iter().map(|taken| taken.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// The topics in which its failed events wait, if it retries through topics.
    pub(crate) fn retry_topics(&self) -> RetryTopics {
        RetryTopics::new(&self.topics(), &self.retry)
    }

    /// The topics that its dead letters are mirrored to.
    pub(crate) fn mirror_topics(&self) -> Vec<String> {
        if !self.mirror {
            return Vec::new();
        }
        self.topics().into_iter().map(mirror::topic_of).collect()
    }

    /// The handler's time limit.
    pub(crate) fn time_limit(&self) -> Duration {
        self.handler_timeout
    }

    /// Sessions that it uses at once for so many partitions.
    pub(crate) fn sessions(&self, partitions: u32) -> u32 {
        match self.concurrency {
            0 | 1 => partitions,
            workers => workers,
        }
    }

    /// The longest time from an event's first failure to its last retry.
    pub(crate) fn retry_horizon(&self) -> Duration {
        self.retry.horizon()
    }

    /// For how many days it remembers foreign ids, if it takes any.
    pub(crate) fn foreign_days(&self) -> Option<u32> {
        self.foreign_ids.days()
    }

    /// Connections of its retrier.
    pub(crate) fn retry_connections(&self) -> u32 {
        self.retry_workers
    }

    /// What is wrong with it, apart from its name.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let problem = |rule, what: String, mend: &str| {
            Problem::new(rule, format!("consumer `{}`", self.name), what, mend)
        };
        let mut problems = Vec::new();
        if self.handlers.is_empty() {
            let mend = "add `.handler::<YourEvent>(…)`, or leave the consumer out";
            problems.push(problem("CONS-1", "it has no handler".into(), mend));
        }
        for event_type in &self.doubled {
            let what = format!("it has two handlers for `{event_type}`");
            problems.push(problem(
                "CONS-1",
                what,
                "keep one, or make a second consumer",
            ));
        }
        for conflict in self.registry.conflicts() {
            let RegistryError::Ambiguous {
                event_type,
                first,
                second,
            } = conflict
            else {
                continue;
            };
            let what = format!(
                "its handlers of `{first}` and `{second}` would both take `{event_type}`, which both supersede"
            );
            let mend = format!(
                "let one of the two supersede the other, or add a handler of `{event_type}` itself"
            );
            problems.push(problem("EVT-3", what, &mend));
        }
        if !(1..=10_000).contains(&self.batch_limit) {
            let what = format!("its batch limit is {}", self.batch_limit);
            problems.push(problem(
                "CONS-6",
                what,
                "write `.batch_limit(n)` with 1 to 10000",
            ));
        }
        if !(1..=64).contains(&self.retry_workers) {
            let what = format!("it has {} retry workers", self.retry_workers);
            problems.push(problem(
                "RTRY-1",
                what,
                "write `.retry_workers(n)` with 1 to 64",
            ));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            let what = format!("its concurrency is {}", self.concurrency);
            let mend = format!("write `.concurrency(n)` with 1 to {MAX_CONCURRENCY}");
            problems.push(problem("CONS-5", what, &mend));
        }
        if self.concurrency > 1 && !self.in_slices.is_empty() {
            let what = format!(
                "it handles {} events at once, each in a transaction of its own, and its handler of `{}` takes slices",
                self.concurrency,
                self.in_slices.join("`, `")
            );
            problems.push(problem(
                "CONS-5",
                what,
                "write `.handler` in place of `.batch_handler`, or leave `.concurrency(…)` out",
            ));
        }
        if self.handler_timeout.is_zero() {
            let what = "its handler's time limit is zero, so no handler could finish".into();
            problems.push(problem(
                "CONS-6",
                what,
                "write a `.handler_timeout(…)` of some seconds",
            ));
        }
        if let Some(days) = self.foreign_ids.days()
            && !(1..=3650).contains(&days)
        {
            let what = format!("it remembers foreign ids for {days} days");
            problems.push(problem(
                "IDEM-1",
                what,
                "write `.foreign_ids(ForeignIds::Keep { days })` with 1 to 3650",
            ));
        }
        problems.extend(retry_topic::problems(&self.name, &self.retry));
        // A restart while the first retry of a partition waits there would begin behind it.
        if self.start_at == StartAt::Latest && self.retry_topics().names().next().is_some() {
            let what = "it begins at the latest record and retries through topics: what waits there could be skipped";
            problems.push(problem(
                "CONS-4",
                what.into(),
                "leave `.start_at(…)` out, or take Retry::park() or Retry::pause_partition()",
            ));
        }
        problems
    }

    /// Reads and handles until `shutdown`, then drains.
    pub(crate) async fn run(
        self,
        context: ConsumerContext,
        shutdown: CancellationToken,
    ) -> Result<(), ConsumerError> {
        let message_max_bytes = context.kafka.producer.get("message.max.bytes");
        let retry_topics = self
            .retry_topics()
            .with_message_max_bytes(message_max_bytes);
        let topics = self.topics();
        let group = GroupSettings {
            group_id: self.group_id().to_owned(),
            topics: topics
                .into_iter()
                .chain(retry_topics.names())
                .map(str::to_owned)
                .collect(),
            start_at: self.start_at,
            on_gap: self.on_gap,
            commit_interval: COMMIT_INTERVAL,
            drain_deadline: context.drain_deadline,
        };
        for topic in &group.topics {
            // So that it is there before anything happens.
            metrics::counter!(GAPS_TOTAL, "consumer" => self.name.clone(), "topic" => topic.clone())
                .increment(0);
        }
        let stats = self.stats.clone();
        let taken = self.registry.taken_types();
        // A consumer runs once: its counters have no types yet.
        let _ = stats
            .types
            .set(taken.iter().map(TypeCounter::new).collect());
        let readers = Readers {
            consumer: self.name.clone(),
            group: group.group_id.clone(),
            retry_horizon: self.retry.horizon(),
            foreign_days: self.foreign_ids.days(),
            taken: with_newest(&taken),
            stats: stats.clone(),
            db: context.db.clone(),
        };
        let limit = self
            .batch_limit
            .max(self.concurrency as usize * IN_FLIGHT_FOR_EACH_WORKER);
        let workers =
            (self.concurrency > 1).then(|| Arc::new(Semaphore::new(self.concurrency as usize)));
        let lane_context = Arc::new(HandlingContext {
            consumer: self.name.clone(),
            registry: match self.foreign_ids {
                ForeignIds::Refuse => self.registry,
                ForeignIds::Keep { .. } => self.registry.with_foreign_ids(),
            },
            foreign_days: self.foreign_ids.days(),
            handlers: self.handlers,
            retry: self.retry,
            handler_timeout: self.handler_timeout,
            batch_limit: self.batch_limit,
            tombstones: self.tombstones,
            unknown_types: self.unknown_types,
            retry_topics,
            mirror: self.mirror,
            calls: context.calls,
            db: context.db,
            stats: self.stats,
            parked: ParkedCount::default(),
            build: context.build,
        });

        let tasks = TaskTracker::new();
        let (report, mut reports) = mpsc::unbounded_channel::<LaneError>();
        let runtime = tokio::runtime::Handle::current();
        let spawner = TaskSpawner {
            tasks: tasks.clone(),
            runtime,
            consumer: self.name.clone(),
            report,
        };
        let of_lanes = spawner.clone();
        let contexts = lane_context.clone();
        let consumer = GroupConsumer::start(
            &context.kafka,
            &group,
            move |feed| {
                let context = contexts.clone();
                match &workers {
                    None => of_lanes.spawn(Lane::new(context, feed).run()),
                    Some(workers) => {
                        let workers = workers.clone();
                        of_lanes.spawn(KeyedLane::new(context, feed, workers, limit).run());
                    }
                }
            },
            {
                let name = self.name.clone();
                move |gap| {
                    let topic = gap.topic.clone();
                    metrics::counter!(GAPS_TOTAL, "consumer" => name.clone(), "topic" => topic)
                        .increment(1);
                }
            },
        )?;
        let drain = CancellationToken::new();
        let abort = CancellationToken::new();
        // Where this future is dropped, the retrier and the replay end, too.
        let _cut_off = (drain.clone().drop_guard(), abort.clone().drop_guard());
        let retrier = Retrier::new(lane_context.clone(), drain.clone(), abort.clone());
        spawner.spawn(retrier.run(self.retry_workers));
        let replay = Replay::new(lane_context, context.instance, drain.clone(), abort.clone());
        spawner.spawn(replay.run());
        drop(spawner);
        // A consumer runs once: its counters have no group yet.
        let _ = stats.group.set(consumer.stats());

        let no_more_records = CancellationToken::new();
        let readers = AbortOnDropHandle::new(tokio::spawn(readers.run(no_more_records.clone())));
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            Some(error) = reports.recv() => Err(ConsumerError::Lane(error)),
            Some(error) = consumer.failed() => Err(ConsumerError::Kafka(error)),
        };
        drain.cancel();
        let _deadline = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(context.drain_deadline).await;
            abort.cancel();
        }));
        if !consumer.stop(context.drain_deadline + LEAVE_LIMIT).await {
            tracing::error!(consumer = %self.name, "the Kafka client did not close in time; it is left behind");
        }
        tasks.close();
        if tokio::time::timeout(context.drain_deadline, tasks.wait())
            .await
            .is_err()
        {
            tracing::error!(consumer = %self.name, "a lane, the retrier or a replay did not end in time; its transaction is rolled back by the database");
        }
        no_more_records.cancel();
        // It ends within a second, and it can't fail.
        let _ = readers.await;
        match (ended, reports.try_recv()) {
            (Ok(()), Ok(error)) => Err(ConsumerError::Lane(error)),
            (ended, _) => ended,
        }
    }
}

/// Runs what works through transactions in tasks that nobody cancels, and reports what ends badly.
#[derive(Clone)]
struct TaskSpawner {
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
    consumer: String,
    report: mpsc::UnboundedSender<LaneError>,
}

impl TaskSpawner {
    fn spawn(&self, work: impl Future<Output = Result<(), LaneError>> + Send + 'static) {
        let report = self.report.clone();
        let consumer = self.consumer.clone();
        // The inner task is never cancelled; the outer one only tells of its end.
        let work = self.tasks.spawn_on(work, &self.runtime);
        self.tasks.spawn_on(
            async move {
                let error = match work.await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(_panic) => LaneError::Panicked { consumer },
                };
                // The consumer listens until its last lane has ended.
                let _ = report.send(error);
            },
            &self.runtime,
        );
    }
}

/// Each type of records with the newest version of its event that the consumer has a handler for.
fn with_newest(taken: &[TakenType]) -> Vec<(TakenType, &'static str)> {
    let parsed = |event_type: &str| event_type.parse::<EventType>().ok();
    let newest = |of: &TakenType| {
        let event = parsed(of.taken_as)?;
        let versions = taken.iter().filter_map(|other| {
            let version = parsed(other.taken_as)?;
            let same = (version.aggregate(), version.event()) == (event.aggregate(), event.event());
            same.then_some((version.version(), other.taken_as))
        });
        versions.max().map(|(_, newest)| newest)
    };
    let with = |of: &TakenType| (*of, newest(of).unwrap_or(of.taken_as));
    taken.iter().map(with).collect()
}

/// What a consumer needs from its service.
pub(crate) struct ConsumerContext {
    pub(crate) db: Database,
    pub(crate) kafka: KafkaSettings,
    pub(crate) calls: Option<Arc<Calls>>,
    pub(crate) drain_deadline: Duration,
    /// This process, for who carries a replay out.
    pub(crate) instance: InstanceId,
    pub(crate) build: String,
}

/// Why a consumer stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// A handler made it impossible to go on.
    #[error(transparent)]
    Lane(LaneError),
    /// The Kafka client failed for good.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}
