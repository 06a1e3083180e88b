// The exported JSON Schemas and the AsyncAPI document, under the tools of their own formats.
//
// Arguments: the file of the decode vectors. It fails at the first thing that is wrong.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";

import { Parser, type AsyncAPIDocumentInterface } from "@asyncapi/parser";
import { compiled } from "./json-schema.js";

interface Vector {
  readonly name: string;
  readonly value_base64: string | null;
  readonly expect: string;
}

const names = readdirSync("exports/json-schema");
assert.deepEqual(names.sort(), [
  "order.confirmed.v1.schema.json",
  "sample.taken.v1.schema.json",
]);
const order = compiled("order.confirmed.v1");
const { cases } = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8")) as {
  readonly cases: readonly Vector[];
};
let refused = 0;
for (const vector of cases) {
  let value: unknown;
  try {
    value = JSON.parse(
      Buffer.from(vector.value_base64 ?? "", "base64").toString(),
    );
  } catch {
    continue;
  }
  const fits = order(value);
  // A schema takes more than the reader, see docs/other-languages.md, and never less.
  if (vector.expect === "event") assert.ok(fits, vector.name);
  if (!fits) refused += 1;
}
assert.ok(refused > 20, `the schema refuses ${refused} vectors`);
for (const [change, what] of [
  [{ orderId: 0 }, "an integer below its range"],
  [{ totalAmount: 0 }, "an amount that must be more than 0"],
  [{ totalAmount: "1,5" }, "an amount that is no number"],
  [{ currency: "eur" }, "a code that is none"],
  [{ orderRef: "a\0" }, "U+0000"],
  [{ customerId: null }, "null for a required field"],
  [{ eventId: "305ea1e4-de37-4d00-93ea-2524ddeceb97" }, "an id of version 4"],
] as const) {
  const right = JSON.parse(
    Buffer.from(cases[0]?.value_base64 ?? "", "base64").toString(),
  ) as object;
  assert.ok(order(right) && order({ ...right, unknown: [1] }));
  assert.ok(!order({ ...right, ...change }), what);
}

for (const eventType of [
  "oddly-named-thing.happened.v1",
  "oddly-named-thing.happened.v2",
  "t.v.v1",
]) {
  compiled(eventType, "odd");
}

/** Reads the document of a folder, and fails at every error that the parser finds. */
async function asyncapi(folder: string): Promise<AsyncAPIDocumentInterface> {
  const text = readFileSync(`${folder}/asyncapi.json`, "utf8");
  const { document, diagnostics } = await new Parser().parse(text);
  // Severity 0 is an error. Advice to add contacts and licences is not about the contract.
  const faults = diagnostics.filter((diagnostic) => diagnostic.severity === 0);
  assert.deepEqual(faults, []);
  assert.ok(document);
  return document;
}

await asyncapi("odd");
const document = await asyncapi("exports");
assert.deepEqual(
  document.channels().map((channel) => channel.address()),
  ["orders.confirmed", "t.samples.taken"],
);
assert.deepEqual(
  document.messages().map((message) => message.name()),
  ["order.confirmed.v1", "sample.taken.v1"],
);
assert.equal(document.operations().length, 2);
