// Publishing: one row, in the caller's transaction. docs/outbox-table.md is the contract of the table.
import type { ClientBase } from "pg";

import { uuidV7 } from "./uuid-v7.js";

/** What happened. */
export interface Event {
  /** `<aggregate>.<past tense>.v<N>`. */
  readonly type: string;
  readonly topic: string;
  readonly aggregateType: string;
  /** Also the record's key: events of one aggregate stay in order. */
  readonly aggregateId: string;
  readonly occurredAt: Date;
  /** The fields of the event itself. An amount is text: JavaScript's numbers would round it. */
  readonly fields: Readonly<Record<string, unknown>>;
}

/**
 * Writes the event into the outbox, in the transaction that `client` has begun: it is published if that commits, and
 * never else. The caller holds the aggregate's lock, so that ids follow the order in which things happened.
 *
 * @returns the event's id
 */
export async function publish(
  client: ClientBase,
  event: Event,
): Promise<string> {
  const eventId = uuidV7();
  const payload = JSON.stringify({
    eventId,
    eventType: event.type,
    occurredAt: event.occurredAt.toISOString(),
    aggregateType: event.aggregateType,
    aggregateId: event.aggregateId,
    ...event.fields,
  });
  await client.query(
    `INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at)
     VALUES ($1, $2, $3, $4, $5, $4, $6, $7)`,
    [
      eventId,
      event.type,
      event.aggregateType,
      event.aggregateId,
      event.topic,
      Buffer.from(payload, "utf8"),
      event.occurredAt,
    ],
  );
  return eventId;
}
