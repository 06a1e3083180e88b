//! The derives of Factum: `Event` and `Snapshot`.
//!
//! Users get them from the crate `factum`, beside the traits of the same names. A mistake is reported
//! where it stands, all mistakes of a struct at once, and the struct itself stays usable, so that one
//! mistake makes one error.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod attribute;
mod choice;
mod constraint;
mod event;
mod fields;
mod foreign;
mod hook;
mod names;
mod newtype;
mod numbers;
mod past_tense;
mod pattern;
mod personal;
mod reason;
mod snapshot;
mod verbs;
mod wire_type;
mod words;

/// Makes a struct an event.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::{Event, Snapshot};
/// use factum::{Event as _, Money};
/// use uuid::Uuid;
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
/// struct OrderConfirmed {
///     #[event(aggregate_id)]
///     order_id: Uuid,
///     total: Money,
///     note: Option<String>,
///     items: Vec<OrderItem>,
/// }
///
/// #[derive(Debug, Snapshot)]
/// struct OrderItem {
///     product_id: u32,
///     quantity: u32,
/// }
///
/// assert_eq!(OrderConfirmed::EVENT_TYPE, "order.confirmed.v1");
/// ```
///
/// The struct's name ends with a verb in the past tense, as `OrderConfirmed` or `OrderPaidOut` do, before a `V2` and
/// an `Event` at its end; the kind's middle part has the same words (EVT-1).
///
/// On the struct, `#[event(…)]` takes
///
/// - `kind`: the type on the wire, `<aggregate>.<event>.v<N>` (EVT-2);
/// - `aggregate`: the type of the aggregate, which the kind begins with (EVT-2);
/// - `topic`: the Kafka topic (OBX-3);
/// - `restricted`: the topic is for few, so that the event may carry personal data (SEC-3);
/// - `unlocked`: the event is not a contract and has no lock file: for events that tests make up, and for those within
///   a function;
/// - `supersedes = OrderConfirmedV1`: the Rust type of the older version. Publishing this one then writes that one,
///   too, with the same event id, and a consumer of this one takes that one, too (EVT-3). It needs a conversion
///   each way, `From` or `TryFrom`: see `factum::ConversionError`;
/// - `validate`: a function that sees all fields together, `fn(&Self) -> Result<(), Invalid>`;
/// - `name` with `because`: the struct's name, and the reason why it is not in the past tense (EVT-1). Another name
///   than the struct's is an error, so that the exception doesn't outlive a new name;
/// - `crate`: where the crate `factum` is found, `"::factum"` if not given.
///
/// On a field it takes
///
/// - `aggregate_id`, on exactly one: the key of the record (PROD-2);
/// - `text`: write the value as text, for integers beyond 2^53-1 and for amounts that a double can't
///   hold. An integer of 64 bits needs it, or a `range(min = …, max = …)` within ±(2^53-1);
/// - `float = "reason"`: an `f64` is right here, since the value is measured and no amount;
/// - `not_personal = "reason"`: the field's name sounds like personal data, and it is about no person.
///
/// A field whose name means personal data, such as `email` or `billing_address`, has a type that says so:
/// `Personal<T>`, or a snapshot that holds one. Only an event that is `restricted` compiles with one in it, however
/// deep (EVT-X3, SEC-3). A reason has three words or more.
///
/// and constraints. What breaks one is an `EncodeError::Invalid` for who publishes, and poison for who
/// reads; both name path and rule, never the value. The contract shows them.
///
/// | constraint | fits | meaning |
/// |---|---|---|
/// | `length(min = 1, max = 40)` | String | so many characters, that is Unicode scalar values |
/// | `pattern = "[A-Z]{3}"` | String | the whole text matches; what means another thing in JavaScript doesn't compile |
/// | `code = "country"`, `"language"`, `"currency"` | String | a code of ISO 3166-1 alpha-2, ISO 639-1, ISO 4217 |
/// | `range(min = 1, max = 10)` | integers, f64, Amount, PositiveAmount | both bounds included; those of an amount may be text, `"0.01"` |
/// | `range(greater_than = 0, less_than = "1000")` | Amount, PositiveAmount | both bounds excluded |
/// | `items(min = 1, max = 100)` | Vec | so many items |
///
/// In an `Option` they look at the value that is there; in a `Vec` all but `items` look at each item. Bounds are
/// literals, and each may be left out.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Event;
/// use factum::{Amount, EncodeError, Event as _, EventId, Invalid};
/// use time::OffsetDateTime;
///
/// #[derive(Debug, Event)]
/// #[event(kind = "parcel.sent.v1", aggregate = "Parcel", topic = "parcels.sent", unlocked)]
/// #[event(validate = lighter_inside)]
/// struct ParcelSent {
///     #[event(aggregate_id)]
///     parcel_id: u32,
///     #[event(pattern = "[A-Z]{3}-[0-9]{4}")]
///     track: String,
///     #[event(items(max = 100), length(min = 1, max = 20))]
///     labels: Vec<String>,
///     #[event(range(greater_than = 0, max = "999.99"))]
///     price: Amount,
///     gross_grams: u32,
///     net_grams: u32,
/// }
///
/// fn lighter_inside(sent: &ParcelSent) -> Result<(), Invalid> {
///     if sent.net_grams <= sent.gross_grams {
///         Ok(())
///     } else {
///         Err(Invalid::new("netGrams", "no more than `grossGrams`"))
///     }
/// }
///
/// let sent = ParcelSent {
///     parcel_id: 7,
///     track: "ABC-0001".to_owned(),
///     labels: vec!["fragile".to_owned(), String::new()],
///     price: "10.50".parse()?,
///     gross_grams: 500,
///     net_grams: 400,
/// };
/// let error = sent
///     .occurred_at(OffsetDateTime::UNIX_EPOCH)
///     .with_id(EventId::floor(0))
///     .encode()
///     .unwrap_err();
/// assert!(matches!(
///     error,
///     EncodeError::Invalid { path, rule: "length", .. } if path == "$.labels[1]"
/// ));
/// # Ok::<(), factum::AmountError>(())
/// ```
///
/// A field is called on the wire as in Rust, in camelCase. A field called `aggregate_id` is the
/// envelope's own and is not written twice; it takes `range` and no other constraint. `None` is left out.
///
/// The derive also adds a test, `contract_of_order_confirmed`, that compares the event with its lock file
/// `contracts/order.confirmed.v1.json` (EVT-3). It fails until the file is there and committed:
/// `FACTUM_CONTRACTS=update cargo test` writes what is new or compatible, and never what breaks a reader. The test stands
/// beside the struct, which must lie in a module: within a function nothing runs it, and rustc warns (`cannot test inner
/// items`).
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    event::derive(&parse_macro_input!(input as DeriveInput)).into()
}

/// Makes a struct of plain values, or an enum of named ones, what an event may carry (EVT-X2).
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::Snapshot;
/// use factum::Amount;
///
/// #[derive(Debug, Snapshot)]
/// struct OrderItem {
///     product_id: u32,
///     #[snapshot(text)] // "0.123456789012345678901" keeps every digit
///     unit_price: Amount,
///     note: Option<String>,
/// }
/// ```
///
/// On the struct, `#[snapshot(…)]` takes `crate`, where the crate `factum` is found, and `validate`, a function
/// that sees all fields together. On a field it takes `text`, `float`, `not_personal` and the constraints, as
/// [`derive(Event)`](macro@Event) does, and the same rules hold.
///
/// # Newtypes
///
/// A struct of one nameless field is on the wire what that field is. `#[snapshot(text)]` on the field writes an integer
/// as text, and `#[snapshot(aggregate_id)]` on the struct lets it be an aggregate id (PROD-2):
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::{Event, Snapshot};
/// use factum::Event as _;
/// use uuid::Uuid;
///
/// #[derive(Debug, Snapshot)]
/// #[snapshot(aggregate_id)]
/// struct OrderId(Uuid);
///
/// #[derive(Debug, Snapshot)]
/// struct Serial(#[snapshot(text)] u64);
///
/// #[derive(Debug, Event)]
/// #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
/// struct OrderConfirmed {
///     #[event(aggregate_id)]
///     order_id: OrderId,
///     serial: Serial,
/// }
///
/// let confirmed = OrderConfirmed { order_id: OrderId(Uuid::from_u128(7)), serial: Serial(u64::MAX) };
/// assert_eq!(confirmed.aggregate_id()?.as_str(), "00000000-0000-0000-0000-000000000007");
/// # Ok::<(), factum::AggregateIdError>(())
/// ```
///
/// # Enums
///
/// An enum is text on the wire: the variant's name in snake_case, or what `#[snapshot(name = "…")]`
/// says. Variants carry no data, but for one that may be the catch-all, `#[snapshot(other)]` (`#[event(other)]`
/// means the same): it keeps a value that no variant names, and writes it back unchanged, so that a
/// consumer reads values which came after it (public case 47). Without it such a value is poison, by the
/// rule `choice`. A catch-all that holds a named value is an `EncodeError::Invalid`, since it would be read
/// back as that variant.
///
/// ```
/// # extern crate factum_event as factum;
/// # use factum_macros::{Event, Snapshot};
/// # use factum::{Decoded, Registry};
/// #[derive(Debug, PartialEq, Snapshot)]
/// enum Status {
///     Paid,
///     PartlyRefunded, // "partly_refunded"
///     #[snapshot(name = "SENT")]
///     Sent,
///     #[snapshot(other)]
///     Other(String),
/// }
///
/// #[derive(Debug, Event)]
/// #[event(kind = "invoice.settled.v1", aggregate = "Invoice", topic = "invoices.settled", unlocked)]
/// struct InvoiceSettled {
///     #[event(aggregate_id)]
///     invoice_id: u32,
///     status: Status,
/// }
///
/// let value = br#"{
///     "eventId": "01935c3e-7c1a-7000-8000-000000000001",
///     "eventType": "invoice.settled.v1",
///     "occurredAt": "2026-06-01T12:00:00Z",
///     "aggregateType": "Invoice",
///     "aggregateId": "7",
///     "invoiceId": 7,
///     "status": "refunded_v2"
/// }"#;
/// let registry = Registry::new().with::<InvoiceSettled>();
/// let Decoded::Event(event) = registry.decode(Some(value)) else { panic!() };
/// let settled = event.downcast::<InvoiceSettled>().unwrap();
/// assert_eq!(settled.status, Status::Other("refunded_v2".to_owned()));
/// ```
#[proc_macro_derive(Snapshot, attributes(snapshot, event))]
pub fn derive_snapshot(input: TokenStream) -> TokenStream {
    snapshot::derive(&parse_macro_input!(input as DeriveInput)).into()
}
