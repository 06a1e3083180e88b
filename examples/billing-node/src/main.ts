// The billing service in Node: an invoice for each confirmed order.
import { Kafka, logLevel } from "kafkajs";
import pg from "pg";

import { bill, registry } from "./billing.js";
import { ConfigError, readConfig, type Config } from "./config.js";
import { registerLz4 } from "./compression.js";
import { DedupConsumer } from "./consumer.js";
import { topics } from "./generated/index.js";
import { described, log } from "./log.js";

/** How long the service may take to end after a signal. */
const SHUTDOWN_DEADLINE_MS = 25_000;
/** How long a statement waits for a lock: a concurrent duplicate waits for the first to commit. */
const LOCK_TIMEOUT_MS = 5_000;
/** The longest statement. */
const STATEMENT_TIMEOUT_MS = 30_000;
/** Connections: one for each partition that is handled at a time, and one to spare. */
const CONNECTIONS = 2;

function configured(): Config {
  try {
    return readConfig(process.env);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    process.stderr.write(`error: ${error.message}\n`);
    process.exit(2);
  }
}

const config = configured();
const pool = new pg.Pool({
  connectionString: config.databaseUrl,
  application_name: config.consumer,
  max: CONNECTIONS,
  lock_timeout: LOCK_TIMEOUT_MS,
  statement_timeout: STATEMENT_TIMEOUT_MS,
});
// An idle connection that the server ends is no reason to end the process: the next query opens another.
pool.on("error", (error) => {
  log("warn", "an idle connection to the database ended", described(error));
});
registerLz4();
const kafka = new Kafka({
  ...config.kafka,
  logLevel: logLevel.WARN,
  // kafkajs tells more than the message, and nobody promises that no secret is in it.
  logCreator: () => (entry) => {
    log("warn", "kafkajs", { namespace: entry.namespace, told: entry.label });
  },
});
const consumer = new DedupConsumer({
  kafka,
  pool,
  consumer: config.consumer,
  group: config.group,
  topics: [topics["order.confirmed.v1"]],
  registry,
  handler: bill,
});

let stopping = false;
async function stop(signal: string): Promise<void> {
  if (stopping) process.exit(1);
  stopping = true;
  log("info", "the service ends", { signal });
  const deadline = setTimeout(() => process.exit(1), SHUTDOWN_DEADLINE_MS);
  await consumer.stop();
  await pool.end();
  clearTimeout(deadline);
  process.exit(0);
}
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => {
    stop(signal).catch((error: unknown) => {
      log("error", "the service didn't end well", described(error));
      process.exit(1);
    });
  });
}

try {
  await consumer.start();
  log("info", "billing consumes", { group: config.group });
} catch (error) {
  log("error", "billing can't begin", described(error));
  process.exit(1);
}
