// Confirms some orders, one of them beyond its customer's credit, and prints what was published: one JSON object a line.
import pg from "pg";

import { confirm, CreditExceeded, type Order } from "./orders.js";

const ORDERS = ["A-1", "B-1", "C-1"];
/** Each order is confirmed so often, with another amount each time. */
const CONFIRMATIONS = 20;
/** Beyond any credit. */
const TOO_MUCH = "1000.01";

const databaseUrl = process.env["DATABASE_URL"] ?? "";
if (databaseUrl === "") {
  process.stderr.write(
    "error: DATABASE_URL is not set: write postgres://user:password@host:5432/database\n",
  );
  process.exit(2);
}
const client = new pg.Client({
  connectionString: databaseUrl,
  application_name: "outbox-node",
  lock_timeout: 5_000,
  statement_timeout: 30_000,
});
await client.connect();
try {
  for (let n = 1; n <= CONFIRMATIONS; n += 1) {
    for (const [index, orderRef] of ORDERS.entries()) {
      // In the middle of it all, one that is rolled back.
      const refused = n === CONFIRMATIONS / 2 && index === 1;
      const order: Order = {
        orderRef,
        orderId: index + 1,
        customerId: index + 100,
        totalAmount: refused ? TOO_MUCH : `${n}.50`,
        currency: "EUR",
      };
      try {
        const eventId = await confirm(client, order, new Date());
        const told = { eventId, orderRef, totalAmount: order.totalAmount };
        process.stdout.write(`${JSON.stringify(told)}\n`);
      } catch (error) {
        if (!(error instanceof CreditExceeded)) throw error;
        process.stderr.write(`${orderRef}: the credit is exceeded\n`);
      }
    }
  }
} finally {
  await client.end();
}
