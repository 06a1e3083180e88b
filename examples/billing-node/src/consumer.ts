// A consumer whose effects happen exactly once: the dedup row and the effect commit together, and the offset
// moves only then (IDEM-3, CONS-2).
import { setTimeout as sleep } from "node:timers/promises";

import type { Consumer, EachBatchPayload, Kafka, KafkaMessage } from "kafkajs";
import type { ClientBase, Pool } from "pg";

import { writeDeadLetter, type Cause, type Place } from "./dead-letter.js";
import {
  checkRegistry,
  decode,
  type EventOf,
  type PoisonReason,
  type Registry,
} from "./generated/index.js";
import { described, log } from "./log.js";

/** An error that no later attempt would end otherwise: the event goes to the dead letters at once (RTRY-2). */
export class PermanentError extends Error {}

/** What an event does. It runs in the transaction that remembers the event, and never ends it. */
export type Handler<E> = (event: E, client: ClientBase) => Promise<void>;

/** What became of a record. */
export type Outcome = "processed" | "duplicate" | "unknown" | "dead letter";

/** What every event has. */
interface Envelope {
  readonly eventId: string;
  readonly eventType: string;
}

/** How often a transient failure is tried, the first time included (RTRY-1). */
const ATTEMPTS = 8;
/** The pause before the second attempt; it doubles up to the longest. */
const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 30_000;
/** How long a pause may last without a word to the group's coordinator. */
const HEARTBEAT_EVERY_MS = 1_000;
/** How far an id without a partition may lie from now for the partition to be merely late. */
const DAY_MS = 24 * 60 * 60 * 1_000;

/** PostgreSQL's "no partition of relation found for row". */
const NO_PARTITION = "23514";
/** Codes that say nothing about the event: the server is away, busy, or another transaction was in the way. */
const NOT_THE_EVENTS_FAULT =
  /^(?:08...|53...|57P0.|58...|25P03|40001|40P01|55P03|E[A-Z]+)$/;

/** The transaction was rolled back where it should have been committed. */
class RolledBack extends Error {}

/** The dedup table has no partition for the event of today: maintenance must run. */
class PartitionMissing extends Error {}

/** What the consumer needs. */
export interface Settings<R extends Registry<R>> {
  readonly kafka: Kafka;
  readonly pool: Pool;
  /** The stable name in `processed_event.consumer_group`; not the name of Kafka's group. */
  readonly consumer: string;
  readonly group: string;
  readonly topics: readonly string[];
  readonly registry: R;
  readonly handler: Handler<EventOf<R>>;
}

/** A consumer of the events in a registry. */
export class DedupConsumer<R extends Registry<R>> {
  readonly #settings: Settings<R>;
  readonly #consumer: Consumer;

  constructor(settings: Settings<R>) {
    checkRegistry(settings.registry);
    this.#settings = settings;
    this.#consumer = settings.kafka.consumer({
      groupId: settings.group,
      // A batch that fails for the database's sake begins again, however often.
      retry: { restartOnFailure: () => Promise.resolve(true) },
    });
  }

  /** Begins to consume, from the earliest record if the group is new (CONS-4). */
  async start(): Promise<void> {
    await this.#consumer.connect();
    await this.#consumer.subscribe({
      topics: [...this.#settings.topics],
      fromBeginning: true,
    });
    await this.#consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: (payload) => this.#batch(payload),
    });
  }

  /** Ends after the record that is being handled; what was committed to the database has its offset committed. */
  async stop(): Promise<void> {
    await this.#consumer.disconnect();
  }

  async #batch(payload: EachBatchPayload): Promise<void> {
    const { batch, heartbeat, isRunning, isStale, resolveOffset } = payload;
    const { topic, partition } = batch;
    let next: string | undefined;
    try {
      for (const message of batch.messages) {
        if (!isRunning() || isStale()) break;
        const place = { topic, partition, offset: message.offset };
        const rest = async (milliseconds: number): Promise<boolean> => {
          const end = Date.now() + milliseconds;
          while (Date.now() < end && isRunning() && !isStale()) {
            await sleep(Math.min(HEARTBEAT_EVERY_MS, end - Date.now()));
            await heartbeat();
          }
          return isRunning() && !isStale();
        };
        const outcome = await this.#untilDone(place, message, rest);
        if (outcome === undefined) break;
        resolveOffset(message.offset);
        // Not by a number: offsets are beyond what one holds (listing fault 11).
        next = String(BigInt(message.offset) + 1n);
        await heartbeat();
      }
    } finally {
      if (next !== undefined) {
        await this.#consumer.commitOffsets([
          { topic, partition, offset: next },
        ]);
      }
    }
  }

  /** Tries until the record is handled or set aside; `undefined` when it is time to stop. */
  async #untilDone(
    place: Place,
    message: KafkaMessage,
    rest: (milliseconds: number) => Promise<boolean>,
  ): Promise<Outcome | undefined> {
    let pause = FIRST_PAUSE_MS;
    let attempts = 1;
    for (;;) {
      try {
        return await this.handle(place, message, attempts);
      } catch (error) {
        const counts = !isNotTheEventsFault(error);
        log("warn", "a record failed and is tried again", {
          ...place,
          attempts,
          ...described(error),
        });
        if (counts) attempts += 1;
      }
      if (!(await rest(pause))) return undefined;
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  /**
   * Handles one record: the event's effect and the row that remembers it commit together, or neither does.
   *
   * @throws what a later attempt may mend. After the last attempt the record is set aside instead.
   */
  async handle(
    place: Place,
    message: KafkaMessage,
    attempts = 1,
  ): Promise<Outcome> {
    const decoded = decode(this.#settings.registry, message.value);
    switch (decoded.kind) {
      case "unknown":
        log("info", "a record of a type that nobody here handles is skipped", {
          ...place,
          eventType: decoded.eventType,
        });
        return "unknown";
      case "tombstone":
        return this.#setAside(place, message, {
          reason: "tombstone",
          error: "a record without a value",
          attempts: 0,
        });
      case "poison":
        return this.#setAside(place, message, {
          reason: decoded.reason satisfies PoisonReason,
          path: decoded.path,
          error: `${decoded.reason} at ${decoded.path}: expected ${decoded.expected}`,
          attempts: 0,
        });
      case "event":
        return this.#handleEvent(place, message, decoded.event, attempts);
    }
  }

  async #handleEvent(
    place: Place,
    message: KafkaMessage,
    event: EventOf<R>,
    attempts: number,
  ): Promise<Outcome> {
    const { eventId, eventType } = event as Envelope;
    const cause = (reason: string, error: string): Cause => ({
      reason,
      error,
      eventId,
      eventType,
      attempts,
    });
    try {
      return await this.#transaction(async (client) => {
        if (!(await this.#isNew(client, eventId))) return "duplicate";
        await this.#settings.handler(event, client);
        return "processed";
      });
    } catch (error) {
      if (error instanceof OutOfWindow) {
        const text =
          "the event's id is outside the dedup window, so it may have been handled before: " +
          "check the business data before it is handled again";
        const letter = { ...cause("out_of_window", text), attempts: 0 };
        return this.#setAside(place, message, letter);
      }
      if (error instanceof PermanentError) {
        return this.#setAside(
          place,
          message,
          cause("permanent", error.message),
        );
      }
      if (attempts >= ATTEMPTS && !isNotTheEventsFault(error)) {
        const { error: name, code } = described(error);
        const text = `${name}${code === undefined ? "" : ` (${code})`}`;
        return this.#setAside(
          place,
          message,
          cause("attempts_exhausted", text),
        );
      }
      throw error;
    }
  }

  /** Remembers the event. Decided by the row that the database returns, and by nothing else (listing fault 1). */
  async #isNew(client: ClientBase, eventId: string): Promise<boolean> {
    try {
      const { rows } = await client.query(
        `INSERT INTO processed_event (consumer_group, event_id) VALUES ($1, $2)
         ON CONFLICT (consumer_group, event_id) DO NOTHING RETURNING event_id`,
        [this.#settings.consumer, eventId],
      );
      return rows.length === 1;
    } catch (error) {
      if (codeOf(error) !== NO_PARTITION) throw error;
      // The first 48 bits of the id are the time at which it was made.
      const made = Number.parseInt(
        eventId.slice(0, 8) + eventId.slice(9, 13),
        16,
      );
      throw Math.abs(Date.now() - made) > DAY_MS
        ? new OutOfWindow()
        : new PartitionMissing();
    }
  }

  async #setAside(
    place: Place,
    message: KafkaMessage,
    cause: Cause,
  ): Promise<Outcome> {
    await this.#transaction((client) =>
      writeDeadLetter(client, this.#settings.consumer, place, message, cause),
    );
    log("error", "a record was set aside in dead_letter", {
      ...place,
      reason: cause.reason,
      path: cause.path,
    });
    return "dead letter";
  }

  async #transaction<T>(work: (client: ClientBase) => Promise<T>): Promise<T> {
    const client = await this.#settings.pool.connect();
    let broken: Error | undefined;
    try {
      await client.query("BEGIN ISOLATION LEVEL READ COMMITTED");
      const done = await work(client);
      // After an error that a handler swallowed, PostgreSQL answers COMMIT with ROLLBACK.
      const { command } = await client.query("COMMIT");
      if (command !== "COMMIT") throw new RolledBack();
      return done;
    } catch (error) {
      await client.query("ROLLBACK").catch((failed: unknown) => {
        broken = failed instanceof Error ? failed : new Error();
      });
      throw error;
    } finally {
      // A connection in doubt isn't lent again.
      client.release(broken);
    }
  }
}

/** Nobody knows whether the event was handled before (listing fault 12). */
class OutOfWindow extends Error {}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error && "code" in error
    ? String(error.code)
    : undefined;
}

function isNotTheEventsFault(error: unknown): boolean {
  const code = codeOf(error);
  return (
    error instanceof PartitionMissing ||
    (code !== undefined && NOT_THE_EVENTS_FAULT.test(code)) ||
    (error instanceof Error &&
      /^(?:Connection terminated|timeout exceeded when trying to connect)/.test(
        error.message,
      ))
  );
}
