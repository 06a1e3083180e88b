// What is written, with a client that remembers it. The command's tests send it with a real relay.
import assert from "node:assert/strict";
import test from "node:test";

import type { ClientBase } from "pg";

import { confirm, CreditExceeded } from "../src/orders.js";
import { uuidV7 } from "../src/uuid-v7.js";

const ORDER = {
  orderRef: "A-1",
  orderId: 1,
  customerId: 2,
  totalAmount: "10000000000000000.10",
  currency: "EUR",
};
const AT = new Date("2026-06-01T12:00:00Z");

function recording(exceeded: boolean) {
  const statements: { word: string; values: unknown[] }[] = [];
  const client = {
    query: (text: string, values: unknown[] = []) => {
      const word = /^\s*(\w+(?: INTO \w+)?)/.exec(text)?.[1] ?? "";
      statements.push({ word, values });
      return Promise.resolve({ rows: word === "SELECT" ? [{ exceeded }] : [] });
    },
  } as unknown as ClientBase;
  return { client, statements, words: () => statements.map((s) => s.word) };
}

test("the event is written in the order's transaction, after the order's lock", async () => {
  const { client, statements, words } = recording(false);
  const eventId = await confirm(client, ORDER, AT);
  assert.deepEqual(words(), [
    "BEGIN",
    "INSERT INTO customer_order",
    "INSERT INTO outbox",
    "SELECT",
    "COMMIT",
  ]);
  const values = statements[2]?.values ?? [];
  assert.equal(values[0], eventId);
  const payload: unknown = JSON.parse(String(values[5]));
  assert.deepEqual(payload, {
    eventId,
    eventType: "order.confirmed.v1",
    occurredAt: "2026-06-01T12:00:00.000Z",
    aggregateType: "Order",
    aggregateId: "A-1",
    ...ORDER,
  });
});

test("what is refused is rolled back, the event with it", async () => {
  const { client, words } = recording(true);
  await assert.rejects(confirm(client, ORDER, AT), CreditExceeded);
  assert.equal(words().at(-1), "ROLLBACK");
  assert.ok(!words().includes("COMMIT"));
});

test("an id is of version 7 and sorts by its time", () => {
  const ids = [1, 2 ** 47].map((now) => uuidV7(now));
  for (const id of ids) {
    assert.match(
      id,
      /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
    );
  }
  assert.ok(ids[0]! < ids[1]!);
  assert.notEqual(uuidV7(1), uuidV7(1));
});
