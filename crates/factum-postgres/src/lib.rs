//! Every SQL statement of Factum: migrations, outbox, dedup, dead letters, leases, maintenance.
