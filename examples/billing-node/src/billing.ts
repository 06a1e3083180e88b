// What billing does with a confirmed order.
import { PermanentError, type Handler } from "./consumer.js";
import {
  OrderConfirmedV1Schema,
  type OrderConfirmedV1,
} from "./generated/index.js";

/** The events that billing handles. Others on its topics are skipped. */
export const registry = {
  "order.confirmed.v1": OrderConfirmedV1Schema,
} as const;

/** The currencies that billing has accounts in: those of the service in Rust. */
const ACCOUNTS: ReadonlySet<string> = new Set(["EUR", "GBP", "JPY", "USD"]);

/** Writes an invoice for each confirmed order. The amount stays text from the first byte to the column. */
export const bill: Handler<OrderConfirmedV1> = async (event, client) => {
  if (!ACCOUNTS.has(event.currency)) {
    throw new PermanentError("billing has no account in the order's currency");
  }
  await client.query(
    `INSERT INTO invoice
       (event_id, order_ref, order_id, customer_id, total_amount, currency, issued_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7)`,
    [
      event.eventId,
      event.orderRef,
      event.orderId,
      event.customerId,
      event.totalAmount,
      event.currency,
      event.occurredAt,
    ],
  );
};
