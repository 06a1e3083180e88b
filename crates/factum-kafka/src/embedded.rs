//! A broker inside the process: librdkafka's mock cluster.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

/// A Kafka-like broker inside this process, for tests and the demo, on loopback ports of the system's choice.
/// It is librdkafka's mock cluster, so it costs no build and starts in milliseconds.
///
/// **It is not Kafka.** What to mind:
///
/// - **It drops records without a word**: beyond 5 MiB or 100,000 batches in one partition the oldest
///   go. Stay below, and check that `low` is 0 with [`watermarks`](crate::watermarks) at the end.
/// - It keeps nothing on disk. When the value is dropped, everything is gone.
/// - Only librdkafka clients talk to it. It has no admin requests, so make topics with
///   [`EmbeddedBroker::create_topic`]; [`create_topics`](crate::create_topics) fails here.
/// - It creates an unknown topic when a client's metadata request allows that, with 4 partitions. No
///   client of this crate does.
/// - It does not check the sequence numbers of an idempotent producer: that a refused batch is not
///   overtaken shows on a real broker only.
/// - A new consumer group waits 3 s for its first assignment. A `session.timeout.ms` at or below that
///   throws the first member out while it waits, and it waits for ever: use 4 s or more.
///
/// ```
/// use factum_kafka::{EmbeddedBroker, KafkaSettings};
///
/// let broker = EmbeddedBroker::start(1)?;
/// broker.create_topic("orders.confirmed", 4)?;
/// let settings = KafkaSettings::new(broker.bootstrap_servers(), "billing");
/// # assert!(settings.check().is_empty());
/// # Ok::<(), factum_kafka::EmbeddedBrokerError>(())
/// ```
#[derive(Debug)]
pub struct EmbeddedBroker {
    bootstrap_servers: String,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// The embedded broker could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the embedded broker failed at {what}: {cause}")]
pub struct EmbeddedBrokerError {
    what: &'static str,
    cause: String,
}

/// A kind of request that the embedded broker can be told to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerRequest {
    /// Writing records.
    Produce,
    /// Reading records.
    Fetch,
    /// Asking for topics and brokers.
    Metadata,
    /// Getting a producer id, at the start of an idempotent producer.
    InitProducerId,
    /// Committing offsets.
    OffsetCommit,
    /// Reading committed offsets.
    OffsetFetch,
    /// Finding a group's coordinator.
    FindCoordinator,
    /// Joining a group.
    JoinGroup,
    /// Getting the assignment.
    SyncGroup,
    /// Staying in a group.
    Heartbeat,
}

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerFault {
    /// The connection breaks.
    Disconnect,
    /// Too few replicas are in sync; worth another try.
    NotEnoughReplicas,
    /// The broker does not lead the partition; worth another try.
    NotLeader,
    /// The request took too long at the broker; worth another try.
    TimedOut,
    /// The batch is larger than the topic allows.
    MessageTooLarge,
    /// The record is refused as it is.
    InvalidRecord,
    /// The topic or partition is not there.
    UnknownTopic,
    /// The client may not write to the topic.
    TopicAuthorization,
    /// The producer's numbering has a gap.
    OutOfOrderSequence,
    /// The producer's epoch is old.
    InvalidProducerEpoch,
    /// The broker has forgotten the producer.
    UnknownProducerId,
    /// The group is being rebalanced.
    RebalanceInProgress,
    /// The group does not know the member any more.
    UnknownMember,
    /// The member's generation is over.
    IllegalGeneration,
    /// The group's coordinator is somewhere else.
    NotCoordinator,
}

type Act = Box<dyn FnOnce(&MockCluster<'static, DefaultProducerContext>) -> Answer + Send>;
type Answer = Result<(), String>;

struct Order {
    act: Act,
    answer: mpsc::SyncSender<Answer>,
}

/// How long an order to the broker's thread may take.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

impl EmbeddedBroker {
    /// Starts `brokers` brokers (at least 1), which know each other.
    ///
    /// # Errors
    ///
    /// No port or no thread could be had.
    pub fn start(brokers: i32) -> Result<EmbeddedBroker, EmbeddedBrokerError> {
        let fail = |cause: String| EmbeddedBrokerError {
            what: "its start",
            cause,
        };
        let (orders, inbox) = mpsc::channel::<Order>();
        let (started, at_start) = mpsc::sync_channel(1);
        // The handle of the mock cluster may not leave its thread, so it gets one of its own.
        let thread = std::thread::Builder::new()
            .name("factum-embedded-broker".to_owned())
            .spawn(move || {
                let cluster = match MockCluster::new(brokers.max(1)) {
                    Ok(cluster) => cluster,
                    Err(error) => {
                        let _ = started.send(Err(error.to_string()));
                        return;
                    }
                };
                let _ = started.send(Ok(cluster.bootstrap_servers()));
                while let Ok(Order { act, answer }) = inbox.recv() {
                    // The caller may have given up waiting.
                    let _ = answer.send(act(&cluster));
                }
            })
            .map_err(|error| fail(error.to_string()))?;
        let bootstrap_servers = at_start
            .recv_timeout(ORDER_LIMIT)
            .map_err(|error| fail(error.to_string()))?
            .map_err(fail)?;
        Ok(EmbeddedBroker {
            bootstrap_servers,
            orders,
            thread: Some(thread),
        })
    }

    /// `host:port` of every broker, separated by commas.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Makes a topic. One that exists is left as it is.
    ///
    /// # Errors
    ///
    /// The name or the number is not legal.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), EmbeddedBrokerError> {
        let name = name.to_owned();
        self.order("creating a topic", move |cluster| {
            use rdkafka::error::KafkaError;
            use rdkafka::types::RDKafkaErrorCode as Code;
            match cluster.create_topic(&name, partitions, 1) {
                Ok(()) | Err(KafkaError::MockCluster(Code::TopicAlreadyExists)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    /// Cuts a broker's connections and takes no new one, until [`EmbeddedBroker::broker_up`]. Brokers
    /// are numbered from 1; -1 means all. Partitions keep their leader.
    ///
    /// # Errors
    ///
    /// There is no such broker.
    pub fn broker_down(&self, broker: i32) -> Result<(), EmbeddedBrokerError> {
        self.order("taking a broker down", move |cluster| {
            cluster.broker_down(broker).map_err(|e| e.to_string())
        })
    }

    /// Lets a broker, from 1, or all with -1, take connections again.
    ///
    /// # Errors
    ///
    /// There is no such broker.
    pub fn broker_up(&self, broker: i32) -> Result<(), EmbeddedBrokerError> {
        self.order("bringing a broker up", move |cluster| {
            cluster.broker_up(broker).map_err(|e| e.to_string())
        })
    }

    /// Delays every answer of a broker, from 1, or of all with -1.
    ///
    /// # Errors
    ///
    /// There is no such broker.
    pub fn round_trip_time(&self, broker: i32, delay: Duration) -> Result<(), EmbeddedBrokerError> {
        self.order("setting a round trip time", move |cluster| {
            cluster
                .broker_round_trip_time(broker, delay)
                .map_err(|e| e.to_string())
        })
    }

    /// Moves a partition to another broker, from 1; nothing leaves it without a leader.
    ///
    /// # Errors
    ///
    /// There is no such broker or partition.
    pub fn partition_leader(
        &self,
        topic: &str,
        partition: i32,
        broker: Option<i32>,
    ) -> Result<(), EmbeddedBrokerError> {
        let topic = topic.to_owned();
        self.order("moving a partition", move |cluster| {
            cluster
                .partition_leader(&topic, partition, broker)
                .map_err(|e| e.to_string())
        })
    }

    /// Fails the next requests of a kind, one for each fault, in order.
    ///
    /// # Errors
    ///
    /// The broker's thread is gone.
    pub fn fail_next(
        &self,
        request: BrokerRequest,
        faults: &[BrokerFault],
    ) -> Result<(), EmbeddedBrokerError> {
        let codes: Vec<RDKafkaRespErr> = faults.iter().map(|fault| fault.code()).collect();
        self.order("pushing faults", move |cluster| {
            cluster.request_errors(request.key(), &codes);
            Ok(())
        })
    }

    /// Forgets the faults of a kind of request that have not happened yet.
    ///
    /// # Errors
    ///
    /// The broker's thread is gone.
    pub fn fail_no_more(&self, request: BrokerRequest) -> Result<(), EmbeddedBrokerError> {
        self.order("clearing faults", move |cluster| {
            cluster.clear_request_errors(request.key());
            Ok(())
        })
    }

    fn order(
        &self,
        what: &'static str,
        act: impl FnOnce(&MockCluster<'static, DefaultProducerContext>) -> Answer + Send + 'static,
    ) -> Result<(), EmbeddedBrokerError> {
        let fail = |cause: String| EmbeddedBrokerError { what, cause };
        let (answer, answered) = mpsc::sync_channel(1);
        self.orders
            .send(Order {
                act: Box::new(act),
                answer,
            })
            .map_err(|_| fail("its thread is gone".to_owned()))?;
        answered
            .recv_timeout(ORDER_LIMIT)
            .map_err(|error| fail(error.to_string()))?
            .map_err(fail)
    }
}

impl Drop for EmbeddedBroker {
    /// Stops the brokers and waits for their thread.
    fn drop(&mut self) {
        // Hanging up ends the thread's loop.
        self.orders = mpsc::channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BrokerRequest {
    fn key(self) -> RDKafkaApiKey {
        match self {
            BrokerRequest::Produce => RDKafkaApiKey::Produce,
            BrokerRequest::Fetch => RDKafkaApiKey::Fetch,
            BrokerRequest::Metadata => RDKafkaApiKey::Metadata,
            BrokerRequest::InitProducerId => RDKafkaApiKey::InitProducerId,
            BrokerRequest::OffsetCommit => RDKafkaApiKey::OffsetCommit,
            BrokerRequest::OffsetFetch => RDKafkaApiKey::OffsetFetch,
            BrokerRequest::FindCoordinator => RDKafkaApiKey::FindCoordinator,
            BrokerRequest::JoinGroup => RDKafkaApiKey::JoinGroup,
            BrokerRequest::SyncGroup => RDKafkaApiKey::SyncGroup,
            BrokerRequest::Heartbeat => RDKafkaApiKey::Heartbeat,
        }
    }
}

impl BrokerFault {
    fn code(self) -> RDKafkaRespErr {
        use RDKafkaRespErr as E;
        match self {
            BrokerFault::Disconnect => E::RD_KAFKA_RESP_ERR__TRANSPORT,
            BrokerFault::NotEnoughReplicas => E::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            BrokerFault::NotLeader => E::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            BrokerFault::TimedOut => E::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            BrokerFault::MessageTooLarge => E::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
            BrokerFault::InvalidRecord => E::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            BrokerFault::UnknownTopic => E::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
            BrokerFault::TopicAuthorization => E::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            BrokerFault::OutOfOrderSequence => E::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            BrokerFault::InvalidProducerEpoch => E::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
            BrokerFault::UnknownProducerId => E::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
            BrokerFault::RebalanceInProgress => E::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
            BrokerFault::UnknownMember => E::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID,
            BrokerFault::IllegalGeneration => E::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION,
            BrokerFault::NotCoordinator => E::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
        }
    }
}
