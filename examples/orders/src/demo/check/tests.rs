//! Each anomaly is caught: a sound history is spoiled in one way, and the checker must say so.

use std::collections::BTreeMap;

use factum::uuid::Uuid;

use super::super::facts::{DeadLetter, Injected, Mail, Partition, Record, Unpublished};
use super::super::plan::is_billed;
use super::super::report::Report;
use super::*;

const BILLING: &str = "billing-order-confirmed";
const MAILER: &str = "mailer-invoice-issued";

fn order_event(order: i64) -> Uuid {
    Uuid::from_u128(1_000 + order as u128)
}

fn invoice_event(invoice: i64) -> Uuid {
    Uuid::from_u128(2_000 + invoice as u128)
}

/// Four orders under two references; one that can't be billed, set aside; in each topic a repeat, a
/// poison, a stranger and a tombstone.
fn sound() -> Facts {
    let order = |id: i64, order_ref: &str, currency: &str| Order {
        id,
        order_ref: order_ref.to_owned(),
        total_amount: id.into(),
        currency: currency.to_owned(),
        confirmed: true,
    };
    let invoice = |id: i64, order_ref: &str, order_id: i64| Invoice {
        id,
        event_id: order_event(order_id),
        order_ref: order_ref.to_owned(),
        order_id,
        total_amount: order_id.into(),
        currency: "EUR".to_owned(),
    };
    let mail = |id: i64, order_ref: &str, invoice_id: i64| Mail {
        id,
        event_id: invoice_event(invoice_id),
        invoice_ref: format!("INV-{order_ref}"),
        invoice_id,
    };
    let letter = |consumer: &str, topic: &str, offset: i64, reason: &str| DeadLetter {
        consumer: consumer.to_owned(),
        topic: topic.to_owned(),
        position: Position {
            partition: 0,
            offset,
        },
        reason: reason.to_owned(),
    };
    let confirmed = |order: i64| Content::Event {
        event_id: order_event(order),
        number: order,
    };
    let issued = |invoice: i64| Content::Event {
        event_id: invoice_event(invoice),
        number: invoice,
    };
    let poison = || Content::Poison {
        reason: "not_object".to_owned(),
    };
    Facts {
        orders: vec![
            order(1, "A", "EUR"),
            order(2, "B", "EUR"),
            order(3, "A", "EUR"),
            order(4, "B", "NOK"),
        ],
        invoices: vec![
            invoice(10, "A", 1),
            invoice(11, "B", 2),
            invoice(12, "A", 3),
        ],
        mails: vec![mail(20, "A", 10), mail(21, "B", 11), mail(22, "A", 12)],
        dead_letters: vec![
            letter(BILLING, "orders.confirmed", 3, "permanent"),
            letter(BILLING, "orders.confirmed", 5, "not_object"),
            letter(MAILER, "invoices.issued", 4, "not_object"),
        ],
        unpublished: Vec::new(),
        outbox_rows: 7,
        topics: vec![
            topic(
                "orders.confirmed",
                BILLING,
                [
                    ("A", confirmed(1)),
                    ("B", confirmed(2)),
                    ("A", confirmed(3)),
                    ("B", confirmed(4)),
                    ("A", confirmed(1)),
                    ("A", poison()),
                    ("B", Content::UnknownType),
                    ("A", Content::Tombstone),
                ],
            ),
            topic(
                "invoices.issued",
                MAILER,
                [
                    ("INV-A", issued(10)),
                    ("INV-B", issued(11)),
                    ("INV-A", issued(12)),
                    ("INV-B", issued(11)),
                    ("INV-A", poison()),
                    ("INV-B", Content::UnknownType),
                    ("INV-B", Content::Tombstone),
                ],
            ),
        ],
    }
}

fn topic<const N: usize>(name: &str, consumer: &str, records: [(&str, Content); N]) -> Topic {
    let record = |(offset, (key, content)): (usize, (&str, Content))| Record {
        position: Position {
            partition: 0,
            offset: offset as i64,
        },
        key: key.to_owned(),
        content,
    };
    let ends = Partition {
        low: 0,
        high: N as i64,
        committed: Some(N as i64),
    };
    Topic {
        name: name.to_owned(),
        consumer: consumer.to_owned(),
        partitions: BTreeMap::from([(0, ends)]),
        records: records.into_iter().enumerate().map(record).collect(),
        injected: Injected {
            duplicates: 1,
            poison: 1,
            unknown_types: 1,
            tombstones: 1,
        },
    }
}

/// What the checker says about the history that `spoil` made.
fn found(spoil: impl FnOnce(&mut Facts)) -> Vec<String> {
    let mut facts = sound();
    spoil(&mut facts);
    check(&facts, is_billed)
        .iter()
        .map(Anomaly::to_string)
        .collect()
}

/// The checker says this and nothing else.
fn finds_only(expected: &str, spoil: impl FnOnce(&mut Facts)) {
    assert_eq!(found(spoil), [expected]);
}

fn finds(expected: &str, spoil: impl FnOnce(&mut Facts)) {
    let found = found(spoil);
    assert!(
        found.iter().any(|anomaly| anomaly == expected),
        "{expected}\nnot in {found:#?}"
    );
}

fn append(topic: &mut Topic, key: &str, content: Content) {
    let ends = topic.partitions.get_mut(&0).unwrap();
    let position = Position {
        partition: 0,
        offset: ends.high,
    };
    topic.records.push(Record {
        position,
        key: key.to_owned(),
        content,
    });
    ends.high += 1;
    ends.committed = Some(ends.high);
}

#[test]
fn a_sound_history_has_no_anomaly() {
    assert_eq!(found(|_| {}), [""; 0]);
}

#[test]
fn the_report_of_a_sound_history_adds_up() {
    let facts = sound();
    let report = Report::new(&facts, 2, std::time::Duration::from_secs(2), Vec::new());
    assert_eq!(
        (
            report.events,
            report.deliveries,
            report.effects,
            report.duplicates
        ),
        (7, 15, 6, 2)
    );
    assert_eq!((report.set_aside, report.skipped, report.kills), (3, 4, 2));
    assert_eq!(
        report.deliveries,
        report.effects + report.duplicates + report.set_aside + report.skipped
    );
    assert_eq!(
        report.json(),
        r#"{"anomalies":0,"deliveries":15,"duplicates":2,"effects":6,"events":7,"events_per_second":3.5,"kills":2,"set_aside":3}"#
    );
}

#[test]
fn a_placed_order_that_is_not_confirmed_is_lost() {
    finds("lost: order 3 of A was placed and is not confirmed", |f| {
        f.orders[2].confirmed = false;
    });
}

#[test]
fn a_confirmed_order_without_invoice_is_lost() {
    finds("lost: order 3 of A has no invoice", |f| {
        f.invoices.pop();
    });
}

#[test]
fn an_invoice_without_mail_is_lost() {
    finds_only("lost: invoice 12 has no mail", |f| {
        f.mails.pop();
    });
}

#[test]
fn a_second_invoice_is_a_duplicate() {
    finds("duplicate: order 1 of A has 2 invoices", |f| {
        let again = Invoice {
            id: 13,
            ..f.invoices[0].clone()
        };
        f.invoices.push(again);
    });
}

#[test]
fn a_second_mail_is_a_duplicate() {
    finds("duplicate: invoice 10 has 2 mails", |f| {
        let again = Mail {
            id: 23,
            ..f.mails[0].clone()
        };
        f.mails.push(again);
    });
}

#[test]
fn an_invoice_for_nothing_is_a_phantom() {
    finds(
        "phantom: invoice 13 is for order 9, which nobody placed",
        |f| {
            let phantom = Invoice {
                id: 13,
                order_id: 9,
                ..f.invoices[0].clone()
            };
            f.invoices.push(phantom);
        },
    );
}

#[test]
fn an_invoice_that_must_not_be_is_a_phantom() {
    finds(
        "phantom: order 4 of B must not be billed and has 1 invoices",
        |f| {
            let phantom = Invoice {
                id: 13,
                order_id: 4,
                order_ref: "B".into(),
                ..f.invoices[0].clone()
            };
            f.invoices.push(phantom);
        },
    );
}

#[test]
fn a_mail_for_nothing_is_a_phantom() {
    finds(
        "phantom: mail 23 is for invoice 99, which is not there",
        |f| {
            let phantom = Mail {
                id: 23,
                invoice_id: 99,
                ..f.mails[0].clone()
            };
            f.mails.push(phantom);
        },
    );
}

#[test]
fn an_effect_of_another_event_is_a_phantom() {
    let foreign = Uuid::from_u128(5);
    finds_only(
        "phantom: mail 20 names event 00000000-0000-0000-0000-000000000005, which is no such event in invoices.issued",
        |f| f.mails[0].event_id = foreign,
    );
}

#[test]
fn invoices_in_the_wrong_order_are_an_inversion() {
    finds_only(
        "inversion: invoices of A: order 1 comes after order 3",
        |f| {
            // Written the other way round: the ids follow the writing.
            let (first, third) = (f.invoices[0].clone(), f.invoices[2].clone());
            f.invoices[0] = Invoice {
                id: first.id,
                ..third.clone()
            };
            f.invoices[2] = Invoice {
                id: third.id,
                ..first
            };
        },
    );
}

#[test]
fn mails_in_the_wrong_order_are_an_inversion() {
    finds_only(
        "inversion: mails of INV-A: invoice 10 comes after invoice 12",
        |f| {
            f.mails.swap(0, 2);
        },
    );
}

#[test]
fn records_in_the_wrong_order_are_an_inversion() {
    finds_only(
        "inversion: records in orders.confirmed of A: number 1 comes after number 3",
        |f| {
            let records = &mut f.topics[0].records;
            let first = records[0].content.clone();
            records[0].content = std::mem::replace(&mut records[2].content, first);
        },
    );
}

#[test]
fn a_key_in_two_partitions_is_an_inversion() {
    finds(
        "inversion: orders.confirmed: A is in partitions {0, 1}",
        |f| {
            f.topics[0].records[4].position.partition = 1;
        },
    );
}

#[test]
fn an_invoice_that_says_something_else_is_wrong() {
    finds_only(
        "wrong content: invoice 10 says something else than order 1",
        |f| {
            f.invoices[0].total_amount = 999.into();
        },
    );
    finds_only(
        "wrong content: invoice 10 says something else than order 1",
        |f| {
            f.invoices[0].currency = "USD".to_owned();
        },
    );
}

#[test]
fn an_event_that_is_not_in_the_topic_is_lost() {
    finds("lost: order 2 has no event in orders.confirmed", |f| {
        f.topics[0].records.remove(1);
    });
}

#[test]
fn a_fact_with_two_event_ids_is_a_duplicate() {
    finds_only(
        "duplicate: order 1 has 2 events with different ids in orders.confirmed",
        |f| {
            append(
                &mut f.topics[0],
                "A2",
                Content::Event {
                    event_id: Uuid::from_u128(7),
                    number: 1,
                },
            );
        },
    );
}

#[test]
fn an_event_of_nothing_is_a_phantom() {
    finds_only(
        "phantom: invoices.issued has an event of invoice 99, which is not there",
        |f| {
            append(
                &mut f.topics[1],
                "INV-A",
                Content::Event {
                    event_id: Uuid::from_u128(7),
                    number: 99,
                },
            );
        },
    );
    finds_only(
        "phantom: orders.confirmed/0@8 was written by nobody here",
        |f| {
            append(&mut f.topics[0], "A", Content::Foreign);
        },
    );
}

#[test]
fn a_poison_that_is_not_set_aside_is_found() {
    finds_only(
        "dead letter: mailer-invoice-issued: invoices.issued/0@4 (not_object) is not set aside",
        |f| {
            f.dead_letters.remove(2);
        },
    );
}

#[test]
fn a_poison_that_is_set_aside_twice_is_found() {
    finds_only(
        "dead letter: billing-order-confirmed: orders.confirmed/0@5 is set aside 2 times",
        |f| {
            let again = f.dead_letters[1].clone();
            f.dead_letters.push(again);
        },
    );
}

#[test]
fn a_wrong_reason_is_found() {
    finds_only(
        "dead letter: billing-order-confirmed: orders.confirmed/0@5 is set aside as empty, expected not_object",
        |f| f.dead_letters[1].reason = "empty".to_owned(),
    );
}

#[test]
fn a_sound_record_that_is_set_aside_is_found() {
    finds_only(
        "dead letter: billing-order-confirmed: orders.confirmed/0@0 is set aside as attempts_exhausted, and is sound",
        |f| {
            let position = Position {
                partition: 0,
                offset: 0,
            };
            let reason = "attempts_exhausted".to_owned();
            let letter = DeadLetter {
                position,
                reason,
                ..f.dead_letters[0].clone()
            };
            f.dead_letters.push(letter);
        },
    );
}

#[test]
fn a_letter_of_a_consumer_that_does_not_read_the_topic_is_found() {
    finds(
        "dead letter: somebody: orders.confirmed/0@5 is set aside as not_object, and is sound",
        |f| {
            f.dead_letters[1].consumer = "somebody".to_owned();
        },
    );
}

#[test]
fn an_order_that_breaks_the_rule_must_be_set_aside() {
    finds_only(
        "dead letter: billing-order-confirmed: orders.confirmed/0@3 (permanent) is not set aside",
        |f| {
            f.dead_letters.remove(0);
        },
    );
}

#[test]
fn an_event_left_in_the_outbox_is_found() {
    let left = |set_aside| Unpublished {
        event_id: Uuid::nil(),
        event_type: "order.confirmed.v1".to_owned(),
        set_aside,
    };
    let name = "order.confirmed.v1 00000000-0000-0000-0000-000000000000";
    finds_only(&format!("outbox: {name} was never sent"), |f| {
        f.unpublished.push(left(false));
    });
    finds_only(&format!("outbox: {name} was set aside by the relay"), |f| {
        f.unpublished.push(left(true));
    });
}

#[test]
fn an_offset_that_is_not_at_the_end_is_found() {
    for (committed, told) in [(Some(7), 7), (None, 0), (Some(9), 9)] {
        let text = format!(
            "offset: billing-order-confirmed: orders.confirmed/0 is committed at {told}, and ends at 8"
        );
        finds_only(&text, |f| {
            f.topics[0].partitions.get_mut(&0).unwrap().committed = committed;
        });
    }
}

#[test]
fn records_that_the_broker_dropped_are_found() {
    finds_only(
        "truncated: orders.confirmed/0 begins at offset 1: the broker has dropped records",
        |f| {
            // The first record is one that is repeated later, so nothing else shows.
            f.topics[0].partitions.get_mut(&0).unwrap().low = 1;
            f.topics[0].records.remove(0);
            let records = &mut f.topics[0].records;
            let repeat = records[3].content.clone();
            records[3].content = std::mem::replace(&mut records[1].content, repeat);
        },
    );
    finds("truncated: orders.confirmed/0 holds 7 of 8 records", |f| {
        f.topics[0].records.remove(4);
    });
}

#[test]
fn an_injection_that_did_not_arrive_is_found() {
    for (what, place) in [("poison", 5), ("unknown types", 6), ("tombstones", 7)] {
        finds(
            &format!("lost: orders.confirmed: 0 of 1 {what} are there"),
            |f| {
                f.topics[0].records.remove(place);
            },
        );
    }
}
