//! The derives of Factum: `Event` and `Snapshot`.
//!
//! Users get them from the crate `factum`, beside the traits of the same names. A mistake is reported
//! where it stands, all mistakes of a struct at once, and the struct itself stays usable, so that one
//! mistake makes one error.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod attribute;
mod constraint;
mod event;
mod fields;
mod foreign;
mod names;
mod numbers;
mod past_tense;
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
/// - `unlocked`: the event is not a contract and has no lock file: for events that tests make up;
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
/// A field is called on the wire as in Rust, in camelCase. A field called `aggregate_id` is the
/// envelope's own and is not written twice. `None` is left out.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    event::derive(&parse_macro_input!(input as DeriveInput)).into()
}

/// Makes a struct of plain values one that an event may carry (EVT-X2).
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
/// On the struct, `#[snapshot(crate = "…")]` says where the crate `factum` is found. On a field, `#[snapshot(…)]` takes
/// `text`, `float` and `not_personal`, as `#[event(…)]` does, and the same rules hold.
#[proc_macro_derive(Snapshot, attributes(snapshot))]
pub fn derive_snapshot(input: TokenStream) -> TokenStream {
    snapshot::derive(&parse_macro_input!(input as DeriveInput)).into()
}
