// Decodes the records of a file, one in base 64 on a line, and tells the verdict of both releases of zod on each.
import { readFileSync } from "node:fs";

import { decode, eventRegistry } from "./generated/index.js";
import * as zod3 from "./generated-zod3/index.js";

const records = readFileSync(process.argv[2] ?? "", "utf8")
  .trim()
  .split("\n");
for (const record of records) {
  const value = Buffer.from(record, "base64");
  const verdicts = [
    decode(eventRegistry, value),
    zod3.decode(zod3.eventRegistry, value),
  ].map((decoded) =>
    decoded.kind === "poison"
      ? `${decoded.reason} at ${decoded.path}`
      : decoded.kind,
  );
  process.stdout.write(`${JSON.stringify(verdicts)}\n`);
}
