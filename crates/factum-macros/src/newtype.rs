//! `derive(Snapshot)` on a struct of one nameless field: on the wire it is that field's value.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Field, Path, parse_quote};

use crate::attribute::{Errors, arguments, refuse_serde};
use crate::event::crate_path;
use crate::foreign;
use crate::snapshot::Implementation;

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
    let (ident, ty) = (&input.ident, &field.ty);
    let span = ty.span();
    let snapshot = quote_spanned! { span => <#ty as __factum::Snapshot> };
    let (form, shape, write, read) = if as_text {
        (
            quote_spanned! { span => <#ty as __factum::SnapshotText> },
            quote! { text_shape },
            quote! { write_text },
            quote! { read_text },
        )
    } else {
        (
            snapshot.clone(),
            quote! { shape },
            quote! { write },
            quote! { read },
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
    // After a mistake the type may be none that could be asked.
    let items = if errors.is_empty() {
        quote! {
            const EXPECTED: &'static str = #snapshot::EXPECTED;
            const CONTENT: __factum::Content = #content;

            fn is_absent(&self) -> bool {
                #snapshot::is_absent(&self.0)
            }

            fn absent() -> ::core::option::Option<Self> {
                #snapshot::absent().map(Self)
            }
        }
    } else {
        quote! { const EXPECTED: &'static str = ""; }
    };
    let implementation = Implementation {
        krate,
        items,
        assertions: TokenStream::new(),
        rules: quote! { #key },
        shape: quote! { #form::#shape(__shapes) },
        write: quote! { #form::#write(&self.0, __out) },
        read: quote! { #form::#read(__from).map(Self) },
    };
    implementation.unless(errors, input)
}
