//! What librdkafka says about itself, handed to `tracing`, and its last complaint kept.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as RdError;
use rdkafka::types::RDKafkaErrorCode;

/// The longest complaint kept and logged, in characters.
const SIGN_CHARS_MAX: usize = 300;

/// The context of a client: logs its lines and remembers its last complaint, because a request that
/// timed out does not say why, and the connection's complaint does.
#[derive(Debug, Default)]
pub(crate) struct ClientLog {
    last_sign: Mutex<Option<String>>,
    fatal: AtomicBool,
}

impl ClientLog {
    /// The last complaint about a connection, shortened.
    pub(crate) fn last_sign(&self) -> Option<String> {
        self.last_sign
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Whether the client said that it can't go on.
    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Acquire)
    }
}

impl ClientContext for ClientLog {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: RdError, reason: &str) {
        let sign: String = reason.chars().take(SIGN_CHARS_MAX).collect();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => {
                self.fatal.store(true, Ordering::Release);
                tracing::warn!(reason = sign, "the Kafka client can't go on and is rebuilt");
            }
            // Says nothing that the complaints before it have not said.
            Some(RDKafkaErrorCode::AllBrokersDown) => return,
            _ => tracing::debug!(reason = sign, "kafka client"),
        }
        *self
            .last_sign
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(sign);
    }
}

/// What librdkafka says of `enable.gapless.guarantee` at each start. The producer sets it on purpose, so
/// it is no news to a person.
const KNOWN_EXPERIMENT: &str = "enable.gapless.guarantee is experimental";

/// One line of librdkafka's log.
pub(crate) fn log_line(level: RDKafkaLogLevel, facility: &str, line: &str) {
    if line.contains(KNOWN_EXPERIMENT) {
        tracing::debug!(facility, "librdkafka: {line}");
        return;
    }
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(facility, "librdkafka: {line}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(facility, "librdkafka: {line}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(facility, "librdkafka: {line}"),
    }
}
