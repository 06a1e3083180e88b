// What the generated schemas take and refuse: public cases and faults of the published listings.
import assert from "node:assert/strict";
import test from "node:test";

import { parse } from "lossless-json";

import {
  checkRegistry,
  decode,
  OrderConfirmedV1Schema,
  type Schema,
} from "../src/generated/index.js";
import * as wire from "../src/generated/wire.js";

const registry = { "order.confirmed.v1": OrderConfirmedV1Schema };

/** The text of an event, with fields in place of the usual ones. */
function event(fields: Readonly<Record<string, string>> = {}): Uint8Array {
  const all: Record<string, string> = {
    eventId: '"01935c3e-7c1a-7000-8000-000000000001"',
    eventType: '"order.confirmed.v1"',
    occurredAt: '"2026-06-01T12:00:00Z"',
    aggregateType: '"Order"',
    aggregateId: '"A-1"',
    orderRef: '"A-1"',
    orderId: "1",
    customerId: "2",
    totalAmount: "10.5",
    currency: '"EUR"',
    ...fields,
  };
  const entries = Object.entries(all).map(
    ([name, text]) => `"${name}":${text}`,
  );
  return new TextEncoder().encode(`{${entries.join(",")}}`);
}

function decoded(fields: Readonly<Record<string, string>>) {
  return decode(registry, event(fields));
}

function read(fields: Readonly<Record<string, string>>) {
  const result = decoded(fields);
  assert.equal(result.kind, "event");
  return result.kind === "event" ? result.event : assert.fail();
}

/** What a schema makes of a JSON text, or nothing. */
function taken<T>(schema: wire.Schema<T>, json: string): T | undefined {
  const result = schema.safeParse(parse(json));
  return result.success ? result.data : undefined;
}

test("case_49 integers of 64 bits keep every digit as text", () => {
  const u64 = wire.integerText(0n, 18446744073709551615n);
  for (const [json, text] of [
    ['"9007199254740993"', "9007199254740993"],
    ["9007199254740993", "9007199254740993"],
    ["18446744073709551615", "18446744073709551615"],
    ["1.8446744073709551615e19", "18446744073709551615"],
    ['"1e3"', "1000"],
    ["-0", "0"],
  ] as const) {
    assert.equal(taken(u64, json), text, json);
  }
  for (const json of [
    "18446744073709551616",
    "3.2e20",
    "-1",
    "0.5",
    '"01"',
    '" 1"',
    '"0x10"',
    '""',
    "null",
    "true",
    '{"isLosslessNumber":true,"value":"5"}',
  ]) {
    assert.equal(taken(u64, json), undefined, json);
  }
  // JSON.parse has lost a digit already: nobody can know which number it was.
  assert.equal(u64.safeParse(JSON.parse("9007199254740993")).success, false);
  assert.equal(
    taken(wire.integer(0, 9007199254740991), "9007199254740993"),
    undefined,
  );
  assert.equal(taken(wire.integer(-128, 127, true), "0"), undefined);
  assert.equal(taken(wire.integer(-128, 127, true), "-128.0"), -128);
});

test("case_51 instants with any offset are read and put out in UTC", () => {
  for (const [given, canonical] of [
    ["2026-06-01T12:00:00Z", "2026-06-01T12:00:00Z"],
    ["2026-06-01T12:00:00+00:00", "2026-06-01T12:00:00Z"],
    ["2026-06-01T12:00:00-00:00", "2026-06-01T12:00:00Z"],
    ["2026-06-01T12:00:00+03:00", "2026-06-01T09:00:00Z"],
    ["2026-06-01T00:15:00+05:45", "2026-05-31T18:30:00Z"],
    ["2026-06-01T12:00:00.120Z", "2026-06-01T12:00:00.120Z"],
    ["2026-06-01T12:00:00.1234Z", "2026-06-01T12:00:00.123400Z"],
    ["2026-06-01T12:00:00.123456789Z", "2026-06-01T12:00:00.123456Z"],
    ["1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"],
    ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"],
    ["0050-02-28T23:59:59-23:59", "0050-03-01T23:58:59Z"],
  ] as const) {
    assert.equal(read({ occurredAt: `"${given}"` }).occurredAt, canonical);
  }
  for (const given of [
    "2016-12-31T23:59:60Z",
    "2026-06-01",
    "2026-06-01T12:00Z",
    "2026-06-01t12:00:00z",
    "0001-01-01T00:00:00+00:01",
    "9999-12-31T23:59:59-00:01",
    "2026-06-01T12:00:00+24:00",
  ]) {
    assert.equal(decoded({ occurredAt: `"${given}"` }).kind, "poison", given);
  }
});

test("case_53 absent and null are one thing for an optional field", () => {
  const schema = wire.object<{ readonly a?: number | undefined }>({
    a: wire.optional(wire.integer(0, 9)),
  });
  assert.equal(JSON.stringify(taken(schema, "{}")), "{}");
  assert.equal(JSON.stringify(taken(schema, '{"a":null}')), "{}");
  assert.equal(JSON.stringify(taken(schema, '{"a":1}')), '{"a":1}');
  assert.equal(taken(schema, '{"a":"1"}'), undefined);
});

test("case_56 an event id is of version 7 and of the right variant", () => {
  const id = "01935c3e-7c1a-7000-8000-000000000001";
  assert.equal(read({ eventId: `"${id.toUpperCase()}"` }).eventId, id);
  for (const wrong of [
    "305ea1e4-de37-4d00-93ea-2524ddeceb97",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "01935c3e-7c1a-7000-d000-000000000001",
    "01935c3e7c1a70008000000000000001",
  ]) {
    const result = decoded({ eventId: `"${wrong}"` });
    assert.equal(result.kind === "poison" && result.reason, "event_id", wrong);
  }
});

test("listing_fault_09 amounts are exact from the first byte to the last", () => {
  for (const [json, text] of [
    ["90071992547409.93", "90071992547409.93"],
    [
      "0.1000000000000000055511151231257827",
      "0.1000000000000000055511151231257827",
    ],
    ["1234567890123456.78", "1234567890123456.78"],
    ['"10.50"', "10.5"],
    ["1E5", "100000"],
    ["1e-38", `0.${"0".repeat(37)}1`],
  ] as const) {
    assert.equal(read({ totalAmount: json }).totalAmount, text);
  }
  for (const json of [
    "1e400",
    "1e18",
    "1e-39",
    "-1",
    "0",
    "-0",
    '"1,5"',
    '"NaN"',
  ]) {
    assert.equal(decoded({ totalAmount: json }).kind, "poison", json);
  }
  const amount = wire.amount();
  assert.equal(amount.parse(JSON.parse("10.5")), "10.5");
  assert.equal(
    amount.safeParse(JSON.parse("90071992547409.93")).success,
    false,
  );
  const bounded = wire.amount({
    min: { value: "-1.5", exclusive: false },
    max: { value: "100", exclusive: true },
  });
  for (const [json, fits] of [
    ["-1.5", true],
    ["-1.50000000000000000000000001", false],
    ["99.99999999999999999999999999", true],
    ["1e2", false],
  ] as const) {
    assert.equal(taken(bounded, json) !== undefined, fits, json);
  }
});

test("listing_fault_10 NUL, lone surrogates, invalid UTF-8 and doubled keys never pass", () => {
  const reason = (value: Uint8Array) => {
    const result = decode(registry, value);
    return result.kind === "poison" ? result.reason : result.kind;
  };
  assert.equal(
    reason(event({ orderRef: '"A\\u0000"', aggregateId: '"A"' })),
    "nul",
  );
  assert.equal(reason(event({ unknown: '{"deep":["\\u0000"]}' })), "nul");
  assert.equal(reason(event({ unknown: '{"a\\u0000":1}' })), "nul");
  assert.equal(reason(event({ unknown: '"\\ud800"' })), "malformed_json");
  assert.equal(reason(event({ unknown: '{"\\udc00":1}' })), "malformed_json");
  assert.equal(
    reason(event({ unknown: '{"a":1,"\\u0061":2}' })),
    "duplicate_key",
  );
  assert.equal(reason(Buffer.from([0x7b, 0xff, 0x7d])), "not_utf8");
  assert.equal(
    reason(event({ unknown: "[".repeat(32) + "]".repeat(32) })),
    "too_deep",
  );
  assert.equal(
    reason(event({ unknown: "[".repeat(31) + "]".repeat(31) })),
    "event",
  );
  assert.equal(reason(Buffer.from("[".repeat(500_000))), "too_deep");
  assert.equal(
    reason(event({ unknown: `"${"x".repeat(1024 * 1024)}"` })),
    "too_large",
  );
});

test("a poison names place and expectation, and never a value", () => {
  const result = decoded({ totalAmount: '"canary"' });
  assert.deepEqual(result, {
    kind: "poison",
    reason: "invalid_field",
    path: "$.totalAmount",
    expected:
      "a decimal amount below 10^18 with at most 38 digits, within its range, as number or text",
  });
  assert.doesNotMatch(
    JSON.stringify(decoded({ currency: '"canary"' })),
    /canary/,
  );
  assert.doesNotMatch(
    JSON.stringify(decode(registry, Buffer.from('{"canary": canary}'))),
    /canary/,
  );
});

test("the aggregate id is that of the event's own field", () => {
  const result = decoded({ aggregateId: '"A-2"' });
  assert.equal(result.kind === "poison" && result.reason, "aggregate_id");
  const own = wire.aggregateIdOf(wire.integerText(0n, 9n));
  assert.equal(taken(own, '"7"'), "7");
  for (const json of ['"07"', "7", '"10"', '""']) {
    assert.equal(taken(own, json), undefined, json);
  }
});

test("a number is no object, even where every field of the object may be absent", () => {
  const schema = wire.object<{ readonly a?: number | undefined }>({
    a: wire.optional(wire.integer(0, 9)),
  });
  assert.deepEqual(taken(schema, "{}"), {});
  for (const json of ["6", "[]", '"a"', "null", "true"]) {
    assert.equal(taken(schema, json), undefined, json);
  }
});

test("lengths count characters, and a pattern matches the whole text", () => {
  const three = wire.text({ minChars: 3, maxChars: 3 });
  assert.equal(taken(three, '"💶💶💶"'), "💶💶💶");
  assert.equal(taken(three, '"💶a"'), undefined);
  const either = wire.text({ pattern: "a|b" });
  assert.equal(taken(either, '"a"'), "a");
  assert.equal(taken(either, '"ab"'), undefined);
  assert.equal(taken(either, '"a\\n"'), undefined);
  assert.equal(taken(wire.text({ pattern: "." }), '"💶"'), "💶");
});

test("a list has its limits, and an item that is null is refused or kept as declared", () => {
  const list = wire.list(wire.nullable(wire.boolean), {
    minItems: 1,
    maxItems: 2,
  });
  assert.deepEqual(taken(list, "[null,true]"), [null, true]);
  for (const json of ["[]", "[true,true,true]", "[1]", "{}", "null"]) {
    assert.equal(taken(list, json), undefined, json);
  }
  assert.equal(taken(wire.list(wire.boolean), "[null]"), undefined);
});

test("a schema under another event type doesn't compile, and throws where the types are lost", () => {
  const wrong = { "order.confirmed.v2": OrderConfirmedV1Schema };
  const message = /another event type under "order\.confirmed\.v2"/;
  // @ts-expect-error: the schema is that of order.confirmed.v1.
  assert.throws(() => decode(wrong, event()), message);
  // Also for a record that has nothing to do with it.
  // @ts-expect-error: likewise.
  assert.throws(() => decode({ ...registry, ...wrong }, null), message);
  const untyped: Record<string, Schema<{ readonly eventType: string }>> = wrong;
  assert.throws(() => checkRegistry(untyped), message);
  assert.equal(decode({ ...registry }, event()).kind, "event");
});

test("case_47 an enum with a catch-all keeps the raw text, a closed one refuses it", () => {
  const values = ["paid", "open"] as const;
  assert.equal(taken(wire.openChoice(values), '"refunded_v2"'), "refunded_v2");
  assert.equal(taken(wire.openChoice(values), "1"), undefined);
  assert.equal(taken(wire.choice(values), '"paid"'), "paid");
  assert.equal(taken(wire.choice(values), '"refunded_v2"'), undefined);
});

// The rows of "Other differences" in docs/other-languages.md.

test("difference: a key that stands twice with equal values is one", () => {
  assert.equal(decoded({ unknown: '{"a":1,"a":1}' }).kind, "event");
});

test("difference: the key __proto__ of a map is refused and never dropped in silence", () => {
  const map = wire.map(wire.boolean);
  assert.deepEqual(taken(map, '{"a":true,"constructor":false}'), {
    a: true,
    constructor: false,
  });
  assert.equal(taken(map, '{"__proto__":true}'), undefined);
  assert.equal(taken(map, "[true]"), undefined);
  assert.equal(taken(map, "1"), undefined);
});
