//! Personal data: on the wire as it is, and in no text that a program shows by itself.

use std::collections::BTreeMap;

use factum_event::{
    Content, Decoded, Event as _, EventId, Personal, Poison, PoisonReason, Registry, Snapshot as _,
};
use factum_macros::{Event, Snapshot};
use time::macros::datetime;

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "customer.registered.v1",
    aggregate = "Customer",
    topic = "customers.registered",
    restricted,
    unlocked,
    crate = "factum_event"
)]
struct CustomerRegistered {
    #[event(aggregate_id)]
    customer_id: u32,
    email: Personal<String>,
    phone: Option<Personal<String>>,
    #[event(text)]
    tax_id: Personal<Option<u64>>,
    addresses: BTreeMap<String, Address>,
    birth_date: Personal<time::Date>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Address {
    city: String,
    street: Personal<String>,
    geo: Option<Box<Area>>,
}

/// Holds itself, and nothing personal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Area {
    code: String,
    parts: Vec<Self>,
    whole: Option<Box<Area>>,
}

#[derive(Debug, Snapshot)]
#[snapshot(crate = "factum_event")]
struct Household {
    note: String,
    homes: Vec<Option<Address>>,
}

fn jane() -> CustomerRegistered {
    let address = Address {
        city: "Ulm".to_owned(),
        street: Personal::new("Hidden Lane".to_owned()),
        geo: None,
    };
    CustomerRegistered {
        customer_id: 7,
        email: Personal::new("jane@example.com".to_owned()),
        phone: None,
        tax_id: Personal::new(Some(u64::MAX)),
        addresses: [("jane's home".to_owned(), address)].into(),
        birth_date: Personal::new(time::macros::date!(1990 - 04 - 01)),
    }
}

fn encoded(event: CustomerRegistered) -> Result<String, factum_event::EncodeError> {
    let envelope = event
        .occurred_at(datetime!(2026-06-01 12:00 UTC))
        .with_id(EventId::floor(1));
    Ok(String::from_utf8(envelope.encode()?).unwrap())
}

fn decoded(text: &str) -> Result<CustomerRegistered, Poison> {
    match Registry::new()
        .with::<CustomerRegistered>()
        .decode(Some(text.as_bytes()))
    {
        Decoded::Event(event) => Ok(event
            .downcast_ref::<CustomerRegistered>()
            .unwrap()
            .event()
            .clone()),
        Decoded::Poison(poison) => Err(poison),
        other => panic!("{other:?}"),
    }
}

#[test]
fn personal_data_is_on_the_wire_as_it_is() {
    let text = encoded(jane()).unwrap();
    assert!(
        text.ends_with(concat!(
            r#""customerId":7,"email":"jane@example.com","taxId":"18446744073709551615","#,
            r#""addresses":{"jane's home":{"city":"Ulm","street":"Hidden Lane"}},"birthDate":"1990-04-01"}"#
        )),
        "{text}"
    );
    assert_eq!(decoded(&text), Ok(jane()));
    // Absent as the value is.
    let without = CustomerRegistered {
        tax_id: Personal::new(None),
        ..jane()
    };
    let text = encoded(without.clone()).unwrap();
    assert!(!text.contains("taxId"), "{text}");
    assert_eq!(decoded(&text), Ok(without));
}

#[test]
fn faults_of_personal_data_show_nothing_of_it() {
    let shown = format!("{:?} {:#?}", jane(), jane());
    for secret in ["jane@", "Hidden", "18446744073709551615", "1990"] {
        assert!(!shown.contains(secret), "{shown}");
    }

    let text = encoded(jane()).unwrap();
    for (good, bad, path) in [
        (
            r#""jane@example.com""#,
            r#"["jane@example.com"]"#,
            "$.email",
        ),
        (r#""Hidden Lane""#, "4711", "$.addresses[*].street"),
        ("18446744073709551615", "jane", "$.taxId"),
        ("1990-04-01", "1.4.1990", "$.birthDate"),
    ] {
        assert!(text.contains(good), "{good}");
        let poison = decoded(&text.replace(good, bad)).unwrap_err();
        assert_eq!(poison.reason(), PoisonReason::InvalidField);
        assert_eq!(poison.path(), path);
        let told = format!("{poison} {poison:?}");
        for secret in ["jane", "Hidden", "4711", "1990"] {
            assert!(!told.contains(secret), "{told}");
        }
    }

    let error = encoded(CustomerRegistered {
        email: Personal::new("jane\0@example.com".to_owned()),
        ..jane()
    })
    .unwrap_err();
    let told = format!("{error} {error:?}");
    assert!(told.contains("$.email") && !told.contains("jane"), "{told}");
}

#[test]
fn a_snapshot_says_where_its_personal_data_is() {
    assert_eq!(Address::CONTENT.personal, Some("Address.street"));
    assert_eq!(Household::CONTENT.personal, Some("Address.street"));
    assert_eq!(Area::CONTENT, Content::PLAIN);
}
