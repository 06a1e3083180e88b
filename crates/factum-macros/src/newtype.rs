//! `derive(Snapshot)` on a struct of one nameless field: on the wire it is that field's value.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Field, Path, parse_quote};

use crate::attribute::{Errors, arguments, refuse_serde};
use crate::event::crate_path;
use crate::fields::in_its_own_scope;
use crate::foreign;

pub(crate) fn derive(input: &DeriveInput, field: &Field) -> TokenStream {
    let mut errors = Errors::default();
    let mut krate: Path = parse_quote!(::factum);
    let mut aggregate_id = false;
    let allowed = ["aggregate_id", "crate"];
    for argument in arguments(&input.attrs, "snapshot", &allowed, &mut errors).good {
        if argument.key == "aggregate_id" {
            argument.check_flag(&mut errors);
            aggregate_id = true;
            continue;
        }
        let text = argument.text(&mut errors);
        if let Some(path) = text.and_then(|text| crate_path(&text, &mut errors)) {
            krate = path;
        }
    }
    let mut as_text = false;
    for argument in arguments(&field.attrs, "snapshot", &["text"], &mut errors).good {
        argument.check_flag(&mut errors);
        as_text = true;
    }
    refuse_serde(&input.attrs, &mut errors);
    refuse_serde(&field.attrs, &mut errors);
    if let Some(first) = input.generics.params.first() {
        let message = "a snapshot has one form on the wire: remove the generic parameters";
        errors.push(first.span(), message);
    }
    foreign::check(&field.ty, &mut errors);
    let ident = &input.ident;
    if let Some(errors) = errors.into_compile_errors() {
        if !input.generics.params.is_empty() {
            return errors;
        }
        // Type-checks and never runs: nothing else shall complain that this is no snapshot.
        let empty = quote! {
            impl __factum::Snapshot for #ident {
                const EXPECTED: &'static str = "";

                fn shape(_: &mut __factum::Shapes) -> __factum::Shape {
                    ::core::unreachable!()
                }

                fn write(
                    &self,
                    _: __factum::ValueWriter<'_>,
                ) -> ::core::result::Result<__factum::Written, __factum::EncodeError> {
                    ::core::unreachable!()
                }

                fn read(
                    _: &__factum::JsonValue<'_>,
                ) -> ::core::result::Result<Self, __factum::Poison> {
                    ::core::unreachable!()
                }
            }
        };
        let empty = in_its_own_scope(&krate, &empty);
        return quote! { #errors #empty };
    }

    let ty = &field.ty;
    let span = ty.span();
    let snapshot = quote_spanned! { span => <#ty as __factum::Snapshot> };
    let (shape, write, read) = if as_text {
        let text = quote_spanned! { span => <#ty as __factum::SnapshotText> };
        (
            quote! { #text::text_shape },
            quote! { #text::write_text },
            quote! { #text::read_text },
        )
    } else {
        (
            quote! { #snapshot::shape },
            quote! { #snapshot::write },
            quote! { #snapshot::read },
        )
    };
    // Written as text, an integer has no limit of JavaScript's.
    let content = if as_text {
        quote! { __factum::Content { large_integer: false, ..#snapshot::CONTENT } }
    } else {
        quote! { #snapshot::CONTENT }
    };
    let key = aggregate_id.then(|| {
        let id = quote_spanned! { span => <#ty as __factum::ToAggregateId> };
        quote! {
            #[automatically_derived]
            impl __factum::ToAggregateId for #ident {
                fn to_aggregate_id(
                    &self,
                ) -> ::core::result::Result<__factum::AggregateId, __factum::AggregateIdError> {
                    #id::to_aggregate_id(&self.0)
                }

                fn from_aggregate_id(
                    __id: &__factum::AggregateId,
                ) -> ::core::option::Option<Self> {
                    #id::from_aggregate_id(__id).map(Self)
                }
            }
        }
    });
    let implementation = quote! {
        #[automatically_derived]
        impl __factum::Snapshot for #ident {
            const EXPECTED: &'static str = #snapshot::EXPECTED;
            const CONTENT: __factum::Content = #content;

            fn shape(__shapes: &mut __factum::Shapes) -> __factum::Shape {
                #shape(__shapes)
            }

            fn write(
                &self,
                __out: __factum::ValueWriter<'_>,
            ) -> ::core::result::Result<__factum::Written, __factum::EncodeError> {
                #write(&self.0, __out)
            }

            fn read(
                __from: &__factum::JsonValue<'_>,
            ) -> ::core::result::Result<Self, __factum::Poison> {
                #read(__from).map(Self)
            }

            fn is_absent(&self) -> bool {
                #snapshot::is_absent(&self.0)
            }

            fn absent() -> ::core::option::Option<Self> {
                #snapshot::absent().map(Self)
            }
        }

        #key
    };
    in_its_own_scope(&krate, &implementation)
}
