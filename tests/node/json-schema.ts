// The exported JSON Schemas, compiled by ajv in its strict mode.
import { readFileSync } from "node:fs";

import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import formats from "ajv-formats";

/** The schema of an event type. */
export function compiled(
  eventType: string,
  folder = "exports",
): ValidateFunction {
  const ajv = new Ajv2020({ strict: true });
  formats.default(ajv);
  const path = `${folder}/json-schema/${eventType}.schema.json`;
  return ajv.compile(JSON.parse(readFileSync(path, "utf8")) as object);
}
