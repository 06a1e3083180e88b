//! Private PostgreSQL servers and brokers for Factum's tests and its demo.
