//! Factum: event-driven services on Kafka and PostgreSQL whose effects happen exactly once.
