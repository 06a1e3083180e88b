//! An order service, a billing service and a mailer: how one writes services with Factum.
//!
//! Read in this order:
//!
//! 1. [`events`]: what the services tell each other.
//! 2. [`orders`]: a business transaction that changes a row and publishes an event, both or neither.
//! 3. [`billing`]: a handler for one event at a time, which publishes an event of its own.
//! 4. [`mailer`]: a handler for many events at once.
//! 5. `src/bin/orders.rs`, `billing.rs`, `mailer.rs`: the three processes, a screen each.
//!
//! ```text
//! orders -> outbox -> relay -> orders.confirmed -> billing -> outbox -> relay -> invoices.issued -> mailer
//! ```
//!
//! In the field each service has a database of its own. Here all three share one, to keep the
//! example small; their tables and their consumers' names keep them apart.
//!
//! The rest is no example of a service: [`demo`] starts the three, feeds them with duplicates and
//! poison, kills them in mid-flight and checks what they have written; [`conformance`] decodes test
//! vectors with the contract of [`events::OrderConfirmed`].

use factum::Currency;

pub mod billing;
pub mod conformance;
pub mod demo;
pub mod events;
pub mod id;
pub mod mailer;
pub mod orders;

/// The example's own tables, as SQL that may run twice.
pub const TABLES: &str = include_str!("tables.sql");

/// The currencies that billing has an account in.
pub const BILLED_CURRENCIES: [Currency; 4] =
    [Currency::EUR, Currency::GBP, Currency::JPY, Currency::USD];

/// Sends the log to standard error; `RUST_LOG` says how much of it.
pub fn start_log() {
    use tracing_subscriber::EnvFilter;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
