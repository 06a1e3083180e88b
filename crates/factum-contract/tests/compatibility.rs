//! The table of changes: each row is a test, and `docs/compatibility.md` is made from all of them.
//!
//! `FACTUM_COMPATIBILITY_PAGE=write cargo test -p factum-contract --test compatibility` writes the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use factum_contract::compatibility::{Finding, Rule, Side, compare};
use factum_contract::document;
use factum_event::{AmountBound, CodeList, Contract, FieldShape, Shape};

/// A change, and what is said of it.
struct Row {
    name: &'static str,
    change: &'static str,
    old: Contract,
    new: Contract,
    /// A rule and who meets it; nobody where the change is compatible.
    expected: Vec<(Rule, Option<Side>)>,
    /// What readers say that are not Factum's, where that differs.
    elsewhere: &'static str,
}

macro_rules! side {
    (old) => {
        Some(Side::OldConsumers)
    };
    (new) => {
        Some(Side::NewConsumers)
    };
    (nobody) => {
        None
    };
}

macro_rules! table {
    ($($name:ident: $change:literal, $old:expr => $new:expr, [$($rule:ident $side:ident),*] $(, $elsewhere:literal)?;)*) => {
        fn rows() -> Vec<Row> {
            vec![$(Row {
                name: stringify!($name),
                change: $change,
                old: $old,
                new: $new,
                expected: vec![$((Rule::$rule, side!($side))),*],
                elsewhere: concat!($($elsewhere)?),
            }),*]
        }

        $(
            #[test]
            fn $name() {
                let row = rows().into_iter().find(|row| row.name == stringify!($name));
                hold(&row.expect("the table has its own rows"));
            }
        )*
    };
}

fn event(fields: impl IntoIterator<Item = FieldShape>) -> Contract {
    let id = FieldShape::new("orderId", Shape::Uuid);
    Contract {
        event_type: "order.confirmed.v1".to_owned(),
        aggregate_type: "Order".to_owned(),
        topic: "orders.confirmed".to_owned(),
        restricted: false,
        name: "OrderConfirmed".to_owned(),
        supersedes: None,
        aggregate_id: "orderId".to_owned(),
        fields: [id].into_iter().chain(fields).collect(),
        definitions: BTreeMap::new(),
    }
}

/// An event with one field `x` of the shape.
fn of(shape: Shape) -> Contract {
    event([FieldShape::new("x", shape)])
}

/// An event with a list of snapshots of the fields.
fn items_of(name: &str, fields: impl IntoIterator<Item = FieldShape>) -> Contract {
    let mut contract = of(list(object(name)));
    let fields = fields.into_iter().collect();
    contract.definitions.insert(name.to_owned(), fields);
    contract
}

/// An event with a snapshot that holds itself in a list.
fn tree(name: &str, label: Shape) -> Contract {
    let mut contract = of(object(name));
    let fields = vec![
        required("label", label),
        required("branches", list(object(name))),
    ];
    contract.definitions.insert(name.to_owned(), fields);
    contract
}

/// An event with two snapshots, `A` and another.
fn event_of_two(second: &str) -> Contract {
    let mut contract = event([required("x", object("A")), required("y", object(second))]);
    for (name, count) in [("A", u32()), ("B", any_text())] {
        contract
            .definitions
            .insert(name.to_owned(), vec![required("count", count)]);
    }
    contract
}

fn with(change: impl FnOnce(&mut Contract)) -> Contract {
    let mut contract = event([
        required("customerId", Shape::Uuid),
        optional("note", text(None, None)),
    ]);
    change(&mut contract);
    contract
}

fn required(name: &str, shape: Shape) -> FieldShape {
    FieldShape::new(name, shape)
}

fn optional(name: &str, shape: Shape) -> FieldShape {
    FieldShape::new(name, nullable(shape))
}

fn nullable(shape: Shape) -> Shape {
    Shape::Nullable(Box::new(shape))
}

fn text(min_chars: Option<u32>, max_chars: Option<u32>) -> Shape {
    Shape::Text {
        min_chars,
        max_chars,
        pattern: None,
    }
}

fn any_text() -> Shape {
    text(None, None)
}

fn pattern(pattern: &str) -> Shape {
    Shape::Text {
        min_chars: None,
        max_chars: None,
        pattern: Some(pattern.to_owned()),
    }
}

fn integer(min: i128, max: i128) -> Shape {
    Shape::Integer {
        min,
        max,
        not_zero: false,
        text: false,
    }
}

fn u32() -> Shape {
    integer(0, u32::MAX.into())
}

fn u64_as_text() -> Shape {
    Shape::Integer {
        min: 0,
        max: u64::MAX.into(),
        not_zero: false,
        text: true,
    }
}

fn double(min: Option<f64>, max: Option<f64>) -> Shape {
    Shape::Double { min, max }
}

fn amount(min: Option<(&str, bool)>, text: bool) -> Shape {
    let min = min.map(|(value, exclusive)| AmountBound {
        value: value.to_owned(),
        exclusive,
    });
    Shape::Amount {
        min,
        max: None,
        text,
    }
}

fn choice(values: &[&str], open: bool) -> Shape {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    Shape::Choice { values, open }
}

fn list(items: Shape) -> Shape {
    bounded(items, None, None)
}

fn bounded(items: Shape, min_items: Option<u32>, max_items: Option<u32>) -> Shape {
    Shape::Array {
        items: Box::new(items),
        min_items,
        max_items,
    }
}

fn map(values: Shape) -> Shape {
    Shape::Map {
        values: Box::new(values),
    }
}

fn object(name: &str) -> Shape {
    Shape::Object(name.to_owned())
}

table! {
    // Fields.
    case_54_an_optional_field_is_added: "an optional field is added",
        event([]) => event([optional("note", any_text())]), [FieldAdded nobody],
        "`z.strictObject` and serde's `deny_unknown_fields` refuse it: readers of events are open";
    a_required_field_is_added: "a required field is added",
        event([]) => event([required("note", any_text())]), [RequiredFieldAdded new];
    an_optional_list_is_added: "an optional list is added",
        event([]) => event([optional("tags", list(any_text()))]), [FieldAdded nobody];
    a_required_list_is_added: "a required list is added, though it may be empty",
        event([]) => event([required("tags", list(any_text()))]), [RequiredFieldAdded new],
        "zod's `.default([])` and serde's `default` would read it; Factum has no defaults";
    two_optional_fields_are_added: "two optional fields are added",
        event([]) => event([optional("a", u32()), optional("b", Shape::Date)]), [FieldAdded nobody, FieldAdded nobody];
    a_required_field_is_removed: "a required field is removed",
        event([required("note", any_text())]) => event([]), [FieldRemoved old];
    an_optional_field_is_removed: "an optional field is removed",
        event([optional("note", any_text())]) => event([]), [FieldRemoved old];
    a_required_field_is_renamed: "a required field is renamed",
        event([required("note", any_text())]) => event([required("remark", any_text())]), [FieldRenamed old];
    an_optional_field_is_renamed: "an optional field is renamed",
        event([optional("note", any_text())]) => event([optional("remark", any_text())]), [FieldRenamed old];
    a_field_makes_way_for_another: "a field is removed and one of another type is added",
        event([required("note", any_text())]) => event([required("count", u32())]),
        [FieldRemoved old, RequiredFieldAdded new];
    a_field_makes_way_for_an_optional_one: "a required field is removed and an optional one is added",
        event([required("note", any_text())]) => event([optional("remark", any_text())]),
        [FieldRemoved old, FieldAdded nobody];
    an_optional_field_becomes_required: "an optional field becomes required",
        event([optional("note", any_text())]) => event([required("note", any_text())]), [FieldBecameRequired new];
    a_required_field_becomes_optional: "a required field becomes optional",
        event([required("note", any_text())]) => event([optional("note", any_text())]), [FieldBecameOptional old];
    fields_change_their_order: "fields are declared in another order",
        event([required("a", u32()), required("b", u32())]) => event([required("b", u32()), required("a", u32())]), [];

    // The event as a whole.
    the_topic_changes: "the event goes to another topic",
        with(|_| {}) => with(|c| c.topic = "orders.confirmed.eu".to_owned()), [TopicChanged old];
    the_aggregate_type_changes: "`aggregateType` changes",
        with(|_| {}) => with(|c| c.aggregate_type = "Purchase".to_owned()), [AggregateTypeChanged old];
    the_aggregate_id_changes: "another field is the aggregate id",
        with(|_| {}) => with(|c| c.aggregate_id = "customerId".to_owned()), [AggregateIdChanged old],
        "a reader that doesn't compare key and field reads it, and loses the order of each aggregate's events";
    the_aggregate_id_is_renamed: "the field that is the aggregate id is renamed",
        with(|_| {}) => with(|c| { c.fields[0].name = "orderRef".to_owned(); c.aggregate_id = "orderRef".to_owned(); }),
        [FieldRenamed old];
    a_restricted_topic_becomes_broadcast: "`restricted` is taken away",
        with(|c| c.restricted = true) => with(|_| {}), [BecameBroadcast old];
    a_broadcast_topic_becomes_restricted: "`restricted` is added",
        with(|_| {}) => with(|c| c.restricted = true), [BecameRestricted old];
    the_struct_is_renamed: "the Rust struct is renamed",
        with(|_| {}) => with(|c| c.name = "Confirmed".to_owned()), [StructRenamed nobody],
        "the `title` in JSON Schema and AsyncAPI changes; nothing in TypeScript, whose names are made of the event type";
    the_event_supersedes_another: "`supersedes` is added",
        with(|_| {}) => with(|c| c.supersedes = Some("order.placed.v1".to_owned())), [SupersedesChanged nobody];

    // Types.
    text_becomes_an_integer: "text becomes an integer",
        of(any_text()) => of(u32()), [FieldRetyped old, FieldRetyped new];
    an_integer_becomes_text: "an integer becomes text",
        of(u32()) => of(any_text()), [FieldRetyped old, FieldRetyped new];
    a_boolean_becomes_text: "a boolean becomes text",
        of(Shape::Boolean) => of(any_text()), [FieldRetyped old, FieldRetyped new];
    a_boolean_becomes_a_choice: "a boolean becomes a choice of two",
        of(Shape::Boolean) => of(choice(&["yes", "no"], false)), [FieldRetyped old, FieldRetyped new];
    a_uuid_becomes_text: "a UUID becomes text",
        of(Shape::Uuid) => of(any_text()), [FieldRetyped old];
    text_becomes_a_uuid: "text becomes a UUID",
        of(any_text()) => of(Shape::Uuid), [FieldRetyped new];
    a_uuid_becomes_an_event_id: "a UUID becomes an event id (version 7)",
        of(Shape::Uuid) => of(Shape::EventId), [FieldRetyped new],
        "zod's `z.uuid()` without a version reads both";
    an_event_id_becomes_a_uuid: "an event id becomes a UUID",
        of(Shape::EventId) => of(Shape::Uuid), [FieldRetyped old];
    text_becomes_an_aggregate_id: "text becomes an aggregate id (1 to 255 bytes)",
        of(any_text()) => of(Shape::AggregateId), [FieldRetyped new];
    an_aggregate_id_becomes_text: "an aggregate id becomes text",
        of(Shape::AggregateId) => of(any_text()), [FieldRetyped old];
    a_time_becomes_a_date: "a time becomes a date",
        of(Shape::Instant) => of(Shape::Date), [FieldRetyped old, FieldRetyped new],
        "`z.coerce.date()` and JavaScript's `new Date()` read both, and move the date by the time zone";
    a_date_becomes_a_time: "a date becomes a time",
        of(Shape::Date) => of(Shape::Instant), [FieldRetyped old, FieldRetyped new],
        "as above";
    a_time_becomes_text: "a time becomes text",
        of(Shape::Instant) => of(any_text()), [FieldRetyped old];
    a_time_becomes_an_integer: "a time becomes milliseconds",
        of(Shape::Instant) => of(integer(0, 9_007_199_254_740_991)), [FieldRetyped old, FieldRetyped new];
    an_integer_becomes_a_double: "an integer becomes a floating-point number",
        of(u32()) => of(double(None, None)), [FieldRetyped old],
        "serde's integers refuse `1.0` too; zod's `z.int()` and Factum read it as 1";
    a_double_becomes_an_integer: "a floating-point number becomes an integer",
        of(double(None, None)) => of(u32()), [FieldRetyped new],
        "as above";
    an_amount_becomes_an_integer: "an amount becomes a count of cents",
        of(amount(None, false)) => of(u32()), [FieldRetyped new];
    a_double_becomes_an_amount: "a floating-point number becomes an amount",
        of(double(None, None)) => of(amount(None, false)), [FieldRetyped new];
    an_amount_becomes_money: "an amount becomes an amount with its currency",
        of(amount(None, false)) => of(Shape::Money { text: false }), [FieldRetyped old, FieldRetyped new];
    money_becomes_a_snapshot: "money becomes a snapshot with the same fields",
        of(Shape::Money { text: false }) => {
            let mut contract = of(object("Sum"));
            let fields = vec![
                required("amount", amount(None, false)),
                required("currency", Shape::Code(CodeList::Currency)),
            ];
            contract.definitions.insert("Sum".to_owned(), fields);
            contract
        }, [FieldRetyped old];
    a_currency_becomes_text: "a currency code becomes text",
        of(Shape::Code(CodeList::Currency)) => of(any_text()), [FieldRetyped old];
    text_becomes_a_currency: "text becomes a currency code",
        of(any_text()) => of(Shape::Code(CodeList::Currency)), [FieldRetyped new];
    a_country_becomes_a_language: "a country code becomes a language code",
        of(Shape::Code(CodeList::Country)) => of(Shape::Code(CodeList::Language)), [FieldRetyped old, FieldRetyped new];
    text_becomes_a_choice: "text becomes a closed choice",
        of(any_text()) => of(choice(&["card", "cash"], false)), [FieldRetyped new];
    a_choice_becomes_text: "a closed choice becomes text",
        of(choice(&["card", "cash"], false)) => of(any_text()), [FieldRetyped old];
    text_becomes_an_open_choice: "text becomes an open choice",
        of(any_text()) => of(choice(&["card", "cash"], true)), [FieldRetyped old];

    // Lists, maps, nothing.
    a_value_becomes_a_list: "a value becomes a list",
        of(any_text()) => of(list(any_text())), [FieldRetyped old, FieldRetyped new];
    a_list_becomes_a_value: "a list becomes a value",
        of(list(any_text())) => of(any_text()), [FieldRetyped old, FieldRetyped new];
    a_list_becomes_a_map: "a list becomes a map",
        of(list(any_text())) => of(map(any_text())), [FieldRetyped old, FieldRetyped new];
    a_map_becomes_a_snapshot: "a map becomes a snapshot",
        of(map(any_text())) => {
            let mut contract = of(object("Labels"));
            contract.definitions.insert("Labels".to_owned(), vec![required("a", any_text())]);
            contract
        }, [FieldRetyped new];
    items_change_their_type: "the items of a list change their type",
        of(list(u32())) => of(list(any_text())), [FieldRetyped old, FieldRetyped new];
    items_may_be_null: "items may be `null`",
        of(list(u32())) => of(list(nullable(u32()))), [BecameNullable old];
    items_may_no_longer_be_null: "items may no longer be `null`",
        of(list(nullable(u32()))) => of(list(u32())), [NoLongerNullable new];
    values_of_a_map_change_their_type: "the values of a map change their type",
        of(map(u32())) => of(map(Shape::Boolean)), [FieldRetyped old, FieldRetyped new];
    values_of_a_map_may_be_null: "the values of a map may be `null`",
        of(map(u32())) => of(map(nullable(u32()))), [BecameNullable old];
    values_of_a_map_may_no_longer_be_null: "the values of a map may no longer be `null`",
        of(map(nullable(u32()))) => of(map(u32())), [NoLongerNullable new];
    a_list_needs_an_item: "a list needs at least one item",
        of(list(u32())) => of(bounded(u32(), Some(1), None)), [ItemsNarrowed new];
    a_list_may_be_empty: "a list needs no item any more",
        of(bounded(u32(), Some(1), None)) => of(list(u32())), [ItemsWidened old];
    a_list_gets_a_limit: "a list has at most 3 items",
        of(list(u32())) => of(bounded(u32(), None, Some(3))), [ItemsNarrowed new];
    a_list_gets_a_higher_limit: "a list has at most 5 items instead of 3",
        of(bounded(u32(), None, Some(3))) => of(bounded(u32(), None, Some(5))), [ItemsWidened old];

    // Numbers.
    a_range_is_widened: "`u32` becomes `u64`",
        of(u32()) => of(integer(0, 9_007_199_254_740_991)), [RangeWidened old],
        "a reader in JavaScript has one type for both";
    a_range_is_narrowed: "`u32` becomes `u16`",
        of(u32()) => of(integer(0, 65_535)), [RangeNarrowed new],
        "as above";
    a_range_is_moved: "0 to 10 becomes 5 to 20",
        of(integer(0, 10)) => of(integer(5, 20)), [RangeWidened old, RangeNarrowed new];
    an_integer_gets_a_sign: "`u32` becomes `i64`",
        of(u32()) => of(integer(-9_007_199_254_740_991, 9_007_199_254_740_991)), [RangeWidened old];
    zero_is_refused: "0 is no longer allowed",
        of(integer(-5, 5)) => of(Shape::Integer { min: -5, max: 5, not_zero: true, text: false }), [RangeNarrowed new];
    zero_is_allowed: "0 is allowed",
        of(integer(1, 5)) => of(integer(0, 5)), [RangeWidened old];
    an_integer_is_written_as_text: "an integer is written as text (`text`)",
        of(integer(0, 100)) => of(Shape::Integer { min: 0, max: 100, not_zero: false, text: true }), [WrittenAsChanged old];
    an_integer_is_no_longer_written_as_text: "an integer is no longer written as text",
        of(Shape::Integer { min: 0, max: 100, not_zero: false, text: true }) => of(integer(0, 100)), [WrittenAsChanged new];
    a_large_integer_becomes_a_number: "a `u64` as text becomes a number",
        of(u64_as_text()) => of(integer(0, 9_007_199_254_740_991)), [RangeNarrowed new, WrittenAsChanged new],
        "JavaScript rounds what lies beyond 2^53";
    a_double_gets_a_bound: "a floating-point number gets a least value",
        of(double(None, None)) => of(double(Some(0.0), None)), [RangeNarrowed new];
    a_double_loses_a_bound: "a floating-point number loses its greatest value",
        of(double(None, Some(1.0))) => of(double(None, None)), [RangeWidened old];
    an_amount_must_be_positive: "an amount must be more than 0",
        of(amount(None, false)) => of(amount(Some(("0", true)), false)), [RangeNarrowed new];
    an_amount_may_be_zero: "an amount of more than 0 may be 0",
        of(amount(Some(("0", true)), false)) => of(amount(Some(("0", false)), false)), [RangeWidened old];
    an_amount_is_written_as_text: "an amount is written as text (`text`)",
        of(amount(None, false)) => of(amount(None, true)), [WrittenAsChanged old],
        "`z.number()` and serde's `f64` refuse text";
    an_amount_is_no_longer_written_as_text: "an amount is no longer written as text",
        of(amount(None, true)) => of(amount(None, false)), [WrittenAsChanged old],
        "`z.string()` and serde's `String` refuse a number";
    money_is_written_as_text: "the amount of money is written as text",
        of(Shape::Money { text: false }) => of(Shape::Money { text: true }), [WrittenAsChanged old],
        "`z.number()` and serde's `f64` refuse text";

    // Text.
    text_gets_a_limit: "text has at most 40 characters",
        of(any_text()) => of(text(None, Some(40))), [LengthNarrowed new],
        "zod and JavaScript count UTF-16 units: `😀` is 2, here 1";
    text_gets_a_higher_limit: "text has at most 80 characters instead of 40",
        of(text(None, Some(40))) => of(text(None, Some(80))), [LengthWidened old],
        "as above";
    text_must_not_be_empty: "text must not be empty",
        of(any_text()) => of(text(Some(1), None)), [LengthNarrowed new];
    text_may_be_empty: "text may be empty",
        of(text(Some(1), None)) => of(any_text()), [LengthWidened old];
    text_gets_a_pattern: "text gets a pattern",
        of(any_text()) => of(pattern("[A-Z]{2}")), [PatternChanged new];
    text_loses_its_pattern: "text loses its pattern",
        of(pattern("[A-Z]{2}")) => of(any_text()), [PatternChanged old];
    a_pattern_is_loosened: "a pattern takes more",
        of(pattern("[A-Z]{2}")) => of(pattern("[A-Z]{2,3}")), [PatternChanged old];
    a_pattern_is_rewritten: "a pattern is written otherwise, and takes the same",
        of(pattern("[0-9]{3}")) => of(pattern("[0-9][0-9]{2}")), [PatternChanged old];

    // Choices.
    a_closed_choice_grows: "a closed choice gets a value",
        of(choice(&["card"], false)) => of(choice(&["card", "cash"], false)), [ChoiceGrew old];
    a_closed_choice_shrinks: "a closed choice loses a value",
        of(choice(&["card", "cash"], false)) => of(choice(&["card"], false)), [ChoiceShrank new];
    a_value_is_renamed: "a value of a closed choice is renamed",
        of(choice(&["card"], false)) => of(choice(&["creditCard"], false)), [ChoiceGrew old, ChoiceShrank new];
    an_open_choice_grows: "an open choice gets a value",
        of(choice(&["card"], true)) => of(choice(&["card", "cash"], true)), [OpenChoiceChanged nobody],
        "`z.enum` and serde's enums without `#[serde(other)]` refuse it; the exported schema is open";
    an_open_choice_shrinks: "an open choice loses a value",
        of(choice(&["card", "cash"], true)) => of(choice(&["card"], true)), [OpenChoiceChanged nobody];
    a_choice_is_opened: "a closed choice is opened (`other`)",
        of(choice(&["card"], false)) => of(choice(&["card"], true)), [ChoiceOpened old];
    a_choice_is_closed: "an open choice is closed",
        of(choice(&["card"], true)) => of(choice(&["card"], false)), [ChoiceClosed new];
    the_values_of_a_choice_change_their_order: "the values of a choice are declared in another order",
        of(choice(&["card", "cash"], false)) => of(choice(&["cash", "card"], false)), [];

    // Snapshots.
    a_snapshot_is_renamed: "a snapshot's Rust struct is renamed",
        items_of("Item", [required("count", u32())]) => items_of("OrderItem", [required("count", u32())]), [],
        "the names of exported types change";
    a_snapshot_gets_an_optional_field: "a snapshot gets an optional field",
        items_of("Item", [required("count", u32())]) => items_of("Item", [required("count", u32()), optional("note", any_text())]),
        [FieldAdded nobody];
    a_snapshot_gets_a_required_field: "a snapshot gets a required field",
        items_of("Item", [required("count", u32())]) => items_of("Item", [required("count", u32()), required("note", any_text())]),
        [RequiredFieldAdded new];
    a_snapshot_loses_a_field: "a snapshot loses a field",
        items_of("Item", [required("count", u32()), required("note", any_text())]) => items_of("Item", [required("count", u32())]),
        [FieldRemoved old];
    a_snapshots_field_is_narrowed: "a snapshot's field gets a narrower range",
        items_of("Item", [required("count", u32())]) => items_of("Item", [required("count", integer(1, 10))]),
        [RangeNarrowed new];
    a_recursive_snapshot_stays: "a snapshot that holds itself is renamed",
        tree("Tree", any_text()) => tree("Branch", any_text()), [];
    a_recursive_snapshot_changes: "a field of a snapshot that holds itself is retyped",
        tree("Tree", any_text()) => tree("Tree", u32()), [FieldRetyped old, FieldRetyped new];
    a_field_takes_another_snapshot: "one of two fields of a snapshot takes another snapshot",
        event_of_two("A") => event_of_two("B"), [FieldRetyped old, FieldRetyped new];
    fields_move_into_a_snapshot: "a field moves into a snapshot",
        event([required("city", any_text())]) => {
            let mut contract = event([required("address", object("Address"))]);
            contract.definitions.insert("Address".to_owned(), vec![required("city", any_text())]);
            contract
        }, [FieldRemoved old, RequiredFieldAdded new];
}

/// The verdicts are those of the row, and each document is proof of its own.
fn hold(row: &Row) {
    let report = compare(&row.old, &row.new);
    let found: Vec<(Rule, Option<Side>)> = report
        .findings
        .iter()
        .map(|finding| (finding.rule, finding.side))
        .collect();
    assert_eq!(
        found, row.expected,
        "{}: {:#?}",
        row.change, report.findings
    );
    for finding in report.breaking() {
        prove(row, finding);
    }
    if !report.is_breaking() {
        for (writer, reader) in [(&row.old, &row.new), (&row.new, &row.old)] {
            let event = document::sample(writer).expect("an event").to_string();
            assert_eq!(
                document::read(reader, event.as_bytes()),
                Ok(true),
                "{event}"
            );
        }
    }
}

fn prove(row: &Row, finding: &Finding) {
    let example = finding.counterexample.as_ref().expect("a document");
    let (writer, reader) = match finding.side {
        Some(Side::OldConsumers) => (&row.new, &row.old),
        _ => (&row.old, &row.new),
    };
    let text = example.document.as_bytes();
    assert_eq!(
        document::read(writer, text),
        Ok(true),
        "{}: its writer",
        row.change
    );
    let read = document::read(reader, text);
    match &example.refused {
        Some(expected) => {
            let poison = read.expect_err("the reader refuses it");
            let place = format!("at {}", poison.path());
            assert!(
                expected.ends_with(&place),
                "{}: {expected}, {poison}",
                row.change
            );
        }
        None => assert_eq!(
            read,
            Ok(true),
            "{}: read, and forbidden by the letter",
            row.change
        ),
    }
}

#[test]
fn case_54_every_verdict_of_the_table_holds_in_its_direction() {
    let rows = rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    for row in &rows {
        hold(row);
    }
    // Every rule that compares two contracts has a row.
    // What one contract beside another doesn't show.
    let of_a_workspace = [Rule::EventRemoved, Rule::LockedTwice];
    for rule in Rule::ALL
        .iter()
        .filter(|rule| !of_a_workspace.contains(rule))
    {
        let has_row = rows
            .iter()
            .any(|row| row.expected.iter().any(|(of, _)| of == rule));
        assert!(has_row, "{rule} has no row");
    }
}

/// The first clause of each mend: the way back without a new version.
fn ways_back(old: &Contract, new: &Contract) -> Vec<String> {
    let report = compare(old, new);
    let successor = report.successor([]);
    let mends = report.breaking().map(|finding| finding.mend(&successor));
    let first = |mend: String| mend.split("; or leave `").next().map(str::to_owned);
    mends.filter_map(first).collect()
}

#[test]
fn a_mend_names_the_argument_that_changed_and_a_type_only_where_that_changed() {
    let code = Shape::Code;
    let u64_as_number = || integer(0, 9_007_199_254_740_991);
    let money = |text| Shape::Money { text };
    let bound = |value: &str, exclusive| AmountBound {
        value: value.to_owned(),
        exclusive,
    };
    let between = Shape::Amount {
        min: Some(bound("0", true)),
        max: Some(bound("999.99", false)),
        text: false,
    };
    let write = |argument: &str| format!("write `#[event({argument})]` again");
    let take = |argument: &str| format!("take `{argument}` out of the field's attribute again");
    let type_of = |name: &str| format!("give the field the type `{name}` again");
    let currency = "give the field the type `Currency` again, or write `#[event(code = \"currency\")]` again, whichever \
                    it had";
    for (old, new, way_back) in [
        // The same type, written otherwise: the range follows from it.
        (u64_as_text(), u64_as_number(), write("text")),
        (u64_as_number(), u64_as_text(), take("text")),
        (amount(None, true), amount(None, false), write("text")),
        (money(false), money(true), take("text")),
        (u64_as_number(), u32(), type_of("u64")),
        (u32(), u64_as_number(), type_of("u32")),
        (integer(1, 100), u32(), write("range(min = 1, max = 100)")),
        (integer(0, 100), u32(), write("range(max = 100)")),
        (
            integer(1, 100),
            integer(1, 50),
            write("range(min = 1, max = 100)"),
        ),
        (u32(), integer(1, 100), take("range")),
        (
            integer(1, u32::MAX.into()),
            u32(),
            "give the field the type `NonZeroU32` again, or write `#[event(range(min = 1))]` again, whichever it had"
                .to_owned(),
        ),
        (
            u32(),
            integer(1, u32::MAX.into()),
            "give the field the type `u32` again, or take `range` out of the field's attribute again, whichever changed"
                .to_owned(),
        ),
        (integer(0, 255), integer(0, 1_000), type_of("u8")),
        (
            double(Some(0.5), None),
            double(None, None),
            write("range(min = 0.5)"),
        ),
        (double(None, None), double(None, Some(2.0)), take("range")),
        (
            between,
            amount(None, false),
            write("range(greater_than = 0, max = \"999.99\")"),
        ),
        (
            amount(None, false),
            amount(Some(("0.01", false)), false),
            take("range"),
        ),
        (
            text(Some(1), Some(40)),
            any_text(),
            write("length(min = 1, max = 40)"),
        ),
        (any_text(), text(None, Some(40)), take("length")),
        (
            text(None, Some(40)),
            text(None, Some(50)),
            write("length(max = 40)"),
        ),
        (
            pattern("[A-Z]{3}"),
            any_text(),
            write("pattern = \"[A-Z]{3}\""),
        ),
        (
            pattern(r"[a\-]"),
            any_text(),
            write(r#"pattern = r"[a\-]""#),
        ),
        (any_text(), pattern("[A-Z]{3}"), take("pattern")),
        (
            bounded(u32(), Some(1), Some(9)),
            list(u32()),
            write("items(min = 1, max = 9)"),
        ),
        (list(u32()), bounded(u32(), Some(1), None), take("items")),
        (
            code(CodeList::Country),
            any_text(),
            write("code = \"country\""),
        ),
        (
            code(CodeList::Country),
            code(CodeList::Language),
            write("code = \"country\""),
        ),
        (code(CodeList::Currency), any_text(), currency.to_owned()),
        (any_text(), code(CodeList::Country), take("code")),
        (
            text(None, Some(2)),
            code(CodeList::Country),
            "write `#[event(length(max = 2))]` again in place of `code`".to_owned(),
        ),
        (
            u64_as_text(),
            Shape::Boolean,
            "give the field the type `u64` again, with `#[event(text)]`".to_owned(),
        ),
        (
            text(None, Some(9)),
            Shape::Boolean,
            "give the field the type `String` again, with `#[event(length(max = 9))]`".to_owned(),
        ),
        (Shape::Uuid, Shape::Boolean, type_of("Uuid")),
    ] {
        let found = ways_back(&of(old.clone()), &of(new.clone()));
        assert!(!found.is_empty(), "{old:?} to {new:?} breaks nothing");
        for one in found {
            assert_eq!(one, way_back, "{old:?} to {new:?}");
        }
    }
    // Within a snapshot, the attribute is the snapshot's.
    let (old, new) = [code(CodeList::Country), any_text()]
        .map(|shape| items_of("OrderItem", [required("origin", shape)]))
        .into();
    assert_eq!(
        ways_back(&old, &new)[0],
        "write `#[snapshot(code = \"country\")]` again"
    );
}

#[test]
fn a_mend_says_what_the_old_version_must_not_share_with_the_new_one() {
    let mend = |old: &Contract, new: &Contract| {
        let report = compare(old, new);
        let finding = report.breaking().next().expect("a breaking change");
        finding.mend(&report.successor([]))
    };
    let payment = |values: &[&str]| required("payment", choice(values, false));
    let (few, more) = (payment(&["card"]), payment(&["card", "invoice"]));
    let said = mend(&event([few.clone()]), &event([more.clone()]));
    assert!(
        said.ends_with(
            "; if `order.confirmed.v1` and the new version share the enum of `payment`, give the old one a copy of \
             it as it was, such as `PaymentV1`"
        ),
        "{said}"
    );
    // With a newer version declared, that is what comes first.
    let report = compare(&event([few.clone()]), &event([more.clone()]));
    let said = report.findings[0].mend(&report.successor(["order.confirmed.v2"]));
    let begins = "take \"invoice\" out again; or if `order.confirmed.v1` and the new version share the enum of";
    assert!(said.starts_with(begins), "{said}");
    let said = mend(
        &items_of("OrderItem", [few]),
        &items_of("OrderItem", [more]),
    );
    assert!(
        said.ends_with(
            "share the enum of `payment` or the snapshot `OrderItem`, give the old one copies of them as they were, \
             such as `PaymentV1` and `OrderItemV1`"
        ),
        "{said}"
    );
    let [one, two] =
        [u32(), any_text()].map(|shape| items_of("OrderItem", [required("count", shape)]));
    let said = mend(&one, &two);
    assert!(said.ends_with("such as `OrderItemV1`"), "{said}");
    // What is the event's own is shared with nobody.
    let said = mend(&of(u32()), &of(any_text()));
    assert!(!said.contains("share"), "{said}");
}

const INTRODUCTION: &str = "\
# Which changes of an event are compatible

<!-- Made by `FACTUM_COMPATIBILITY_PAGE=write cargo test -p factum-contract --test compatibility`. -->

An event is a contract between its producers and its consumers (EVT-3). Both directions count: **old consumers** must
read what new producers write, since deployments overlap and other teams move later; **new consumers** must read what old
producers wrote, since a topic keeps its events. Objects are open: a field that nobody knows disturbs nobody. An optional
field may be left out; readers take `null` for an absent one.

`cargo test` compares each event with its lock file, `contracts/<kind>.json` beside the crate's Cargo.toml, which is
committed:

    FACTUM_CONTRACTS=update cargo test    # writes what is new or compatible, and never a breaking change
    factum contract check --against origin/main    # in CI: the whole workspace, with `--json` and GitHub's annotations

A breaking change needs a new version, `order.confirmed.v2`, published beside the old one for a while. Where the standard's
letter is stricter than what can be shown to break, the letter holds: such rows say *by the letter*, and their document
is read by Factum's readers.

Each row is a test in `crates/factum-contract/tests/compatibility.rs`, called as the row is: the document is written by
one side and refused by the other. The envelope and `orderId`, which stand in every document, are left out below.
*Elsewhere* says where other readers (zod, serde) differ.

Two rules are about a workspace, and only the command sees them. `EVENT_REMOVED`: an event that is published has no lock file any
more; or it has one, and nothing in its crate declares the event, or declares it as `unlocked`. (A kind that is given to a macro of
one's own counts as declared, since that may make the event; a crate that includes files from elsewhere is not asked.) `LOCKED_TWICE`: two crates have a lock file of one event, the same or not; one event has one
contract, and an export takes one.

";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("| change | verdict | who meets it | rule | document, and what its reader expects | elsewhere |\n|---|---|---|---|---|---|\n");
    for row in rows() {
        let report = compare(&row.old, &row.new);
        if report.findings.is_empty() {
            line(
                &mut page,
                [row.change, "compatible", "", "", "", row.elsewhere],
            );
        }
        for (index, finding) in report.findings.iter().enumerate() {
            let example = finding.counterexample.as_ref();
            let refused = example.is_some_and(|example| example.refused.is_some());
            let verdict = match (finding.is_breaking(), refused) {
                (false, _) => "compatible",
                (true, true) => "**breaking**",
                (true, false) => "**breaking**, by the letter",
            };
            let first = index == 0;
            let rule = format!("`{}`", finding.rule);
            let document = example.map_or(String::new(), |example| {
                let shown = shown(&example.document, finding);
                let expected = example
                    .refused
                    .as_ref()
                    .map(|refused| format!(": expected {refused}"));
                format!(
                    "`{}`{}",
                    shown.replace('|', "\\|"),
                    expected.unwrap_or_default().replace('|', "\\|")
                )
            });
            line(
                &mut page,
                [
                    if first { row.change } else { "" },
                    verdict,
                    finding.side.map_or("", Side::as_str),
                    &rule,
                    &document,
                    if first { row.elsewhere } else { "" },
                ],
            );
        }
    }
    page
}

fn line(page: &mut String, cells: [&str; 6]) {
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

/// A document without what stands in every one.
fn shown(document: &str, finding: &Finding) -> String {
    const SHOWN_CHARS: usize = 90;
    // Of a change of the envelope, the envelope is what to see.
    let from = match finding.rule {
        Rule::AggregateTypeChanged | Rule::AggregateIdChanged => document.find("\"aggregateType\""),
        _ => {
            let id = document.find("\"orderId\":");
            let rest = id.map(|id| document[id..].find(',').map(|comma| id + comma + 1));
            rest.unwrap_or_else(|| document.find("\"orderRef\":"))
        }
    };
    let rest = from.map_or("}", |from| &document[from..]);
    // Only the beginning of a UUID.
    let short = regex::Regex::new("([0-9a-f]{4})[0-9a-f]{4}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
        .expect("a pattern");
    let rest = short.replace_all(rest, "$1…");
    match rest.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{{…,{}…", &rest[..at]),
        None if rest == "}" => "{…}".to_owned(),
        None => format!("{{…,{rest}"),
    }
}

#[test]
fn the_page_of_compatibility_is_made_from_this_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let page = page();
    if std::env::var_os("FACTUM_COMPATIBILITY_PAGE").is_some_and(|value| value == "write") {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/compatibility.md is not what the table says: run `FACTUM_COMPATIBILITY_PAGE=write cargo test -p \
         factum-contract --test compatibility` and commit it"
    );
}
