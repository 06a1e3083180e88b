//! The gate on real files: when it passes, when it writes, what it says.
//!
//! The texts lie in `tests/texts/`, as a user sees them. `FACTUM_TEXTS=write cargo test -p factum-contract --test gate`
//! writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use factum_contract::gate::{GateError, Mode, Place, compare_with_lock};
use factum_contract::lock;
use factum_event::{Contract, FieldShape, Shape};
use tempfile::TempDir;

/// A crate's folder, with the contract of an event that was published.
struct Crate {
    folder: TempDir,
    /// `Place` holds what the compiler gave, which lives for ever.
    place: Place,
}

const LINES: &[(&str, u32)] = &[
    ("orderId", 14),
    ("customerId", 16),
    ("note", 18),
    ("remark", 18),
    ("payment", 20),
    ("items", 22),
    ("channel", 24),
];

impl Crate {
    fn new() -> Crate {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().to_str().expect("a path of text").to_owned();
        Crate {
            folder,
            place: Place {
                crate_folder: Some(path.leak()),
                file: "src/events.rs",
                line: 12,
                fields: LINES,
            },
        }
    }

    fn with(contract: &Contract) -> Crate {
        let of = Crate::new();
        lock::write(&of.path(), contract).expect("the lock file is written");
        of
    }

    fn path(&self) -> std::path::PathBuf {
        lock::path(self.folder.path(), "order.confirmed.v1")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap_or_default()
    }

    fn check(&self, contract: &Contract, mode: Mode) -> Result<(), GateError> {
        compare_with_lock(contract, &self.place, mode)
    }

    /// The error's text, with the crate's folder called `/orders`.
    fn says(&self, contract: &Contract, mode: Mode) -> String {
        let error = self.check(contract, mode).expect_err("the gate fails");
        let folder = self.folder.path().to_str().expect("a path of text");
        error.to_string().replace(folder, "/orders")
    }
}

fn any_text() -> Shape {
    Shape::Text {
        min_chars: None,
        max_chars: None,
        pattern: None,
    }
}

fn choice(values: &[&str]) -> Shape {
    Shape::Choice {
        values: values.iter().map(|value| (*value).to_owned()).collect(),
        open: false,
    }
}

fn count(max: i128) -> Vec<FieldShape> {
    let count = Shape::Integer {
        min: 0,
        max,
        not_zero: false,
        text: false,
    };
    vec![FieldShape::new("count", count)]
}

fn confirmed() -> Contract {
    Contract {
        event_type: "order.confirmed.v1".to_owned(),
        aggregate_type: "Order".to_owned(),
        topic: "orders.confirmed".to_owned(),
        restricted: false,
        name: "OrderConfirmed".to_owned(),
        supersedes: None,
        aggregate_id: "orderId".to_owned(),
        fields: vec![
            FieldShape::new("orderId", Shape::Uuid),
            FieldShape::new("customerId", Shape::Uuid),
            FieldShape::new("note", Shape::Nullable(Box::new(any_text()))),
            FieldShape::new("payment", choice(&["card", "cash"])),
            FieldShape::new(
                "items",
                Shape::Array {
                    items: Box::new(Shape::Object("OrderItem".to_owned())),
                    min_items: None,
                    max_items: None,
                },
            ),
        ],
        definitions: BTreeMap::from([("OrderItem".to_owned(), count(u32::MAX.into()))]),
    }
}

fn changed(change: impl FnOnce(&mut Contract)) -> Contract {
    let mut contract = confirmed();
    change(&mut contract);
    contract
}

fn optional_channel(contract: &mut Contract) {
    let channel = FieldShape::new("channel", Shape::Nullable(Box::new(any_text())));
    contract.fields.push(channel);
}

#[test]
fn what_is_in_the_lock_file_passes_in_both_modes() {
    let of = Crate::with(&confirmed());
    let before = of.text();
    of.check(&confirmed(), Mode::Compare).expect("it passes");
    of.check(&confirmed(), Mode::Update).expect("it passes");
    assert_eq!(of.text(), before);
}

#[test]
fn a_missing_lock_file_fails_and_update_writes_it() {
    let of = Crate::new();
    let error = of.check(&confirmed(), Mode::Compare);
    assert!(matches!(error, Err(GateError::Missing { .. })));
    assert!(!of.path().exists());
    of.check(&confirmed(), Mode::Update).expect("it is written");
    assert_eq!(of.text(), lock::to_text(&confirmed()));
    of.check(&confirmed(), Mode::Compare).expect("it passes");
}

#[test]
fn case_54_a_compatible_change_fails_until_it_is_committed_and_update_writes_it() {
    let of = Crate::with(&confirmed());
    let new = changed(optional_channel);
    assert!(matches!(
        of.check(&new, Mode::Compare),
        Err(GateError::Stale(_))
    ));
    assert_eq!(of.text(), lock::to_text(&confirmed()));
    of.check(&new, Mode::Update).expect("it is written");
    assert_eq!(of.text(), lock::to_text(&new));
}

#[test]
fn a_breaking_change_is_never_written() {
    let of = Crate::with(&confirmed());
    let new = changed(|contract| {
        optional_channel(contract);
        contract.fields.remove(2);
    });
    for mode in [Mode::Compare, Mode::Update] {
        assert!(matches!(of.check(&new, mode), Err(GateError::Breaking(_))));
        assert_eq!(of.text(), lock::to_text(&confirmed()), "{mode:?}");
    }
}

#[test]
fn a_damaged_lock_file_is_never_written() {
    let of = Crate::with(&confirmed());
    let damaged = of.text().replace("\"uuid\"", "\"uid\"");
    fs::write(of.path(), &damaged).expect("the file is damaged");
    for mode in [Mode::Compare, Mode::Update] {
        assert!(matches!(
            of.check(&confirmed(), mode),
            Err(GateError::Lock(_))
        ));
        assert_eq!(of.text(), damaged, "{mode:?}");
    }
}

#[test]
fn whoever_has_the_lock_file_open_keeps_the_old_one_whole() {
    let of = Crate::with(&confirmed());
    let mut open = fs::File::open(of.path()).expect("the file opens");
    of.check(&changed(optional_channel), Mode::Update)
        .expect("it is written");
    let mut read = String::new();
    open.read_to_string(&mut read).expect("the file is read");
    assert_eq!(read, lock::to_text(&confirmed()));
}

#[test]
fn tests_at_once_leave_whole_files_and_nothing_else() {
    let of = Crate::new();
    let new = changed(optional_channel);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (of, new) = (&of, &new);
            scope.spawn(move || {
                for _ in 0..20 {
                    let contract = if number % 2 == 0 { new } else { &confirmed() };
                    // Whoever comes second sees the other's file, which is broken or stale for it: both are whole.
                    match of.check(contract, Mode::Update) {
                        Ok(()) | Err(GateError::Breaking(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let entries = fs::read_dir(of.folder.path().join(lock::FOLDER)).expect("the folder");
    let names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["order.confirmed.v1.json"]);
}

#[test]
fn what_is_no_contract_is_refused_though_it_has_the_form_of_one() {
    let refused = |change: fn(&mut Contract)| {
        let error = lock::from_text(&lock::to_text(&changed(change)));
        error.expect_err("it is no contract").to_string()
    };
    let field = |shape: Shape| FieldShape::new("channel", shape);
    for (text, part) in [
        (
            refused(|contract| contract.event_type = "order".to_owned()),
            "`order` is no event type",
        ),
        (
            refused(|contract| contract.aggregate_id = "id".to_owned()),
            "`id`, which is not among",
        ),
        (
            refused(|contract| contract.fields[2].shape = Shape::Object("Item".to_owned())),
            "the snapshot `Item`",
        ),
    ] {
        assert!(text.contains(part), "{text}");
    }
    let mut contract = confirmed();
    contract.fields.push(field(Shape::Text {
        min_chars: None,
        max_chars: None,
        pattern: Some("[A-".to_owned()),
    }));
    let text = lock::from_text(&lock::to_text(&contract))
        .expect_err("no pattern")
        .to_string();
    assert!(text.contains("`[A-` is no pattern"), "{text}");
}

#[test]
fn the_version_to_add_is_above_those_whose_lock_files_are_there() {
    let of = Crate::with(&confirmed());
    let v2 = changed(|contract| contract.event_type = "order.confirmed.v2".to_owned());
    lock::write(&lock::path(of.folder.path(), "order.confirmed.v2"), &v2).expect("written");
    let text = of.says(
        &changed(|contract| drop(contract.fields.remove(2))),
        Mode::Compare,
    );
    assert!(text.contains("add `order.confirmed.v3`"), "{text}");
}

/// A text as it is committed.
fn is_committed(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/texts")
        .join(name);
    let text = format!("{text}\n");
    if std::env::var_os("FACTUM_TEXTS").is_some_and(|value| value == "write") {
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        fs::write(&path, &text).expect("the text is written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, text,
        "{name} has changed: read it, then FACTUM_TEXTS=write cargo test -p factum-contract --test gate"
    );
}

#[test]
fn the_texts_are_those_that_were_reviewed() {
    let of = Crate::with(&confirmed());
    let says = |change: fn(&mut Contract)| of.says(&changed(change), Mode::Compare);
    is_committed(
        "missing.txt",
        &Crate::new().says(&confirmed(), Mode::Compare),
    );
    is_committed("field-added.txt", &says(optional_channel));
    is_committed(
        "required-field-added.txt",
        &says(|contract| contract.fields.push(FieldShape::new("channel", any_text()))),
    );
    is_committed(
        "field-removed.txt",
        &says(|contract| drop(contract.fields.remove(1))),
    );
    is_committed(
        "optional-field-removed.txt",
        &says(|contract| drop(contract.fields.remove(2))),
    );
    is_committed(
        "field-renamed.txt",
        &says(|contract| contract.fields[2].name = "remark".to_owned()),
    );
    is_committed(
        "field-retyped.txt",
        &says(|contract| contract.fields[1].shape = any_text()),
    );
    is_committed(
        "field-became-required.txt",
        &says(|contract| contract.fields[2].optional = false),
    );
    is_committed(
        "choice-grew.txt",
        &says(|contract| contract.fields[3].shape = choice(&["card", "cash", "invoice"])),
    );
    is_committed(
        "range-narrowed.txt",
        &says(|contract| {
            contract
                .definitions
                .insert("OrderItem".to_owned(), count(100));
        }),
    );
    is_committed(
        "order-changed.txt",
        &says(|contract| contract.fields.swap(1, 2)),
    );
}

#[test]
fn the_texts_of_unreadable_files_are_those_that_were_reviewed() {
    let of = Crate::with(&confirmed());
    let good = of.text();
    let says = |text: &str| {
        fs::write(of.path(), text).expect("the file is written");
        of.says(&confirmed(), Mode::Update)
    };
    is_committed("lock-conflict.txt", &says(&format!("<<<<<<< HEAD\n{good}")));
    is_committed(
        "lock-newer-format.txt",
        &says(&good.replace("\"format\": 1", "\"format\": 2")),
    );
    is_committed(
        "lock-without-format.txt",
        &says("{\"name\": \"something else\"}"),
    );
    is_committed(
        "lock-damaged.txt",
        &says(&good.replace("\"uuid\"", "\"uid\"")),
    );
    is_committed("lock-cut-off.txt", &says(&good[..good.len() / 2]));
    is_committed(
        "lock-misnamed.txt",
        &says(&good.replace("order.confirmed.v1", "order.confirmed.v2")),
    );
    is_committed(
        "lock-senseless.txt",
        &says(&good.replace("\"snapshot\": \"OrderItem\"", "\"snapshot\": \"Item\"")),
    );
}

/// The page with the texts between its marks put in anew.
fn with_texts(page: &str) -> String {
    const BEGIN: &str = "<!-- text: ";
    const END: &str = "<!-- end of text -->";
    let mut made = String::new();
    let mut rest = page;
    while let Some((prose, after)) = rest.split_once(BEGIN) {
        let (name, after) = after
            .split_once(" -->\n")
            .expect("the mark of a text ends its line");
        let (_, after) = after.split_once(END).expect("a text has an end");
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/texts")
            .join(name);
        let text = fs::read_to_string(&path).expect("there is such a text");
        made.push_str(&format!(
            "{prose}{BEGIN}{name} -->\n```text\n{text}```\n{END}"
        ));
        rest = after;
    }
    made + rest
}

#[test]
fn the_page_on_events_shows_these_texts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    let page = fs::read_to_string(&path).expect("the page on events");
    let made = with_texts(&page);
    assert!(
        made.contains("FIELD_RENAMED (EVT-3)"),
        "it shows the gate's texts"
    );
    if std::env::var_os("FACTUM_TEXTS").is_some_and(|value| value == "write") {
        fs::write(&path, &made).expect("the page is written");
    } else {
        assert!(
            made == page,
            "docs/events.md shows older texts: FACTUM_TEXTS=write cargo test -p factum-contract --test gate"
        );
    }
}
