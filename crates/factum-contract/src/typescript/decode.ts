// From the bytes of a record to an event: the same verdicts as in the service that owns the contract.
import { parse } from "lossless-json";

import type { Schema } from "./wire.js";

/**
 * The event types that a consumer takes, each with its schema. What isn't here is never decoded (CFG-3).
 *
 * A schema stands under its own event type: under another one it doesn't compile.
 */
export type Registry<R> = {
  readonly [K in keyof R]: Schema<{ readonly eventType: K }>;
};

/** What the schemas of a registry put out. */
export type EventOf<R extends Registry<R>> = {
  [K in keyof R]: R[K] extends Schema<infer E> ? E : never;
}[keyof R];

/** A registry whose types don't matter. */
type Schemas = Readonly<Record<string, Schema<unknown>>>;

/** Why a record can never be handled. The names are those of the table `dead_letter`. */
export type PoisonReason =
  | "empty"
  | "too_large"
  | "too_deep"
  | "not_utf8"
  | "framed"
  | "malformed_json"
  | "not_object"
  | "duplicate_key"
  | "nul"
  | "event_type"
  | "event_id"
  | "occurred_at"
  | "aggregate_type"
  | "aggregate_id"
  | "missing_field"
  | "invalid_field";

/** A record that can never be handled. It names a place and an expectation, and never a value. */
export interface Poison {
  readonly kind: "poison";
  readonly reason: PoisonReason;
  readonly path: string;
  readonly expected: string;
}

/** What a record is. */
export type Decoded<E> =
  | { readonly kind: "event"; readonly event: E }
  /** A type that the registry doesn't have: skip it and count it (listing fault 6). */
  | { readonly kind: "unknown"; readonly eventType: string }
  /** A dead letter at once (RTRY-2). */
  | Poison
  /** A null value: the topic's policy says what it means (public case 55). */
  | { readonly kind: "tombstone" };

/** The most bytes of a record's value. */
export const MAX_BYTES = 1024 * 1024;
/** How deep arrays and objects may nest, the outermost object included. */
export const MAX_DEPTH = 32;
/** The most bytes of an event type. */
const MAX_TYPE_BYTES = 255;
/** The most characters of a path. */
const MAX_PATH_CHARS = 512;

/** Ends the parsing at a key that stands twice. */
class DuplicateKey extends Error {}

const ENVELOPE_REASONS = new Map<unknown, PoisonReason>([
  ["eventId", "event_id"],
  ["eventType", "event_type"],
  ["occurredAt", "occurred_at"],
  ["aggregateType", "aggregate_type"],
  ["aggregateId", "aggregate_id"],
]);

function poison(
  reason: PoisonReason,
  expected: string,
  path: readonly PropertyKey[] = [],
): Poison {
  return { kind: "poison", reason, path: rendered(path), expected };
}

/** `$.items[3].price`; a key that isn't a plain name may be data, and isn't shown. */
function rendered(path: readonly PropertyKey[]): string {
  const steps = path.map((step) => {
    if (typeof step === "number") return `[${step}]`;
    const name = String(step);
    return /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? `.${name}` : "['…']";
  });
  return `$${steps.join("")}`.slice(0, MAX_PATH_CHARS);
}

function isObject(node: unknown): node is Record<string, unknown> {
  return (
    typeof node === "object" &&
    node !== null &&
    !Array.isArray(node) &&
    Object.getPrototypeOf(node) === Object.prototype
  );
}

/** Finds a text or a key below a node, and what nests too deeply. */
function find(
  node: unknown,
  matches: (text: string) => boolean,
  depth = 1,
): "found" | "too deep" | undefined {
  if (typeof node === "string") {
    return matches(node) ? "found" : undefined;
  }
  const isArray = Array.isArray(node);
  if (!isArray && !isObject(node)) {
    return undefined;
  }
  if (depth > MAX_DEPTH) {
    return "too deep";
  }
  for (const key of Object.keys(node)) {
    if (!isArray && matches(key)) return "found";
    const inside = (node as Record<string, unknown>)[key];
    const found = find(inside, matches, depth + 1);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** What stands at a path, and whether anything does. */
function at(
  root: unknown,
  path: readonly PropertyKey[],
): { readonly isThere: boolean; readonly node: unknown } {
  let node = root;
  for (const step of path) {
    if (
      typeof node !== "object" ||
      node === null ||
      !Object.hasOwn(node, step)
    ) {
      return { isThere: false, node: undefined };
    }
    node = (node as Record<PropertyKey, unknown>)[step];
  }
  return { isThere: true, node };
}

function parsed(value: Uint8Array): unknown {
  if (value.length === 0) {
    return poison("empty", "a JSON object, not 0 bytes");
  }
  if (value[0] === 0) {
    return poison("framed", "JSON without a schema registry's frame");
  }
  if (value.length > MAX_BYTES) {
    return poison("too_large", `at most ${MAX_BYTES} bytes`);
  }
  let text: string;
  try {
    // A byte order mark is kept, and is no JSON then.
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(
      value,
    );
  } catch {
    return poison("not_utf8", "UTF-8");
  }
  let root: unknown;
  try {
    root = parse(text, null, {
      onDuplicateKey: () => {
        throw new DuplicateKey();
      },
    });
  } catch (error) {
    if (error instanceof DuplicateKey) {
      return poison("duplicate_key", "each key once");
    }
    if (error instanceof RangeError) {
      return poison("too_deep", `at most ${MAX_DEPTH} levels`);
    }
    return poison("malformed_json", "JSON (RFC 8259) to the end of the record");
  }
  switch (find(root, (within) => /\p{Surrogate}/u.test(within))) {
    case "found":
      return poison("malformed_json", "whole Unicode characters");
    case "too deep":
      return poison("too_deep", `at most ${MAX_DEPTH} levels`);
    default:
      return { root };
  }
}

/** Registries that have every schema under its own event type. */
const rightRegistries = new WeakSet<object>();

/**
 * Throws a TypeError where a schema stands under another event type than its own: every record of that type would be
 * poison. The compiler says so, too, unless the types are lost on the way, as in `Record<string, …>`. `decode` checks
 * each registry once; a service that checks it itself learns of it at its start.
 */
export function checkRegistry<R extends Registry<R>>(registry: R): void {
  if (rightRegistries.has(registry)) return;
  for (const [eventType, schema] of Object.entries(registry as Schemas)) {
    const { error } = schema.safeParse({ eventType });
    if (error?.issues.some((issue) => issue.path[0] === "eventType")) {
      throw new TypeError(
        `the registry has the schema of another event type under "${eventType}"`,
      );
    }
  }
  rightRegistries.add(registry);
}

/**
 * Decodes the value of a Kafka record. Whatever the record is, it doesn't throw; it throws a TypeError when the
 * registry has a schema under another event type than its own.
 *
 * Numbers keep every digit on the way, because lossless-json parses them. The type is read first: one that the
 * registry doesn't have is "unknown", even when the rest would be no event of ours.
 */
export function decode<R extends Registry<R>>(
  registry: R,
  value: Uint8Array | null,
): Decoded<EventOf<R>> {
  checkRegistry(registry);
  if (value === null) {
    return { kind: "tombstone" };
  }
  const json = parsed(value) as Poison | { readonly root: unknown };
  if ("kind" in json) {
    return json;
  }
  const { root } = json;
  if (!isObject(root)) {
    return poison("not_object", "a JSON object");
  }
  const eventType = Object.hasOwn(root, "eventType") ? root["eventType"] : null;
  if (
    typeof eventType !== "string" ||
    eventType === "" ||
    new TextEncoder().encode(eventType).length > MAX_TYPE_BYTES ||
    /\p{Cc}/u.test(eventType)
  ) {
    const expected = 'an event type, such as "order.confirmed.v1"';
    return poison("event_type", expected, ["eventType"]);
  }
  const schemas = registry as Schemas;
  const schema = Object.hasOwn(schemas, eventType)
    ? schemas[eventType]
    : undefined;
  if (schema === undefined) {
    return { kind: "unknown", eventType };
  }
  const read = schema.safeParse(root);
  if (!read.success) {
    const issue = read.error.issues[0];
    const path = issue?.path ?? [];
    const { isThere, node } = at(root, path);
    const envelope = ENVELOPE_REASONS.get(path[0]);
    const expected = expectation(issue?.message);
    const isNul =
      /^(?:text without U\+0000|an object of values)/.test(expected) &&
      typeof node === (expected.startsWith("text") ? "string" : "object") &&
      find(node, (within) => within.includes("\0")) === "found";
    const reason =
      envelope ?? (isNul ? "nul" : isThere ? "invalid_field" : "missing_field");
    return poison(reason, expected, path);
  }
  if (find(root, (within) => within.includes("\0")) === "found") {
    return poison("nul", "text without U+0000");
  }
  return { kind: "event", event: read.data as EventOf<R> };
}

/** Our own messages begin alike; others might hold a value some day. */
function expectation(message: string | undefined): string {
  const own = /^expected (.*)$/s.exec(message ?? "");
  return own?.[1] ?? "a value of the declared form";
}
