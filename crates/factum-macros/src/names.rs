//! The names that an event carries, and the rules for them.

use syn::Ident;
use syn::ext::IdentExt;

/// The envelope's fields: no business field may take their place.
pub(crate) const ENVELOPE_FIELDS: [&str; 5] = [
    "eventId",
    "eventType",
    "occurredAt",
    "aggregateType",
    "aggregateId",
];

/// The name of a field on the wire: `order_id` is `orderId`.
pub(crate) fn wire_name(field: &Ident) -> String {
    let field = field.unraw().to_string();
    let mut name = String::with_capacity(field.len());
    for word in field.split('_').filter(|word| !word.is_empty()) {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if !name.is_empty() => name.extend(first.to_uppercase()),
            Some(first) => name.push(first),
            None => {}
        }
        name.push_str(letters.as_str());
    }
    name
}

/// What is wrong with an event type, if anything.
///
/// The same rule as `EventType` in factum-event, which this crate can't depend on: it would make the
/// facade's edge to the macros an edge to the core. A test below compares the two.
pub(crate) fn check_kind(kind: &str) -> Result<(), &'static str> {
    const FORM: &str = "an event type is `<aggregate>.<event>.v<N>` in lower case, such as \
                        \"order.confirmed.v1\" (EVT-2)";
    const VERSION: &str = "an event type ends with its version, 1 or more: `.v1` (EVT-2)";
    if kind.len() > 128 {
        return Err("an event type has at most 128 bytes (EVT-2)");
    }
    let parts: Vec<&str> = kind.split('.').collect();
    let [aggregate, event, version] = parts[..] else {
        return Err(FORM);
    };
    let digits = version.strip_prefix('v').ok_or(VERSION)?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    if !plain || digits.parse::<u32>().is_err() {
        return Err(VERSION);
    }
    let is_word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    if is_word(aggregate) && is_word(event) {
        Ok(())
    } else {
        Err(FORM)
    }
}

/// Whether a kind's first part names the aggregate: `customer-order` and `CustomerOrder` do.
pub(crate) fn names_aggregate(kind: &str, aggregate: &str) -> bool {
    let plain = |text: &str| {
        text.chars()
            .filter(|c| !matches!(c, '-' | '_'))
            .collect::<String>()
            .to_ascii_lowercase()
    };
    plain(kind.split('.').next().unwrap_or_default()) == plain(aggregate)
}

/// What is wrong with the name of an aggregate, if anything.
pub(crate) fn check_aggregate(aggregate: &str) -> Result<(), &'static str> {
    let named = aggregate.starts_with(|c: char| c.is_ascii_alphabetic())
        && aggregate
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && aggregate.len() <= 128;
    if named {
        Ok(())
    } else {
        Err("an aggregate type is a name of ASCII letters and digits, such as \"Order\" (EVT-2)")
    }
}

/// What is wrong with the name of a topic, if anything: Kafka's own rule.
pub(crate) fn check_topic(topic: &str) -> Result<(), &'static str> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if topic.is_empty() {
        Err("the topic is empty: name the topic that carries the event (OBX-3)")
    } else if topic == "." || topic == ".." || !topic.bytes().all(legal) {
        Err("Kafka allows letters, digits, `.`, `_` and `-` in the name of a topic (OBX-3)")
    } else if topic.len() > 249 {
        Err("Kafka allows at most 249 characters in the name of a topic (OBX-3)")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_camel_case_on_the_wire() {
        for (field, name) in [
            ("order_id", "orderId"),
            ("id", "id"),
            ("a_b_c", "aBC"),
            ("line_2", "line2"),
            ("_hidden", "hidden"),
            ("orderId", "orderId"),
        ] {
            assert_eq!(
                wire_name(&Ident::new(field, proc_macro2::Span::call_site())),
                name
            );
        }
        let raw = Ident::new_raw("type", proc_macro2::Span::call_site());
        assert_eq!(wire_name(&raw), "type");
    }

    #[test]
    fn a_kind_is_what_the_core_takes_for_an_event_type() {
        for kind in [
            "order.confirmed.v1",
            "customer-order.paid_out.v12",
            "a.b.v4294967295",
            "a.b.v4294967296",
            "",
            "order",
            "order.confirmed",
            "order.confirmed.1",
            "order.confirmed.v",
            "order.confirmed.v0",
            "order.confirmed.v01",
            "order.confirmed.v+1",
            "order.confirmed.v1.x",
            "Order.confirmed.v1",
            "order.Confirmed.v1",
            "order.confirmed.V1",
            ".confirmed.v1",
            "order..v1",
            "1order.confirmed.v1",
            "order.con firmed.v1",
            "order.confirmed.v1 ",
            "örder.confirmed.v1",
            &format!("{}.confirmed.v1", "a".repeat(115)),
            &format!("{}.confirmed.v1", "a".repeat(116)),
        ] {
            let core = kind.parse::<factum_event::EventType>();
            assert_eq!(check_kind(kind).is_ok(), core.is_ok(), "{kind:?}");
        }
    }

    #[test]
    fn a_kind_names_its_aggregate_however_it_is_joined() {
        for aggregate in [
            "CustomerOrder",
            "customerOrder",
            "Customer_Order",
            "customerorder",
        ] {
            for kind in [
                "customer-order.paid.v1",
                "customer_order.paid.v1",
                "customerorder.paid.v1",
            ] {
                assert!(names_aggregate(kind, aggregate), "{kind} {aggregate}");
            }
        }
        assert!(!names_aggregate("order.paid.v1", "CustomerOrder"));
    }

    #[test]
    fn topics_follow_kafkas_rule() {
        assert!(check_topic("orders.confirmed-v1_x").is_ok());
        assert!(check_topic(&"a".repeat(249)).is_ok());
        for topic in ["", ".", "..", "a b", "a/b", "ä", &"a".repeat(250)] {
            assert!(check_topic(topic).is_err(), "{topic:?}");
        }
    }
}
