// The log: one JSON object on a line, with names, counts and places, never a value of an event and never a secret.

/** What a line may tell. */
export type Fields = Readonly<Record<string, string | number | undefined>>;

/** Writes a line to stderr. */
export function log(
  level: "info" | "warn" | "error",
  message: string,
  fields: Fields = {},
): void {
  process.stderr.write(`${JSON.stringify({ level, message, ...fields })}\n`);
}

/** What an error is, without its text: a driver's text may quote a value or a connection string. */
export function described(error: unknown): Fields {
  if (!(error instanceof Error)) return { error: typeof error };
  const code = "code" in error ? String(error.code).slice(0, 40) : undefined;
  return { error: error.constructor.name, code };
}
