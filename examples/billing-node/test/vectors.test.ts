// The decode vectors of the project: the generated schema gives the verdict that Rust gives, except where
// docs/other-languages.md lists a difference.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { decode, OrderConfirmedV1Schema } from "../src/generated/index.js";

interface Vector {
  readonly name: string;
  readonly value_base64: string | null;
  readonly expect: string;
  readonly reason?: readonly string[];
}

const ROOT = new URL("../../../../", import.meta.url);
const { cases } = JSON.parse(
  readFileSync(new URL("tests/conformance/order-confirmed.json", ROOT), "utf8"),
) as { readonly cases: readonly Vector[] };
const registry = { "order.confirmed.v1": OrderConfirmedV1Schema };

/** The rows `| vector | Rust | Node | why |` of the documentation. */
function listedDifferences(): Map<string, string> {
  const text = readFileSync(new URL("docs/other-languages.md", ROOT), "utf8");
  const section = text.split("## Vectors with another verdict")[1] ?? "";
  const rows = section
    .split("\n## ")[0]!
    .split("\n")
    .filter((line) => line.startsWith("| `"));
  return new Map(
    rows.map((row) => {
      const [, name = "", , node = ""] = row
        .split("|")
        .map((cell) => cell.trim());
      return [name.slice(1, -1), node];
    }),
  );
}

test("the vectors get the same verdict from Rust and from the generated zod", () => {
  assert.equal(cases.length, 97);
  const listed = listedDifferences();
  const found = new Map<string, string>();
  for (const vector of cases) {
    const value =
      vector.value_base64 === null
        ? null
        : Buffer.from(vector.value_base64, "base64");
    const decoded = decode(registry, value);
    const reason = decoded.kind === "poison" ? decoded.reason : undefined;
    const isRight =
      decoded.kind === vector.expect &&
      (vector.reason === undefined ||
        (reason !== undefined && vector.reason.includes(reason)));
    if (!isRight) found.set(vector.name, reason ?? decoded.kind);
  }
  // An unlisted difference and a listed one that is none any more both fail.
  assert.deepEqual(found, listed);
});
