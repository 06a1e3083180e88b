//! The fields of an event or a snapshot, and the code that writes and reads them.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Field, Fields, Ident, Type};

use crate::attribute::{Errors, arguments, refuse_serde};
use crate::constraint::{self, Constraints, keeps_integers_safe};
use crate::names::wire_name;
use crate::reason::check_reason;
use crate::{foreign, numbers, personal};

/// The struct whose fields are looked at.
pub(crate) enum Carrier<'a> {
    Event {
        ident: &'a Ident,
        /// Empty after a mistake.
        topic: &'a str,
        restricted: bool,
    },
    Snapshot {
        ident: &'a Ident,
    },
}

impl Carrier<'_> {
    pub(crate) fn ident(&self) -> &Ident {
        match self {
            Carrier::Event { ident, .. } | Carrier::Snapshot { ident } => ident,
        }
    }

    /// The name of its attribute.
    pub(crate) fn attribute(&self) -> &'static str {
        match self {
            Carrier::Event { .. } => "event",
            Carrier::Snapshot { .. } => "snapshot",
        }
    }
}

/// What a field's attribute says of it.
#[derive(Default)]
pub(crate) struct Claims {
    /// Where `aggregate_id` stands.
    pub(crate) aggregate_id: Option<Span>,
    pub(crate) text: bool,
    /// A float is right here, for a reason.
    pub(crate) float: bool,
    /// The field is about no person, for a reason.
    pub(crate) not_personal: bool,
    /// Whether its range keeps integers within what JavaScript holds.
    pub(crate) range_is_safe: Option<bool>,
    /// `length(…)` and its like.
    constraints: Constraints,
}

impl Claims {
    /// Reads `#[event(…)]` or `#[snapshot(…)]` of a field.
    pub(crate) fn read(field: &Field, attribute: &'static str, errors: &mut Errors) -> Claims {
        let mut claims = Claims::default();
        let mut allowed = vec!["text", "float", "not_personal"];
        if attribute == "event" {
            allowed.insert(0, "aggregate_id");
        }
        allowed.extend(constraint::KEYS);
        let arguments = arguments(&field.attrs, attribute, &allowed, errors).good;
        for argument in &arguments {
            let key = argument.key.to_string();
            match key.as_str() {
                "aggregate_id" => {
                    argument.check_flag(errors);
                    claims.aggregate_id = Some(argument.key.span());
                }
                "text" => {
                    argument.check_flag(errors);
                    claims.text = true;
                }
                "float" | "not_personal" => {
                    if let Some(reason) = argument.text(errors) {
                        check_reason(&key, &reason, errors);
                    }
                    // Also after a mistake: one is enough.
                    if key == "float" {
                        claims.float = true;
                    } else {
                        claims.not_personal = true;
                    }
                }
                "range" => claims.range_is_safe = Some(keeps_integers_safe(argument, &field.ty)),
                _ => {}
            }
        }
        if let Some(ident) = &field.ident {
            claims.constraints = Constraints::read(ident, &arguments, errors);
        }
        claims
    }
}

/// Reports what may not stand in an event or a snapshot; what only types tell is asked for by the code that is
/// returned.
pub(crate) fn check_contents(
    fields: &[WireField<'_>],
    carrier: &Carrier<'_>,
    errors: &mut Errors,
) -> TokenStream {
    let mut assertions = TokenStream::new();
    for field in fields {
        if !foreign::check(field.ty, errors) {
            assertions.extend(personal::check(field, carrier, errors));
            assertions.extend(numbers::check(field, carrier, errors));
        }
    }
    assertions
}

/// One field and how it stands on the wire.
pub(crate) struct WireField<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    pub(crate) name: String,
    /// Declared by `#[event(text)]`.
    pub(crate) as_text: bool,
    /// Declared by `#[event(length(…))]` and its like.
    pub(crate) constraints: Constraints,
    pub(crate) claims: Claims,
}

impl<'a> WireField<'a> {
    pub(crate) fn new(field: &'a Field, mut claims: Claims) -> Option<WireField<'a>> {
        let ident = field.ident.as_ref()?;
        Some(WireField {
            ident,
            ty: &field.ty,
            name: wire_name(ident),
            as_text: claims.text,
            constraints: std::mem::take(&mut claims.constraints),
            claims,
        })
    }

    /// The statement that writes the field.
    ///
    /// It names the type as `<Type as Snapshot>`, spanned to where it is written, so that a type
    /// that can't stand in an event is marked there, and once: reading gives the same error, and the
    /// compiler shows equal errors once.
    pub(crate) fn write(&self) -> TokenStream {
        let WireField {
            ident, ty, name, ..
        } = self;
        let (as_trait, write, _) = self.names();
        let mut written = quote_spanned! { ty.span() =>
            <#ty as #as_trait>::#write(&self.#ident, __value)
        };
        if !self.constraints.is_empty() {
            let checks =
                self.constraints
                    .checks(ty, &quote! { &self.#ident }, &quote! { __value.place() });
            written = quote! {{ #checks #written }};
        }
        quote_spanned! { ty.span() =>
            __out.declared(
                #name,
                <#ty as __factum::Snapshot>::is_absent(&self.#ident),
                |__value| #written,
            )?;
        }
    }

    /// The field of the struct's expression that reads it.
    pub(crate) fn read(&self) -> TokenStream {
        let WireField {
            ident, ty, name, ..
        } = self;
        let (as_trait, _, read) = self.names();
        let mut reads = quote_spanned! { ty.span() => <#ty as #as_trait>::#read };
        if !self.constraints.is_empty() {
            let checks =
                self.constraints
                    .checks(ty, &quote! { &__read }, &quote! { __value.place() });
            reads = quote! {
                |__value| {
                    let __read = #reads(__value)?;
                    #checks
                    ::core::result::Result::Ok(__read)
                }
            };
        }
        quote_spanned! { ty.span() =>
            #ident: __from.declared(
                #name,
                <#ty as __factum::Snapshot>::EXPECTED,
                <#ty as __factum::Snapshot>::absent,
                #reads,
            )?,
        }
    }

    /// The expression that describes it for the contract.
    pub(crate) fn shape(&self) -> TokenStream {
        let WireField { ty, name, .. } = self;
        let span = ty.span();
        let (as_trait, ..) = self.names();
        let shape = Ident::new(if self.as_text { "text_shape" } else { "shape" }, span);
        let shape = self
            .constraints
            .narrow(quote_spanned! { span => <#ty as #as_trait>::#shape(__shapes) });
        quote_spanned! { span => __factum::FieldShape::new(#name, #shape), }
    }

    /// What stands beside the implementation: the rules of the constraints.
    pub(crate) fn statics(&self) -> TokenStream {
        self.constraints.statics(self.ty, self.as_text)
    }

    /// The trait, and its functions that write and read.
    fn names(&self) -> (TokenStream, Ident, Ident) {
        let span = self.ty.span();
        if self.as_text {
            let as_trait = quote_spanned! { span => __factum::SnapshotText };
            (
                as_trait,
                Ident::new("write_text", span),
                Ident::new("read_text", span),
            )
        } else {
            let as_trait = quote_spanned! { span => __factum::Snapshot };
            (
                as_trait,
                Ident::new("write", span),
                Ident::new("read", span),
            )
        }
    }
}

/// The named fields of a struct without generics, or a mistake.
///
/// `what` is the noun for the messages: "an event".
pub(crate) fn named_fields<'a>(
    input: &'a DeriveInput,
    what: &str,
    errors: &mut Errors,
) -> Vec<&'a Field> {
    if let Some(first) = input.generics.params.first() {
        let message = format!("{what} has one form on the wire: remove the generic parameters");
        errors.push(first.span(), message);
    }
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().collect(),
            Fields::Unnamed(fields) => {
                let message = format!("{what} has named fields: `{} {{ … }}`", input.ident);
                errors.push(fields.span(), message);
                Vec::new()
            }
            Fields::Unit => {
                let message = format!("{what} has named fields: `{} {{ … }}`", input.ident);
                errors.push(input.ident.span(), message);
                Vec::new()
            }
        },
        Data::Enum(data) => {
            errors.push(
                data.enum_token.span(),
                format!("{what} is a struct with named fields"),
            );
            Vec::new()
        }
        Data::Union(data) => {
            errors.push(
                data.union_token.span(),
                format!("{what} is a struct with named fields"),
            );
            Vec::new()
        }
    };
    refuse_serde(&input.attrs, errors);
    for field in &fields {
        refuse_serde(&field.attrs, errors);
    }
    fields
}

/// Reports fields that share a name on the wire, such as `line_2` and `line2`.
pub(crate) fn refuse_equal_names(fields: &[WireField<'_>], errors: &mut Errors) {
    for (index, field) in fields.iter().enumerate() {
        if field.name.is_empty() {
            errors.push(
                field.ident.span(),
                "the field has no name on the wire: rename it",
            );
        }
        if let Some(earlier) = fields[..index]
            .iter()
            .find(|earlier| earlier.name == field.name)
        {
            let message = format!(
                "`{}` and `{}` are both `{}` on the wire: rename one of them",
                earlier.ident.unraw(),
                field.ident.unraw(),
                field.name
            );
            errors.push(field.ident.span(), message);
        }
    }
}

/// Wraps an implementation so that its names can't meet those of the user.
pub(crate) fn in_its_own_scope(krate: &syn::Path, implementation: &TokenStream) -> TokenStream {
    quote! {
        const _: () = {
            use #krate::__private as __factum;
            #implementation
        };
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_field_without_constraints_costs_nothing_more() {
        let plain: Field = parse_quote! { note: String };
        let field = WireField::new(&plain, Claims::default()).unwrap();
        assert!(field.statics().is_empty());
        let code = |tokens: TokenStream| tokens.to_string();
        assert_eq!(
            code(field.read()),
            code(quote! {
                note: __from.declared(
                    "note",
                    <String as __factum::Snapshot>::EXPECTED,
                    <String as __factum::Snapshot>::absent,
                    <String as __factum::Snapshot>::read,
                )?,
            })
        );
        assert_eq!(
            code(field.write()),
            code(quote! {
                __out.declared(
                    "note",
                    <String as __factum::Snapshot>::is_absent(&self.note),
                    |__value| <String as __factum::Snapshot>::write(&self.note, __value),
                )?;
            })
        );
    }
}
