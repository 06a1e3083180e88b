//! Billing: an invoice for each confirmed order.

use factum::sqlx;
use factum::{Currency, Envelope, Event as _, Handler, HandlerError, Tx};

use crate::events::{InvoiceIssued, OrderConfirmed};
use crate::id;

/// Writes an invoice for each confirmed order, and tells of it.
///
/// It handles one event at a time, and knows nothing of duplicates, retries or offsets: the invoice,
/// the event about it and the mark "processed" commit together, once.
#[derive(Debug, Clone)]
pub struct Billing {
    accounts: Vec<Currency>,
}

impl Billing {
    /// Billing with an account in each of these currencies.
    pub fn with_accounts(accounts: impl IntoIterator<Item = Currency>) -> Billing {
        Billing {
            accounts: accounts.into_iter().collect(),
        }
    }
}

impl Handler<OrderConfirmed> for Billing {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        // A rule of the domain: no later attempt would end otherwise, so the event goes to the dead
        // letters at once (RTRY-2). Every other error is retried.
        if !self.accounts.contains(&event.currency) {
            return Err(HandlerError::permanent(
                "billing has no account in the order's currency",
            ));
        }

        let invoice_id: i64 = sqlx::query_scalar(
            "INSERT INTO invoice
                 (event_id, order_ref, order_id, customer_id, total_amount, currency, issued_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             RETURNING id",
        )
        .bind(event.id().as_uuid())
        .bind(&event.order_ref)
        .bind(id::to_column(event.order_id))
        .bind(id::to_column(event.customer_id))
        .bind(event.total_amount.amount().as_decimal())
        .bind(event.currency.code())
        .bind(event.occurred_at())
        .fetch_one(tx.conn())
        .await?;

        let issued = InvoiceIssued {
            invoice_ref: format!("INV-{}", event.order_ref),
            invoice_id: id::from_column(invoice_id)?,
            order_id: event.order_id,
            customer_id: event.customer_id,
            total_amount: event.total_amount.clone(),
            currency: event.currency,
        };
        tx.publish(issued.occurred_at(event.occurred_at())).await?;
        Ok(())
    }
}
