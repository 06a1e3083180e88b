//! Where in a crate's sources an event and its fields are declared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use factum_contract::compatibility::Declared;
use factum_event::EventType;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A file and a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// Whether a crate declares an event of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Declaration {
    /// It does, or a macro of it may.
    Locked,
    /// It does, and says that it has no contract.
    Unlocked,
    /// No struct and no macro of its sources has the kind.
    Missing,
    /// There are no sources, or not all of them can be looked at.
    Unknown,
}

impl Declaration {
    pub(super) fn as_str(self) -> Option<&'static str> {
        match self {
            Declaration::Locked => Some("locked"),
            Declaration::Unlocked => Some("unlocked"),
            Declaration::Missing => Some("missing"),
            Declaration::Unknown => None,
        }
    }
}

/// The sources of crates, by their folders below the folder that is looked in.
#[derive(Debug)]
pub(super) struct Crates(BTreeMap<PathBuf, Sources>);

impl Crates {
    pub(super) fn of<'f>(root: &Path, folders: impl Iterator<Item = &'f Path>) -> Crates {
        let mut crates = BTreeMap::new();
        for folder in folders {
            crates
                .entry(folder.to_owned())
                .or_insert_with(|| Sources::of_crate(root, folder));
        }
        Crates(crates)
    }

    pub(super) fn sources(&self, crate_folder: &Path) -> Option<&Sources> {
        self.0.get(crate_folder)
    }

    pub(super) fn declaration(&self, crate_folder: &Path, kind: &str) -> Declaration {
        self.sources(crate_folder)
            .map_or(Declaration::Unknown, |sources| sources.declaration(kind))
    }
}

/// What the Rust files of a crate say.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Those that are events or snapshots.
    structs: Vec<Struct>,
    /// The kinds that are given to macros: one may make an event of it.
    given: BTreeSet<String>,
    /// How many files were read.
    files: usize,
    /// Whether a part lies elsewhere, or can't be read.
    is_partial: bool,
}

#[derive(Debug)]
struct Struct {
    file: PathBuf,
    line: usize,
    name: String,
    /// The event's kind; `None` of a snapshot.
    kind: Option<String>,
    is_unlocked: bool,
    fields: Vec<(String, usize)>,
}

impl Sources {
    /// Reads all Rust files of a crate. One that can't be read or parsed is passed over: the compiler says it better.
    pub(super) fn of_crate(root: &Path, crate_folder: &Path) -> Sources {
        let mut sources = Sources::default();
        sources.folder(root, crate_folder, true);
        sources
    }

    fn folder(&mut self, root: &Path, below: &Path, is_top: bool) {
        let Ok(entries) = fs::read_dir(root.join(below)) else {
            self.is_partial = true;
            return;
        };
        let mut entries: Vec<fs::DirEntry> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = below.join(&*name);
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            // A crate within the crate is not this one.
            let is_other_crate = kind.is_dir() && entry.path().join("Cargo.toml").is_file();
            // Below the top, `target` may be a module.
            let is_built = (is_top && name == "target") || name == "node_modules";
            if name.starts_with('.') || is_built || is_other_crate {
                continue;
            }
            if kind.is_dir() {
                self.folder(root, &path, false);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                match fs::read_to_string(entry.path()) {
                    Ok(text) => self.file(&path, &text),
                    Err(_) => self.is_partial = true,
                }
            } else if kind.is_symlink() && entry.path().is_dir() {
                self.is_partial = true;
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        self.files += 1;
        let Ok(file) = syn::parse_file(text) else {
            self.is_partial = true;
            return;
        };
        let mut structs = Structs {
            path,
            into: &mut self.structs,
            given: &mut self.given,
            is_partial: &mut self.is_partial,
        };
        structs.visit_file(&file);
    }

    /// Whether the crate declares an event of the kind. A test's own view of it, which is `unlocked`, is no matter beside
    /// the event itself.
    pub(super) fn declaration(&self, kind: &str) -> Declaration {
        let of_kind = |of: &&Struct| of.kind.as_deref() == Some(kind);
        let mut structs = self.structs.iter().filter(of_kind).peekable();
        let is_unlocked = structs.peek().is_some();
        if structs.any(|of| !of.is_unlocked) || self.given.contains(kind) {
            Declaration::Locked
        } else if self.files == 0 || self.is_partial {
            Declaration::Unknown
        } else if is_unlocked {
            Declaration::Unlocked
        } else {
            Declaration::Missing
        }
    }

    /// The place of a field of an event; that of the struct where the field is not found.
    pub(super) fn find(&self, kind: &str, declared: Option<&Declared>) -> Option<Position> {
        let event = self
            .structs
            .iter()
            .find(|of| of.kind.as_deref() == Some(kind))?;
        let Some(declared) = declared else {
            return Some(event.position(None));
        };
        let snapshot = declared.snapshot.as_ref().and_then(|name| {
            // Of two snapshots with one name, the contract numbers the second.
            let plain = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let called = |name: &str| {
                self.structs
                    .iter()
                    .find(|of| of.kind.is_none() && of.name == name)
            };
            called(name).or_else(|| called(plain))
        });
        Some(match snapshot {
            Some(snapshot) => snapshot.position(declared.field.as_deref()),
            None => event.position(Some(&declared.top_field)),
        })
    }
}

impl Struct {
    fn position(&self, field: Option<&str>) -> Position {
        let line = field.and_then(|field| {
            let wanted = plain(field);
            self.fields
                .iter()
                .find(|(name, _)| plain(name) == wanted)
                .map(|(_, line)| *line)
        });
        Position {
            file: self.file.clone(),
            line: line.unwrap_or(self.line),
        }
    }
}

/// `order_id` and `orderId` are one: the derive makes the second of the first.
fn plain(name: &str) -> String {
    name.trim_start_matches("r#")
        .replace('_', "")
        .to_ascii_lowercase()
}

struct Structs<'s> {
    path: &'s Path,
    into: &'s mut Vec<Struct>,
    given: &'s mut BTreeSet<String>,
    is_partial: &'s mut bool,
}

/// Macros that make no event of the kind that they are given: they compare or print it.
const NO_EVENT: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "bail",
    "dbg",
    "debug",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "ensure",
    "eprint",
    "eprintln",
    "error",
    "expect",
    "format",
    "format_args",
    "info",
    "json",
    "matches",
    "panic",
    "print",
    "println",
    "trace",
    "unreachable",
    "vec",
    "warn",
    "write",
    "writeln",
];

impl Structs<'_> {
    /// Takes down the kinds in what a macro is given, or in an attribute.
    fn give(&mut self, tokens: &TokenStream) {
        let mut pending = vec![tokens.clone()];
        while let Some(tokens) = pending.pop() {
            for token in tokens {
                match token {
                    TokenTree::Group(group) => pending.push(group.stream()),
                    TokenTree::Literal(literal) => {
                        let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else {
                            continue;
                        };
                        let text = text.value();
                        // Files that are built, or that lie in another crate: `include!`.
                        *self.is_partial |= text == "OUT_DIR" || is_elsewhere(&text);
                        if text.parse::<EventType>().is_ok() {
                            self.given.insert(text);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn is_elsewhere(path: &str) -> bool {
    path.starts_with("..") && path.ends_with(".rs")
}

impl<'ast> Visit<'ast> for Structs<'_> {
    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        let name = of.path.segments.last().map(|part| part.ident.to_string());
        if !name.is_some_and(|name| NO_EVENT.contains(&&*name)) {
            self.give(&of.tokens);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            // That of a struct is looked at with the struct.
            syn::Meta::List(list) if !list.path.is_ident("event") => self.give(&list.tokens),
            syn::Meta::NameValue(path) if path.path.is_ident("path") => {
                if let syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) = &path.value
                {
                    *self.is_partial |= is_elsewhere(&text.value());
                }
            }
            _ => {}
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let derives = |name: &str| {
            item.attrs.iter().any(|attribute| {
                attribute.path().is_ident("derive")
                    && attribute
                        .meta
                        .require_list()
                        .is_ok_and(|list| mentions(&list.tokens, name))
            })
        };
        let is_event = derives("Event");
        if is_event || derives("Snapshot") {
            let kind = item
                .attrs
                .iter()
                .filter(|attribute| attribute.path().is_ident("event"))
                .find_map(|attribute| kind(&attribute.meta.require_list().ok()?.tokens));
            let is_unlocked = item
                .attrs
                .iter()
                .filter(|attribute| attribute.path().is_ident("event"))
                .filter_map(|attribute| attribute.meta.require_list().ok())
                .any(|list| mentions(&list.tokens, "unlocked"));
            self.into.push(Struct {
                file: self.path.to_owned(),
                line: item.ident.span().start().line,
                name: item.ident.to_string(),
                kind: kind.filter(|_| is_event),
                is_unlocked,
                fields: item
                    .fields
                    .iter()
                    .filter_map(|field| {
                        let name = field.ident.as_ref()?;
                        Some((name.to_string(), name.span().start().line))
                    })
                    .collect(),
            });
        }
        if !is_event {
            // Something else may make an event of it: `#[cfg_attr(…, derive(Event))]`, or an attribute of one's own.
            for attribute in item.attrs.iter().filter(|of| of.path().is_ident("event")) {
                if let Ok(list) = attribute.meta.require_list() {
                    self.give(&list.tokens);
                }
            }
        }
        visit::visit_item_struct(self, item);
    }
}

fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens
        .clone()
        .into_iter()
        .any(|token| matches!(token, TokenTree::Ident(ident) if ident == name))
}

/// The text of `kind = "…"` among an attribute's arguments.
fn kind(tokens: &TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    tokens.windows(3).find_map(|three| match three {
        [
            TokenTree::Ident(key),
            TokenTree::Punct(equals),
            TokenTree::Literal(text),
        ] if key == "kind" && equals.as_char() == '=' => {
            syn::parse_str::<syn::LitStr>(&text.to_string())
                .ok()
                .map(|text| text.value())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_its_fields_and_its_snapshots_are_found_by_their_names_on_the_wire() {
        let mut sources = Sources::default();
        let text = "mod inner {\n    #[derive(Debug, Event)]\n    #[event(kind = \"order.confirmed.v1\", topic = \"t\")]\n    \
                    pub struct OrderConfirmed {\n        order_id: Uuid,\n        #[event(text)]\n        line_2: u64,\n    }\n}\n\
                    #[derive(factum::Snapshot)]\nstruct OrderItem {\n    r#type: String,\n}\n";
        sources.file(Path::new("src/events.rs"), text);
        let line = |declared: Option<Declared>| {
            sources
                .find("order.confirmed.v1", declared.as_ref())
                .map(|position| position.line)
        };
        let declared = |snapshot: Option<&str>, field: &str| {
            Some(Declared {
                top_field: field.to_owned(),
                snapshot: snapshot.map(str::to_owned),
                field: Some(field.to_owned()),
            })
        };
        assert_eq!(line(None), Some(4));
        assert_eq!(line(declared(None, "orderId")), Some(5));
        assert_eq!(line(declared(None, "line2")), Some(7));
        assert_eq!(line(declared(None, "gone")), Some(4));
        assert_eq!(line(declared(Some("OrderItem2"), "type")), Some(12));
        assert_eq!(sources.find("order.paid.v1", None), None);
    }

    #[test]
    fn an_event_is_declared_by_a_struct_or_by_a_macro_and_not_where_it_is_mentioned() {
        let declaration = |text: &str| {
            let mut sources = Sources::default();
            sources.file(Path::new("src/lib.rs"), text);
            sources.declaration("order.paid.v1")
        };
        let event = |more: &str| {
            format!(
                "#[derive(Event)]\n#[event(kind = \"order.paid.v1\"{more})]\nstruct OrderPaid;\n"
            )
        };
        for (text, expected) in [
            (event(""), Declaration::Locked),
            (event(", unlocked"), Declaration::Unlocked),
            // A test's own view beside the event itself.
            (event("") + &event(", unlocked"), Declaration::Locked),
            (
                "events! { paid => r\"order.paid.v1\" }".to_owned(),
                Declaration::Locked,
            ),
            (
                "const KIND: &str = \"order.paid.v1\"; fn f() { assert_eq!(KIND, \"order.paid.v1\"); }"
                    .to_owned(),
                Declaration::Missing,
            ),
            (
                event("").replace("derive(Event)", "cfg_attr(unix, derive(Event))"),
                Declaration::Locked,
            ),
            (
                event(", unlocked") + "events! { OrderPaid: \"order.paid.v1\" }",
                Declaration::Locked,
            ),
            (
                "// \"order.paid.v1\"\n/* \"order.paid.v1\" */".to_owned(),
                Declaration::Missing,
            ),
            (event("").replace("paid", "settled"), Declaration::Missing),
            (String::new(), Declaration::Missing),
            (
                "include!(concat!(env!(\"OUT_DIR\"), \"/events.rs\"));".to_owned(),
                Declaration::Unknown,
            ),
            (
                "#[path = \"../../shared/events.rs\"] mod events;".to_owned(),
                Declaration::Unknown,
            ),
            ("no Rust: \"".to_owned(), Declaration::Unknown),
        ] {
            assert_eq!(declaration(&text), expected, "{text}");
        }
        let none = Sources::default();
        assert_eq!(none.declaration("order.paid.v1"), Declaration::Unknown);
    }
}
