//! How to reach the brokers, and what nobody may weaken on the way.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};

use crate::topology::is_legal_topic;

/// How a service reaches Kafka.
///
/// `Debug` redacts: the password never shows, and of the extra properties only the names do.
///
/// ```
/// use factum_kafka::KafkaSettings;
///
/// let settings = KafkaSettings::new("127.0.0.1:9092", "billing");
/// assert!(settings.check().is_empty());
///
/// let mut weakened = settings;
/// weakened.producer.insert("acks".to_owned(), "1".to_owned());
/// let problems = weakened.check();
/// assert_eq!(problems[0].rule(), "PROD-1");
/// ```
#[derive(Clone)]
pub struct KafkaSettings {
    /// `host:port`, separated by commas (CFG-2: never hard-coded).
    pub brokers: String,
    /// The name under which the brokers know this service (SEC-2).
    pub client_id: String,
    /// Encryption and credentials (SEC-1, SEC-2).
    pub security: Security,
    /// How the members of a consumer group agree on who reads what.
    pub group_protocol: GroupProtocol,
    /// The stable name of this process among the replicas of its service, as `group.instance.id`:
    /// where it comes back under this name within the session timeout, its partitions stay with it and
    /// the others are not disturbed. Each replica has its own, the same after each restart; two that
    /// share one throw each other out. Nothing for replicas without a name that lasts.
    pub instance: Option<String>,
    /// Extra librdkafka properties of the producer, by name. [`KafkaSettings::check`] refuses those
    /// that would weaken a promise.
    pub producer: BTreeMap<String, String>,
    /// Extra librdkafka properties of the consumer, by name. [`KafkaSettings::check`] refuses those
    /// that would weaken a promise.
    pub consumer: BTreeMap<String, String>,
}

/// How the members of a consumer group agree on who reads what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupProtocol {
    /// The members agree among themselves; every broker knows it. Partitions that stay with their
    /// member are read on during a rebalance (cooperative-sticky). The default.
    #[default]
    Classic,
    /// The brokers decide (KIP-848): quicker, and no member waits for a slow one. Brokers from Kafka 4.0
    /// on have it; they also set session timeout and heartbeat.
    Consumer,
}

impl GroupProtocol {
    /// Its name in `FACTUM_GROUP_PROTOCOL` and `group.protocol`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            GroupProtocol::Classic => "classic",
            GroupProtocol::Consumer => "consumer",
        }
    }
}

/// How the connection is protected (SEC-1, SEC-2). With TLS the broker's certificate and host name
/// are always verified; a private authority goes into `ca_location`.
#[derive(Clone)]
pub enum Security {
    /// Nothing. For development on one machine only; the service refuses it elsewhere (SEC-X1).
    Plaintext,
    /// TLS, without credentials in the protocol.
    Tls {
        /// A file or directory with the authorities to trust (PEM); nothing means the system's.
        ca_location: Option<PathBuf>,
    },
    /// A user name and a password.
    Sasl {
        /// Whether the connection is encrypted. Without it the service refuses to start outside development.
        tls: bool,
        /// How the password is proved.
        mechanism: SaslMechanism,
        /// The user, one per service (SEC-2).
        username: String,
        /// The password. It never shows in `Debug`, an error or a log line.
        password: SecretString,
        /// A file or directory with the authorities to trust (PEM); nothing means the system's.
        ca_location: Option<PathBuf>,
    },
}

/// How a password is proved to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    /// The password itself travels: only ever with TLS.
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512.
    ScramSha512,
}

impl SaslMechanism {
    /// The name on the wire and in `KAFKA_SASL_MECHANISM`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl std::str::FromStr for SaslMechanism {
    type Err = UnknownSaslMechanism;

    fn from_str(text: &str) -> Result<SaslMechanism, UnknownSaslMechanism> {
        [
            SaslMechanism::Plain,
            SaslMechanism::ScramSha256,
            SaslMechanism::ScramSha512,
        ]
        .into_iter()
        .find(|m| m.as_str().eq_ignore_ascii_case(text))
        .ok_or(UnknownSaslMechanism)
    }
}

/// The text names no mechanism that this client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a SASL mechanism: write PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")]
pub struct UnknownSaslMechanism;

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Security::Plaintext => f.write_str("Plaintext"),
            Security::Tls { ca_location } => f
                .debug_struct("Tls")
                .field("ca_location", ca_location)
                .finish(),
            Security::Sasl {
                tls,
                mechanism,
                username,
                password: _,
                ca_location,
            } => f
                .debug_struct("Sasl")
                .field("tls", tls)
                .field("mechanism", mechanism)
                .field("username", username)
                .field("password", &"[redacted]")
                .field("ca_location", ca_location)
                .finish(),
        }
    }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettings")
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("security", &self.security)
            .field("group_protocol", &self.group_protocol)
            .field("instance", &self.instance)
            .field("producer", &self.producer.keys().collect::<Vec<_>>())
            .field("consumer", &self.consumer.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A setting that would break a promise, or that the client does not understand.
///
/// `Display` reads: the rule, which property, why not, what to do. The value is never quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingProblem {
    client: &'static str,
    property: String,
    rule: &'static str,
    text: String,
}

impl SettingProblem {
    /// The librdkafka property, or the field of [`KafkaSettings`].
    #[must_use]
    pub fn property(&self) -> &str {
        &self.property
    }

    /// The rule of the standard, such as `PROD-1`.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        self.rule
    }
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingProblem {
            client,
            property,
            rule,
            text,
        } = self;
        write!(f, "{rule}: {client} `{property}`: {text}")
    }
}

/// What each member sets in the classic protocol, and the brokers in the other.
const OF_CLASSIC_PROTOCOL: [&str; 4] = [
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "group.protocol.type",
];

/// What an extra property would do, if it were let through.
enum Verdict {
    Fine,
    Refused(&'static str, String),
}

impl KafkaSettings {
    /// Plaintext, no extra properties.
    pub fn new(brokers: impl Into<String>, client_id: impl Into<String>) -> KafkaSettings {
        KafkaSettings {
            brokers: brokers.into(),
            client_id: client_id.into(),
            security: Security::Plaintext,
            group_protocol: GroupProtocol::default(),
            instance: None,
            producer: BTreeMap::new(),
            consumer: BTreeMap::new(),
        }
    }

    /// Everything that is wrong with these settings, all at once; empty if they may be used.
    ///
    /// Refused are properties that weaken a promise (PROD-1, PROD-2, CONS-2, CONS-4, SEC-1, SEC-2),
    /// those that Factum sets itself, and those that the client does not know. Whether plaintext is
    /// allowed depends on the profile: the service checks that.
    #[must_use]
    pub fn check(&self) -> Vec<SettingProblem> {
        let mut problems = Vec::new();
        let mut field = |property: &str, rule, text: &str| {
            problems.push(SettingProblem {
                client: "setting",
                property: property.to_owned(),
                rule,
                text: text.to_owned(),
            });
        };
        if self.brokers.split(',').all(|b| b.trim().is_empty()) {
            field(
                "brokers",
                "CFG-2",
                "no broker is named. Set KAFKA_BROKERS to host:port, separated by commas.",
            );
        } else if self
            .brokers
            .split(',')
            .any(|b| b.trim().is_empty() || b.contains(char::is_whitespace))
        {
            field(
                "brokers",
                "CFG-2",
                "an entry is empty or holds a blank. Write host:port, separated by commas without blanks.",
            );
        }
        if self.client_id.trim().is_empty() {
            field(
                "client_id",
                "SEC-2",
                "empty. Each service has a client id of its own; set FACTUM_SERVICE.",
            );
        }
        if let Security::Sasl {
            username, password, ..
        } = &self.security
        {
            if username.is_empty() {
                field("username", "SEC-2", "empty. Set KAFKA_SASL_USERNAME.");
            }
            if password.expose_secret().is_empty() {
                field("password", "SEC-2", "empty. Set KAFKA_SASL_PASSWORD.");
            }
        }
        if let Some(instance) = &self.instance
            && !is_legal_topic(instance)
        {
            // Kafka's rule for both is the same.
            field(
                "instance",
                "CONS-1",
                "not a name that Kafka takes. Set FACTUM_INSTANCE to 1 to 249 letters, digits, dots, \
                 underscores and dashes.",
            );
        }
        if self.group_protocol == GroupProtocol::Consumer {
            for property in OF_CLASSIC_PROTOCOL {
                if self.consumer.contains_key(property) {
                    problems.push(SettingProblem {
                        client: "consumer property",
                        property: property.to_owned(),
                        rule: "CFG-1",
                        text: "the brokers set it where FACTUM_GROUP_PROTOCOL is `consumer`. Remove it."
                            .to_owned(),
                    });
                }
            }
        }
        for (client, properties, verdict) in [
            (
                "producer property",
                &self.producer,
                producer_verdict as fn(&str, &str) -> Verdict,
            ),
            ("consumer property", &self.consumer, consumer_verdict),
        ] {
            for (property, value) in properties {
                let verdict = match verdict(property, value) {
                    Verdict::Fine if !client_knows(property, value) => Verdict::Refused(
                        "CFG-1",
                        "the Kafka client knows no such property, or the value is not legal for it. \
                         Look it up in librdkafka's CONFIGURATION.md."
                            .to_owned(),
                    ),
                    verdict => verdict,
                };
                if let Verdict::Refused(rule, text) = verdict {
                    problems.push(SettingProblem {
                        client,
                        property: property.clone(),
                        rule,
                        text,
                    });
                }
            }
        }
        problems
    }

    /// What every client of this service shares: brokers, client id, security.
    fn base_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.brokers.as_str())
            .set("client.id", self.client_id.as_str())
            // A broker that went away without a word is noticed.
            .set("socket.keepalive.enable", "true")
            // The default of 10 s would make a service sleep on after a short outage.
            .set("reconnect.backoff.max.ms", "1000")
            // Nothing here creates a topic in passing (CFG-5).
            .set("allow.auto.create.topics", "false")
            .set("log.connection.close", "false");
        let mut ca = None;
        match &self.security {
            Security::Plaintext => {
                config.set("security.protocol", "plaintext");
            }
            Security::Tls { ca_location } => {
                config.set("security.protocol", "ssl");
                ca = ca_location.as_ref();
            }
            Security::Sasl {
                tls,
                mechanism,
                username,
                password,
                ca_location,
            } => {
                config
                    .set(
                        "security.protocol",
                        if *tls { "sasl_ssl" } else { "sasl_plaintext" },
                    )
                    .set("sasl.mechanisms", mechanism.as_str())
                    .set("sasl.username", username.as_str())
                    .set("sasl.password", password.expose_secret());
                ca = ca_location.as_ref();
            }
        }
        if let Some(path) = ca {
            config.set("ssl.ca.location", path.to_string_lossy());
        }
        config
    }

    /// What a consumer of this service starts from: no group, no offset handling.
    pub(crate) fn consumer_config(&self) -> ClientConfig {
        let mut config = self.base_config();
        if let Some(instance) = &self.instance {
            config.set("group.instance.id", instance);
        }
        config.extend(allowed(&self.consumer, consumer_verdict));
        if self.group_protocol == GroupProtocol::Consumer {
            for property in OF_CLASSIC_PROTOCOL {
                config.remove(property);
            }
        }
        config
    }

    /// What the producer starts from, with Factum's own settings last.
    pub(crate) fn producer_config(&self) -> ClientConfig {
        let mut config = self.base_config();
        config
            // The relay sends batches: lingering adds its time to every row (measured: 0.5 ms with 0, 2.5 ms
            // with 1, for one row on a local Kafka) and makes no batch of a thousand quicker.
            .set("linger.ms", "0")
            .set("compression.codec", "lz4")
            // PROD-1. Fewer cost much on a real network (measured at 5 ms round trip, 30 partitions:
            // 38 ms for a thousand rows with 5, 169 ms with 1).
            .set("max.in.flight.requests.per.connection", "5");
        config.extend(allowed(&self.producer, producer_verdict));
        config
            // PROD-1.
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("enable.gapless.guarantee", "true")
            // The producer keeps its own time: see the module `producer`.
            .set("message.timeout.ms", "0")
            .set("queue.buffering.max.messages", "20000")
            .set("queue.buffering.max.kbytes", "65536");
        config
    }

    /// A client that only asks: metadata, watermarks, topics.
    pub(crate) fn admin_config(&self) -> ClientConfig {
        let mut config = self.base_config();
        for (property, value) in allowed(&self.producer, producer_verdict) {
            if ["ssl.", "sasl.", "socket.", "broker."]
                .iter()
                .any(|prefix| property.starts_with(prefix))
            {
                config.set(property, value);
            }
        }
        config
    }
}

fn refused(rule: &'static str, text: &str) -> Verdict {
    Verdict::Refused(rule, text.to_owned())
}

/// The properties that may be passed on. A refused one never reaches the client, under none of its
/// names, even if nobody called [`KafkaSettings::check`].
fn allowed(
    properties: &BTreeMap<String, String>,
    verdict: fn(&str, &str) -> Verdict,
) -> impl Iterator<Item = (String, String)> {
    properties
        .iter()
        .filter(move |(property, value)| matches!(verdict(property, value), Verdict::Fine))
        .map(|(property, value)| (property.clone(), value.clone()))
}

fn shared_verdict(property: &str, value: &str) -> Verdict {
    let value = value.trim().to_ascii_lowercase();
    match property {
        "enable.ssl.certificate.verification" if is_off(&value) => refused(
            "SEC-1",
            "switches the check of the broker's certificate off, so anyone can pose as the broker. \
             Remove it; trust a private authority with KAFKA_SSL_CA_LOCATION.",
        ),
        "ssl.endpoint.identification.algorithm" if value != "https" => refused(
            "SEC-1",
            "switches the check of the broker's host name off, so any certificate passes. \
             Remove it; give the broker a certificate for its name.",
        ),
        "bootstrap.servers" | "metadata.broker.list" => {
            refused("CFG-2", "Factum sets it. Set KAFKA_BROKERS.")
        }
        "client.id" => refused("SEC-2", "Factum sets it. Set FACTUM_SERVICE."),
        "security.protocol" | "sasl.mechanism" | "sasl.mechanisms" | "sasl.username"
        | "sasl.password" | "ssl.ca.location" => refused(
            "SEC-1",
            "Factum sets it. Use KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, \
             KAFKA_SASL_PASSWORD or KAFKA_SSL_CA_LOCATION.",
        ),
        "allow.auto.create.topics" => refused(
            "CFG-5",
            "Factum never creates a topic in passing. Remove it and create the topic on purpose.",
        ),
        "log.queue"
        | "enabled_events"
        | "plugin.library.paths"
        | "test.mock.num.brokers"
        | "test.mock.broker.rtt"
        | "opaque"
        | "default_topic_conf" => refused("CFG-1", "Factum sets it. Remove it."),
        _ => Verdict::Fine,
    }
}

fn producer_verdict(property: &str, value: &str) -> Verdict {
    let value = value.trim().to_ascii_lowercase();
    let weakens = |text: &str| refused("PROD-1", text);
    match property {
        "acks" | "request.required.acks" if value != "all" && value != "-1" => weakens(
            "acknowledges a record before all in-sync replicas have it, so a failover loses it. \
             Remove it: acks is all.",
        ),
        "enable.idempotence" if value != "true" && value != "1" && value != "t" => weakens(
            "lets a retry write a record twice or out of order. Remove it: the producer is idempotent.",
        ),
        "max.in.flight" | "max.in.flight.requests.per.connection"
            if value.parse::<u64>().is_ok_and(|n| n > 5) =>
        {
            weakens(
                "lets more requests fly than the broker can keep in order. Set 5 or less, or remove it.",
            )
        }
        "enable.gapless.guarantee" if value != "true" && value != "1" && value != "t" => {
            weakens("lets later records of a key overtake one that the broker refused. Remove it.")
        }
        "retries" | "message.send.max.retries"
            if value.parse::<u64>().is_ok_and(|n| n < 2_147_483_647) =>
        {
            weakens(
                "gives a record up too early. Remove it: retries are bounded by the delivery time limit.",
            )
        }
        "message.timeout.ms" | "delivery.timeout.ms" => weakens(
            "the relay bounds the delivery by its lease; a limit inside the client could drop one record \
             and send the next. Remove it.",
        ),
        "queuing.strategy" if value != "fifo" => weakens("sends the last record first. Remove it."),
        "queue.buffering.max.messages" | "queue.buffering.max.kbytes" => {
            refused("PROD-1", "Factum bounds the queue itself. Remove it.")
        }
        "partitioner" if value != "murmur2_random" => refused(
            "PROD-2",
            "sends one aggregate's events to another partition than the other clients do, so their order is lost. \
             Remove it: the partitioner is murmur2_random, as in Java.",
        ),
        "transactional.id" => refused("OBX-1", "the outbox is the transaction. Remove it."),
        "delivery.report.only.error" if !is_off(&value) => refused(
            "OBX-5",
            "hides the acknowledgement on which published_at depends. Remove it.",
        ),
        "linger.ms" | "queue.buffering.max.ms"
            if value.parse::<f64>().is_ok_and(|ms| ms > 100.0) =>
        {
            refused(
                "PROD-1",
                "holds every record back for more than 100 ms. The relay sends batches already; remove it.",
            )
        }
        _ => shared_verdict(property, &value),
    }
}

fn consumer_verdict(property: &str, value: &str) -> Verdict {
    let value = value.trim().to_ascii_lowercase();
    match property {
        "enable.auto.commit" | "auto.commit.enable" if !is_off(&value) => refused(
            "CONS-2",
            "commits an offset before the record was handled, so a crash loses it. Remove it.",
        ),
        "enable.auto.offset.store" if !is_off(&value) => refused(
            "CONS-2",
            "stores an offset before the record was handled, so a crash loses it. Remove it.",
        ),
        "auto.commit.interval.ms" if value == "0" => refused(
            "CONS-2",
            "0 does not mean \"as often as possible\": it switches the commits off. Remove it; \
             offsets are committed after the handling, by time.",
        ),
        "auto.commit.interval.ms" => refused(
            "CONS-2",
            "belongs to automatic commits, which are off. Remove it.",
        ),
        "group.id" => refused(
            "CONS-1",
            "Factum sets it from the service and the consumer's name. Remove it and name the consumer.",
        ),
        "group.protocol" => refused("CONS-1", "Factum sets it. Set FACTUM_GROUP_PROTOCOL."),
        "group.instance.id" => refused(
            "CONS-1",
            "Factum sets it. Set FACTUM_INSTANCE, a name of its own for each replica.",
        ),
        "auto.offset.reset" => refused(
            "CONS-4",
            "a new group starts at the earliest record, and a gap is never jumped over in silence. Remove it; the \
             consumer's builder has start_at and on_gap.",
        ),
        "enable.partition.eof" | "rebalance_cb" | "offset_commit_cb" | "consume_cb" => {
            refused("CONS-2", "Factum sets it. Remove it.")
        }
        _ => shared_verdict(property, &value),
    }
}

fn is_off(value: &str) -> bool {
    matches!(value, "false" | "0" | "f")
}

/// Asks the client itself, so that a typing error does not survive until the first record.
fn client_knows(property: &str, value: &str) -> bool {
    let mut config = ClientConfig::new();
    config.set(property, value);
    config.create_native_config().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `acks` and `request.required.acks` are one property: which of the two the client takes is chance.
    #[test]
    fn a_refused_property_never_reaches_the_client_under_none_of_its_names() {
        let mut settings = KafkaSettings::new("127.0.0.1:9092", "billing");
        for (property, value) in [
            ("request.required.acks", "1"),
            ("delivery.timeout.ms", "10"),
            ("max.in.flight", "1000"),
            ("retries", "0"),
            ("metadata.broker.list", "elsewhere:9092"),
            ("enable.ssl.certificate.verification", "false"),
        ] {
            settings
                .producer
                .insert(property.to_owned(), value.to_owned());
        }
        settings
            .consumer
            .insert("enable.auto.commit".to_owned(), "true".to_owned());
        settings
            .producer
            .insert("message.max.bytes".to_owned(), "2000000".to_owned());
        let producer = settings.producer_config();
        let native = producer.create_native_config().unwrap();
        for (property, value) in [
            ("acks", "-1"),
            ("message.timeout.ms", "0"),
            ("max.in.flight.requests.per.connection", "5"),
            ("retries", "2147483647"),
            ("bootstrap.servers", "127.0.0.1:9092"),
            ("enable.ssl.certificate.verification", "true"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("message.max.bytes", "2000000"),
        ] {
            assert_eq!(native.get(property).unwrap(), value, "{property}");
        }
        assert_eq!(settings.consumer_config().get("enable.auto.commit"), None);
    }
}
