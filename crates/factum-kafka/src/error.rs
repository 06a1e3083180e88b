//! What can go wrong between a service and its brokers, told so that a person can mend it.

use std::fmt;

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::settings::KafkaSettings;

/// A request to Kafka that failed.
///
/// `Display` says what was tried, at which brokers, what happened and what to do. It never holds a
/// password, a key or a payload.
///
/// ```text
/// describing the topic `orders` failed at Kafka brokers 127.0.0.1:9092: no broker answered
/// (127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in
/// state CONNECT)). Is Kafka running there, and is KAFKA_BROKERS right?
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaError {
    kind: KafkaErrorKind,
    what: String,
    brokers: String,
    cause: String,
}

/// What an operator does about a [`KafkaError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KafkaErrorKind {
    /// No broker answered in time: start it, or mend the address or the network. Worth another try.
    Unreachable,
    /// The brokers refused the credentials, or the TLS handshake failed: mend user, password or certificate.
    Authentication,
    /// The credentials are right but may not do this: add the access rule.
    Authorization,
    /// A topic or partition is not there: create it.
    UnknownTopic,
    /// A setting is unknown to the client or has no legal value: mend the setting.
    Configuration,
    /// Records are gone that the group had not read: decide whether it may do without them.
    RecordsGone,
    /// Another process has joined the group under the same stable name: give each its own.
    Fenced,
    /// The brokers don't speak the group protocol that was chosen: choose the other one.
    UnknownProtocol,
    /// Anything else; the text has the broker's own words.
    Other,
}

impl KafkaError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> KafkaErrorKind {
        self.kind
    }

    /// `what` is a phrase such as "listing the topics"; `last_sign` is the last thing that the
    /// client logged about its connections, which often holds the real reason.
    pub(crate) fn new(
        what: impl Into<String>,
        settings: &KafkaSettings,
        error: &rdkafka::error::KafkaError,
        last_sign: Option<&str>,
    ) -> KafkaError {
        use rdkafka::error::KafkaError as Rd;
        // The client's own text for a bad setting quotes the value, which may be a password.
        let (mut kind, mut cause) = match error {
            Rd::ClientConfig(_, _, property, _) => (
                KafkaErrorKind::Configuration,
                format!("the Kafka client refuses the property `{property}` or its value"),
            ),
            Rd::ClientCreation(text) => (KafkaErrorKind::Configuration, text.clone()),
            other => match other.rdkafka_error_code() {
                Some(code) => (kind_of(code), code.to_string()),
                None => (KafkaErrorKind::Other, other.to_string()),
            },
        };
        if let Some(sign) = last_sign {
            if kind == KafkaErrorKind::Unreachable {
                let sign_lower = sign.to_ascii_lowercase();
                if sign_lower.contains("authentication") || sign_lower.contains("ssl handshake") {
                    kind = KafkaErrorKind::Authentication;
                }
            }
            cause = match kind {
                // That the request timed out says less than why.
                KafkaErrorKind::Unreachable => sign.to_owned(),
                _ => format!("{cause}; last sign: {sign}"),
            };
        }
        KafkaError {
            kind,
            what: what.into(),
            brokers: settings.brokers.clone(),
            cause,
        }
    }

    /// A failure that no client error stands for.
    pub(crate) fn told(
        kind: KafkaErrorKind,
        what: impl Into<String>,
        settings: &KafkaSettings,
        cause: impl Into<String>,
    ) -> KafkaError {
        KafkaError {
            kind,
            what: what.into(),
            brokers: settings.brokers.clone(),
            cause: cause.into(),
        }
    }
}

fn kind_of(code: Code) -> KafkaErrorKind {
    match code {
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::MessageTimedOut
        | Code::TimedOutQueue
        | Code::Resolve
        | Code::NetworkException
        | Code::BrokerNotAvailable => KafkaErrorKind::Unreachable,
        Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => {
            KafkaErrorKind::Authentication
        }
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed => KafkaErrorKind::Authorization,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            KafkaErrorKind::UnknownTopic
        }
        Code::InvalidArgument | Code::InvalidConfig => KafkaErrorKind::Configuration,
        Code::FencedInstanceId | Code::UnreleasedInstanceId => KafkaErrorKind::Fenced,
        Code::UnsupportedFeature | Code::UnsupportedVersion => KafkaErrorKind::UnknownProtocol,
        _ => KafkaErrorKind::Other,
    }
}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaError {
            what,
            brokers,
            cause,
            ..
        } = self;
        write!(f, "{what} failed at Kafka brokers {brokers}: ")?;
        match self.kind {
            KafkaErrorKind::Unreachable => write!(
                f,
                "no broker answered ({cause}). Is Kafka running there, and is KAFKA_BROKERS right?"
            ),
            KafkaErrorKind::Authentication => write!(
                f,
                "the brokers and this client did not agree on who they are ({cause}). Look at \
                 KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD and KAFKA_SSL_CA_LOCATION."
            ),
            KafkaErrorKind::Authorization => write!(
                f,
                "the brokers know this client but do not allow it ({cause}). Add the access rule on the cluster."
            ),
            KafkaErrorKind::UnknownTopic => write!(
                f,
                "the topic or partition is not there ({cause}). Create it on the cluster."
            ),
            KafkaErrorKind::RecordsGone => write!(
                f,
                "{cause}. Nothing was skipped. To go on with what is there, set the group's offset while it \
                 has no members (kafka-consumer-groups.sh --reset-offsets --to-earliest), or let the \
                 consumer do it each time with .on_gap(GapPolicy::Earliest)."
            ),
            KafkaErrorKind::Fenced => write!(
                f,
                "another process is in this group under the same stable name ({cause}). Give each process \
                 its own FACTUM_INSTANCE, or none."
            ),
            KafkaErrorKind::UnknownProtocol => write!(
                f,
                "the brokers do not speak what this client asks for ({cause}). If FACTUM_GROUP_PROTOCOL is \
                 `consumer`, set it to `classic`: the other one needs Kafka 4.0 or newer, and brokers that \
                 have it switched on."
            ),
            KafkaErrorKind::Configuration => {
                write!(f, "{cause}. Mend or remove that setting.")
            }
            KafkaErrorKind::Other => write!(f, "{cause}."),
        }
    }
}

impl std::error::Error for KafkaError {}
