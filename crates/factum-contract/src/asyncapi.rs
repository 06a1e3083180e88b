//! AsyncAPI 3: topics as channels, event types as messages.

use std::collections::BTreeMap;

use factum_event::Contract;

use crate::export::{ExportKind, Exported};
use crate::json_schema::{self, key, text};
use crate::layout::{Language, Piece};

/// The export as AsyncAPI 3.0, in one file `asyncapi.json`.
///
/// Channels are topics, messages are event types, and each channel has the operation of the service that owns the
/// events: it sends them. The Kafka binding says that the key is the aggregate id (PROD-2). The same contracts
/// give the same bytes.
///
/// ```
/// use factum::Event;
/// use factum_contract::AsyncApi;
///
/// #[derive(Event)]
/// #[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled", unlocked)]
/// struct OrderCancelled {
///     #[event(aggregate_id)]
///     order_ref: String,
/// }
///
/// let files = AsyncApi::titled("Orders").export(&[OrderCancelled::contract()]);
/// assert!(files["asyncapi.json"].contains(r##""$ref": "#/channels/orders.cancelled""##));
/// ```
#[derive(Debug, Clone)]
pub struct AsyncApi {
    title: String,
}

impl AsyncApi {
    /// A document of this title.
    #[must_use]
    pub fn titled(title: &str) -> AsyncApi {
        AsyncApi {
            title: title.to_owned(),
        }
    }

    /// The file.
    #[must_use]
    pub fn export(&self, contracts: &[Contract]) -> Exported {
        let mut by_topic: BTreeMap<&str, Vec<&Contract>> = BTreeMap::new();
        let mut sorted: Vec<&Contract> = contracts.iter().collect();
        sorted.sort_by(|a, b| a.event_type.cmp(&b.event_type));
        for contract in &sorted {
            by_topic.entry(&contract.topic).or_default().push(contract);
        }
        let info = vec![
            text("title", &self.title),
            text("version", "1.0.0"),
            text(
                "description",
                "Events as JSON objects. Each record's key is the event's aggregate id.",
            ),
        ];
        let mut schemas = Vec::new();
        for contract in &sorted {
            schemas.extend(schemas_of(contract));
        }
        let components = vec![
            tall("messages", sorted.iter().map(|contract| message(contract))),
            tall("schemas", schemas),
        ];
        let document = Piece::Tall(vec![
            text("asyncapi", "3.0.0"),
            text("x-generated", &ExportKind::AsyncApi.mark()),
            tall("info", info),
            text("defaultContentType", "application/json"),
            tall(
                "channels",
                by_topic
                    .iter()
                    .map(|(topic, events)| channel(topic, events)),
            ),
            tall(
                "operations",
                by_topic
                    .iter()
                    .map(|(topic, events)| operation(topic, events)),
            ),
            tall("components", components),
        ]);
        let text = document.print(Language::Json, 0, 0, 0) + "\n";
        Exported::from([("asyncapi.json".to_owned(), text)])
    }
}

fn tall(name: &str, entries: impl IntoIterator<Item = (String, Piece)>) -> (String, Piece) {
    (key(name), Piece::Tall(entries.into_iter().collect()))
}

fn reference(to: &str) -> Piece {
    Piece::Tall(vec![text("$ref", to)])
}

/// What a schema is called among those of all events.
fn schema_name(contract: &Contract, snapshot: Option<&str>) -> String {
    match snapshot {
        Some(snapshot) => format!("{}.{snapshot}", contract.event_type),
        None => contract.event_type.clone(),
    }
}

fn channel(topic: &str, events: &[&Contract]) -> (String, Piece) {
    let messages = events.iter().map(|event| {
        let to = format!("#/components/messages/{}", event.event_type);
        (key(&event.event_type), reference(&to))
    });
    let kafka = tall(
        "kafka",
        [text("topic", topic), text("bindingVersion", "0.5.0")],
    );
    tall(
        topic,
        [
            text("address", topic),
            tall("messages", messages),
            tall("bindings", [kafka]),
        ],
    )
}

fn operation(topic: &str, events: &[&Contract]) -> (String, Piece) {
    let messages = events
        .iter()
        .map(|event| reference(&format!("#/channels/{topic}/messages/{}", event.event_type)))
        .collect();
    tall(
        &format!("send.{topic}"),
        [
            text("action", "send"),
            (key("channel"), reference(&format!("#/channels/{topic}"))),
            (key("messages"), Piece::Array(messages)),
        ],
    )
}

fn message(contract: &Contract) -> (String, Piece) {
    let header =
        |name: &str, about: &str| tall(name, [text("type", "string"), text("description", about)]);
    let headers = [
        text("type", "object"),
        tall(
            "properties",
            [
                header("event-id", "The event's id, as in the body."),
                header("event-type", "The event's type, as in the body."),
                header("traceparent", "The W3C trace context, if there is one."),
            ],
        ),
    ];
    let record_key = tall(
        "key",
        [
            text("type", "string"),
            text("description", "The aggregate id: aggregateId of the body."),
        ],
    );
    let kafka = tall("kafka", [record_key, text("bindingVersion", "0.5.0")]);
    let payload = format!("#/components/schemas/{}", schema_name(contract, None));
    tall(
        &contract.event_type,
        [
            text("name", &contract.event_type),
            text("title", &contract.name),
            text("contentType", "application/json"),
            tall("headers", headers),
            (key("payload"), reference(&payload)),
            tall("bindings", [kafka]),
        ],
    )
}

fn schemas_of(contract: &Contract) -> Vec<(String, Piece)> {
    let references =
        |name: &str| format!("#/components/schemas/{}", schema_name(contract, Some(name)));
    let whole = Piece::Tall(json_schema::event(contract, &references));
    let mut schemas = vec![(key(&schema_name(contract, None)), whole)];
    for (name, fields) in &contract.definitions {
        let schema = Piece::Tall(json_schema::object(fields, &references));
        schemas.push((key(&schema_name(contract, Some(name))), schema));
    }
    schemas
}
