//! The mailer: a mail for each invoice.

use factum::sqlx;
use factum::{BatchHandler, Envelope, HandlerError, Tx};

use crate::events::InvoiceIssued;
use crate::id;

/// Writes a mail for each invoice.
///
/// It takes all invoices that are there at once and writes them with one statement: the fast way,
/// when a handler's work is SQL. The promise is the same as for one event at a time.
#[derive(Debug, Clone, Copy)]
pub struct Mailer;

impl BatchHandler<InvoiceIssued> for Mailer {
    async fn handle(
        &self,
        events: &[Envelope<InvoiceIssued>],
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let event_ids: Vec<_> = events.iter().map(|e| e.id().as_uuid()).collect();
        let refs: Vec<&str> = events.iter().map(|e| e.invoice_ref.as_str()).collect();
        let invoices: Vec<i64> = events.iter().map(|e| id::to_column(e.invoice_id)).collect();
        let customers: Vec<i64> = events
            .iter()
            .map(|e| id::to_column(e.customer_id))
            .collect();
        let subjects: Vec<String> = events.iter().map(|e| subject(e)).collect();
        // In the order of the events: mails of one series leave as they were invoiced.
        sqlx::query(
            "INSERT INTO mail (event_id, invoice_ref, invoice_id, customer_id, subject)
             SELECT event_id, invoice_ref, invoice_id, customer_id, subject
             FROM UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])
                  WITH ORDINALITY AS m (event_id, invoice_ref, invoice_id, customer_id, subject, place)
             ORDER BY place",
        )
        .bind(event_ids)
        .bind(refs)
        .bind(invoices)
        .bind(customers)
        .bind(subjects)
        .execute(tx.conn())
        .await?;
        Ok(())
    }
}

fn subject(invoice: &InvoiceIssued) -> String {
    format!(
        "Your invoice {}/{} of {} {}",
        invoice.invoice_ref, invoice.invoice_id, invoice.total_amount, invoice.currency
    )
}
