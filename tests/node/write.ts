// Writes arbitrary events that the generated interface describes, and tells each on a line.
import { Kafka, logLevel } from "kafkajs";

import type {
  Branch,
  Part,
  SampleTakenV1,
} from "./generated/sample/domain/event/sample-taken.v1.event.js";
import { CURRENCIES } from "./generated/code-lists.js";

const [, , brokers = "", topic = "", run = "", count = "", seed = ""] =
  process.argv;

/** xorshift of 32 bits: the same seed makes the same events. */
let state = Number(seed) | 1;
function below(limit: number): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % limit;
}

function oneOf<T>(of: readonly T[]): T {
  return of[below(of.length)] as T;
}

function some<T>(make: () => T): T[] {
  return Array.from({ length: below(4) }, make);
}

/** Left out as often as not. */
function maybe<K extends string, T>(
  name: K,
  make: () => T,
): { readonly [N in K]?: T } {
  return (below(2) === 0 ? { [name]: make() } : {}) as {
    readonly [N in K]?: T;
  };
}

const UNUSUAL = [
  ..."\"\\/\n\t\u0001\u001f\u007f\u2028\ufeff\ufffd\uffffé\u0301💶\u{10ffff}<'`$",
];

function text(): string {
  return Array.from({ length: below(12) }, () => {
    const code = 1 + below(0x10ffff);
    const isSurrogate = code >= 0xd800 && code <= 0xdfff;
    return below(2) === 0 || isSurrogate
      ? oneOf(UNUSUAL)
      : String.fromCodePoint(code);
  }).join("");
}

function digits(length: number): string {
  return Array.from({ length }, () => below(10)).join("");
}

/** An integer of 64 bits in its canonical form. */
function wide(): string {
  const any = BigInt.asIntN(64, BigInt(digits(19)) * BigInt(oneOf([1, -1])));
  return oneOf([
    String(any),
    "-9223372036854775808",
    "9223372036854775807",
    "9007199254740993",
    "0",
  ]);
}

/** A decimal in its canonical form. */
function amount(): string {
  const whole = String(BigInt(digits(below(18)) || "0"));
  const fraction = digits(below(20)).replace(/0+$/, "");
  const plain = fraction === "" ? whole : `${whole}.${fraction}`;
  return plain === "0" || below(2) === 0 ? plain : `-${plain}`;
}

function hex(length: number): string {
  return Array.from({ length }, () => below(16).toString(16)).join("");
}

function uuid(): string {
  return [8, 4, 4, 4, 12].map(hex).join("-");
}

function eventId(): string {
  return `${hex(8)}-${hex(4)}-7${hex(3)}-${oneOf(["8", "9", "a", "b"])}${hex(3)}-${hex(12)}`;
}

function instant(): string {
  const at = new Date(0);
  at.setUTCFullYear(1 + below(9999), below(12), 1 + below(28));
  at.setUTCHours(below(24), below(60), below(60));
  const fraction = oneOf(["", ".120", ".999999", ".000001"]);
  return `${at.toISOString().slice(0, 19)}${fraction}Z`;
}

function money() {
  return { amount: amount(), currency: oneOf([...CURRENCIES]) };
}

function part(): Part {
  return {
    label: text(),
    count: below(65536),
    price: money(),
    tags: some(text),
    ...maybe("weight", amount),
  };
}

function branch(depth: number): Branch {
  const branches = depth === 0 ? [] : some(() => branch(depth - 1));
  return { label: text(), branches };
}

function map<T>(make: () => T): { readonly [key: string]: T } {
  return Object.fromEntries(some(() => [text(), make()]));
}

function sample(place: number): SampleTakenV1 {
  const sampleRef = `${run}-${place}`;
  return {
    eventId: eventId(),
    eventType: "sample.taken.v1",
    occurredAt: instant(),
    aggregateType: "Sample",
    aggregateId: sampleRef,
    sampleRef,
    flag: below(2) === 0,
    small: below(256),
    ratio: oneOf([below(1000) / 7, -1e21, 5e-324, Number.MAX_VALUE, 0]),
    signed: oneOf([below(2 ** 31), -below(2 ** 31), -(2 ** 31), 0]),
    otherThanZero: oneOf([-1, 1, 2 ** 31 - 1, -(2 ** 31)]),
    large: oneOf([
      "18446744073709551615",
      "9007199254740993",
      digits(19),
    ]).replace(/^0+(?=.)/, ""),
    wide: wide(),
    ...maybe("maybeWide", wide),
    allWide: some(wide),
    price: amount(),
    positive: `1${digits(below(17))}`,
    exact: amount(),
    total: money(),
    precise: money(),
    ...maybe("remark", text),
    link: uuid(),
    cause: eventId(),
    measuredAt: instant(),
    ...maybe("due", () => instant().slice(0, 10)),
    currency: oneOf([...CURRENCIES]),
    channel: oneOf(["web", "shop"] as const),
    channels: some(() => oneOf(["web", "shop"] as const)),
    ...maybe("status", () => oneOf(["paid", "refunded_v2", text()])),
    parts: some(part),
    ...maybe("mainPart", part),
    root: branch(3),
    prices: map(amount),
    gaps: some(() => oneOf([null, below(2 ** 32), 4294967295])),
    gapsByName: map(() => oneOf([null, true, false])),
    short: oneOf(["a", "💶💶💶", "é\u0301"]),
    ...maybe("number", () => oneOf(["ABC-0123", "ZZZ-9999"])),
    country: oneOf(["DE", "AX", "ZW"]),
    language: oneOf(["de", "zu"]),
    level: oneOf([-5, 0, 5]),
    fee: oneOf(["0.02", "99.98", "1"]),
    flags: oneOf([[true], [false, true]]),
  };
}

const events = Array.from({ length: Number(count) }, (_, place) =>
  sample(place),
);
const kafka = new Kafka({
  brokers: brokers.split(","),
  logLevel: logLevel.NOTHING,
});
const producer = kafka.producer({ idempotent: true });
await producer.connect();
await producer.send({
  topic,
  messages: events.map((event) => ({
    key: event.aggregateId,
    value: JSON.stringify(event),
  })),
});
await producer.disconnect();
const lines = events.map((event) => JSON.stringify(event));
process.stdout.write(`${lines.join("\n")}\n`);
