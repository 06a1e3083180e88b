// The values of events on the wire, read as the service that owns the contract reads them.
//
// Each schema takes what JSON.parse gives and what lossless-json gives. What it puts out can be given to
// JSON.stringify as it is, and is an event again: amounts and large integers are text, instants are text in UTC.
import { z } from "zod";

/** A schema that puts out a `T`, whatever it is given. */
export type Schema<T> = {{SCHEMA}};

/** An amount with its currency. */
export interface Money {
  /** An exact decimal, as text. */
  readonly amount: string;
  /** A code of ISO 4217. */
  readonly currency: string;
}

/** A bound of an amount. */
export interface AmountBound {
  readonly value: string;
  readonly exclusive: boolean;
}

/** JavaScript holds no integer beyond it for sure. */
const MAX_SAFE_INTEGER = 9007199254740991n;
/** More significant digits than any number may have. */
const MAX_DIGITS = 38;
/** Amounts are smaller than ten to this power. */
const AMOUNT_WHOLE_DIGITS = 18;
/** The last decimal place of an amount. */
const AMOUNT_DECIMAL_PLACES = 38;
/** A double tells any two decimals of so many digits apart. */
const EXACT_DOUBLE_DIGITS = 15;
/** The most bytes of an aggregate id. */
const MAX_ID_BYTES = 255;

/** A schema from a function that gives `undefined` for what it doesn't take. No message holds a value. */
function value<T>(
  expected: string,
  read: (given: unknown) => T | undefined,
): Schema<T> {
  return z.unknown().transform((given, context): T => {
    const taken = read(given);
    if (taken === undefined) {
      context.addIssue({ code: "custom", message: `expected ${expected}` });
      return z.NEVER;
    }
    return taken;
  });
}

/** The text of a number. An object of the wire is no number, whatever its fields. */
function numberText(given: unknown): string | undefined {
  if (typeof given === "number") {
    return Number.isFinite(given) ? String(given) : undefined;
  }
  if (typeof given === "bigint") {
    return String(given);
  }
  if (
    typeof given === "object" &&
    given !== null &&
    Object.getPrototypeOf(given) !== Object.prototype &&
    "isLosslessNumber" in given &&
    "value" in given &&
    typeof given.value === "string"
  ) {
    return given.value;
  }
  return undefined;
}

function textOrNumber(given: unknown): string | undefined {
  return typeof given === "string" ? given : numberText(given);
}

/** `digits * 10 ** exponent`, without zeros at the end of the digits. */
interface Decimal {
  readonly digits: bigint;
  readonly digitCount: number;
  readonly exponent: number;
}

/** Linear in the text, whatever the exponent. */
function decimal(text: string): Decimal | undefined {
  const parts =
    /^(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$/.exec(text);
  if (parts === null) {
    return undefined;
  }
  const [, sign, whole = "", fraction = "", exponent = "0"] = parts;
  const all = whole + fraction;
  let start = 0;
  let end = all.length;
  while (start < end && all[start] === "0") start += 1;
  while (end > start && all[end - 1] === "0") end -= 1;
  const digitCount = end - start;
  if (digitCount > MAX_DIGITS) {
    return undefined;
  }
  if (digitCount === 0) {
    return { digits: 0n, digitCount: 0, exponent: 0 };
  }
  const digits = BigInt(all.slice(start, end));
  return {
    digits: sign === "-" ? -digits : digits,
    digitCount,
    exponent: Number(exponent) - fraction.length + (all.length - end),
  };
}

function toInteger(from: Decimal | undefined): bigint | undefined {
  if (
    from === undefined ||
    from.exponent < 0 ||
    from.exponent + from.digitCount > MAX_DIGITS
  ) {
    return undefined;
  }
  return from.digits * 10n ** BigInt(from.exponent);
}

function isLess(one: Decimal, other: Decimal): boolean {
  const exponent = Math.min(one.exponent, other.exponent);
  const scaled = (of: Decimal) =>
    of.digits * 10n ** BigInt(of.exponent - exponent);
  return scaled(one) < scaled(other);
}

/** Plain notation without zeros at the end. */
function plain(from: Decimal): string {
  const sign = from.digits < 0n ? "-" : "";
  const digits = String(from.digits < 0n ? -from.digits : from.digits);
  if (from.exponent >= 0) {
    return sign + digits + "0".repeat(from.exponent);
  }
  const padded = digits.padStart(1 - from.exponent, "0");
  return `${sign}${padded.slice(0, from.exponent)}.${padded.slice(from.exponent)}`;
}

/** `true` or `false`. */
export const boolean: Schema<boolean> = value("true or false", (given) =>
  typeof given === "boolean" ? given : undefined,
);

function integerWithin(
  text: string | undefined,
  min: bigint,
  max: bigint,
  notZero: boolean,
): bigint | undefined {
  const taken = text === undefined ? undefined : toInteger(decimal(text));
  const fits =
    taken !== undefined &&
    taken >= min &&
    taken <= max &&
    !(notZero && taken === 0n);
  return fits ? taken : undefined;
}

/** An integer that JavaScript holds, in whatever notation: `15`, `15.0`, `1.5e1`. */
export function integer(
  min: number,
  max: number,
  notZero = false,
): Schema<number> {
  const expected = `an integer from ${min} to ${max}${notZero ? " other than 0" : ""}`;
  const safe = (bound: number) =>
    bound < -MAX_SAFE_INTEGER || bound > MAX_SAFE_INTEGER
      ? MAX_SAFE_INTEGER * BigInt(Math.sign(bound))
      : BigInt(bound);
  return value(expected, (given) => {
    const taken = integerWithin(
      numberText(given),
      safe(min),
      safe(max),
      notZero,
    );
    return taken === undefined ? undefined : Number(taken);
  });
}

/** An integer that is written as text, because JavaScript might not hold it; read from both forms. */
export function integerText(
  min: bigint,
  max: bigint,
  notZero = false,
): Schema<string> {
  const expected = `an integer from ${min} to ${max}${notZero ? " other than 0" : ""}, as text`;
  return value(expected, (given) => {
    // A double beyond the safe range may have been another integer before it was parsed.
    if (typeof given === "number" && !Number.isSafeInteger(given)) {
      return undefined;
    }
    const taken = integerWithin(textOrNumber(given), min, max, notZero);
    return taken === undefined ? undefined : String(taken);
  });
}

/** A number of 64 bits. */
export function double(
  min = -Number.MAX_VALUE,
  max = Number.MAX_VALUE,
): Schema<number> {
  return value("a number that a double can hold, within its range", (given) => {
    const taken = Number(numberText(given) ?? Number.NaN);
    return taken >= min && taken <= max ? taken : undefined;
  });
}

/**
 * An exact decimal below 10^18 with at most 38 digits, from a number or from text; put out as text.
 *
 * JSON.parse has rounded a number before it comes here. One with more than 15 digits is refused then, because
 * it may have been another: parse with lossless-json, as `decode` does, and nothing is lost.
 */
export function amount(
  bounds: { readonly min?: AmountBound; readonly max?: AmountBound } = {},
): Schema<string> {
  const min = decimal(bounds.min?.value ?? "");
  const max = decimal(bounds.max?.value ?? "");
  return value(
    "a decimal amount below 10^18 with at most 38 digits, within its range, as number or text",
    (given) => {
      const taken = decimal(textOrNumber(given) ?? "");
      if (
        taken === undefined ||
        (typeof given === "number" && taken.digitCount > EXACT_DOUBLE_DIGITS) ||
        taken.exponent + taken.digitCount > AMOUNT_WHOLE_DIGITS ||
        taken.exponent < -AMOUNT_DECIMAL_PLACES
      ) {
        return undefined;
      }
      const tooSmall =
        min !== undefined &&
        (bounds.min?.exclusive ? !isLess(min, taken) : isLess(taken, min));
      const tooLarge =
        max !== undefined &&
        (bounds.max?.exclusive ? !isLess(taken, max) : isLess(max, taken));
      return tooSmall || tooLarge ? undefined : plain(taken);
    },
  );
}

/** Neither U+0000, which PostgreSQL refuses, nor half a character. */
function isText(given: unknown): given is string {
  return typeof given === "string" && !/[\0\p{Surrogate}]/u.test(given);
}

/** Text without U+0000. Lengths count Unicode characters; the pattern matches the whole text. */
export function text(
  limits: {
    readonly minChars?: number;
    readonly maxChars?: number;
    readonly pattern?: string;
  } = {},
): Schema<string> {
  const { minChars = 0, maxChars = Number.MAX_SAFE_INTEGER } = limits;
  const pattern =
    limits.pattern === undefined
      ? undefined
      : new RegExp(`^(?:${limits.pattern})$`, "u");
  return value("text without U+0000, within its limits", (given) => {
    if (!isText(given)) {
      return undefined;
    }
    let chars = 0;
    for (const _ of given) chars += 1;
    const fits =
      chars >= minChars &&
      chars <= maxChars &&
      (pattern === undefined || pattern.test(given));
    return fits ? given : undefined;
  });
}

/** A UUID in its hyphenated form; put out in lower case. */
export const uuid: Schema<string> = value(
  "a UUID in its hyphenated form",
  (given) =>
    typeof given === "string" &&
    /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(given)
      ? given.toLowerCase()
      : undefined,
);

/** A UUID of version 7 and of the variant of RFC 9562 (IDEM-1); put out in lower case. */
export const eventId: Schema<string> = value(
  "a UUID of version 7 in its hyphenated form",
  (given) =>
    typeof given === "string" &&
    /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/i.test(
      given,
    )
      ? given.toLowerCase()
      : undefined,
);

/** Text of 1 to 255 bytes: the key of the Kafka record (PROD-2). */
export const aggregateId: Schema<string> = value(
  "text of 1 to 255 bytes without U+0000",
  (given) => {
    if (!isText(given)) {
      return undefined;
    }
    const bytes = new TextEncoder().encode(given).length;
    return bytes >= 1 && bytes <= MAX_ID_BYTES ? given : undefined;
  },
);

/** The envelope's `aggregateId` of an event that declares the id's form: text, in its one form. */
export function aggregateIdOf(form: Schema<string>): Schema<string> {
  return value("an aggregate id of the event's own form", (given) => {
    const taken = aggregateId.safeParse(given);
    const read = form.safeParse(given);
    return taken.success && read.success && taken.data === read.data
      ? read.data
      : undefined;
  });
}

/** The days of the month, of the years 1 to 9999. */
function isDay(year: number, month: number, day: number): boolean {
  const at = new Date(0);
  at.setUTCFullYear(year, month - 1, day);
  return year >= 1 && at.getUTCMonth() === month - 1 && at.getUTCDate() === day;
}

/**
 * An instant of RFC 3339 with any offset; put out in UTC with 0, 3 or 6 digits of a second's fraction. Finer
 * digits are cut off. No leap second and no hour 24.
 */
export const instant: Schema<string> = value(
  'an RFC 3339 time, such as "2026-06-01T12:00:00Z"',
  (given) => {
    const parts =
      typeof given === "string"
        ? /^(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:Z|([+-])(\d{2}):(\d{2}))$/.exec(
            given,
          )
        : null;
    if (parts === null) {
      return undefined;
    }
    const [year, month, day, hour, minute, second] = parts
      .slice(1, 7)
      .map(Number) as [number, number, number, number, number, number];
    const [hours, minutes] = [Number(parts[9] ?? 0), Number(parts[10] ?? 0)];
    if (
      !isDay(year, month, day) ||
      hour > 23 ||
      minute > 59 ||
      second > 59 ||
      hours > 23 ||
      minutes > 59
    ) {
      return undefined;
    }
    const offset = (parts[8] === "-" ? -1 : 1) * (hours * 60 + minutes);
    const at = new Date(0);
    at.setUTCFullYear(year, month - 1, day);
    at.setUTCHours(hour, minute - offset, second, 0);
    if (at.getUTCFullYear() < 1 || at.getUTCFullYear() > 9999) {
      return undefined;
    }
    const micros = (parts[7] ?? "").padEnd(6, "0").slice(0, 6);
    const millis = micros.endsWith("000") ? micros.slice(0, 3) : micros;
    const fraction = micros === "000000" ? "" : `.${millis}`;
    return `${at.toISOString().slice(0, 19)}${fraction}Z`;
  },
);

/** A date of the years 1 to 9999. */
export const date: Schema<string> = value(
  'a date, such as "2026-06-01"',
  (given) => {
    const parts =
      typeof given === "string"
        ? /^(\d{4})-(\d{2})-(\d{2})$/.exec(given)
        : null;
    return parts !== null &&
      isDay(Number(parts[1]), Number(parts[2]), Number(parts[3]))
      ? parts[0]
      : undefined;
  },
);

/** A code of a closed, public list. */
export function code(list: string, codes: ReadonlySet<string>): Schema<string> {
  return value(`a code of ${list}`, (given) =>
    typeof given === "string" && codes.has(given) ? given : undefined,
  );
}

/** One of the named values. */
export function choice<T extends string>(values: readonly T[]): Schema<T> {
  return value("one of the named values", (given) =>
    values.find((known) => known === given),
  );
}

/** One of the named values, or one that a newer producer writes (public case 47). */
export function openChoice<T extends string>(
  _values: readonly T[],
): Schema<T | (string & {})> {
  return text();
}

/** An amount with its currency. */
export function money(currencies: ReadonlySet<string>): Schema<Money> {
  return object<Money>({
    amount: amount(),
    currency: code("ISO 4217", currencies),
  });
}

/** An object of the wire. A number as lossless-json gives it is an object to JavaScript, and none to us. */
const plainObject = value<unknown>("an object", (given) =>
  typeof given === "object" &&
  given !== null &&
  Object.getPrototypeOf(given) === Object.prototype
    ? given
    : undefined,
);

/** A list. */
export function list<T>(
  items: Schema<T>,
  limits: { readonly minItems?: number; readonly maxItems?: number } = {},
): Schema<readonly T[]> {
  const { minItems = 0, maxItems = Number.MAX_SAFE_INTEGER } = limits;
  return z
    .array(items)
    .refine((taken) => taken.length >= minItems && taken.length <= maxItems, {
      message: "expected a list within its limits",
    }) as Schema<readonly T[]>;
}

/** An object whose keys are data. The key `__proto__` is refused: JavaScript can't keep it safely. */
export function map<T>(
  values: Schema<T>,
): Schema<{ readonly [key: string]: T }> {
  const entries = value<unknown>("an object of values", (given) =>
    typeof given === "object" &&
    given !== null &&
    Object.getPrototypeOf(given) === Object.prototype &&
    Object.keys(given).every((key) => key !== "__proto__" && isText(key))
      ? given
      : undefined,
  );
  return entries.pipe(
    z.record(z.string(), values) as unknown as Schema<{
      readonly [key: string]: T;
    }>,
  ) as unknown as Schema<{ readonly [key: string]: T }>;
}

/** An object. Fields that it doesn't know are left out (EVT-3). */
export function object<T extends object>(fields: {
  readonly [K in keyof T]-?: Schema<T[K]>;
}): Schema<T> {
  return plainObject.pipe(
    z.object(fields) as unknown as Schema<T>,
  ) as unknown as Schema<T>;
}

/** An event, whose aggregate id is that of its own field (EVT-2). */
export function event<T extends { readonly aggregateId: string }>(
  own: keyof T,
  fields: { readonly [K in keyof T]-?: Schema<T[K]> },
): Schema<T> {
  return object<T>(fields).refine(
    (taken) => String(taken[own]) === taken.aggregateId,
    {
      message: "expected the same id as in the event's own field",
      path: ["aggregateId"],
    },
  ) as unknown as Schema<T>;
}

/** A text that is always the same. */
export function literal<T extends string>(only: T): Schema<T> {
  return value(`"${only}"`, (given) => (given === only ? only : undefined));
}

/** A field that may be absent, and that may be `null` for that (public case 53). */
export function optional<T>(of: Schema<T>): Schema<T | undefined> {
  return of
    .nullish()
    .transform((taken) => taken ?? undefined) as unknown as Schema<
    T | undefined
  >;
}

/** An item that may be `null`. */
export function nullable<T>(of: Schema<T>): Schema<T | null> {
  return of.nullable() as unknown as Schema<T | null>;
}

/** A schema that is named before it is made. */
export function lazy<T>(of: () => Schema<T>): Schema<T> {
  return z.lazy(of) as unknown as Schema<T>;
}
