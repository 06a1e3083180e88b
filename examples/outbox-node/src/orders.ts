// Orders: what the business does, in one transaction with what it tells.
import type { ClientBase } from "pg";

import { publish } from "./outbox.js";

/** An order that a customer has confirmed. */
export interface Order {
  readonly orderRef: string;
  readonly orderId: number;
  readonly customerId: number;
  /** In `currency`, as text. */
  readonly totalAmount: string;
  readonly currency: string;
}

/** The customer may not order for so much. */
export class CreditExceeded extends Error {}

/** Confirms an order, or changes what was confirmed, and tells of it. */
export async function confirm(
  client: ClientBase,
  order: Order,
  occurredAt: Date,
): Promise<string> {
  await client.query("BEGIN");
  try {
    // This takes the order's lock. The outbox row comes after it, so that two confirmations of one order are told of in
    // the order in which they commit.
    await client.query(
      `INSERT INTO customer_order (order_ref, customer_id, total_amount, currency) VALUES ($1, $2, $3, $4)
       ON CONFLICT (order_ref) DO UPDATE SET total_amount = excluded.total_amount, currency = excluded.currency`,
      [order.orderRef, order.customerId, order.totalAmount, order.currency],
    );
    const eventId = await publish(client, {
      type: "order.confirmed.v1",
      topic: "orders.confirmed",
      aggregateType: "Order",
      aggregateId: order.orderRef,
      occurredAt,
      fields: { ...order },
    });
    await checkCredit(client, order.customerId);
    await client.query("COMMIT");
    return eventId;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

/** Of all orders of a customer together. Comes after the event here, to show that a rollback takes it back. */
async function checkCredit(
  client: ClientBase,
  customerId: number,
): Promise<void> {
  const { rows } = await client.query<{ exceeded: boolean }>(
    "SELECT coalesce(sum(total_amount), 0) > 1000 AS exceeded FROM customer_order WHERE customer_id = $1",
    [customerId],
  );
  if (rows[0]?.exceeded === true) throw new CreditExceeded();
}
