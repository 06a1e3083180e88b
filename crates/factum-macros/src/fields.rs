//! The fields of an event or a snapshot, and the code that writes and reads them.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Field, Fields, Ident, Type};

use crate::attribute::{Errors, refuse_serde};
use crate::constraint::Constraints;
use crate::names::wire_name;

/// One field and how it stands on the wire.
pub(crate) struct WireField<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    pub(crate) name: String,
    /// Declared by `#[event(text)]`.
    pub(crate) as_text: bool,
    /// Declared by `#[event(length(…))]` and its like.
    pub(crate) constraints: Constraints,
}

impl<'a> WireField<'a> {
    pub(crate) fn new(field: &'a Field, as_text: bool) -> Option<WireField<'a>> {
        let ident = field.ident.as_ref()?;
        Some(WireField {
            ident,
            ty: &field.ty,
            name: wire_name(ident),
            as_text,
            constraints: Constraints::default(),
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
        let field = WireField::new(&plain, false).unwrap();
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
