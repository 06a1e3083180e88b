//! A relay in a process of its own, for tests that stop it with SIGSTOP and kill it with SIGKILL.
//!
//! `RELAY_LEASE_MS` and `RELAY_CLAIM_LIMIT` are its limits.

use std::time::Duration;

use factum::{Config, Relay, Service};

#[tokio::main]
async fn main() -> factum::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let number = |name: &str| -> u64 {
        let value = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number"))
    };
    let relay = Relay::new()
        .lease(Duration::from_millis(number("RELAY_LEASE_MS")))
        .claim_limit(u32::try_from(number("RELAY_CLAIM_LIMIT")).expect("a small number"));
    Service::builder(Config::from_env()?)
        .relay_with(relay)
        .run()
        .await?;
    Ok(())
}
