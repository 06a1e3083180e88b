// What becomes of a record, with a database that answers as the test wants it. tests/node has the real ones.
import assert from "node:assert/strict";
import test from "node:test";

import type { Kafka, KafkaMessage } from "kafkajs";
import type { ClientBase, Pool } from "pg";

import { registry } from "../src/billing.js";
import {
  DedupConsumer,
  PermanentError,
  type Handler,
} from "../src/consumer.js";
import type { OrderConfirmedV1 } from "../src/generated/index.js";

/** An error as the driver throws it. */
function databaseError(code: string): Error {
  return Object.assign(new Error("canary"), { code });
}

/** What the database answers, in place of the usual. */
interface Answers {
  /** Rows of the dedup insert. */
  readonly isNew?: boolean | Error;
  /** The first COMMIT. */
  readonly commit?: string | Error;
  readonly rollback?: Error;
}

function staged(answers: Answers, handler: Handler<OrderConfirmedV1>) {
  const statements: string[] = [];
  const letters: unknown[][] = [];
  const released: unknown[] = [];
  let commits = 0;
  const client = {
    query: (text: string, values: unknown[] = []) => {
      const word = /^\s*(\w+(?: INTO \w+)?)/.exec(text)?.[1] ?? "";
      statements.push(word);
      let answer: unknown = { rows: [], command: word };
      if (word === "INSERT INTO processed_event") {
        const { isNew = true } = answers;
        answer = isNew instanceof Error ? isNew : { rows: isNew ? [{}] : [] };
      } else if (word === "INSERT INTO dead_letter") {
        letters.push(values);
      } else if (word === "COMMIT") {
        commits += 1;
        const given = commits === 1 ? answers.commit : undefined;
        answer = given instanceof Error ? given : { command: given ?? word };
      } else if (word === "ROLLBACK" && answers.rollback) {
        answer = answers.rollback;
      }
      return answer instanceof Error
        ? Promise.reject(answer)
        : Promise.resolve(answer);
    },
    release: (error: unknown) => released.push(error),
  };
  const consumer = new DedupConsumer({
    kafka: { consumer: () => ({}) } as unknown as Kafka,
    pool: { connect: () => Promise.resolve(client) } as unknown as Pool,
    consumer: "billing-order-confirmed",
    group: "billing-order-confirmed",
    topics: [],
    registry,
    handler,
  });
  const handle = (value: string | null, attempts = 1) =>
    consumer.handle(
      { topic: "orders.confirmed", partition: 0, offset: "9007199254740993" },
      {
        key: null,
        value: value === null ? null : Buffer.from(value),
      } as KafkaMessage,
      attempts,
    );
  const reasons = () => letters.map((values) => values[10]);
  return { handle, statements, letters, reasons, released };
}

const EVENT = JSON.stringify({
  eventId: "01935c3e-7c1a-7000-8000-000000000001",
  eventType: "order.confirmed.v1",
  occurredAt: "2026-06-01T12:00:00Z",
  aggregateType: "Order",
  aggregateId: "A-1",
  orderRef: "A-1",
  orderId: 1,
  customerId: 2,
  totalAmount: "10.5",
  currency: "EUR",
});

const effect: Handler<OrderConfirmedV1> = async (_, client: ClientBase) => {
  await client.query("INSERT INTO invoice");
};

test("the dedup row and the effect commit together", async () => {
  const stage = staged({}, effect);
  assert.equal(await stage.handle(EVENT), "processed");
  assert.deepEqual(stage.statements, [
    "BEGIN",
    "INSERT INTO processed_event",
    "INSERT INTO invoice",
    "COMMIT",
  ]);
});

test("listing_fault_01 a duplicate is told by the rows that come back, and has no effect", async () => {
  const stage = staged({ isNew: false }, effect);
  assert.equal(await stage.handle(EVENT), "duplicate");
  assert.ok(!stage.statements.includes("INSERT INTO invoice"));
});

test("a COMMIT that PostgreSQL turned into ROLLBACK is no success", async () => {
  const stage = staged({ commit: "ROLLBACK" }, effect);
  await assert.rejects(stage.handle(EVENT));
  assert.deepEqual(stage.letters, []);
});

test("what fails is tried 8 times and then set aside, without the error's text", async () => {
  const failing: Handler<OrderConfirmedV1> = () =>
    Promise.reject(databaseError("23505"));
  const first = staged({}, failing);
  await assert.rejects(first.handle(EVENT, 7));
  const last = staged({}, failing);
  assert.equal(await last.handle(EVENT, 8), "dead letter");
  assert.deepEqual(last.reasons(), ["attempts_exhausted"]);
  assert.doesNotMatch(JSON.stringify(last.letters), /canary/);
  // As text: a number would be another offset.
  assert.equal(last.letters[0]?.[3], "9007199254740993");
});

test("case_43 a server that is away sets nothing aside, however often", async () => {
  for (const code of ["57P01", "08006", "40P01", "55P03", "ECONNREFUSED"]) {
    const stage = staged({ isNew: databaseError(code) }, effect);
    await assert.rejects(stage.handle(EVENT, 1_000), code);
    assert.deepEqual(stage.letters, [], code);
  }
  const lost = staged({ commit: databaseError("08006") }, effect);
  await assert.rejects(lost.handle(EVENT, 1_000));
});

test("a permanent error is set aside at once, and its id isn't remembered", async () => {
  const stage = staged({}, () =>
    Promise.reject(new PermanentError("no account")),
  );
  assert.equal(await stage.handle(EVENT), "dead letter");
  assert.deepEqual(stage.reasons(), ["permanent"]);
  assert.deepEqual(stage.statements.slice(0, 3), [
    "BEGIN",
    "INSERT INTO processed_event",
    "ROLLBACK",
  ]);
});

test("an id without a partition is out of the window, unless it is of today", async () => {
  const missing = { isNew: databaseError("23514") };
  const old = staged(missing, effect);
  assert.equal(await old.handle(EVENT), "dead letter");
  assert.deepEqual(old.reasons(), ["out_of_window"]);
  const now = Date.now().toString(16).padStart(12, "0");
  const id = `${now.slice(0, 8)}-${now.slice(8)}-7000-8000-000000000001`;
  const late = staged(missing, effect);
  const event = EVENT.replace("01935c3e-7c1a-7000-8000-000000000001", id);
  await assert.rejects(late.handle(event, 1_000));
  assert.deepEqual(late.letters, []);
});

test("poison and tombstones are set aside, unknown types are skipped", async () => {
  const stage = staged({}, effect);
  assert.equal(await stage.handle("{"), "dead letter");
  assert.equal(await stage.handle(null), "dead letter");
  assert.equal(await stage.handle('{"eventType":"order.paid.v1"}'), "unknown");
  assert.deepEqual(stage.reasons(), ["malformed_json", "tombstone"]);
});

test("a connection in doubt isn't lent again", async () => {
  const failed = new Error();
  const stage = staged(
    { isNew: databaseError("08006"), rollback: failed },
    effect,
  );
  await assert.rejects(stage.handle(EVENT));
  assert.deepEqual(stage.released, [failed]);
});
