//! Each constraint beside a simple model of it: reader, publisher and model agree on every value.

use factum_event::{Amount, CodeList, Decoded, Event, EventId, Invalid, Registry};
use factum_macros::{Event, Snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};
use time::OffsetDateTime;

/// An event with one field, whose constraint is under test.
macro_rules! event_with {
    ($name:ident, $kind:literal, $(#[$constraint:meta])* $ty:ty) => {
        #[derive(Debug, Clone, PartialEq, Event)]
        #[event(
            kind = $kind,
            aggregate = "Thing",
            topic = "things",
            unlocked,
            crate = "factum_event"
        )]
        struct $name {
            #[event(aggregate_id)]
            thing_id: u32,
            $(#[$constraint])*
            value: $ty,
        }

        impl $name {
            fn new(value: $ty) -> $name {
                $name { thing_id: 7, value }
            }
        }
    };
}

event_with!(
    LengthTried,
    "thing.length-tried.v1",
    #[event(length(min = 2, max = 5))]
    String
);
event_with!(ShortTried, "thing.short-tried.v1", #[event(length(max = 3))] Option<Vec<String>>);
event_with!(ItemsTried, "thing.items-tried.v1", #[event(items(min = 1, max = 4))] Vec<u8>);
event_with!(
    WholeTried,
    "thing.whole-tried.v1",
    #[event(range(min = -20, max = 20))]
    i32
);
event_with!(
    TextTried,
    "thing.text-tried.v1",
    #[event(text, range(min = 18_446_744_073_709_551_600))]
    u64
);
event_with!(
    DoubleTried,
    "thing.double-tried.v1",
    #[event(range(min = -0.5, max = 1.25), float = "made up for a test")]
    f64
);
event_with!(
    AmountTried,
    "thing.amount-tried.v1",
    #[event(range(greater_than = "-0.05", max = "1.2"))]
    Amount
);
event_with!(
    SumTried,
    "thing.sum-tried.v1",
    #[event(range(min = -3, max = 4))]
    Amount
);
event_with!(
    PatternTried,
    "thing.pattern-tried.v1",
    #[event(pattern = r"[A-C]{2}-(?:0|[1-3][0-3]?)|é+x?")]
    String
);
event_with!(
    CountryTried,
    "thing.country-tried.v1",
    #[event(code = "country")]
    String
);
event_with!(
    LanguageTried,
    "thing.language-tried.v1",
    #[event(code = "language")]
    String
);
event_with!(
    CurrencyTried,
    "thing.currency-tried.v1",
    #[event(code = "currency")]
    String
);
event_with!(ChoiceTried, "thing.choice-tried.v1", Size);
event_with!(SpanTried, "thing.span-tried.v1", Span);

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(crate = "factum_event")]
enum Size {
    Small,
    VeryLarge,
    #[snapshot(other)]
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Snapshot)]
#[snapshot(validate = ascending, crate = "factum_event")]
struct Span {
    from: u8,
    to: u8,
}

fn ascending(span: &Span) -> Result<(), Invalid> {
    if span.from <= span.to {
        Ok(())
    } else {
        Err(Invalid::new("to", "no less than `from`"))
    }
}

/// Reader and publisher take the value if the model does, and the reader reads what was published.
fn agree<E: Event + Clone + PartialEq + std::fmt::Debug>(
    event: E,
    value: &Value,
    model: bool,
) -> Result<(), TestCaseError> {
    let registry = Registry::new().with::<E>();
    let read = |bytes: &[u8]| match registry.decode(Some(bytes)) {
        Decoded::Event(event) => Ok(event.downcast::<E>().unwrap().into_event()),
        other => Err(format!("{other:?}")),
    };
    let json = json!({
        "eventId": "01935c3e-7c1a-7000-8000-000000000001",
        "eventType": E::EVENT_TYPE,
        "occurredAt": "2026-06-01T12:00:00Z",
        "aggregateType": "Thing",
        "aggregateId": "7",
        "thingId": 7,
        "value": value,
    });
    let from_json = read(json.to_string().as_bytes());
    prop_assert_eq!(from_json.is_ok(), model, "reader: {:?}", from_json);
    let published = event
        .clone()
        .occurred_at(OffsetDateTime::UNIX_EPOCH)
        .with_id(EventId::floor(0))
        .encode();
    prop_assert_eq!(published.is_ok(), model, "publisher: {:?}", published);
    if let Ok(bytes) = published {
        prop_assert_eq!(read(&bytes), Ok(event.clone()));
        prop_assert_eq!(from_json, Ok(event));
    }
    Ok(())
}

/// Characters of one to four bytes, among them some that combine.
fn text() -> impl Strategy<Value = String> {
    let characters = vec!['a', 'é', '€', '😀', '\u{301}', '\n', '"', '\u{200d}'];
    prop::collection::vec(prop::sample::select(characters), 0..8)
        .prop_map(|characters| characters.into_iter().collect())
}

/// In UTF-8, every character has one byte that doesn't go on with another.
fn characters(text: &str) -> usize {
    text.bytes()
        .filter(|byte| byte & 0b1100_0000 != 0b1000_0000)
        .count()
}

/// The pattern of `PatternTried`, taken apart by hand.
fn matches_by_hand(text: &str) -> bool {
    let tail = text.trim_start_matches('é');
    if tail.len() < text.len() && (tail.is_empty() || tail == "x") {
        return true;
    }
    match text.as_bytes() {
        [one @ b'A'..=b'C', two @ b'A'..=b'C', b'-', rest @ ..] => {
            let _ = (one, two);
            matches!(rest, b"0" | [b'1'..=b'3'] | [b'1'..=b'3', b'0'..=b'3'])
        }
        _ => false,
    }
}

/// ISO 3166-1 alpha-2.
const COUNTRIES: &str = "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ \
    BL BM BN BO BQ BR BS BT BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE \
    DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR \
    GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP \
    KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT \
    MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW \
    PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG \
    TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW";

/// ISO 639-1, and `sh`, which was withdrawn and old data holds.
const LANGUAGES: &str = "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr \
    cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr \
    ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb \
    lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os \
    pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg \
    th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu";

#[test]
fn two_letters_are_a_code_where_the_standard_says_so() {
    let letters = || ('A'..='Z').chain('a'..='c');
    for one in letters() {
        for two in letters() {
            let upper = format!("{one}{two}");
            let country = COUNTRIES.split_whitespace().any(|code| code == upper);
            agree(CountryTried::new(upper.clone()), &json!(upper), country).unwrap();
        }
    }
    for one in 'a'..='z' {
        for two in ('a'..='z').chain('A'..='C') {
            let code = format!("{one}{two}");
            let language = LANGUAGES.split_whitespace().any(|known| known == code);
            agree(LanguageTried::new(code.clone()), &json!(code), language).unwrap();
        }
    }
    // The list of currencies has its own tests.
    for code in ["EUR", "USD", "JPY", "eur", "EU", "EURO", "XYZ", ""] {
        let currency = CodeList::Currency.codes().contains(&code);
        agree(CurrencyTried::new(code.into()), &json!(code), currency).unwrap();
    }
}

proptest! {
    #[test]
    fn lengths_agree(text in text()) {
        let count = characters(&text);
        agree(LengthTried::new(text.clone()), &json!(text), (2..=5).contains(&count))?;
    }

    #[test]
    fn lengths_of_items_agree(texts in prop::option::of(prop::collection::vec(text(), 0..4))) {
        let holds = texts.iter().flatten().all(|text| characters(text) <= 3);
        agree(ShortTried::new(texts.clone()), &json!(texts), holds)?;
    }

    #[test]
    fn items_agree(items in prop::collection::vec(any::<u8>(), 0..7)) {
        let holds = !items.is_empty() && items.len() < 5;
        agree(ItemsTried::new(items.clone()), &json!(items), holds)?;
    }

    #[test]
    fn ranges_of_integers_agree(value in prop_oneof![-25..25, any::<i32>()]) {
        agree(WholeTried::new(value), &json!(value), i64::from(value).abs() <= 20)?;
    }

    #[test]
    fn ranges_of_integers_as_text_agree(distance in 0_u64..40) {
        // `u64::MAX` is 15 more than the bound.
        let value = u64::MAX - distance;
        agree(TextTried::new(value), &json!(value.to_string()), distance <= 15)?;
    }

    #[test]
    fn ranges_of_doubles_agree(eighths in -20_i32..20, tiny in -1_i32..=1) {
        let value = f64::from(eighths) / 8.0 + f64::from(tiny) * f64::EPSILON;
        // A double is exact in eighths, and so far from 0 the tiny difference shows.
        let holds = (eighths > -4 || eighths == -4 && tiny >= 0)
            && (eighths < 10 || eighths == 10 && tiny <= 0);
        agree(DoubleTried::new(value), &json!(value), holds)?;
    }

    #[test]
    fn ranges_of_amounts_agree(thousandths in -100_i64..1400, rest in 0_i64..1000) {
        let millionths = thousandths * 1000 + rest;
        let amount = Amount::from_minor(millionths, 6).unwrap();
        let holds = millionths > -50_000 && millionths <= 1_200_000;
        agree(AmountTried::new(amount.clone()), &json!(amount.to_string()), holds)?;
    }

    #[test]
    fn ranges_of_amounts_in_whole_numbers_agree(hundredths in -500_i64..500) {
        let amount = Amount::from_minor(hundredths, 2).unwrap();
        let holds = (-300..=400).contains(&hundredths);
        agree(SumTried::new(amount.clone()), &json!(amount.to_string()), holds)?;
    }

    #[test]
    fn patterns_agree(text in prop_oneof![
        "[A-D]{1,3}-?[0-4]{0,3}",
        "[éx]{0,3}",
        "\n?[A-C]{2}-[0-3]{1,2}\n?",
        text(),
    ]) {
        agree(PatternTried::new(text.clone()), &json!(text), matches_by_hand(&text))?;
    }

    #[test]
    fn choices_agree(text in prop_oneof![
        prop::sample::select(vec!["small", "very_large", "Small", "smal", ""]).prop_map(str::to_owned),
        text(),
    ]) {
        // What it reads, it is.
        let size = match text.as_str() {
            "small" => Size::Small,
            "very_large" => Size::VeryLarge,
            _ => Size::Other(text.clone()),
        };
        agree(ChoiceTried::new(size), &json!(text), true)?;
        let misnamed = ChoiceTried::new(Size::Other(text.clone()))
            .occurred_at(OffsetDateTime::UNIX_EPOCH)
            .with_id(EventId::floor(0))
            .encode();
        prop_assert_eq!(misnamed.is_err(), text == "small" || text == "very_large");
    }

    #[test]
    fn validate_functions_agree(from in 0_u8..5, to in 0_u8..5) {
        agree(SpanTried::new(Span { from, to }), &json!({"from": from, "to": to}), to >= from)?;
    }
}
