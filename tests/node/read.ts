// Reads a topic until all events of a run are there, with the schemas of both releases of zod, and writes what they
// put out, an event on a line; and what the SDK of CloudEvents makes of the headers.
import { Kafka as CloudEventsKafka, type CloudEvent } from "cloudevents";
import { Kafka, logLevel, type KafkaMessage } from "kafkajs";

import { registerLz4 } from "./billing/compression.js";

import { decode, eventRegistry } from "./generated/index.js";
import { compiled } from "./json-schema.js";
import * as zod3 from "./generated-zod3/index.js";

const [, , brokers = "", topic = "", run = "", count = ""] = process.argv;
registerLz4();
const kafka = new Kafka({
  brokers: brokers.split(","),
  logLevel: logLevel.ERROR,
});
const consumer = kafka.consumer({ groupId: `read-${run}` });
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });

/** The attributes, validated strictly, without the data. */
function cloudEvent(message: KafkaMessage): unknown {
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(message.headers ?? {})) {
    headers[name] = String(value);
  }
  const event = CloudEventsKafka.toEvent({
    headers,
    body: message.value,
    key: String(message.key),
    value: message.value,
    timestamp: message.timestamp,
  } as Parameters<typeof CloudEventsKafka.toEvent>[0]) as CloudEvent<unknown>;
  event.validate();
  const { data: _, ...attributes } = event.toJSON();
  return attributes;
}

const schema = compiled("sample.taken.v1");
const lines: string[] = [];
await new Promise<void>((resolve, reject) => {
  let missing = Number(count);
  consumer
    .run({
      eachMessage: ({ message }) => {
        if (!message.key?.toString().startsWith(run)) return Promise.resolve();
        for (const [zod, decoded] of [
          [4, decode(eventRegistry, message.value)],
          [3, zod3.decode(zod3.eventRegistry, message.value)],
        ] as const) {
          if (decoded.kind !== "event") {
            reject(new Error(JSON.stringify(decoded)));
            return Promise.resolve();
          }
          lines.push(JSON.stringify({ zod, event: decoded.event }));
        }
        if (!schema(JSON.parse(String(message.value)))) {
          reject(new Error(JSON.stringify(schema.errors)));
        }
        lines.push(JSON.stringify({ cloudEvent: cloudEvent(message) }));
        missing -= 1;
        if (missing === 0) resolve();
        return Promise.resolve();
      },
    })
    .catch(reject);
});
process.stdout.write(`${lines.join("\n")}\n`);
await consumer.disconnect();
