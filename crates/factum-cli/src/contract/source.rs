//! Where in a crate's sources an event and its fields are declared.

use std::fs;
use std::path::{Path, PathBuf};

use factum_contract::compatibility::Declared;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A file and a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// The structs of a crate that are events or snapshots.
#[derive(Debug, Default)]
pub(super) struct Sources {
    structs: Vec<Struct>,
}

#[derive(Debug)]
struct Struct {
    file: PathBuf,
    line: usize,
    name: String,
    /// The event's kind; `None` of a snapshot.
    kind: Option<String>,
    fields: Vec<(String, usize)>,
}

impl Sources {
    /// Reads all Rust files of a crate. One that can't be read or parsed is passed over: the compiler says it better.
    pub(super) fn of_crate(root: &Path, crate_folder: &Path) -> Sources {
        let mut sources = Sources::default();
        sources.folder(root, crate_folder);
        sources
    }

    fn folder(&mut self, root: &Path, below: &Path) {
        let Ok(entries) = fs::read_dir(root.join(below)) else {
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
            if name.starts_with('.') || name == "target" || name == "node_modules" || is_other_crate
            {
                continue;
            }
            if kind.is_dir() {
                self.folder(root, &path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                self.file(&path, &text);
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        // Most files have none, and parsing takes its time.
        if !text.contains("Event") && !text.contains("Snapshot") {
            return;
        }
        if let Ok(file) = syn::parse_file(text) {
            let mut structs = Structs {
                path,
                into: &mut self.structs,
            };
            structs.visit_file(&file);
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
}

impl<'ast> Visit<'ast> for Structs<'_> {
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
            self.into.push(Struct {
                file: self.path.to_owned(),
                line: item.ident.span().start().line,
                name: item.ident.to_string(),
                kind: kind.filter(|_| is_event),
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
}
