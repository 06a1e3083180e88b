//! Factum's only door to Kafka: consumer, producer, topology, security.
