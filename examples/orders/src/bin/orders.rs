//! The order service: confirms orders, and relays what it publishes.
//!
//! Configured by the environment; see `factum::Config`.

use factum::sqlx::PgPool;
use factum::{Config, Service};
use orders::events::OrderConfirmed;

#[tokio::main]
async fn main() -> factum::Result {
    orders::start_log();
    let config = Config::from_env()?;
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    tokio::spawn(orders::orders::run_desk(pool));
    Service::builder(config)
        .publishes::<OrderConfirmed>()
        .create_topics(4)
        .relay()
        .run()
        .await?;
    Ok(())
}
