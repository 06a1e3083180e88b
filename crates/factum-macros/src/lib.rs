//! The derives of Factum: `Event` and `Snapshot`.
//!
//! Users get them from the crate `factum`, beside the traits of the same names. A mistake is reported
//! where it stands, all mistakes of a struct at once, and the struct itself stays usable, so that one
//! mistake makes one error.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod attribute;
mod event;
mod fields;
mod names;
mod snapshot;

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
///     product_id: u64,
///     quantity: u32,
/// }
///
/// assert_eq!(OrderConfirmed::EVENT_TYPE, "order.confirmed.v1");
/// ```
///
/// On the struct, `#[event(…)]` takes
///
/// - `kind`: the type on the wire, `<aggregate>.<event>.v<N>` (EVT-2);
/// - `aggregate`: the type of the aggregate, which the kind begins with (EVT-2);
/// - `topic`: the Kafka topic (OBX-3);
/// - `restricted`: the topic is for few, so that the event may carry personal data (SEC-3);
/// - `unlocked`: the event is not a contract and has no lock file: for events that tests make up;
/// - `supersedes = OrderConfirmedV1`: the Rust type of the older version. Publishing this one then writes that one,
///   too, with the same event id, and a consumer of this one takes that one, too (EVT-3). It needs a conversion
///   each way, `From` or `TryFrom`: see `factum::ConversionError`;
/// - `crate`: where the crate `factum` is found, `"::factum"` if not given.
///
/// On a field it takes
///
/// - `aggregate_id`, on exactly one: the key of the record (PROD-2);
/// - `text`: write the value as text, for integers beyond 2^53-1 and for amounts that a double can't
///   hold.
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
///     product_id: u64,
///     #[snapshot(text)] // "0.123456789012345678901" keeps every digit
///     unit_price: Amount,
///     note: Option<String>,
/// }
/// ```
///
/// On the struct, `#[snapshot(crate = "…")]` says where the crate `factum` is found; on a field,
/// `#[snapshot(text)]` writes the value as text.
#[proc_macro_derive(Snapshot, attributes(snapshot))]
pub fn derive_snapshot(input: TokenStream) -> TokenStream {
    snapshot::derive(&parse_macro_input!(input as DeriveInput)).into()
}
