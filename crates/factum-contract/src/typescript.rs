//! TypeScript: an interface and a zod schema for each event, a registry of them, and a decoder.

use std::collections::{BTreeMap, BTreeSet};

use factum_event::{AmountBound, CodeList, Contract, FieldShape, Shape};

use crate::export::{ExportError, ExportKind, Exported, kebab, pascal};
use crate::layout::{Language, Piece, atom, double, quoted, ts_text};

/// The widest line, as prettier has it.
const WIDTH: usize = 80;

/// Which release of zod the schemas are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Zod {
    /// zod 3.
    Three,
    /// zod 4.
    #[default]
    Four,
}

/// The export for TypeScript: readonly interfaces and zod schemas that read as the Rust service reads.
///
/// | file | what |
/// |---|---|
/// | `<context>/domain/event/<event>.v<N>.event.ts` | the interface and the schema of an event, and of its snapshots |
/// | `event-registry.ts` | every event type with its schema: the static registry (CFG-3) |
/// | `decode.ts` | from a record's bytes to an event, `unknown`, poison or tombstone |
/// | `wire.ts`, `code-lists.ts` | the values that the schemas are made of |
/// | `index.ts` | all of it |
///
/// The context is the aggregate's type in kebab case, unless [`context`](Self::context) says otherwise. An event's
/// name is made of its type alone, with the version: `order.confirmed.v1` is `OrderConfirmedV1`, whatever the Rust
/// struct is called and whatever else is exported. So no name ever comes to mean another version. The
/// files are formatted as prettier does without a configuration, import each other as ES modules
/// (`./wire.js`), and need `zod` and `lossless-json`. The same contracts give the same bytes.
///
/// ```
/// use factum::Event;
/// use factum_contract::TypeScript;
///
/// #[derive(Event)]
/// #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled", unlocked)]
/// struct OrderCancelled {
///     #[event(aggregate_id)]
///     order_ref: String,
/// }
///
/// let files = TypeScript::new().export(&[OrderCancelled::contract()])?;
/// let event = &files["order/domain/event/order-cancelled.v1.event.ts"];
/// assert!(event.contains("export interface OrderCancelledV1 {"));
/// assert!(event.contains("  orderRef: wire.text(),"));
/// # Ok::<(), factum_contract::ExportError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct TypeScript {
    zod: Zod,
    contexts: BTreeMap<String, String>,
}

impl TypeScript {
    /// For zod 4, each aggregate a context of its own.
    #[must_use]
    pub fn new() -> TypeScript {
        TypeScript::default()
    }

    /// For that release of zod.
    #[must_use]
    pub fn zod(mut self, zod: Zod) -> TypeScript {
        self.zod = zod;
        self
    }

    /// Puts the events of an aggregate (such as `Order`) into a context (such as `sales`).
    ///
    /// # Errors
    ///
    /// [`ExportError::Context`] unless the context is lower-case letters, digits and `-`, at most 63 of them.
    pub fn context(mut self, aggregate: &str, context: &str) -> Result<TypeScript, ExportError> {
        const MAX_CHARS: usize = 63;
        let fits = !context.is_empty()
            && context.len() <= MAX_CHARS
            && !context.starts_with('-')
            && context
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !fits {
            return Err(ExportError::Context {
                context: context.to_owned(),
            });
        }
        self.contexts
            .insert(aggregate.to_owned(), context.to_owned());
        Ok(self)
    }

    /// The files.
    ///
    /// # Errors
    ///
    /// [`ExportError`] when a contract is given twice, or two event types differ only in what separates their words.
    pub fn export(&self, contracts: &[Contract]) -> Result<Exported, ExportError> {
        let named = Named::all(contracts)?;
        let mut files = Exported::new();
        let mut lists = BTreeSet::new();
        for event in &named {
            let mut module = Module::new(event);
            files.insert(self.path(event), module.print());
            lists.extend(module.lists);
        }
        let schema = match self.zod {
            Zod::Three => "z.ZodType<T, z.ZodTypeDef, unknown>",
            Zod::Four => "z.ZodType<T, unknown>",
        };
        let wire = include_str!("typescript/wire.ts").replace("{{SCHEMA}}", schema);
        files.insert("wire.ts".to_owned(), headed(&wire));
        files.insert(
            "decode.ts".to_owned(),
            headed(include_str!("typescript/decode.ts")),
        );
        if !lists.is_empty() {
            files.insert("code-lists.ts".to_owned(), headed(&code_lists(&lists)));
        }
        files.insert("event-registry.ts".to_owned(), self.registry(&named));
        files.insert("index.ts".to_owned(), self.index(&named));
        Ok(files)
    }

    fn path(&self, event: &Named<'_>) -> String {
        let aggregate = &event.contract.aggregate_type;
        let context = match self.contexts.get(aggregate) {
            Some(context) => context.clone(),
            None => kebab(aggregate),
        };
        let (fact, version) = event.parts();
        format!("{context}/domain/event/{}.{version}.event.ts", kebab(fact))
    }

    /// How one file at the root imports an event's.
    fn import(&self, event: &Named<'_>) -> String {
        let path = self.path(event);
        format!("./{}.js", path.trim_end_matches(".ts"))
    }

    fn registry(&self, named: &[Named<'_>]) -> String {
        let mut text = String::new();
        for event in named {
            let schema = event.schema();
            text.push_str(&format!(
                "import {{ {schema} }} from \"{}\";\n",
                self.import(event)
            ));
        }
        let entries = |value: &dyn Fn(&Named<'_>) -> Piece| {
            Piece::Tall(
                named
                    .iter()
                    .map(|event| (quoted(&event.contract.event_type), value(event)))
                    .collect(),
            )
            .print(Language::TypeScript, 0, 0, 0)
        };
        text.push_str(
            "\n/** Every event type with its schema (CFG-3). A consumer takes those that it handles. */\n",
        );
        text.push_str(&format!(
            "export const eventRegistry = {} as const;\n",
            entries(&|event| atom(event.schema()))
        ));
        text.push_str("\n/** The topic of each event type (OBX-3). */\n");
        text.push_str(&format!(
            "export const topics = {} as const;\n",
            entries(&|event| atom(quoted(&event.contract.topic)))
        ));
        headed(&text)
    }

    fn index(&self, named: &[Named<'_>]) -> String {
        let mut text = String::from(
            "export * from \"./decode.js\";\nexport * from \"./event-registry.js\";\nexport type { Money, Schema } from \"./wire.js\";\n",
        );
        for event in named {
            let (name, schema, from) = (&event.name, event.schema(), self.import(event));
            let line = format!("export {{ type {name}, {schema} }} from \"{from}\";");
            if line.chars().count() <= WIDTH {
                text.push_str(&line);
            } else {
                text.push_str(&format!(
                    "export {{\n  type {name},\n  {schema},\n}} from \"{from}\";"
                ));
            }
            text.push('\n');
        }
        headed(&text)
    }
}

fn headed(text: &str) -> String {
    let gap = if text.starts_with("//") { "//\n" } else { "" };
    format!("// {}\n{gap}{text}", ExportKind::TypeScript.mark())
}

/// The standard that defines a list.
fn standard(list: CodeList) -> &'static str {
    match list {
        CodeList::Currency => "ISO 4217",
        CodeList::Country => "ISO 3166-1 alpha-2",
        CodeList::Language => "ISO 639-1",
        _ => "a public standard",
    }
}

fn list_name(list: CodeList) -> &'static str {
    match list {
        CodeList::Currency => "CURRENCIES",
        CodeList::Country => "COUNTRIES",
        CodeList::Language => "LANGUAGES",
        _ => "CODES",
    }
}

fn code_lists(lists: &BTreeSet<&'static str>) -> String {
    const CODES_IN_A_LINE: usize = 16;
    let all = [CodeList::Country, CodeList::Currency, CodeList::Language];
    let mut texts = Vec::new();
    for list in all
        .into_iter()
        .filter(|list| lists.contains(list_name(*list)))
    {
        let codes = list.codes();
        let lines: Vec<String> = codes
            .chunks(CODES_IN_A_LINE)
            .map(|line| line.join(" "))
            .collect();
        texts.push(format!(
            "/** The codes of {}. */\nexport const {}: ReadonlySet<string> = new Set(\n  `\n{}\n`\n    .trim()\n    .split(/\\s+/),\n);\n",
            standard(list),
            list_name(list),
            lines.join("\n"),
        ));
    }
    texts.join("\n")
}

/// A contract with the name that its event has in TypeScript.
struct Named<'a> {
    contract: &'a Contract,
    name: String,
}

impl<'a> Named<'a> {
    /// In the order of the event types.
    fn all(contracts: &'a [Contract]) -> Result<Vec<Named<'a>>, ExportError> {
        let mut sorted: Vec<&Contract> = contracts.iter().collect();
        sorted.sort_by(|a, b| a.event_type.cmp(&b.event_type));
        if let Some(pair) = sorted
            .windows(2)
            .find(|pair| pair[0].event_type == pair[1].event_type)
        {
            return Err(ExportError::TypeTaken {
                event_type: pair[0].event_type.clone(),
            });
        }
        let mut taken: BTreeMap<String, &str> = BTreeMap::new();
        let mut named = Vec::new();
        for contract in sorted {
            let name = pascal(&contract.event_type);
            if let Some(first) = taken.insert(name.clone(), &contract.event_type) {
                return Err(ExportError::NameTaken {
                    name,
                    first: first.to_owned(),
                    second: contract.event_type.clone(),
                });
            }
            named.push(Named { contract, name });
        }
        Ok(named)
    }

    /// `order.confirmed` and `v1`.
    fn parts(&self) -> (&str, &str) {
        let event_type = self.contract.event_type.as_str();
        event_type.rsplit_once('.').unwrap_or((event_type, ""))
    }

    fn schema(&self) -> String {
        format!("{}Schema", self.name)
    }
}

/// The file of an event.
struct Module<'a> {
    event: &'a Named<'a>,
    /// What the snapshots are called here.
    names: BTreeMap<&'a str, String>,
    taken: BTreeSet<String>,
    /// Snapshots that have their schema above.
    made: BTreeSet<&'a str>,
    /// Snapshots that are being made around this one.
    begun: BTreeSet<&'a str>,
    lists: BTreeSet<&'static str>,
    body: String,
}

impl<'a> Module<'a> {
    fn new(event: &'a Named<'a>) -> Module<'a> {
        let mut module = Module {
            event,
            names: BTreeMap::new(),
            taken: BTreeSet::from([event.name.clone(), event.schema()]),
            made: BTreeSet::new(),
            begun: BTreeSet::new(),
            lists: BTreeSet::new(),
            body: String::new(),
        };
        for name in event.contract.definitions.keys() {
            let unique = module.unique(name, &["", "Schema"]);
            module.names.insert(name, unique);
        }
        module
    }

    /// A name that is free with each of these ends.
    fn unique(&mut self, name: &str, ends: &[&str]) -> String {
        let mut unique = name.to_owned();
        let mut number = 2;
        while ends
            .iter()
            .any(|end| self.taken.contains(&format!("{unique}{end}")))
        {
            unique = format!("{name}{number}");
            number += 1;
        }
        for end in ends {
            self.taken.insert(format!("{unique}{end}"));
        }
        unique
    }

    fn print(&mut self) -> String {
        let contract = self.event.contract;
        let fields: Vec<&'a FieldShape> = contract
            .fields
            .iter()
            .filter(|field| field.name != "aggregateId")
            .collect();
        self.snapshots_of(&fields);
        let own = contract
            .fields
            .iter()
            .find(|field| field.name == "aggregateId");
        let own_id = own.map(|own| self.value(&own.shape, None));

        let literals = [&contract.event_type, &contract.aggregate_type].map(|text| quoted(text));
        let mut lines = vec![
            "  readonly eventId: string;".to_owned(),
            format!("  readonly eventType: {};", literals[0]),
            "  /** When it happened in the business, in UTC. */".to_owned(),
            "  readonly occurredAt: string;".to_owned(),
            format!("  readonly aggregateType: {};", literals[1]),
            "  /** The key of the Kafka record. */".to_owned(),
            "  readonly aggregateId: string;".to_owned(),
        ];
        let call =
            |name: &str, argument: Piece| Piece::Call(format!("wire.{name}"), vec![argument]);
        let mut entries = vec![
            ("eventId".to_owned(), atom("wire.eventId")),
            ("eventType".to_owned(), call("literal", atom(&literals[0]))),
            ("occurredAt".to_owned(), atom("wire.instant")),
            (
                "aggregateType".to_owned(),
                call("literal", atom(&literals[1])),
            ),
            (
                "aggregateId".to_owned(),
                own_id.map_or(atom("wire.aggregateId"), |form| call("aggregateIdOf", form)),
            ),
        ];
        let name = self.event.name.clone();
        for field in fields {
            let (line, entry) = self.field(&name, field);
            lines.extend(line);
            entries.push(entry);
        }
        let mut about = format!(
            "`{}` of the topic `{}`.",
            contract.event_type, contract.topic
        );
        if let Some(supersedes) = &contract.supersedes {
            about.push_str(&format!(" It takes the place of `{supersedes}`."));
        }
        if contract.restricted {
            about.push_str(" Personal data may stand in it (SEC-3).");
        }
        let fields = Piece::Call(
            format!("wire.event<{name}>"),
            vec![ts_text(&contract.aggregate_id), Piece::Tall(entries)],
        );
        self.declare(&name, &about, &lines, &fields);

        let mut imports = String::new();
        if !self.lists.is_empty() {
            let lists: Vec<&str> = self.lists.iter().copied().collect();
            imports.push_str(&format!(
                "import {{ {} }} from \"../../../code-lists.js\";\n",
                lists.join(", ")
            ));
        }
        imports.push_str("import * as wire from \"../../../wire.js\";\n");
        headed(&format!("{imports}\n{}", self.body.trim_start()))
    }

    /// The interface and the schema.
    fn declare(&mut self, name: &str, about: &str, lines: &[String], schema: &Piece) {
        let body = if lines.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{\n{}\n}}", lines.join("\n"))
        };
        self.body.push_str(&format!(
            "\n/** {about} */\nexport interface {name} {body}\n"
        ));
        let head = format!("export const {name}Schema: wire.Schema<{name}> =");
        let schema = assigned(&head, schema, 1);
        self.body.push_str(&format!("\n{schema};\n"));
    }

    /// Declares what the fields refer to, the innermost first.
    fn snapshots_of(&mut self, fields: &[&'a FieldShape]) {
        for field in fields {
            self.snapshots_in(&field.shape);
        }
    }

    fn snapshots_in(&mut self, shape: &'a Shape) {
        let name = match shape {
            Shape::Array { items: inner, .. }
            | Shape::Map { values: inner }
            | Shape::Nullable(inner) => return self.snapshots_in(inner),
            Shape::Object(name) => name.as_str(),
            _ => return,
        };
        let Some(fields) = self.event.contract.definitions.get(name) else {
            return;
        };
        if !self.begun.insert(name) {
            return;
        }
        let fields: Vec<&'a FieldShape> = fields.iter().collect();
        self.snapshots_of(&fields);
        let called = self.called(name);
        let mut lines = Vec::new();
        let mut entries = Vec::new();
        for field in fields {
            let (line, entry) = self.field(&called, field);
            lines.extend(line);
            entries.push(entry);
        }
        let about = format!("A part of `{}`.", self.event.contract.event_type);
        let schema = Piece::Call(format!("wire.object<{called}>"), vec![Piece::Tall(entries)]);
        self.declare(&called, &about, &lines, &schema);
        self.made.insert(name);
    }

    fn called(&self, snapshot: &str) -> String {
        match self.names.get(snapshot) {
            Some(name) => name.clone(),
            None => snapshot.to_owned(),
        }
    }

    /// The lines of the interface and the entry of the schema.
    fn field(&mut self, owner: &str, field: &'a FieldShape) -> (Vec<String>, (String, Piece)) {
        let choice = self.choice(owner, field);
        let type_text = self.type_of(&field.shape, choice.as_deref());
        let mut parts = union_parts(&type_text);
        let question = if field.optional { "?" } else { "" };
        if field.optional {
            parts.push("undefined".to_owned());
        }
        let head = format!("  readonly {}{question}:", field.name);
        let line = format!("{head} {};", parts.join(" | "));
        let mut lines: Vec<String> = about(&field.shape)
            .map(|about| format!("  /** {about} */"))
            .into_iter()
            .collect();
        let below = format!("    {};", parts.join(" | "));
        let is_plain = !type_text.contains(['{', '(']);
        if line.chars().count() <= WIDTH {
            lines.push(line);
        } else if is_plain && parts.len() > 1 && below.chars().count() <= WIDTH {
            lines.push(format!("{head}\n{below}"));
        } else {
            // A type as long as this is rare, and how prettier breaks it depends on what is in it.
            lines.push(format!("  // prettier-ignore\n{line}"));
        }
        let value = self.value(&field.shape, choice.as_deref());
        let value = if field.optional {
            Piece::Call("wire.optional".to_owned(), vec![value])
        } else {
            value
        };
        (lines, (field.name.clone(), value))
    }

    /// Declares the values of a field that is one of named values, at whatever depth, and gives their name.
    fn choice(&mut self, owner: &str, field: &FieldShape) -> Option<String> {
        let mut shape = &field.shape;
        let (values, open) = loop {
            match shape {
                Shape::Array { items: inner, .. }
                | Shape::Map { values: inner }
                | Shape::Nullable(inner) => shape = inner,
                Shape::Choice { values, open } => break (values, *open),
                _ => return None,
            }
        };
        let name = self.unique(&format!("{owner}{}", pascal(&field.name)), &[""]);
        let items = Piece::Array(values.iter().map(|value| ts_text(value)).collect());
        /// ` as const` and the semicolon.
        const AFTER: usize = 10;
        let items = assigned(&format!("export const {name} ="), &items, AFTER);
        let mut parts = vec![format!("(typeof {name})[number]")];
        let mut about = "The values of".to_owned();
        if open {
            about = "The values known today of".to_owned();
            parts.push("(string & {})".to_owned());
        }
        let line = format!("export type {name} = {};", parts.join(" | "));
        let below = format!("  {};", parts.join(" | "));
        let line = if line.chars().count() <= WIDTH {
            line
        } else if below.chars().count() <= WIDTH || parts.len() == 1 {
            format!("export type {name} =\n{below}")
        } else {
            format!("export type {name} =\n  | {};", parts.join("\n  | "))
        };
        self.body.push_str(&format!(
            "\n/** {about} `{owner}.{}`. */\n{items} as const;\n{line}\n",
            field.name
        ));
        Some(name)
    }

    fn type_of(&self, shape: &Shape, choice: Option<&str>) -> String {
        match shape {
            Shape::Boolean => "boolean".to_owned(),
            Shape::Integer { text: false, .. } | Shape::Double { .. } => "number".to_owned(),
            Shape::Choice { .. } => choice.unwrap_or("string").to_owned(),
            Shape::Money { .. } => "wire.Money".to_owned(),
            Shape::Array { items, .. } => {
                let item = self.type_of(items, choice);
                if item.contains(" | ") || item.starts_with("readonly ") {
                    format!("readonly ({item})[]")
                } else {
                    format!("readonly {item}[]")
                }
            }
            Shape::Map { values } => format!(
                "{{ readonly [key: string]: {} }}",
                self.type_of(values, choice)
            ),
            Shape::Nullable(inner) => format!("{} | null", self.type_of(inner, choice)),
            Shape::Object(name) => self.called(name),
            Shape::Integer { .. }
            | Shape::Amount { .. }
            | Shape::Text { .. }
            | Shape::Uuid
            | Shape::EventId
            | Shape::AggregateId
            | Shape::Instant
            | Shape::Date
            | Shape::Code(_) => "string".to_owned(),
        }
    }

    /// The schema of a value.
    fn value(&mut self, shape: &'a Shape, choice: Option<&str>) -> Piece {
        let call =
            |name: &str, arguments: Vec<Piece>| Piece::Call(format!("wire.{name}"), arguments);
        match shape {
            Shape::Boolean => atom("wire.boolean"),
            Shape::Integer {
                min,
                max,
                not_zero,
                text,
            } => {
                let end = if *text { "n" } else { "" };
                let mut arguments = vec![atom(format!("{min}{end}")), atom(format!("{max}{end}"))];
                if *not_zero {
                    arguments.push(atom("true"));
                }
                call(if *text { "integerText" } else { "integer" }, arguments)
            }
            Shape::Double { min, max } => {
                let mut arguments = Vec::new();
                if min.is_some() || max.is_some() {
                    arguments.push(min.map_or(atom("undefined"), double));
                }
                arguments.extend(max.map(double));
                call("double", arguments)
            }
            Shape::Amount { min, max, .. } => {
                let bounds: Vec<(String, Piece)> = [("min", min), ("max", max)]
                    .into_iter()
                    .filter_map(|(name, bound)| {
                        Some((name.to_owned(), amount_bound(bound.as_ref()?)))
                    })
                    .collect();
                call("amount", object_if_any(bounds))
            }
            Shape::Money { .. } => {
                self.lists.insert(list_name(CodeList::Currency));
                call("money", vec![atom(list_name(CodeList::Currency))])
            }
            Shape::Text {
                min_chars,
                max_chars,
                pattern,
            } => {
                let mut limits = Vec::new();
                for (name, limit) in [("minChars", min_chars), ("maxChars", max_chars)] {
                    if let Some(limit) = limit {
                        limits.push((name.to_owned(), atom(limit.to_string())));
                    }
                }
                if let Some(pattern) = pattern {
                    limits.push(("pattern".to_owned(), ts_text(pattern)));
                }
                call("text", object_if_any(limits))
            }
            Shape::Uuid => atom("wire.uuid"),
            Shape::EventId => atom("wire.eventId"),
            Shape::AggregateId => atom("wire.aggregateId"),
            Shape::Instant => atom("wire.instant"),
            Shape::Date => atom("wire.date"),
            Shape::Code(list) => {
                self.lists.insert(list_name(*list));
                let standard = quoted(standard(*list));
                call("code", vec![atom(standard), atom(list_name(*list))])
            }
            Shape::Choice { open, .. } => {
                let values = choice.map_or(atom("[]"), atom);
                call(if *open { "openChoice" } else { "choice" }, vec![values])
            }
            Shape::Array {
                items,
                min_items,
                max_items,
            } => {
                let mut limits = Vec::new();
                for (name, limit) in [("minItems", min_items), ("maxItems", max_items)] {
                    if let Some(limit) = limit {
                        limits.push((name.to_owned(), atom(limit.to_string())));
                    }
                }
                let mut arguments = vec![self.value(items, choice)];
                arguments.extend(object_if_any(limits));
                call("list", arguments)
            }
            Shape::Map { values } => call("map", vec![self.value(values, choice)]),
            Shape::Nullable(inner) => call("nullable", vec![self.value(inner, choice)]),
            Shape::Object(name) => {
                let schema = format!("{}Schema", self.called(name));
                if self.made.contains(name.as_str()) {
                    atom(schema)
                } else {
                    call("lazy", vec![atom(format!("() => {schema}"))])
                }
            }
        }
    }
}

/// `head = value`; a value whose first line doesn't fit goes below, and `after` characters come behind it.
fn assigned(head: &str, value: &Piece, after: usize) -> String {
    let column = head.chars().count() + 1;
    let beside = value.print(Language::TypeScript, 0, column, after);
    let (first, is_one) = match beside.split_once('\n') {
        Some((first, _)) => (first, false),
        None => (beside.as_str(), true),
    };
    let tail = if is_one { after } else { 0 };
    if column + first.chars().count() + tail <= WIDTH {
        return format!("{head} {beside}");
    }
    format!(
        "{head}\n  {}",
        value.print(Language::TypeScript, 2, 2, after)
    )
}

fn object_if_any(entries: Vec<(String, Piece)>) -> Vec<Piece> {
    if entries.is_empty() {
        Vec::new()
    } else {
        vec![Piece::Object(entries)]
    }
}

fn amount_bound(bound: &AmountBound) -> Piece {
    Piece::Object(vec![
        ("value".to_owned(), ts_text(&bound.value)),
        ("exclusive".to_owned(), atom(bound.exclusive.to_string())),
    ])
}

/// What a reader of the interface can't see by the type.
fn about(shape: &Shape) -> Option<&'static str> {
    Some(match shape {
        Shape::Integer { text: true, .. } => "An integer, as text.",
        Shape::Amount { .. } => "An exact decimal, as text.",
        Shape::Uuid => "A UUID.",
        Shape::EventId => "The id of an event.",
        Shape::Instant => "An instant, in UTC.",
        Shape::Date => "A date: `2026-06-01`.",
        Shape::Code(CodeList::Currency) => "A code of ISO 4217.",
        Shape::Code(CodeList::Country) => "A code of ISO 3166-1 alpha-2.",
        Shape::Code(CodeList::Language) => "A code of ISO 639-1.",
        Shape::Array { items, .. } => return about(items),
        Shape::Map { values: inner } | Shape::Nullable(inner) => return about(inner),
        _ => return None,
    })
}

/// `T | null` in its parts, unless it stands inside of something.
fn union_parts(text: &str) -> Vec<String> {
    match text.strip_suffix(" | null") {
        Some(rest) if !text.starts_with('{') => vec![rest.to_owned(), "null".to_owned()],
        _ => vec![text.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use factum_event::{Contract, FieldShape, Shape};

    use super::TypeScript;
    use crate::export::{ExportError, Exported};

    fn contract(event_type: &str, aggregate: &str, name: &str) -> Contract {
        Contract {
            event_type: event_type.to_owned(),
            aggregate_type: aggregate.to_owned(),
            topic: "t".to_owned(),
            restricted: false,
            name: name.to_owned(),
            supersedes: None,
            aggregate_id: "id".to_owned(),
            fields: vec![FieldShape::new("id", Shape::Uuid)],
            definitions: Default::default(),
        }
    }

    fn exported(contracts: &[Contract]) -> Exported {
        TypeScript::new().export(contracts).unwrap()
    }

    const V1: &str = "order/domain/event/order-confirmed.v1.event.ts";
    const V2: &str = "order/domain/event/order-confirmed.v2.event.ts";

    #[test]
    fn a_second_version_leaves_the_names_of_the_first_as_they_are() {
        let before = exported(&[contract("order.confirmed.v1", "Order", "OrderConfirmed")]);
        // As docs/versions.md has it: the old struct is renamed, and the new one takes its name.
        let after = exported(&[
            contract("order.confirmed.v1", "Order", "OrderConfirmedV1"),
            contract("order.confirmed.v2", "Order", "OrderConfirmed"),
        ]);
        assert_eq!(after[V1], before[V1]);
        assert!(before[V1].contains("export const OrderConfirmedV1Schema:"));
        assert!(after[V2].contains("export const OrderConfirmedV2Schema:"));
        for line in before["index.ts"].lines() {
            assert!(after["index.ts"].contains(line), "{line}");
        }
    }

    #[test]
    fn structs_of_one_name_have_names_that_dont_depend_on_each_other() {
        let order = contract("order.closed.v1", "Order", "Closed");
        let account = contract("account.closed.v1", "Account", "Closed");
        let alone = exported(std::slice::from_ref(&order));
        let together = exported(&[order, account]);
        let path = "order/domain/event/order-closed.v1.event.ts";
        assert_eq!(alone[path], together[path]);
        assert!(alone[path].contains("export interface OrderClosedV1 {"));
        let path = "account/domain/event/account-closed.v1.event.ts";
        assert!(together[path].contains("export interface AccountClosedV1 {"));
    }

    #[test]
    fn types_that_differ_only_in_what_separates_their_words_are_refused() {
        let contracts = [
            contract("order.line-added.v1", "Order", "LineAdded"),
            contract("order-line.added.v1", "OrderLine", "Added"),
        ];
        let taken = ExportError::NameTaken {
            name: "OrderLineAddedV1".to_owned(),
            first: "order-line.added.v1".to_owned(),
            second: "order.line-added.v1".to_owned(),
        };
        assert_eq!(TypeScript::new().export(&contracts), Err(taken));
    }
}
