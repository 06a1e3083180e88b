//! The mailer: a mail for each invoice.
//!
//! Configured by the environment; see `factum::Config`. `FACTUM_SERVICE` must be `mailer`.

use factum::{Config, Consumer, Service};
use orders::events::InvoiceIssued;
use orders::mailer::Mailer;

#[tokio::main]
async fn main() -> factum::Result {
    orders::start_log();
    let config = Config::from_env()?;
    Service::builder(config)
        .consumer(Consumer::named("mailer-invoice-issued").batch_handler::<InvoiceIssued>(Mailer))
        .run()
        .await?;
    Ok(())
}
