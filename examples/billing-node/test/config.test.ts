// The settings, and what the log keeps to itself.
import assert from "node:assert/strict";
import test from "node:test";

import { ConfigError, readConfig } from "../src/config.js";
import { described } from "../src/log.js";

const RIGHT = {
  DATABASE_URL: "postgres://billing:canary@db:5432/billing?sslmode=verify-full",
  KAFKA_BROKERS: "kafka-1:9092,kafka-2:9092",
  FACTUM_SERVICE: "billing",
  KAFKA_SECURITY_PROTOCOL: "SASL_SSL",
  KAFKA_SASL_MECHANISM: "SCRAM-SHA-512",
  KAFKA_SASL_USERNAME: "billing",
  KAFKA_SASL_PASSWORD: "canary",
};

function problems(env: Readonly<Record<string, string>>): string {
  try {
    readConfig(env);
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.message;
  }
  return assert.fail("nothing is wrong");
}

test("a whole configuration is read", () => {
  const config = readConfig(RIGHT);
  assert.deepEqual(config.kafka.brokers, ["kafka-1:9092", "kafka-2:9092"]);
  assert.equal(config.kafka.ssl, true);
  assert.equal(config.consumer, "billing-order-confirmed");
  assert.equal(config.group, config.consumer);
});

test("every problem comes at once, and no value shows (case_57)", () => {
  const text = problems({ BILLING_CONSUMER: "canary!" });
  for (const name of [
    "DATABASE_URL",
    "KAFKA_BROKERS",
    "FACTUM_SERVICE",
    "BILLING_CONSUMER",
    "KAFKA_SECURITY_PROTOCOL",
  ]) {
    assert.ok(text.includes(name), name);
  }
  assert.doesNotMatch(text, /canary/);
  assert.doesNotMatch(
    problems({ ...RIGHT, KAFKA_SASL_MECHANISM: "canary" }),
    /canary/,
  );
});

test("rule_sec_1 plaintext is for development only", () => {
  const plain = { ...RIGHT, KAFKA_SECURITY_PROTOCOL: "PLAINTEXT" };
  assert.match(problems(plain), /SEC-1/);
  const database = "postgres://billing:canary@db:5432/billing";
  assert.match(problems({ ...RIGHT, DATABASE_URL: database }), /SEC-1/);
  assert.doesNotMatch(problems({ ...RIGHT, DATABASE_URL: "canary" }), /canary/);
  readConfig({ ...RIGHT, DATABASE_URL: "postgres://a:b@localhost/billing" });
  assert.equal(
    readConfig({ ...plain, FACTUM_PROFILE: "development" }).kafka.ssl,
    false,
  );
});

test("an error is told without its text", () => {
  const error = Object.assign(new TypeError("canary"), {
    code: "ECONNREFUSED",
  });
  assert.deepEqual(described(error), {
    error: "TypeError",
    code: "ECONNREFUSED",
  });
  assert.deepEqual(described("canary"), { error: "string" });
});
