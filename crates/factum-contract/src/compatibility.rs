//! What changes between two contracts of one event type, and who can't read whom any more (EVT-3).
//!
//! Both directions count. *Old consumers* must read what new producers write: deployments overlap, and other teams
//! move later. *New consumers* must read what old producers wrote: a topic keeps its events. Objects are open, so
//! that a field which nobody knows disturbs nobody; an optional field may be left out, and readers take `null` for
//! an absent one. Where the standard's letter is stricter than what can be shown to break (removing an optional
//! field, a value of another type that happens to be read), the letter holds.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use factum_event::{AmountBound, CodeList, Contract, EventType, FieldShape, Shape};

use crate::document::{
    self, Document, MAX_MADE_UP, Refusal, Standing, Step, amount_document, beside, expectation,
    plain_text, reads_value, sample_value, sample_with, unknown_choice,
};

/// The kind of a change. The names are public: they stand in the command's output, and are not renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// The event is no longer published by anyone.
    EventRemoved,
    /// Two crates have a lock file of one event type.
    LockedTwice,
    /// The event goes to another topic.
    TopicChanged,
    /// The aggregate has another type.
    AggregateTypeChanged,
    /// Another field is the aggregate id.
    AggregateIdChanged,
    /// The topic was restricted and is not any more.
    BecameBroadcast,
    /// The topic was for everyone and is restricted now.
    BecameRestricted,
    /// The Rust struct is called otherwise, and with it a title in exports.
    StructRenamed,
    /// The event takes the place of another than before.
    SupersedesChanged,
    /// An optional field was added.
    FieldAdded,
    /// A required field was added.
    RequiredFieldAdded,
    /// A field was removed.
    FieldRemoved,
    /// A field was removed, and one like it was added.
    FieldRenamed,
    /// An optional field became required.
    FieldBecameRequired,
    /// A required field became optional.
    FieldBecameOptional,
    /// A value has another type.
    FieldRetyped,
    /// A number is written as text, or text as a number.
    WrittenAsChanged,
    /// Numbers that were out of range are in it.
    RangeWidened,
    /// Numbers that were in range are out of it.
    RangeNarrowed,
    /// Text that was too short or too long is not any more.
    LengthWidened,
    /// Text that had a good length has it no longer.
    LengthNarrowed,
    /// Text has to match another pattern.
    PatternChanged,
    /// More counts of items are allowed.
    ItemsWidened,
    /// Fewer counts of items are allowed.
    ItemsNarrowed,
    /// A closed choice got a value.
    ChoiceGrew,
    /// A closed choice lost a value.
    ChoiceShrank,
    /// A choice became open.
    ChoiceOpened,
    /// A choice was open.
    ChoiceClosed,
    /// The named values of an open choice changed.
    OpenChoiceChanged,
    /// An item or a map's value may be `null`.
    BecameNullable,
    /// An item or a map's value may not be `null` any more.
    NoLongerNullable,
}

impl Rule {
    /// Every rule, in the order of declaration.
    pub const ALL: &'static [Rule] = &[
        Rule::EventRemoved,
        Rule::LockedTwice,
        Rule::TopicChanged,
        Rule::AggregateTypeChanged,
        Rule::AggregateIdChanged,
        Rule::BecameBroadcast,
        Rule::BecameRestricted,
        Rule::StructRenamed,
        Rule::SupersedesChanged,
        Rule::FieldAdded,
        Rule::RequiredFieldAdded,
        Rule::FieldRemoved,
        Rule::FieldRenamed,
        Rule::FieldBecameRequired,
        Rule::FieldBecameOptional,
        Rule::FieldRetyped,
        Rule::WrittenAsChanged,
        Rule::RangeWidened,
        Rule::RangeNarrowed,
        Rule::LengthWidened,
        Rule::LengthNarrowed,
        Rule::PatternChanged,
        Rule::ItemsWidened,
        Rule::ItemsNarrowed,
        Rule::ChoiceGrew,
        Rule::ChoiceShrank,
        Rule::ChoiceOpened,
        Rule::ChoiceClosed,
        Rule::OpenChoiceChanged,
        Rule::BecameNullable,
        Rule::NoLongerNullable,
    ];

    /// The stable name, such as `FIELD_REMOVED`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Rule::EventRemoved => "EVENT_REMOVED",
            Rule::LockedTwice => "LOCKED_TWICE",
            Rule::TopicChanged => "TOPIC_CHANGED",
            Rule::AggregateTypeChanged => "AGGREGATE_TYPE_CHANGED",
            Rule::AggregateIdChanged => "AGGREGATE_ID_CHANGED",
            Rule::BecameBroadcast => "BECAME_BROADCAST",
            Rule::BecameRestricted => "BECAME_RESTRICTED",
            Rule::StructRenamed => "STRUCT_RENAMED",
            Rule::SupersedesChanged => "SUPERSEDES_CHANGED",
            Rule::FieldAdded => "FIELD_ADDED",
            Rule::RequiredFieldAdded => "REQUIRED_FIELD_ADDED",
            Rule::FieldRemoved => "FIELD_REMOVED",
            Rule::FieldRenamed => "FIELD_RENAMED",
            Rule::FieldBecameRequired => "FIELD_BECAME_REQUIRED",
            Rule::FieldBecameOptional => "FIELD_BECAME_OPTIONAL",
            Rule::FieldRetyped => "FIELD_RETYPED",
            Rule::WrittenAsChanged => "WRITTEN_AS_CHANGED",
            Rule::RangeWidened => "RANGE_WIDENED",
            Rule::RangeNarrowed => "RANGE_NARROWED",
            Rule::LengthWidened => "LENGTH_WIDENED",
            Rule::LengthNarrowed => "LENGTH_NARROWED",
            Rule::PatternChanged => "PATTERN_CHANGED",
            Rule::ItemsWidened => "ITEMS_WIDENED",
            Rule::ItemsNarrowed => "ITEMS_NARROWED",
            Rule::ChoiceGrew => "CHOICE_GREW",
            Rule::ChoiceShrank => "CHOICE_SHRANK",
            Rule::ChoiceOpened => "CHOICE_OPENED",
            Rule::ChoiceClosed => "CHOICE_CLOSED",
            Rule::OpenChoiceChanged => "OPEN_CHOICE_CHANGED",
            Rule::BecameNullable => "BECAME_NULLABLE",
            Rule::NoLongerNullable => "NO_LONGER_NULLABLE",
        }
    }

    /// The rules of the standard that it follows from, such as `EVT-3`.
    #[must_use]
    pub const fn standard(self) -> &'static str {
        match self {
            Rule::TopicChanged => "EVT-3, OBX-3",
            Rule::AggregateTypeChanged => "EVT-3, EVT-2",
            Rule::AggregateIdChanged => "EVT-3, PROD-2",
            Rule::BecameBroadcast | Rule::BecameRestricted => "EVT-3, SEC-3",
            _ => "EVT-3",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who meets a breaking change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Consumers that know the old contract, reading what new producers write.
    OldConsumers,
    /// Consumers that know the new contract, reading what old producers wrote.
    NewConsumers,
}

impl Side {
    /// `old consumers` or `new consumers`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Side::OldConsumers => "old consumers",
            Side::NewConsumers => "new consumers",
        }
    }

    /// Who writes what they read.
    #[must_use]
    pub const fn writers(self) -> &'static str {
        match self {
            Side::OldConsumers => "new producers",
            Side::NewConsumers => "old producers",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A document that shows what breaks: a whole event that one side writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counterexample {
    /// The event's JSON, on one line.
    pub document: String,
    /// What the other side's reader expects in place of it; `None` where it reads the document and takes another
    /// meaning from it.
    pub refused: Option<String>,
}

/// A field as the source declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The field of the event that it is, or that leads to it, by its name on the wire.
    pub top_field: String,
    /// The snapshot that has the field, by its name in the new contract; `None` for a field of the event.
    pub snapshot: Option<String>,
    /// The field's name on the wire; `None` where it is gone, and the snapshot is all that there is to see.
    pub field: Option<String>,
}

/// The version that takes the place of an event type when its contract must change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The event type that stays as it is, such as `order.confirmed.v1`.
    pub current: String,
    /// The Rust struct of it.
    pub name: String,
    /// The event type to add, such as `order.confirmed.v2`.
    pub next: String,
}

impl Successor {
    /// What the struct of the current version is called when the next one takes its name: `OrderConfirmedV1`. `None`
    /// where there are versions between the two, whose structs are not known here.
    fn old_struct(&self) -> Option<String> {
        let version = |kind: &str| kind.parse::<EventType>().ok().map(|kind| kind.version());
        let current = version(&self.current)?;
        (version(&self.next)? == current.checked_add(1)?).then(|| {
            let mark = format!("V{current}");
            let plain = self.name.strip_suffix(&mark).unwrap_or(&self.name);
            format!("{plain}{mark}")
        })
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of change.
    pub rule: Rule,
    /// The field, such as `items[].price`; empty for the event as a whole.
    pub field: String,
    /// The field in the source as it is now: `None` where that is the struct as a whole, as with a removed field.
    pub declared: Option<Declared>,
    /// Who meets it; `None` for a compatible change.
    pub side: Option<Side>,
    /// What changed and what follows, in a sentence.
    pub why: String,
    /// What shows it; a compatible change has none, nor has one whose document would be too large.
    pub counterexample: Option<Counterexample>,
    /// How to do without the break, as a clause; `None` where only a new version helps.
    retreat: Option<String>,
    /// The enums and snapshots that changed with it, by a name: an old version that shares them changes with them.
    shared: Vec<String>,
}

impl Finding {
    /// Whether somebody can't read somebody any more, or EVT-3 forbids it.
    #[must_use]
    pub fn is_breaking(&self) -> bool {
        self.side.is_some()
    }

    /// What to do: take the change back, or add a version.
    #[must_use]
    pub fn mend(&self, successor: &Successor) -> String {
        let Successor { current, next, .. } = successor;
        if !self.is_breaking() {
            return "run `FACTUM_CONTRACTS=update cargo test` and commit the lock file".to_owned();
        }
        if matches!(self.rule, Rule::EventRemoved | Rule::LockedTwice) {
            // No version takes the place of an event that is gone, or of one that is there twice.
            return self.retreat.clone().unwrap_or_default();
        }
        let version = match successor.old_struct() {
            Some(old) => format!(
                "leave `{current}` as it was, its struct called `{old}`, and add `{next}` with the change: \
                 `#[event(kind = \"{next}\", supersedes = {old}, …)]`"
            ),
            None => format!(
                "leave `{current}` as it was, and add `{next}` with the change, which supersedes the version before it"
            ),
        };
        let retreat = self.retreat.iter().map(|retreat| format!("{retreat}; or "));
        let mut mend: String = retreat.collect();
        match self.copies(current) {
            None => mend.push_str(&version),
            Some(copies) if successor.old_struct().is_some() => {
                mend.push_str(&format!("{version}; {copies}"));
            }
            // A newer version is there: probably it has the change, and took the old one along.
            Some(copies) => mend.push_str(&format!("{copies}; or {version}")),
        }
        mend
    }

    /// What else the old version needs: as long as both versions use one enum or snapshot, the old one
    /// goes on failing with the same finding.
    fn copies(&self, current: &str) -> Option<String> {
        let version = current
            .parse::<EventType>()
            .map_or(1, |kind| kind.version());
        let name = |name: &String| format!("`{name}V{version}`");
        match self.shared.as_slice() {
            [] => None,
            [one] => Some(format!(
                "if `{current}` and the new version share {one}, give the old one a copy of it as it was, such as {}",
                name(&plain_name(one))
            )),
            several => {
                let names: Vec<String> = several.iter().map(|one| name(&plain_name(one))).collect();
                Some(format!(
                    "if `{current}` and the new version share {}, give the old one copies of them as they were, \
                     such as {}",
                    several.join(" or "),
                    names.join(" and ")
                ))
            }
        }
    }
}

/// `Payment` of "the enum of `payment`", `OrderItem` of "the snapshot `OrderItem`".
fn plain_name(of: &str) -> String {
    let name = of.split('`').nth(1).unwrap_or(of);
    let mut chars = name.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// How an event went from a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// With its lock file.
    LockFile,
    /// Its lock file is there, and nothing declares the event.
    Declaration,
    /// Its lock file is there, and the event is declared as `unlocked`: nothing compares the two.
    Guard,
}

/// What changed between two contracts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The event type.
    pub event_type: String,
    /// The Rust struct's name.
    pub name: String,
    /// The changes: breaking ones first, each group in the order of the contract.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether a change among them is breaking.
    #[must_use]
    pub fn is_breaking(&self) -> bool {
        self.findings.iter().any(Finding::is_breaking)
    }

    /// The breaking changes.
    pub fn breaking(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_breaking())
    }

    /// The compatible changes.
    pub fn compatible(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| !finding.is_breaking())
    }

    /// The version to add, above all `known` event types of the same event.
    #[must_use]
    pub fn successor<'k>(&self, known: impl IntoIterator<Item = &'k str>) -> Successor {
        Successor {
            current: self.event_type.clone(),
            name: self.name.clone(),
            next: next_version(&self.event_type, known),
        }
    }

    /// That the event is no longer published.
    ///
    /// `check` is the command that found it, such as `factum contract check --against origin/main`: the mend names it
    /// with the option that accepts the removal. `None` where the event was never published, or another crate has it
    /// now: then nothing is to be accepted.
    #[must_use]
    pub fn removed(old: &Contract, removal: Removal, lock: &Path, check: Option<&str>) -> Report {
        let Contract { event_type, .. } = old;
        let waits = "it is no longer published, and whoever handles it waits for ever";
        let file = lock.display();
        let why = match removal {
            Removal::LockFile => format!(
                "`{event_type}` is no longer published, and whoever handles it waits for ever"
            ),
            Removal::Declaration => format!(
                "the lock file of `{event_type}` is still there, and nothing in its crate declares the event: {waits}"
            ),
            Removal::Guard => format!(
                "the lock file of `{event_type}` is still there, and its struct is `unlocked`: nothing guards the \
                 contract any more"
            ),
        };
        let back = match removal {
            Removal::LockFile => "put the event back",
            Removal::Declaration => "declare the event again",
            Removal::Guard => "take `unlocked` away from the struct",
        };
        let mend = match (removal, check) {
            (Removal::LockFile, Some(check)) => format!(
                "{back} until no consumer handles `{event_type}` any more; then accept the removal: \
                 `{check} --allow-removed {event_type}`"
            ),
            (Removal::LockFile, None) => back.to_owned(),
            (_, Some(check)) => format!(
                "{back}; or, once no consumer handles `{event_type}` any more, delete {file} and accept the removal: \
                 `{check} --allow-removed {event_type}`"
            ),
            (_, None) => format!(
                "{back}; or, since it was not published from here or another crate has it now, delete {file}"
            ),
        };
        let counterexample = document::sample(old).map(|document| Counterexample {
            document: document.to_string(),
            refused: None,
        });
        Report::whole(old, Rule::EventRemoved, why, counterexample, mend)
    }

    /// That two crates of a workspace have a lock file of one event type: there is one contract of an event.
    #[must_use]
    pub fn locked_twice(first: (&Contract, &Path), second: (&Contract, &Path)) -> Report {
        let ((one, one_lock), (other, other_lock)) = (first, second);
        let files = format!("{} and {}", one_lock.display(), other_lock.display());
        let event_type = &one.event_type;
        let why = if one == other {
            format!(
                "two crates have a lock file of `{event_type}`, and one event has one contract: {files}. They are the \
                 same now, and nothing keeps them so"
            )
        } else {
            format!(
                "two crates hold different contracts of `{event_type}`, and only one can be true: {files}"
            )
        };
        let counterexample = [compare(one, other), compare(other, one)]
            .iter()
            .flat_map(Report::breaking)
            .find_map(|finding| finding.counterexample.clone());
        let mend = "declare the event in one crate that both use; or mark the consumer's own view of it with \
                    `#[event(unlocked)]` and delete the lock file there";
        Report::whole(
            other,
            Rule::LockedTwice,
            why,
            counterexample,
            mend.to_owned(),
        )
    }

    /// A single finding on the event as a whole.
    fn whole(
        of: &Contract,
        rule: Rule,
        why: String,
        counterexample: Option<Counterexample>,
        mend: String,
    ) -> Report {
        let finding = Finding {
            rule,
            field: String::new(),
            declared: None,
            side: Some(Side::OldConsumers),
            why,
            counterexample,
            retreat: Some(mend),
            shared: Vec::new(),
        };
        Report {
            event_type: of.event_type.clone(),
            name: of.name.clone(),
            findings: vec![finding],
        }
    }
}

/// The version to add for a breaking change: one above the highest of the same event among `known`.
///
/// ```
/// use factum_contract::compatibility::next_version;
/// let known = ["order.confirmed.v2", "order.cancelled.v7"];
/// assert_eq!(next_version("order.confirmed.v1", known), "order.confirmed.v3");
/// assert_eq!(next_version("order.confirmed.v1", []), "order.confirmed.v2");
/// ```
#[must_use]
pub fn next_version<'k>(event_type: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let Ok(own) = event_type.parse::<EventType>() else {
        return format!("{event_type} with a higher version");
    };
    let highest = known
        .into_iter()
        .filter_map(|kind| kind.parse::<EventType>().ok())
        .filter(|kind| kind.aggregate() == own.aggregate() && kind.event() == own.event())
        .map(|kind| kind.version())
        .fold(own.version(), u32::max);
    format!(
        "{}.{}.v{}",
        own.aggregate(),
        own.event(),
        u64::from(highest) + 1
    )
}

/// Compares two contracts of one event type.
///
/// ```
/// # use factum_contract::compatibility::{compare, Rule, Side};
/// # use factum_event::{Contract, FieldShape, Shape};
/// # let old = Contract {
/// #     event_type: "order.confirmed.v1".to_owned(),
/// #     aggregate_type: "Order".to_owned(),
/// #     topic: "orders.confirmed".to_owned(),
/// #     restricted: false,
/// #     name: "OrderConfirmed".to_owned(),
/// #     supersedes: None,
/// #     aggregate_id: "orderId".to_owned(),
/// #     fields: vec![FieldShape::new("orderId", Shape::Uuid)],
/// #     definitions: Default::default(),
/// # };
/// let mut new = old.clone();
/// new.fields.push(FieldShape::new("paid", Shape::Boolean));
/// let report = compare(&old, &new);
/// assert_eq!(report.findings[0].rule, Rule::RequiredFieldAdded);
/// assert_eq!(report.findings[0].side, Some(Side::NewConsumers));
///
/// new.fields[1].optional = true;
/// assert!(!compare(&old, &new).is_breaking()); // `Option<bool>`: a compatible addition
/// ```
#[must_use]
pub fn compare(old: &Contract, new: &Contract) -> Report {
    let mut comparison = Comparison {
        old,
        new,
        path: Vec::new(),
        snapshots: Vec::new(),
        now: None,
        seen: BTreeSet::new(),
        findings: Vec::new(),
    };
    comparison.events();
    let mut findings = comparison.findings;
    findings.sort_by_key(|finding| !finding.is_breaking());
    Report {
        event_type: new.event_type.clone(),
        name: new.name.clone(),
        findings,
    }
}

struct Comparison<'c> {
    old: &'c Contract,
    new: &'c Contract,
    path: Vec<Step>,
    /// The snapshots that the path leads through, by their names in the new contract.
    snapshots: Vec<String>,
    /// The new name of the last field of the path, where that is another; `Some(None)` where it is gone.
    now: Option<Option<String>>,
    /// Pairs of snapshots that were compared, or are being: a snapshot may hold itself.
    seen: BTreeSet<(&'c str, &'c str)>,
    findings: Vec<Finding>,
}

/// What a value shows on a side.
struct Shown {
    side: Side,
    value: Document,
    refused: Refusal,
}

impl<'c> Comparison<'c> {
    fn events(&mut self) {
        let (old, new) = (self.old, self.new);
        if old.topic != new.topic {
            self.by_rule(
                Rule::TopicChanged,
                format!(
                    "the event goes to the topic `{}` now, and old consumers read `{}`",
                    new.topic, old.topic
                ),
                Some(format!("write `topic = \"{}\"` again", old.topic)),
            );
        }
        if old.aggregate_type != new.aggregate_type {
            let refused = Some(format!("\"{}\" at $.aggregateType", old.aggregate_type));
            self.breaking(
                Rule::AggregateTypeChanged,
                Side::OldConsumers,
                format!(
                    "`aggregateType` is \"{}\" now and was \"{}\": either side refuses the other's events",
                    new.aggregate_type, old.aggregate_type
                ),
                document::sample(new),
                refused,
                Some(format!(
                    "write `aggregate = \"{}\"` again",
                    old.aggregate_type
                )),
            );
        }
        match (old.restricted, new.restricted) {
            (true, false) => self.by_rule(
                Rule::BecameBroadcast,
                "the topic was declared as restricted and may hold personal data, which everyone may read now"
                    .to_owned(),
                Some("write `restricted` again".to_owned()),
            ),
            (false, true) => self.by_rule(
                Rule::BecameRestricted,
                "everyone may read the topic, and it is declared as restricted now: consumers that were admitted \
                 before would get personal data, or lose the topic"
                    .to_owned(),
                Some("take `restricted` away again".to_owned()),
            ),
            _ => {}
        }
        let renamed = self.fields(&old.fields, &new.fields);
        let follows = renamed
            .iter()
            .any(|(from, to)| *from == old.aggregate_id && *to == new.aggregate_id);
        if old.aggregate_id != new.aggregate_id && !follows {
            self.other_key();
        }
        if old.name != new.name {
            self.compatible(
                Rule::StructRenamed,
                format!(
                    "the struct is called `{}` and was called `{}`: nothing changes on the wire, and in exports a \
                     title",
                    new.name, old.name
                ),
            );
        }
        if old.supersedes != new.supersedes {
            let name = |kind: &Option<String>| match kind {
                Some(kind) => format!("`{kind}`"),
                None => "no event".to_owned(),
            };
            self.compatible(
                Rule::SupersedesChanged,
                format!(
                    "it takes the place of {} now, and before of {}",
                    name(&new.supersedes),
                    name(&old.supersedes)
                ),
            );
        }
    }

    /// Another field is the aggregate id: a key that tells of another aggregate is refused.
    fn other_key(&mut self) {
        let (old, new) = (self.old, self.new);
        let step = [Step::Field(new.aggregate_id.clone())];
        let mut documents = Vec::new();
        if let Some(field) = new
            .fields
            .iter()
            .find(|field| field.name == new.aggregate_id)
        {
            let mut values = candidates(new, &field.shape, &field.shape);
            // Other than the plainest, which the old field has, too.
            values.extend(document::several(new, &field.shape));
            for value in values {
                documents.extend(sample_with(new, &step, &Standing::Value(value)));
            }
        }
        let verdict =
            |document: &Document| match document::read(old, document.to_string().as_bytes()) {
                Err(poison) if poison.path() == "$.aggregateId" => Some(poison),
                _ => None,
            };
        let shown = documents
            .iter()
            .filter(|document| document::read(new, document.to_string().as_bytes()).is_ok())
            .find_map(|document| verdict(document).map(|poison| (document.clone(), poison)));
        let (document, refused) = match shown {
            Some((document, poison)) => (
                Some(document),
                Some(format!("{} at {}", poison.expected(), poison.path())),
            ),
            None => (document::sample(new), None),
        };
        self.breaking(
            Rule::AggregateIdChanged,
            Side::OldConsumers,
            format!(
                "the key is `{}` now and was `{}`: events of one aggregate lose their order, and `aggregateId` is not \
                 the id that the other side expects",
                new.aggregate_id, old.aggregate_id
            ),
            document,
            refused,
            Some(format!(
                "mark `{}` with `#[event(aggregate_id)]` again",
                old.aggregate_id
            )),
        );
    }

    /// Compares the fields of an object; says which were renamed.
    fn fields(&mut self, old: &'c [FieldShape], new: &'c [FieldShape]) -> Vec<(&'c str, &'c str)> {
        let in_both = |fields: &[FieldShape], name: &str| fields.iter().any(|f| f.name == name);
        let removed: Vec<&FieldShape> = old.iter().filter(|f| !in_both(new, &f.name)).collect();
        let mut added: Vec<&FieldShape> = new.iter().filter(|f| !in_both(old, &f.name)).collect();
        let mut renamed = Vec::new();
        for field in removed {
            let place = |of: &FieldShape, fields: &[FieldShape]| {
                fields.iter().position(|field| field.name == of.name)
            };
            let alike: Vec<usize> = (0..added.len())
                .filter(|at| self.is_alike(field, added[*at]))
                .collect();
            let at = alike
                .iter()
                .copied()
                .find(|at| place(added[*at], new) == place(field, old))
                .or_else(|| (alike.len() == 1).then(|| alike[0]));
            match at.map(|at| added.remove(at)) {
                Some(to) => {
                    renamed.push((field.name.as_str(), to.name.as_str()));
                    self.removed(field, Some(to));
                }
                None => self.removed(field, None),
            }
        }
        for field in added {
            self.added(field);
        }
        for field in new {
            if let Some(before) = old.iter().find(|before| before.name == field.name) {
                self.path.push(Step::Field(field.name.clone()));
                self.presence(before, field);
                self.shapes(&before.shape, &field.shape);
                self.path.pop();
            }
        }
        renamed
    }

    /// Whether a removed and an added field hold the same, so that one is probably the other renamed.
    fn is_alike(&self, old: &FieldShape, new: &FieldShape) -> bool {
        let mut trial = Comparison {
            old: self.old,
            new: self.new,
            path: Vec::new(),
            snapshots: Vec::new(),
            now: None,
            seen: BTreeSet::new(),
            findings: Vec::new(),
        };
        if old.optional != new.optional {
            return false;
        }
        match (&old.shape, &new.shape) {
            // No comparison within a comparison: snapshots of one name are one.
            (Shape::Object(a), Shape::Object(b)) => a == b,
            (Shape::Array { items: a, .. }, Shape::Array { items: b, .. })
                if matches!((&**a, &**b), (Shape::Object(_), Shape::Object(_))) =>
            {
                a == b
            }
            (a, b) if holds_object(a) || holds_object(b) => false,
            (a, b) => {
                trial.leaves_or_lists(a, b);
                trial.findings.is_empty()
            }
        }
    }

    fn removed(&mut self, field: &FieldShape, renamed_to: Option<&FieldShape>) {
        self.path.push(Step::Field(field.name.clone()));
        let name = &display(&self.path);
        let document = sample_with(self.new, &self.path, &Standing::Absent);
        let refused = (!field.optional)
            .then(|| format!("{} at {}", expectation(&field.shape), dollar(&self.path)));
        let (rule, changed, retreat) = match renamed_to {
            Some(to) => (
                Rule::FieldRenamed,
                format!("`{name}` is gone and `{}` is new: renamed?", to.name),
                format!("call the field `{name}` again"),
            ),
            None => (
                Rule::FieldRemoved,
                format!("`{name}` was removed"),
                format!("put `{name}` back"),
            ),
        };
        let follows = match (renamed_to, field.optional) {
            (None, false) => "old consumers require it".to_owned(),
            (None, true) => {
                "old consumers may rely on it, and take it for absent from now on".to_owned()
            }
            (Some(to), false) => format!(
                "Old consumers require `{name}`, and new ones miss `{}` in old events",
                to.name
            ),
            (Some(to), true) => format!(
                "Old consumers take `{name}` for absent from now on, and new ones `{}` in old events",
                to.name
            ),
        };
        self.now = Some(renamed_to.map(|to| to.name.clone()));
        let joint = if renamed_to.is_some() { " " } else { ": " };
        self.breaking(
            rule,
            Side::OldConsumers,
            format!("{changed}{joint}{follows}"),
            document,
            refused,
            Some(retreat),
        );
        self.now = None;
        self.path.pop();
    }

    fn added(&mut self, field: &FieldShape) {
        self.path.push(Step::Field(field.name.clone()));
        let name = &display(&self.path);
        if field.optional {
            self.compatible(
                Rule::FieldAdded,
                format!("`{name}` was added and is optional: old consumers don't look at it, new ones do without"),
            );
        } else {
            let document = sample_with(self.old, &self.path, &Standing::Absent);
            let refused = format!("{} at {}", expectation(&field.shape), dollar(&self.path));
            self.breaking(
                Rule::RequiredFieldAdded,
                Side::NewConsumers,
                format!("`{name}` was added and is required: events that were written before don't have it"),
                document,
                Some(refused),
                Some(format!("make `{name}` optional (`Option<…>`)")),
            );
        }
        self.path.pop();
    }

    fn presence(&mut self, old: &FieldShape, new: &FieldShape) {
        let name = &display(&self.path);
        let (rule, side, writer, why, retreat) = match (old.optional, new.optional) {
            (true, false) => (
                Rule::FieldBecameRequired,
                Side::NewConsumers,
                self.old,
                format!("`{name}` was optional and is required now: old events may lack it"),
                format!("make `{name}` optional again (`Option<…>`)"),
            ),
            (false, true) => (
                Rule::FieldBecameOptional,
                Side::OldConsumers,
                self.new,
                format!("`{name}` was required and may be left out now: old consumers require it"),
                format!("make `{name}` required again"),
            ),
            _ => return,
        };
        let document = sample_with(writer, &self.path, &Standing::Absent);
        let refused = format!("{} at {}", expectation(&new.shape), dollar(&self.path));
        self.breaking(rule, side, why, document, Some(refused), Some(retreat));
    }

    fn shapes(&mut self, old: &'c Shape, new: &'c Shape) {
        match (old, new) {
            (Shape::Object(a), Shape::Object(b)) => {
                if self.seen.insert((a, b)) {
                    let fields = |contract: &'c Contract, name: &str| {
                        contract
                            .definitions
                            .get(name)
                            .map(Vec::as_slice)
                            .unwrap_or_default()
                    };
                    self.snapshots.push(b.clone());
                    self.fields(fields(self.old, a), fields(self.new, b));
                    self.snapshots.pop();
                }
            }
            (Shape::Nullable(a), Shape::Nullable(b)) => self.shapes(a, b),
            (a, Shape::Nullable(b)) => {
                self.null(Side::OldConsumers, a);
                self.shapes(a, b);
            }
            (Shape::Nullable(a), b) => {
                self.null(Side::NewConsumers, b);
                self.shapes(a, b);
            }
            (Shape::Array { items: a, .. }, Shape::Array { items: b, .. }) => {
                self.leaves_or_lists(old, new);
                self.path.push(Step::Item);
                self.shapes(a, b);
                self.path.pop();
            }
            (Shape::Map { values: a }, Shape::Map { values: b }) => {
                self.path.push(Step::Entry);
                self.shapes(a, b);
                self.path.pop();
            }
            _ => self.leaves_or_lists(old, new),
        }
    }

    fn null(&mut self, side: Side, reader: &Shape) {
        let what = self.what();
        let (rule, why, retreat) = match side {
            Side::OldConsumers => (
                Rule::BecameNullable,
                format!("{what} may be `null` now, which old consumers refuse"),
                "take the `Option` away again",
            ),
            Side::NewConsumers => (
                Rule::NoLongerNullable,
                format!("{what} may be `null` in old events, which new consumers refuse"),
                "write `Option<…>` again",
            ),
        };
        let shown = Shown {
            side,
            value: Document::Null,
            refused: Refusal::of(reader),
        };
        self.shown(rule, shown, why, Some(retreat.to_owned()));
    }

    /// Shapes without others in them; and of lists, how many items they have.
    fn leaves_or_lists(&mut self, old: &Shape, new: &Shape) {
        match (old, new) {
            (
                Shape::Integer {
                    min: old_min,
                    max: old_max,
                    not_zero: old_zero,
                    text: old_text,
                },
                Shape::Integer {
                    min,
                    max,
                    not_zero,
                    text,
                },
            ) => {
                if (old_min, old_max, old_zero) != (min, max, not_zero) {
                    // Whether as text or not is another matter: these readers take both.
                    let both = |min, max, not_zero| Shape::Integer {
                        min,
                        max,
                        not_zero,
                        text: true,
                    };
                    let readers = (
                        both(*old_min, *old_max, *old_zero),
                        both(*min, *max, *not_zero),
                    );
                    self.range(old, new, &readers);
                }
                if old_text != text {
                    self.written_as(old, new, *text);
                }
            }
            (Shape::Double { min: a, max: b }, Shape::Double { min: c, max: d }) => {
                if (a, b) != (c, d) {
                    self.range(old, new, &(old.clone(), new.clone()));
                }
            }
            (
                Shape::Amount {
                    min: a,
                    max: b,
                    text: old_text,
                },
                Shape::Amount {
                    min: c,
                    max: d,
                    text,
                },
            ) => {
                if (a, b) != (c, d) {
                    self.range(old, new, &(old.clone(), new.clone()));
                }
                if old_text != text {
                    self.written_as(old, new, *text);
                }
            }
            (Shape::Money { text: old_text }, Shape::Money { text }) => {
                if old_text != text {
                    self.written_as(old, new, *text);
                }
            }
            (
                Shape::Text {
                    min_chars: a,
                    max_chars: b,
                    pattern: old_pattern,
                },
                Shape::Text {
                    min_chars: c,
                    max_chars: d,
                    pattern,
                },
            ) => {
                if (a.unwrap_or(0), b) != (c.unwrap_or(0), d) {
                    let length = |min_chars, max_chars| Shape::Text {
                        min_chars,
                        max_chars,
                        pattern: None,
                    };
                    self.widened_or_narrowed(
                        old,
                        new,
                        &(length(*a, *b), length(*c, *d)),
                        [Rule::LengthWidened, Rule::LengthNarrowed],
                        "length",
                    );
                }
                if old_pattern != pattern {
                    self.pattern(old, new, old_pattern.as_deref(), pattern.as_deref());
                }
            }
            (
                Shape::Choice {
                    values: before,
                    open: was_open,
                },
                Shape::Choice { values, open },
            ) => self.choice(before, *was_open, values, *open),
            (
                Shape::Array {
                    min_items: a,
                    max_items: b,
                    ..
                },
                Shape::Array {
                    min_items: c,
                    max_items: d,
                    ..
                },
            ) => {
                if (a, b) != (c, d) {
                    self.items(old, new);
                }
            }
            _ if old == new => {}
            _ => self.retyped(old, new),
        }
    }

    fn range(&mut self, old: &Shape, new: &Shape, readers: &(Shape, Shape)) {
        self.widened_or_narrowed(
            old,
            new,
            readers,
            [Rule::RangeWidened, Rule::RangeNarrowed],
            "range",
        );
    }

    /// A bound changed: what is in it for one side and not for the other?
    fn widened_or_narrowed(
        &mut self,
        old: &Shape,
        new: &Shape,
        readers: &(Shape, Shape),
        [widened, narrowed]: [Rule; 2],
        noun: &str,
    ) {
        let what = self.what();
        let back = Some(self.bound_back(old, new));
        let mut any = false;
        for (rule, side, reader) in [
            (widened, Side::OldConsumers, &readers.0),
            (narrowed, Side::NewConsumers, &readers.1),
        ] {
            if let Some(mut shown) = self.find(side, old, new, reader) {
                shown.refused = Refusal::of(if side == Side::OldConsumers { old } else { new });
                let why = match side {
                    Side::OldConsumers => format!(
                        "the {noun} of {what} was widened: new producers write what old consumers refuse"
                    ),
                    Side::NewConsumers => format!(
                        "the {noun} of {what} was narrowed: old events hold what new consumers refuse"
                    ),
                };
                self.shown(rule, shown, why, back.clone());
                any = true;
            }
        }
        // The edges of integers are all looked at: with nothing found, the same integers are good in other words.
        if !any && !matches!(old, Shape::Integer { .. }) {
            // Another constraint may hide the value, or make the change empty. Nobody can tell in general.
            self.by_rule(
                widened,
                format!("the {noun} of {what} changed, and which values are good with it"),
                back,
            );
        }
    }

    fn written_as(&mut self, old: &Shape, new: &Shape, text: bool) {
        let what = self.what();
        let how = if text {
            format!("{what} is written as text now and was a number")
        } else {
            format!("{what} is written as a number now and was text")
        };
        let retreat = Some(self.text_back(text));
        for (side, reader) in [(Side::OldConsumers, old), (Side::NewConsumers, new)] {
            // A number that is refused for its size is another finding's.
            let writer = if side == Side::OldConsumers { new } else { old };
            let common = in_common(old, new);
            let found = candidates(self.new, writer, reader)
                .into_iter()
                .filter(|value| {
                    common
                        .as_ref()
                        .is_none_or(|shape| reads_value(self.new, shape, value).is_ok())
                })
                .find_map(|value| {
                    reads_value(self.new, writer, &value).ok()?;
                    let refused = reads_value(self.new, reader, &value).err()?;
                    Some(Shown {
                        side,
                        value,
                        refused,
                    })
                });
            if let Some(shown) = found {
                let why = format!("{how}: {side} don't take it so");
                self.shown(Rule::WrittenAsChanged, shown, why, retreat);
                return;
            }
        }
        self.by_rule(
            Rule::WrittenAsChanged,
            format!("{how}: Factum's readers take both, others have one type for it"),
            retreat,
        );
    }

    fn pattern(&mut self, old: &Shape, new: &Shape, before: Option<&str>, after: Option<&str>) {
        let what = self.what();
        let form = |pattern: Option<&str>| match pattern {
            Some(pattern) => format!("the pattern {pattern}"),
            None => "no pattern".to_owned(),
        };
        let why = format!("{what} has {} now and had {}", form(after), form(before));
        let retreat = Some(match before {
            Some(before) => format!("write {} again", self.attribute(&written_pattern(before))),
            None => "take `pattern` out of the field's attribute again".to_owned(),
        });
        let only = |pattern: Option<&str>| Shape::Text {
            min_chars: None,
            max_chars: None,
            pattern: pattern.map(str::to_owned),
        };
        let mut any = false;
        for (side, reader) in [
            (Side::OldConsumers, only(before)),
            (Side::NewConsumers, only(after)),
        ] {
            if let Some(shown) = self.find(side, old, new, &reader) {
                let why = format!("{why}: {side} refuse what {} write", side.writers());
                self.shown(Rule::PatternChanged, shown, why, retreat.clone());
                any = true;
            }
        }
        if !any {
            self.by_rule(
                Rule::PatternChanged,
                format!("{why}; whether both take the same text can't be told"),
                retreat,
            );
        }
    }

    fn choice(&mut self, before: &[String], was_open: bool, values: &[String], open: bool) {
        let what = self.what();
        let beyond = |these: &[String], those: &[String]| -> Vec<String> {
            these
                .iter()
                .filter(|value| !those.contains(value))
                .cloned()
                .collect()
        };
        let (added, removed) = (beyond(values, before), beyond(before, values));
        let list = |values: &[String]| {
            let quoted: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
            quoted.join(", ")
        };
        let closed = |values: &[String]| {
            Refusal::of(&Shape::Choice {
                values: values.to_vec(),
                open: false,
            })
        };
        match (was_open, open) {
            (true, true) => {
                if !added.is_empty() || !removed.is_empty() {
                    self.compatible(
                        Rule::OpenChoiceChanged,
                        format!(
                            "the named values of {what} changed, and readers take unknown ones"
                        ),
                    );
                }
            }
            (false, true) => {
                let mut known = before.to_vec();
                known.extend(values.iter().cloned());
                let value = added
                    .first()
                    .cloned()
                    .unwrap_or_else(|| unknown_choice(&known));
                self.shown(
                    Rule::ChoiceOpened,
                    Shown {
                        side: Side::OldConsumers,
                        value: Document::Text(value),
                        refused: closed(before),
                    },
                    format!(
                        "{what} takes any value now (`other`), also to pass on: old consumers know {} alone",
                        list(before)
                    ),
                    Some("take `other` away again".to_owned()),
                );
            }
            (true, false) => {
                let mut known = before.to_vec();
                known.extend(values.iter().cloned());
                let value = removed
                    .first()
                    .cloned()
                    .unwrap_or_else(|| unknown_choice(&known));
                self.shown(
                    Rule::ChoiceClosed,
                    Shown {
                        side: Side::NewConsumers,
                        value: Document::Text(value),
                        refused: closed(values),
                    },
                    format!(
                        "{what} was open: old events may hold other values than the named ones"
                    ),
                    Some("write `other` again".to_owned()),
                );
            }
            (false, false) => {
                if let Some(value) = added.first() {
                    self.shown(
                        Rule::ChoiceGrew,
                        Shown {
                            side: Side::OldConsumers,
                            value: Document::Text(value.clone()),
                            refused: closed(before),
                        },
                        format!(
                            "{what} has new values ({}), which old consumers refuse",
                            list(&added)
                        ),
                        Some(format!("take {} out again", list(&added))),
                    );
                }
                if let Some(value) = removed.first() {
                    self.shown(
                        Rule::ChoiceShrank,
                        Shown {
                            side: Side::NewConsumers,
                            value: Document::Text(value.clone()),
                            refused: closed(values),
                        },
                        format!(
                            "{what} has lost values ({}), which old events may hold",
                            list(&removed)
                        ),
                        Some(format!("put {} back", list(&removed))),
                    );
                }
            }
        }
    }

    fn items(&mut self, old: &Shape, new: &Shape) {
        let what = self.what();
        let bounds = |shape: &Shape| match shape {
            Shape::Array {
                min_items,
                max_items,
                ..
            } => (min_items.unwrap_or(0), max_items.unwrap_or(u32::MAX)),
            _ => (0, u32::MAX),
        };
        let back = Some(self.bound_back(old, new));
        for (rule, side, writer, reader) in [
            (Rule::ItemsWidened, Side::OldConsumers, new, old),
            (Rule::ItemsNarrowed, Side::NewConsumers, old, new),
        ] {
            let (least, most) = bounds(writer);
            let (reads_least, reads_most) = bounds(reader);
            let count = if least < reads_least {
                reads_least - 1
            } else if most > reads_most {
                reads_most + 1
            } else {
                continue;
            };
            let count = count.clamp(least, most);
            let why = match side {
                Side::OldConsumers => {
                    format!("{what} may have counts of items now that old consumers refuse")
                }
                Side::NewConsumers => {
                    format!(
                        "{what} may have counts of items in old events that new consumers refuse"
                    )
                }
            };
            let contract = self.writer(side);
            let item = match writer {
                Shape::Array { items, .. } if count <= MAX_MADE_UP => sample_value(contract, items),
                _ => None,
            };
            let refused = Refusal::of(reader);
            match item {
                Some(item) => {
                    let value = Document::Array(vec![item; count as usize]);
                    let shown = Shown {
                        side,
                        value,
                        refused,
                    };
                    self.shown(rule, shown, why, back.clone());
                }
                // Too many to show, or an empty list alone: the count says it.
                None => {
                    let document = (count == 0)
                        .then(|| Standing::Value(Document::Array(Vec::new())))
                        .and_then(|standing| sample_with(contract, &self.path, &standing));
                    let refused = format!("{} at {}", refused.expected, dollar(&self.path));
                    self.breaking(rule, side, why, document, Some(refused), back.clone());
                }
            }
        }
    }

    fn retyped(&mut self, old: &Shape, new: &Shape) {
        let what = self.what();
        let why = format!("{what} is {} now and was {}", noun(new), noun(old));
        let retreat = Some(self.type_back(old, new));
        let mut any = false;
        for (side, reader) in [(Side::OldConsumers, old), (Side::NewConsumers, new)] {
            if let Some(shown) = self.find(side, old, new, reader) {
                let why = format!("{why}: {side} refuse what {} write", side.writers());
                self.shown(Rule::FieldRetyped, shown, why, retreat.clone());
                any = true;
            }
        }
        if !any {
            self.by_rule(
                Rule::FieldRetyped,
                format!("{why}: it is read on both sides, and means something else"),
                retreat,
            );
        }
    }

    /// A value that the writers of a side write and `reader` refuses.
    fn find(&self, side: Side, old: &Shape, new: &Shape, reader: &Shape) -> Option<Shown> {
        let (writer, shape, readers) = match side {
            Side::OldConsumers => (self.new, new, self.old),
            Side::NewConsumers => (self.old, old, self.new),
        };
        candidates(writer, shape, reader)
            .into_iter()
            .find_map(|value| {
                reads_value(writer, shape, &value).ok()?;
                let refused = reads_value(readers, reader, &value).err()?;
                // As the key of a record it must be one, too.
                let document = sample_with(writer, &self.path, &Standing::Value(value.clone()))?;
                document::read(writer, document.to_string().as_bytes()).ok()?;
                Some(Shown {
                    side,
                    value,
                    refused,
                })
            })
    }

    fn writer(&self, side: Side) -> &'c Contract {
        match side {
            Side::OldConsumers => self.new,
            Side::NewConsumers => self.old,
        }
    }

    /// Reports what a value at the path shows.
    fn shown(&mut self, rule: Rule, shown: Shown, why: String, retreat: Option<String>) {
        let writer = self.writer(shown.side);
        let document = sample_with(writer, &self.path, &Standing::Value(shown.value));
        let Refusal { expected, below } = shown.refused;
        let refused = format!("{expected} at {}{below}", dollar(&self.path));
        self.breaking(rule, shown.side, why, document, Some(refused), retreat);
    }

    /// Reports what the standard's letter forbids, with an event as new producers write it.
    fn by_rule(&mut self, rule: Rule, why: String, retreat: Option<String>) {
        let document = full(self.new, &self.path);
        self.breaking(rule, Side::OldConsumers, why, document, None, retreat);
    }

    fn breaking(
        &mut self,
        rule: Rule,
        side: Side,
        why: String,
        document: Option<Document>,
        refused: Option<String>,
        retreat: Option<String>,
    ) {
        let counterexample = document.map(|document| Counterexample {
            document: document.to_string(),
            refused,
        });
        self.findings.push(Finding {
            rule,
            field: display(&self.path),
            declared: self.declared(),
            side: Some(side),
            why,
            counterexample,
            retreat,
            shared: self.shared(rule),
        });
    }

    fn compatible(&mut self, rule: Rule, why: String) {
        self.findings.push(Finding {
            rule,
            field: display(&self.path),
            declared: self.declared(),
            side: None,
            why,
            counterexample: None,
            retreat: None,
            shared: Vec::new(),
        });
    }

    /// What the place belongs to that another version of the event may use as well.
    fn shared(&self, rule: Rule) -> Vec<String> {
        let is_choice = matches!(
            rule,
            Rule::ChoiceGrew | Rule::ChoiceShrank | Rule::ChoiceOpened | Rule::ChoiceClosed
        );
        // A contract holds an enum's values and not its name.
        let field = self.path.iter().rev().find_map(|step| match step {
            Step::Field(name) => Some(name),
            _ => None,
        });
        let of_field = field.filter(|_| is_choice);
        let choice = of_field.map(|name| format!("the enum of `{name}`"));
        let snapshots = self.snapshots.iter().rev();
        let snapshots = snapshots.map(|name| format!("the snapshot `{name}`"));
        choice.into_iter().chain(snapshots).collect()
    }

    /// A field's argument as it stands in the source.
    fn attribute(&self, argument: &str) -> String {
        let name = if self.snapshots.is_empty() {
            "event"
        } else {
            "snapshot"
        };
        format!("`#[{name}({argument})]`")
    }

    /// The way back to a bound: to the argument that gave it, or to the type.
    fn bound_back(&self, old: &Shape, new: &Shape) -> String {
        if let (Shape::Integer { text: was, .. }, Shape::Integer { text, .. }) = (old, new)
            && was != text
            && rust_type(old).is_some()
            && rust_type(old) == rust_type(new)
        {
            // As text it holds all of its type, as a number what JavaScript holds.
            return self.text_back(*text);
        }
        let (noun, before) = bounds(old, new);
        let write = before.map(|argument| format!("write {} again", self.attribute(&argument)));
        let take = format!("take `{noun}` out of the field's attribute again");
        let type_again = |name| format!("give the field the type `{name}` again");
        match (rust_type(old), rust_type(new)) {
            (Some(was), now) if noun == "range" => match (write, now) {
                // An argument could have made the old bounds just as well, or could have made the new ones.
                (Some(write), _) if is_bounded(&was) => {
                    format!("{}, or {write}, whichever it had", type_again(was))
                }
                (_, Some(now)) if is_bounded(&now) && holds_all_of(old, new) => {
                    format!("{}, or {take}, whichever changed", type_again(was))
                }
                (_, None) if holds_all_of(old, new) => take,
                _ => type_again(was),
            },
            _ => write.unwrap_or(take),
        }
    }

    fn text_back(&self, is_text: bool) -> String {
        if is_text {
            "take `text` out of the field's attribute again".to_owned()
        } else {
            format!("write {} again", self.attribute("text"))
        }
    }

    /// The way back to another type, or to the argument that makes another form of the same one.
    fn type_back(&self, old: &Shape, new: &Shape) -> String {
        match (old, new) {
            (Shape::Code(CodeList::Currency), Shape::Text { .. }) => format!(
                "give the field the type `Currency` again, or write {} again, whichever it had",
                self.attribute("code = \"currency\"")
            ),
            (Shape::Code(list), Shape::Text { .. } | Shape::Code(_)) => {
                format!("write {} again", self.attribute(&code(*list)))
            }
            (Shape::Text { .. }, Shape::Code(list)) => {
                let or_type = match list {
                    CodeList::Currency => ", or give the field the type `String` again",
                    _ => "",
                };
                match arguments(old).as_slice() {
                    [] => format!("take `code` out of the field's attribute again{or_type}"),
                    before => format!(
                        "write {} again in place of `code`",
                        self.attribute(&before.join(", "))
                    ),
                }
            }
            _ => match (own_type(old), arguments(old).as_slice()) {
                (Some(name), []) => format!("give the field the type `{name}` again"),
                (Some(name), with) => format!(
                    "give the field the type `{name}` again, with {}",
                    self.attribute(&with.join(", "))
                ),
                (None, []) => "give the field its old type again".to_owned(),
                (None, with) => format!(
                    "give the field its old type again, with {}",
                    self.attribute(&with.join(", "))
                ),
            },
        }
    }

    fn declared(&self) -> Option<Declared> {
        let names = || {
            self.path.iter().filter_map(|step| match step {
                Step::Field(name) => Some(name.clone()),
                _ => None,
            })
        };
        let field = match &self.now {
            Some(now) => now.clone(),
            None => names().next_back(),
        };
        let snapshot = self.snapshots.last().cloned();
        let top_field = match &snapshot {
            Some(_) => names().next(),
            None => field.clone(),
        };
        Some(Declared {
            top_field: top_field?,
            snapshot,
            field,
        })
    }

    /// The place as a noun.
    fn what(&self) -> String {
        format!("`{}`", display(&self.path))
    }
}

/// The plainest event in which the path's value is there.
fn full(contract: &Contract, path: &[Step]) -> Option<Document> {
    // A standing value of nothing: `along` puts a plain one there. The last step must not be taken for absent.
    match path {
        [] => document::sample(contract),
        path => document::sample_along(contract, path),
    }
}

/// A reader of the integers or amounts that both shapes hold, in either form; `None` where there is no such bound.
fn in_common(old: &Shape, new: &Shape) -> Option<Shape> {
    match (old, new) {
        (
            Shape::Integer {
                min: a,
                max: b,
                not_zero: c,
                ..
            },
            Shape::Integer {
                min, max, not_zero, ..
            },
        ) => Some(Shape::Integer {
            min: *a.max(min),
            max: *b.min(max),
            not_zero: *c || *not_zero,
            text: true,
        }),
        _ => None,
    }
}

fn holds_object(shape: &Shape) -> bool {
    match shape {
        Shape::Object(_) => true,
        Shape::Array { items: inner, .. } | Shape::Map { values: inner } => holds_object(inner),
        Shape::Nullable(inner) => holds_object(inner),
        _ => false,
    }
}

/// `items[].price`, `labels{}`
fn display(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Step::Item => text.push_str("[]"),
            Step::Entry => text.push_str("{}"),
        }
    }
    text
}

/// `$.items[0].price`, as a reader names it.
fn dollar(path: &[Step]) -> String {
    let mut text = String::from("$");
    for step in path {
        match step {
            Step::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            Step::Item => text.push_str("[0]"),
            Step::Entry => text.push_str("[*]"),
        }
    }
    text
}

/// The type of a value, for a sentence.
fn noun(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "a boolean".to_owned(),
        Shape::Integer { text: false, .. } => "an integer".to_owned(),
        Shape::Integer { text: true, .. } => "an integer as text".to_owned(),
        Shape::Double { .. } => "a floating-point number".to_owned(),
        Shape::Amount { .. } => "an amount".to_owned(),
        Shape::Money { .. } => "an amount with its currency".to_owned(),
        Shape::Text { .. } => "text".to_owned(),
        Shape::Uuid => "a UUID".to_owned(),
        Shape::EventId => "an event id".to_owned(),
        Shape::AggregateId => "an aggregate id".to_owned(),
        Shape::Instant => "a time".to_owned(),
        Shape::Date => "a date".to_owned(),
        Shape::Code(_) => expectation(shape),
        Shape::Choice { open: false, .. } => "a choice of values".to_owned(),
        Shape::Choice { open: true, .. } => "an open choice of values".to_owned(),
        Shape::Array { .. } => "a list".to_owned(),
        Shape::Map { .. } => "a map".to_owned(),
        Shape::Nullable(inner) => format!("{} or null", noun(inner)),
        Shape::Object(_) => "a snapshot".to_owned(),
    }
}

/// The Rust type that makes a shape by itself, without constraints; `None` where another may have made it.
fn rust_type(shape: &Shape) -> Option<String> {
    let named = |name: &str| Some(name.to_owned());
    match shape {
        Shape::Boolean => named("bool"),
        Shape::Integer {
            min, max, not_zero, ..
        } => integer_type(*min, *max, *not_zero),
        Shape::Double {
            min: None,
            max: None,
        } => named("f64"),
        Shape::Amount {
            min: None,
            max: None,
            ..
        } => named("Amount"),
        Shape::Amount {
            min:
                Some(AmountBound {
                    value,
                    exclusive: true,
                }),
            max: None,
            ..
        } if value == "0" => named("PositiveAmount"),
        Shape::Money { .. } => named("Money"),
        Shape::Text {
            min_chars: None,
            max_chars: None,
            pattern: None,
        } => named("String"),
        Shape::Uuid => named("Uuid"),
        Shape::EventId => named("EventId"),
        Shape::AggregateId => named("AggregateId"),
        Shape::Instant => named("OffsetDateTime"),
        Shape::Date => named("Date"),
        Shape::Code(CodeList::Currency) => named("Currency"),
        Shape::Array {
            items,
            min_items: None,
            max_items: None,
        } => Some(format!("Vec<{}>", rust_type(items)?)),
        Shape::Map { values } => Some(format!("BTreeMap<String, {}>", rust_type(values)?)),
        Shape::Nullable(inner) => Some(format!("Option<{}>", rust_type(inner)?)),
        Shape::Object(name) => Some(name.clone()),
        _ => None,
    }
}

/// Of an unsigned integer other than 0, the contract says that it is 1 at least.
fn integer_type(min: i128, max: i128, not_zero: bool) -> Option<String> {
    let of = |min: i128| {
        INTEGERS
            .iter()
            .find(|(least, most, _)| (*least, *most) == (min, max))
            .map(|(.., name)| *name)
    };
    let other_than_0 = |name: &str| format!("NonZero{}", name.to_uppercase());
    match (min, not_zero) {
        (1, _) => of(0).map(other_than_0),
        (least, true) if least < 0 => of(min).map(other_than_0),
        _ => of(min).map(str::to_owned),
    }
}

/// Whether the type has bounds that an argument could have given to another.
fn is_bounded(rust_type: &str) -> bool {
    rust_type.starts_with("NonZero") || rust_type == "PositiveAmount"
}

/// The Rust type of a shape, its constraints aside; `None` where that is not one alone.
fn own_type(shape: &Shape) -> Option<String> {
    let named = |name: &str| Some(name.to_owned());
    rust_type(shape).or_else(|| match shape {
        Shape::Text { .. } | Shape::Code(_) => named("String"),
        Shape::Double { .. } => named("f64"),
        Shape::Amount { .. } => named("Amount"),
        Shape::Array { items, .. } => Some(format!("Vec<{}>", own_type(items)?)),
        Shape::Nullable(inner) => Some(format!("Option<{}>", own_type(inner)?)),
        _ => None,
    })
}

/// The arguments of a field's attribute that make the shape.
fn arguments(shape: &Shape) -> Vec<String> {
    let mut arguments = Vec::new();
    match shape {
        Shape::Integer { text: true, .. }
        | Shape::Amount { text: true, .. }
        | Shape::Money { text: true } => arguments.push("text".to_owned()),
        Shape::Double { .. } => arguments.push("float = \"…\"".to_owned()),
        Shape::Code(list) => arguments.push(code(*list)),
        Shape::Text {
            pattern: Some(pattern),
            ..
        } => arguments.push(written_pattern(pattern)),
        Shape::Array { items, .. } => arguments.extend(self::arguments(items)),
        Shape::Nullable(inner) => arguments.extend(self::arguments(inner)),
        _ => {}
    }
    if rust_type(shape).is_none() {
        arguments.extend(bounds(shape, shape).1);
    }
    arguments
}

fn code(list: CodeList) -> String {
    let name = match list {
        CodeList::Country => "country",
        CodeList::Language => "language",
        CodeList::Currency => "currency",
        // Another list of the future: its name is not known here.
        _ => "…",
    };
    format!("code = \"{name}\"")
}

/// As a literal that holds the backslashes of a pattern.
fn written_pattern(pattern: &str) -> String {
    match (pattern.contains('"'), pattern.contains('\\')) {
        (false, false) => format!("pattern = \"{pattern}\""),
        (false, true) => format!("pattern = r\"{pattern}\""),
        (true, _) => format!("pattern = r#\"{pattern}\"#"),
    }
}

/// The name of the argument that bounds such a shape, and the argument that bounds this one; of an integer only what
/// its type, as far as `beside` tells it, doesn't.
fn bounds(shape: &Shape, beside: &Shape) -> (&'static str, Option<String>) {
    let of = |name: &'static str, bounds: Vec<Option<String>>| {
        let bounds: Vec<String> = bounds.into_iter().flatten().collect();
        let argument = (!bounds.is_empty()).then(|| format!("{name}({})", bounds.join(", ")));
        (name, argument)
    };
    match shape {
        Shape::Integer { min, max, .. } => {
            let (least, most) = match beside {
                Shape::Integer { min, max, .. } if rust_type(beside).is_some() => {
                    (Some(*min), Some(*max))
                }
                _ => (None, None),
            };
            let least = (least != Some(*min)).then(|| format!("min = {min}"));
            let most = (most != Some(*max)).then(|| format!("max = {max}"));
            of("range", vec![least, most])
        }
        Shape::Double { min, max } => of(
            "range",
            vec![
                min.map(|min| format!("min = {min:?}")),
                max.map(|max| format!("max = {max:?}")),
            ],
        ),
        Shape::Amount { min, max, .. } => {
            let written = |bound: &AmountBound, [within, beyond]: [&str; 2]| {
                let key = if bound.exclusive { beyond } else { within };
                // A literal with a decimal point is no exact number, and no bound.
                let value = match bound.value.parse::<i128>() {
                    Ok(_) => bound.value.clone(),
                    Err(_) => format!("\"{}\"", bound.value),
                };
                format!("{key} = {value}")
            };
            let least = min
                .as_ref()
                .map(|min| written(min, ["min", "greater_than"]));
            let most = max.as_ref().map(|max| written(max, ["max", "less_than"]));
            of("range", vec![least, most])
        }
        Shape::Text {
            min_chars: min,
            max_chars: max,
            ..
        }
        | Shape::Array {
            min_items: min,
            max_items: max,
            ..
        } => {
            let name = match shape {
                Shape::Array { .. } => "items",
                _ => "length",
            };
            let least = min.map(|min| format!("min = {min}"));
            of(name, vec![least, max.map(|max| format!("max = {max}"))])
        }
        _ => ("range", None),
    }
}

/// Whether the integers of the second are among those of the first; of other shapes nobody doubts it.
fn holds_all_of(outer: &Shape, inner: &Shape) -> bool {
    match (outer, inner) {
        (Shape::Integer { min: a, max: b, .. }, Shape::Integer { min, max, .. }) => {
            a <= min && max <= b
        }
        _ => true,
    }
}

/// The ranges of Rust's integers as events hold them: as numbers within what JavaScript holds, as text without that.
const INTEGERS: &[(i128, i128, &str)] = &[
    (0, u8::MAX as i128, "u8"),
    (0, u16::MAX as i128, "u16"),
    (0, u32::MAX as i128, "u32"),
    (0, MAX_SAFE, "u64"),
    (0, u64::MAX as i128, "u64"),
    (i8::MIN as i128, i8::MAX as i128, "i8"),
    (i16::MIN as i128, i16::MAX as i128, "i16"),
    (i32::MIN as i128, i32::MAX as i128, "i32"),
    (-MAX_SAFE, MAX_SAFE, "i64"),
    (i64::MIN as i128, i64::MAX as i128, "i64"),
];

/// 2^53 - 1.
const MAX_SAFE: i128 = 9_007_199_254_740_991;

/// Values that a producer of `writer` can write, chosen at the edges of what a reader of `reader` takes. The caller
/// checks each on both sides.
fn candidates(contract: &Contract, writer: &Shape, reader: &Shape) -> Vec<Document> {
    let mut values: Vec<Document> = sample_value(contract, writer).into_iter().collect();
    match writer {
        Shape::Boolean => values.extend([true, false].map(Document::Boolean)),
        Shape::Integer { min, max, text, .. } => {
            let mut numbers = vec![*min, *max, 0, 1, -1, 2];
            if let Shape::Integer { min, max, .. } = reader {
                numbers.extend([min.saturating_sub(1), max.saturating_add(1), *min, *max]);
            }
            values.extend(numbers.into_iter().map(|number| {
                if *text {
                    Document::Text(number.to_string())
                } else {
                    Document::Number(number.to_string())
                }
            }));
        }
        Shape::Double { min, max } => {
            let mut numbers = vec![0.5, 0.0, 1.0, -1.0, f64::MIN, f64::MAX];
            let mut bounds = vec![*min, *max];
            if let Shape::Double { min, max } = reader {
                bounds.extend([*min, *max]);
            }
            for bound in bounds.into_iter().flatten() {
                numbers.extend([
                    bound,
                    bound - 1.0,
                    bound + 1.0,
                    bound.next_down(),
                    bound.next_up(),
                ]);
            }
            let finite = numbers.into_iter().filter(|number| number.is_finite());
            values.extend(finite.map(|number| Document::Number(format!("{number:?}"))));
        }
        Shape::Amount { min, max, text } => {
            let mut bounds: Vec<&AmountBound> = [min, max].into_iter().flatten().collect();
            if let Shape::Amount { min, max, .. } = reader {
                bounds.extend([min, max].into_iter().flatten());
            }
            let mut numbers: Vec<String> = ["0", "10.5", "-3", "0.5", "999999999999999"]
                .map(str::to_owned)
                .to_vec();
            for bound in bounds {
                numbers.push(bound.value.clone());
                numbers.extend(beside(bound));
            }
            values.extend(numbers.iter().map(|number| amount_document(number, *text)));
        }
        Shape::Text {
            min_chars,
            max_chars,
            pattern,
        } => {
            let mut lengths = vec![min_chars.unwrap_or(0), max_chars.unwrap_or(8)];
            if let Shape::Text {
                min_chars,
                max_chars,
                ..
            } = reader
            {
                lengths.extend(min_chars.map(|min| min.saturating_sub(1)));
                lengths.extend(max_chars.map(|max| max.saturating_add(1)));
            }
            let made_up = lengths.into_iter().filter(|length| *length <= MAX_MADE_UP);
            let texts = made_up.map(|length| plain_text(length, Some(length)));
            values.extend(texts.map(Document::Text));
            for odd in ["", "?", "A-1", "abc", "ABC", "123", "~ ~", "é"] {
                values.push(Document::Text(odd.to_owned()));
            }
            if pattern.is_some() {
                values.extend(document::several(contract, writer));
            }
        }
        Shape::AggregateId => {
            values.extend([1, 2, 10, 100, 255].map(|bytes| Document::Text("a".repeat(bytes))));
            if let Shape::Text {
                max_chars: Some(max),
                ..
            } = reader
            {
                let longer = max.saturating_add(1).min(255);
                values.push(Document::Text("a".repeat(longer as usize)));
            }
        }
        Shape::Choice {
            values: named,
            open,
        } => {
            values.extend(named.iter().cloned().map(Document::Text));
            if *open {
                values.push(Document::Text(unknown_choice(named)));
            }
        }
        Shape::Array { items, .. } => {
            values.push(Document::Array(Vec::new()));
            values.extend(sample_value(contract, items).map(|item| Document::Array(vec![item])));
        }
        Shape::Map { values: of } => {
            let entry = sample_value(contract, of).map(|value| ("key".to_owned(), value));
            values.push(Document::Object(entry.into_iter().collect()));
            values.push(Document::Object(Vec::new()));
        }
        Shape::Nullable(_) => values.push(Document::Null),
        _ => {}
    }
    values
}
