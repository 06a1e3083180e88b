//! An event that has every shape, values for it, and the form in which both sides tell what they read.

use std::collections::BTreeMap;
use std::num::NonZeroI32;

use factum::bigdecimal::BigDecimal;
use factum::{
    Amount, Currency, EncodeError, Envelope, Event, EventId, JsonValue, Money, Poison,
    PositiveAmount, Shape, Shapes, Snapshot, ValueWriter, Written,
};
use serde_json::{Value, json};
use time::{Date, OffsetDateTime};
use uuid::Uuid;

/// One of named values, and no other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Channel {
    Web,
    Shop,
}

impl Channel {
    fn name(self) -> &'static str {
        match self {
            Channel::Web => "web",
            Channel::Shop => "shop",
        }
    }
}

impl Snapshot for Channel {
    const EXPECTED: &'static str = "\"web\" or \"shop\"";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Choice {
            values: vec!["web".to_owned(), "shop".to_owned()],
            open: false,
        }
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(self.name())
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        match from.text(Self::EXPECTED)? {
            "web" => Ok(Channel::Web),
            "shop" => Ok(Channel::Shop),
            _ => Err(from.invalid(Self::EXPECTED)),
        }
    }
}

/// One of named values, or what a newer producer writes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status(String);

impl Snapshot for Status {
    const EXPECTED: &'static str = "a status";

    fn shape(_: &mut Shapes) -> Shape {
        Shape::Choice {
            values: vec!["paid".to_owned(), "open".to_owned()],
            open: true,
        }
    }

    fn write(&self, out: ValueWriter<'_>) -> Result<Written, EncodeError> {
        out.text(&self.0)
    }

    fn read(from: &JsonValue<'_>) -> Result<Self, Poison> {
        from.text(Self::EXPECTED)
            .map(|text| Status(text.to_owned()))
    }
}

/// A part of the sample.
#[derive(Debug, Clone, PartialEq, Snapshot)]
pub(crate) struct Part {
    label: String,
    count: u16,
    price: Money,
    tags: Vec<String>,
    weight: Option<Amount>,
}

/// A part that holds parts of its own kind.
#[derive(Debug, Clone, PartialEq, Snapshot)]
pub(crate) struct Branch {
    label: String,
    branches: Vec<Branch>,
}

/// Every shape there is.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "sample.taken.v1",
    aggregate = "Sample",
    topic = "t.samples.taken",
    unlocked
)]
pub(crate) struct SampleTaken {
    #[event(aggregate_id)]
    pub(crate) sample_ref: String,
    flag: bool,
    small: u8,
    #[event(float = "a ratio is no sum of money")]
    ratio: f64,
    signed: i32,
    other_than_zero: NonZeroI32,
    #[event(text)]
    large: u64,
    #[event(text)]
    wide: i64,
    #[event(text)]
    maybe_wide: Option<i64>,
    #[event(text)]
    all_wide: Vec<i64>,
    price: Amount,
    positive: PositiveAmount,
    #[event(text)]
    exact: Amount,
    total: Money,
    #[event(text)]
    precise: Money,
    remark: Option<String>,
    link: Uuid,
    cause: EventId,
    measured_at: OffsetDateTime,
    due: Option<Date>,
    currency: Currency,
    channel: Channel,
    channels: Vec<Channel>,
    status: Option<Status>,
    parts: Vec<Part>,
    main_part: Option<Part>,
    root: Branch,
    prices: BTreeMap<String, Amount>,
    gaps: Vec<Option<u32>>,
    gaps_by_name: BTreeMap<String, Option<bool>>,
    #[event(length(min = 1, max = 3))]
    short: String,
    #[event(pattern = "[A-Z]{3}-[0-9]{4}")]
    number: Option<String>,
    #[event(code = "country")]
    country: String,
    #[event(code = "language")]
    language: String,
    #[event(range(min = -5, max = 5))]
    level: i8,
    #[event(range(greater_than = "0.01", less_than = "99.99"))]
    fee: Amount,
    #[event(items(min = 1, max = 2))]
    flags: Vec<bool>,
}

/// Makes samples; the same seed makes the same ones.
pub(crate) struct Arbitrary {
    random: fastrand::Rng,
}

impl Arbitrary {
    pub(crate) fn of(seed: u64) -> Arbitrary {
        Arbitrary {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())].clone()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.random.bool().then(|| make(self))
    }

    fn some<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.random.usize(..4);
        (0..count).map(|_| make(self)).collect()
    }

    /// Any characters but U+0000, the unusual ones often.
    fn text(&mut self) -> String {
        const UNUSUAL: &[char] = &[
            '"',
            '\\',
            '/',
            '\u{1}',
            '\u{1f}',
            '\u{7f}',
            '\n',
            '\t',
            '\u{2028}',
            '\u{feff}',
            '\u{fffd}',
            '\u{ffff}',
            'é',
            '\u{301}',
            '💶',
            '\u{10ffff}',
            '<',
            '\'',
            '`',
            '$',
        ];
        let count = self.random.usize(..12);
        (0..count)
            .map(|_| match self.random.u8(..3) {
                0 => self.one_of(UNUSUAL),
                1 => self.random.char('\u{1}'..),
                _ => self.random.alphanumeric(),
            })
            .collect()
    }

    fn i64(&mut self) -> i64 {
        let any = self.random.i64(..);
        self.one_of(&[
            any,
            i64::MIN,
            i64::MAX,
            0,
            -1,
            9_007_199_254_740_993,
            -9_007_199_254_740_993,
        ])
    }

    /// Of at most that many digits and decimal places.
    fn decimal(&mut self, digits: usize) -> Amount {
        let count = self.random.usize(1..=digits);
        let mut text: String = (0..count).map(|_| self.random.digit(10)).collect();
        let most_whole = count.min(18);
        let whole = self.random.usize(..=most_whole);
        text.insert_str(whole, if whole == 0 { "0." } else { "." });
        let text = text.trim_end_matches('.');
        let number: BigDecimal = text.parse().expect("digits with a point");
        let number = if self.random.bool() { -number } else { number };
        Amount::from_decimal(&number).expect("within an amount's limits")
    }

    /// As a number on the wire, so of digits that a double holds.
    fn amount(&mut self) -> Amount {
        self.decimal(15)
    }

    fn positive(&mut self) -> PositiveAmount {
        loop {
            if let Ok(positive) = PositiveAmount::new(self.amount()) {
                return positive;
            }
        }
    }

    fn currency(&mut self) -> Currency {
        let all: Vec<Currency> = Currency::all().collect();
        self.one_of(&all)
    }

    fn instant(&mut self) -> OffsetDateTime {
        // The years 1 to 9999.
        let seconds = self.random.i64(-62_135_596_800..=253_402_300_799);
        let micros = self.random.i128(0..1_000_000);
        let micros = self.one_of(&[micros, 0, 999_999, 120_000]);
        OffsetDateTime::from_unix_timestamp_nanos(
            i128::from(seconds) * 1_000_000_000 + micros * 1_000,
        )
        .expect("within the years of time")
    }

    fn ratio(&mut self) -> f64 {
        let any = f64::from_bits(self.random.u64(..));
        let all = [any, f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1, -1e21, 0.0];
        self.one_of(&all.map(|of| if of.is_finite() { of } else { 0.5 }))
    }

    fn part(&mut self) -> Part {
        Part {
            label: self.text(),
            count: self.random.u16(..),
            price: Money::new(self.amount(), self.currency()),
            tags: self.some(Self::text),
            weight: self.maybe(Self::amount),
        }
    }

    fn branch(&mut self, depth: u32) -> Branch {
        Branch {
            label: self.text(),
            branches: if depth == 0 {
                Vec::new()
            } else {
                self.some(|this| this.branch(depth - 1))
            },
        }
    }

    fn map<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> BTreeMap<String, T> {
        let entries = self.some(|this| (this.text(), make(this)));
        entries.into_iter().collect()
    }

    pub(crate) fn sample(&mut self, sample_ref: String) -> SampleTaken {
        let milliseconds = self.random.u64(..=EventId::MAX_UNIX_MILLIS);
        let non_zero = self.random.i32(..);
        let large = self.random.u64(..);
        SampleTaken {
            sample_ref,
            flag: self.random.bool(),
            small: self.random.u8(..),
            ratio: self.ratio(),
            signed: self.one_of(&[non_zero, i32::MIN, i32::MAX, 0]),
            other_than_zero: NonZeroI32::new(non_zero).unwrap_or(NonZeroI32::MIN),
            large: self.one_of(&[large, u64::MAX, 0, 9_007_199_254_740_993]),
            wide: self.i64(),
            maybe_wide: self.maybe(Self::i64),
            all_wide: self.some(Self::i64),
            price: self.amount(),
            positive: self.positive(),
            exact: self.decimal(38),
            total: Money::new(self.amount(), self.currency()),
            precise: Money::new(self.decimal(38), self.currency()),
            remark: self.maybe(Self::text),
            link: Uuid::from_u128(self.random.u128(..)),
            cause: EventId::floor(milliseconds),
            measured_at: self.instant(),
            due: self.maybe(|this| this.instant().date()),
            currency: self.currency(),
            channel: self.one_of(&[Channel::Web, Channel::Shop]),
            channels: self.some(|this| this.one_of(&[Channel::Web, Channel::Shop])),
            status: self.maybe(|this| {
                let text = this.text();
                Status(this.one_of(&["paid".to_owned(), "refunded_v2".to_owned(), text]))
            }),
            parts: self.some(Self::part),
            main_part: self.maybe(Self::part),
            root: self.branch(3),
            prices: self.map(Self::amount),
            gaps: self.some(|this| this.maybe(|this| this.random.u32(..))),
            gaps_by_name: self.map(|this| this.maybe(|this| this.random.bool())),
            short: self.one_of(&["a", "💶💶💶", "é\u{301}"]).to_owned(),
            number: self.maybe(|this| this.one_of(&["ABC-0123", "ZZZ-9999"]).to_owned()),
            country: self.one_of(&["DE", "AX", "ZW"]).to_owned(),
            language: self.one_of(&["de", "zu"]).to_owned(),
            level: self.random.i8(-5..=5),
            fee: self
                .one_of(&["0.02", "99.98", "1"])
                .parse()
                .expect("an amount"),
            flags: vec![self.random.bool(); self.random.usize(1..=2)],
        }
    }
}

/// What was read, as the generated schemas put it out: made from the values, not by the encoder.
pub(crate) fn told(envelope: &Envelope<SampleTaken>) -> Value {
    let money = |money: &Money| json!({ "amount": money.amount().to_string(), "currency": money.currency().code() });
    let part = |part: &Part| {
        let mut told = json!({
            "label": part.label, "count": part.count, "price": money(&part.price), "tags": part.tags,
        });
        add(
            &mut told,
            "weight",
            part.weight.as_ref().map(|a| json!(a.to_string())),
        );
        told
    };
    fn branch(from: &Branch) -> Value {
        let branches: Vec<Value> = from.branches.iter().map(branch).collect();
        json!({ "label": from.label, "branches": branches })
    }
    let sample = envelope.event();
    let prices: serde_json::Map<String, Value> = sample
        .prices
        .iter()
        .map(|(name, amount)| (name.clone(), json!(amount.to_string())))
        .collect();
    let mut told = json!({
        "eventId": envelope.id().to_string(),
        "eventType": "sample.taken.v1",
        "occurredAt": instant(envelope.occurred_at()),
        "aggregateType": "Sample",
        "aggregateId": sample.sample_ref,
        "sampleRef": sample.sample_ref,
        "flag": sample.flag,
        "small": sample.small,
        "ratio": sample.ratio,
        "signed": sample.signed,
        "otherThanZero": sample.other_than_zero.get(),
        "large": sample.large.to_string(),
        "wide": sample.wide.to_string(),
        "allWide": sample.all_wide.iter().map(i64::to_string).collect::<Vec<_>>(),
        "price": sample.price.to_string(),
        "positive": sample.positive.amount().to_string(),
        "exact": sample.exact.to_string(),
        "total": money(&sample.total),
        "precise": money(&sample.precise),
        "link": sample.link.to_string(),
        "cause": sample.cause.to_string(),
        "measuredAt": instant(sample.measured_at),
        "currency": sample.currency.code(),
        "channel": sample.channel.name(),
        "channels": sample.channels.iter().map(|c| c.name()).collect::<Vec<_>>(),
        "parts": sample.parts.iter().map(part).collect::<Vec<_>>(),
        "root": branch(&sample.root),
        "prices": prices,
        "gaps": sample.gaps,
        "gapsByName": sample.gaps_by_name,
        "short": sample.short,
        "country": sample.country,
        "language": sample.language,
        "level": sample.level,
        "fee": sample.fee.to_string(),
        "flags": sample.flags,
    });
    add(
        &mut told,
        "maybeWide",
        sample.maybe_wide.map(|wide| json!(wide.to_string())),
    );
    add(
        &mut told,
        "remark",
        sample.remark.as_ref().map(|text| json!(text)),
    );
    add(&mut told, "due", sample.due.map(|due| json!(date(due))));
    add(
        &mut told,
        "status",
        sample.status.as_ref().map(|status| json!(status.0)),
    );
    add(
        &mut told,
        "number",
        sample.number.as_ref().map(|text| json!(text)),
    );
    add(&mut told, "mainPart", sample.main_part.as_ref().map(part));
    told
}

fn add(to: &mut Value, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        to[name] = value;
    }
}

fn date(of: Date) -> String {
    format!(
        "{:04}-{:02}-{:02}",
        of.year(),
        u8::from(of.month()),
        of.day()
    )
}

fn instant(at: OffsetDateTime) -> String {
    let (hour, minute, second) = at.to_hms();
    let fraction = match at.microsecond() {
        0 => String::new(),
        micros if micros % 1_000 == 0 => format!(".{:03}", micros / 1_000),
        micros => format!(".{micros:06}"),
    };
    format!(
        "{}T{hour:02}:{minute:02}:{second:02}{fraction}Z",
        date(at.date())
    )
}
