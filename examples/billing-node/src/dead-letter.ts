// Records that are set aside: the table that the Rust services write and read (RTRY-5).
import type { KafkaMessage } from "kafkajs";
import type { ClientBase } from "pg";

/** Where a record lies. */
export interface Place {
  readonly topic: string;
  readonly partition: number;
  /** As text: offsets are beyond what a number of JavaScript holds (listing fault 11). */
  readonly offset: string;
}

/** Why it was set aside, without any value of it. */
export interface Cause {
  readonly reason: string;
  readonly path?: string | undefined;
  readonly error: string;
  readonly eventId?: string | undefined;
  readonly eventType?: string | undefined;
  readonly attempts: number;
}

// The limits of the table's other writers.
const MAX_HEADERS = 100;
const MAX_HEADER_NAME_CHARS = 63;
const MAX_HEADER_VALUE_BYTES = 4096;
const MAX_PATH_CHARS = 255;
const MAX_ERROR_CHARS = 255;

function clean(text: string, maxChars: number): string {
  return [...text.replaceAll("\0", "\ufffd")].slice(0, maxChars).join("");
}

/** Writes the record, byte for byte. The same record again updates its row. */
export async function writeDeadLetter(
  client: ClientBase,
  consumer: string,
  place: Place,
  message: KafkaMessage,
  cause: Cause,
): Promise<void> {
  const names: string[] = [];
  const values: (Buffer | null)[] = [];
  for (const [name, held] of Object.entries(message.headers ?? {})) {
    for (const value of Array.isArray(held) ? held : [held]) {
      if (names.length === MAX_HEADERS) break;
      names.push(clean(name, MAX_HEADER_NAME_CHARS));
      values.push(
        value === undefined
          ? null
          : Buffer.from(value).subarray(0, MAX_HEADER_VALUE_BYTES),
      );
    }
  }
  await client.query(
    `INSERT INTO dead_letter AS known
       (consumer, topic, partition, record_offset, key, value, header_names, header_values,
        event_id, event_type, reason, path, error, attempts, payload_bytes, path_group)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
             coalesce(length($6::bytea), 0), coalesce(regexp_replace($12::text, '\\[\\d+\\]', '[]', 'g'), ''))
     ON CONFLICT (consumer, topic, partition, record_offset) DO UPDATE SET
       reason = excluded.reason, path = excluded.path, error = excluded.error,
       path_group = excluded.path_group, state = 'open',
       state_at = CASE WHEN known.state = 'open' THEN known.state_at ELSE clock_timestamp() END,
       attempts = greatest(known.attempts, excluded.attempts), last_seen = clock_timestamp()`,
    [
      consumer,
      place.topic,
      place.partition,
      place.offset,
      message.key,
      message.value,
      names,
      values,
      cause.eventId ?? null,
      cause.eventType === undefined
        ? null
        : clean(cause.eventType, MAX_PATH_CHARS),
      cause.reason,
      cause.path === undefined ? null : clean(cause.path, MAX_PATH_CHARS),
      clean(cause.error, MAX_ERROR_CHARS),
      cause.attempts,
    ],
  );
}
