//! For how long topics keep their records, and how many brokers have them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::error::KafkaError as RdError;

use crate::client_log::ClientLog;
use crate::error::KafkaError;
use crate::settings::KafkaSettings;
use crate::topology::{copies, describe_topics};

/// What a topic's brokers say of it, see [`topic_settings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicSettings {
    /// For how long its records stay, `retention.ms`. `None`: for ever, or for as long as no newer record has their
    /// key (`cleanup.policy=compact`).
    pub retention: Option<Duration>,
    /// How many brokers must have a record before it counts as written, `min.insync.replicas`.
    pub min_in_sync: u32,
    /// How many brokers keep each partition: the fewest of any.
    pub copies: u32,
}

const WHAT: &str = "reading the settings of topics";

/// The settings of topics; a topic that does not exist is left out.
///
/// The embedded broker does not speak this request: there it is an error once the time is over.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refuse to tell: it takes the right `DescribeConfigs`.
///
/// ```no_run
/// # async fn example() -> Result<(), factum_kafka::KafkaError> {
/// use std::time::Duration;
/// use factum_kafka::{KafkaSettings, topic_settings};
///
/// let settings = KafkaSettings::new("127.0.0.1:9092", "billing");
/// let topics = topic_settings(&settings, &["orders.confirmed"], Duration::from_secs(5)).await?;
/// println!("{:?}", topics["orders.confirmed"].retention);
/// # Ok(())
/// # }
/// ```
pub async fn topic_settings(
    settings: &KafkaSettings,
    topics: &[&str],
    timeout: Duration,
) -> Result<BTreeMap<String, TopicSettings>, KafkaError> {
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    // Asked first: an unreachable broker is told better by this request than by the next.
    let there: Vec<String> = describe_topics(settings, topics, left())
        .await?
        .into_iter()
        .filter_map(|(name, partitions)| partitions.map(|_| name))
        .collect();
    if there.is_empty() {
        return Ok(BTreeMap::new());
    }
    let copies = copies(settings, there.clone(), left()).await?;
    let failed = |error: &RdError| KafkaError::new(WHAT, settings, error, None);
    let admin: AdminClient<ClientLog> = settings
        .admin_config()
        .create_with_context(ClientLog::default())
        .map_err(|error| failed(&error))?;
    let asked: Vec<ResourceSpecifier<'_>> = there
        .iter()
        .map(|name| ResourceSpecifier::Topic(name))
        .collect();
    let options = AdminOptions::new().request_timeout(Some(left()));
    let answers = admin.describe_configs(&asked, &options).await;
    // Its destructor joins a thread.
    drop(tokio::task::spawn_blocking(move || drop(admin)));
    let mut found = BTreeMap::new();
    for answer in answers.map_err(|error| failed(&error))? {
        let answer = answer.map_err(|code| failed(&RdError::AdminOp(code)))?;
        let values = answer.entry_map();
        let value = |name: &str| values.get(name).and_then(|entry| entry.value.as_deref());
        if let OwnedResourceSpecifier::Topic(name) = &answer.specifier {
            let settings = TopicSettings {
                retention: retention(value("cleanup.policy"), value("retention.ms")),
                min_in_sync: value("min.insync.replicas")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(1),
                copies: copies.get(name).copied().unwrap_or(0),
            };
            found.insert(name.clone(), settings);
        }
    }
    Ok(found)
}

fn retention(cleanup_policy: Option<&str>, retention_ms: Option<&str>) -> Option<Duration> {
    let policies = cleanup_policy.unwrap_or("delete");
    if !policies.split(',').any(|policy| policy.trim() == "delete") {
        return None;
    }
    // -1 is for ever.
    retention_ms?.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stay_for_a_time_or_for_ever() {
        let week = Some(Duration::from_secs(7 * 24 * 60 * 60));
        assert_eq!(retention(Some("delete"), Some("604800000")), week);
        assert_eq!(retention(None, Some("604800000")), week);
        assert_eq!(retention(Some("compact,delete"), Some("604800000")), week);
        assert_eq!(retention(Some("compact"), Some("604800000")), None);
        assert_eq!(retention(Some("delete"), Some("-1")), None);
    }
}
