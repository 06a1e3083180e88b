//! Whether the brokers answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::producer::{BaseProducer, Producer as _};

use crate::client_log::ClientLog;
use crate::error::{KafkaError, KafkaErrorKind};
use crate::settings::KafkaSettings;

/// Asked for because every Kafka has or may have it; asking creates nothing.
const ASKED_FOR: &str = "__consumer_offsets";

/// A client that does nothing but ask the brokers for a sign of life, now and then.
pub struct BrokerProbe {
    settings: KafkaSettings,
    /// Taken when this is dropped, and not before.
    client: Option<Arc<BaseProducer<ClientLog>>>,
}

impl BrokerProbe {
    /// Makes the client; it connects with the first question.
    ///
    /// # Errors
    ///
    /// The settings can't be used.
    pub fn new(settings: &KafkaSettings) -> Result<BrokerProbe, KafkaError> {
        let client = settings
            .admin_config()
            .create_with_context(ClientLog::default())
            .map_err(|error| KafkaError::new("making a client", settings, &error, None))?;
        Ok(BrokerProbe {
            settings: settings.clone(),
            client: Some(Arc::new(client)),
        })
    }

    /// Whether a broker answers. Any answer will do, also that this client may not know a topic.
    ///
    /// # Errors
    ///
    /// No broker answered within `timeout`.
    pub async fn ask(&self, timeout: Duration) -> Result<(), KafkaError> {
        let Some(client) = self.client.clone() else {
            return Ok(());
        };
        let asked = tokio::task::spawn_blocking(move || {
            let asked = client.client().fetch_metadata(Some(ASKED_FOR), timeout);
            // Nobody else polls this client: its complaints would pile up.
            client.poll(Duration::ZERO);
            let sign = client.client().context().last_sign();
            asked.map(drop).map_err(|error| (error, sign))
        });
        const WHAT: &str = "asking for a sign of life";
        match asked.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err((error, sign))) => Err(KafkaError::new(
                WHAT,
                &self.settings,
                &error,
                sign.as_deref(),
            )),
            Err(_) => Err(KafkaError::told(
                KafkaErrorKind::Other,
                WHAT,
                &self.settings,
                "the runtime is shutting down",
            )),
        }
    }
}

impl Drop for BrokerProbe {
    fn drop(&mut self) {
        // The client's destructor joins a thread.
        let client = self.client.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(client)));
        }
    }
}

impl fmt::Debug for BrokerProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerProbe").finish_non_exhaustive()
    }
}
