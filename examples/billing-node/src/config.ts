// Settings from the environment, checked as a whole. The names are those of the Rust services.
import type { KafkaConfig, SASLOptions } from "kafkajs";

/** What the service needs to know. */
export interface Config {
  readonly databaseUrl: string;
  readonly kafka: KafkaConfig;
  /** The stable name under which events are remembered: that of every service that shares the work. */
  readonly consumer: string;
  /** Kafka's group. */
  readonly group: string;
}

/** A list of everything that is wrong. It quotes no value: one may be a secret. */
export class ConfigError extends Error {}

const MECHANISMS = {
  PLAIN: "plain",
  "SCRAM-SHA-256": "scram-sha-256",
  "SCRAM-SHA-512": "scram-sha-512",
} as const;

/** A consumer's name, as CONS-1 has it. */
const NAME = /^[a-z][a-z0-9]*(?:-[a-z0-9]+)+$/;

const ENCRYPTED = ["require", "verify-ca", "verify-full"];
const THIS_MACHINE = ["", "localhost", "127.0.0.1", "[::1]"];

/** Whether the connection crosses the network unencrypted. What is no URL counts as that. */
function isPlaintext(databaseUrl: string): boolean {
  if (!URL.canParse(databaseUrl)) return true;
  const url = new URL(databaseUrl);
  const mode = url.searchParams.get("sslmode") ?? "";
  return !THIS_MACHINE.includes(url.hostname) && !ENCRYPTED.includes(mode);
}

/** Reads the environment, or says what is wrong with it. */
export function readConfig(
  env: Readonly<Record<string, string | undefined>>,
): Config {
  const problems: string[] = [];
  const required = (name: string, example: string): string => {
    const value = env[name] ?? "";
    if (value === "") problems.push(`${name} is not set: write ${example}`);
    return value;
  };
  const databaseUrl = required(
    "DATABASE_URL",
    "postgres://user:password@host:5432/database",
  );
  const brokers = required("KAFKA_BROKERS", "host:9092,host:9092");
  const service = required("FACTUM_SERVICE", "billing");
  const consumer = env["BILLING_CONSUMER"] ?? "billing-order-confirmed";
  const group = env["BILLING_GROUP"] ?? consumer;
  for (const [name, value] of [
    ["BILLING_CONSUMER", consumer],
    ["BILLING_GROUP", group],
  ] as const) {
    if (!NAME.test(value)) {
      problems.push(`${name} is no consumer's name: write <service>-<purpose>`);
    }
  }

  const development = env["FACTUM_PROFILE"] === "development";
  const protocol =
    env["KAFKA_SECURITY_PROTOCOL"] ?? (development ? "PLAINTEXT" : "");
  const isKnown = ["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"].includes(
    protocol,
  );
  if (!isKnown) {
    problems.push("KAFKA_SECURITY_PROTOCOL is none: write SSL or SASL_SSL");
  } else if (protocol.endsWith("PLAINTEXT") && !development) {
    problems.push(
      "KAFKA_SECURITY_PROTOCOL is not encrypted (SEC-1): write SSL or SASL_SSL",
    );
  }
  let sasl: SASLOptions | undefined;
  if (protocol.startsWith("SASL_")) {
    const mechanism = required("KAFKA_SASL_MECHANISM", "SCRAM-SHA-512");
    const username = required("KAFKA_SASL_USERNAME", "the service's own");
    const password = required("KAFKA_SASL_PASSWORD", "the service's own");
    if (mechanism in MECHANISMS) {
      const known = MECHANISMS[mechanism as keyof typeof MECHANISMS];
      sasl = { mechanism: known, username, password };
    } else if (mechanism !== "") {
      const known = Object.keys(MECHANISMS).join(", ");
      problems.push(`KAFKA_SASL_MECHANISM is none of ${known}`);
    }
  }
  if (!development && databaseUrl !== "" && isPlaintext(databaseUrl)) {
    problems.push(
      "DATABASE_URL is not encrypted (SEC-1): add ?sslmode=verify-full, or use a database on this machine",
    );
  }
  if (problems.length > 0) {
    throw new ConfigError(
      `the environment needs mending:\n- ${problems.join("\n- ")}`,
    );
  }
  return {
    databaseUrl,
    kafka: {
      clientId: service,
      brokers: brokers.split(","),
      ssl: protocol.endsWith("SSL"),
      ...(sasl === undefined ? {} : { sasl }),
    },
    consumer,
    group,
  };
}
