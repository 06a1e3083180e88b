//! The billing service: an invoice for each confirmed order.
//!
//! Configured by the environment; see `factum::Config`. `FACTUM_SERVICE` must be `billing`.

use factum::{Config, Consumer, Retry, Service};
use orders::billing::Billing;
use orders::events::{InvoiceIssued, OrderConfirmed};

#[tokio::main]
async fn main() -> factum::Result {
    orders::start_log();
    let config = Config::from_env()?;
    Service::builder(config)
        .publishes::<InvoiceIssued>()
        .create_topics(4)
        // Billing publishes, so it relays. On a shared outbox one relay is at work at a time, and
        // the other stands by.
        .relay()
        .consumer(
            Consumer::named("billing-order-confirmed")
                .handler::<OrderConfirmed>(Billing::with_accounts(orders::BILLED_CURRENCIES))
                .retry(Retry::park()),
        )
        .run()
        .await?;
    Ok(())
}
