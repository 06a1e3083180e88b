// A registry has each schema under its own event type: another pair doesn't compile, and throws.
import assert from "node:assert/strict";

import {
  checkRegistry,
  decode,
  OddlyNamedThingHappenedV1Schema,
  OddlyNamedThingHappenedV2Schema,
  type OddlyNamedThingHappenedV2,
} from "./odd/index.js";
import * as four from "./generated/index.js";
import * as three from "./generated-zod3/index.js";

// Both versions beside each other, and whole registries.
const both = {
  "oddly-named-thing.happened.v1": OddlyNamedThingHappenedV1Schema,
  "oddly-named-thing.happened.v2": OddlyNamedThingHappenedV2Schema,
} as const;
checkRegistry(both);
four.checkRegistry(four.eventRegistry);
three.checkRegistry(three.eventRegistry);

const event: OddlyNamedThingHappenedV2 = {
  eventId: "01935c3e-7c1a-7000-8000-000000000001",
  eventType: "oddly-named-thing.happened.v2",
  occurredAt: "2026-06-01T12:00:00Z",
  aggregateType: "OddlyNamedThing",
  aggregateId: "01935c3e-7c1a-7000-8000-000000000002",
};
const value = new TextEncoder().encode(JSON.stringify(event));
const decoded = decode(both, value);
assert.deepEqual(decoded, { kind: "event", event });

// The schema of the other version under a key, as an export may leave a consumer that was not compiled again.
const swapped = {
  "oddly-named-thing.happened.v2": OddlyNamedThingHappenedV1Schema,
};
const message = /another event type under "oddly-named-thing\.happened\.v2"/;
// @ts-expect-error: the schema is that of version 1.
assert.throws(() => decode(swapped, value), message);

const ofZod4 = { "a.b.v1": four.OrderConfirmedV1Schema };
// @ts-expect-error: the schema is that of another fact.
assert.throws(() => four.decode(ofZod4, null), TypeError);
const ofZod3 = { "a.b.v1": three.OrderConfirmedV1Schema };
// @ts-expect-error: likewise.
assert.throws(() => three.decode(ofZod3, null), TypeError);
