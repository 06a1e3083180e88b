//! `derive(Snapshot)`

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{DeriveInput, Path, parse_quote};

use crate::attribute::{Errors, arguments};
use crate::event::crate_path;
use crate::fields::{
    Carrier, Claims, WireField, check_contents, in_its_own_scope, named_fields, refuse_equal_names,
};
use crate::personal;

pub(crate) fn derive(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let mut krate: Path = parse_quote!(::factum);
    let allowed = ["crate", "validate"];
    for argument in arguments(&input.attrs, "snapshot", &allowed, &mut errors).good {
        if argument.key == "validate" {
            continue;
        }
        let text = argument.text(&mut errors);
        if let Some(path) = text.and_then(|text| crate_path(&text, &mut errors)) {
            krate = path;
        }
    }
    let mut fields = Vec::new();
    for field in named_fields(input, "a snapshot", &mut errors) {
        let claims = Claims::read(field, "snapshot", &mut errors);
        fields.extend(WireField::new(field, claims));
    }
    refuse_equal_names(&fields, &mut errors);
    let carrier = Carrier::Snapshot {
        ident: &input.ident,
    };
    let assertions = check_contents(&fields, &carrier, &mut errors);

    let personal = personal::content(&fields, &input.ident);
    let content = quote! {
        const CONTENT: __factum::Content = __factum::Content {
            personal: #personal,
            ..__factum::Content::PLAIN
        };
    };
    match errors.into_compile_errors() {
        None => {
            let writes = fields.iter().map(WireField::write);
            let reads = fields.iter().map(WireField::read);
            let shapes = fields.iter().map(WireField::shape);
            let name = input.ident.unraw().to_string();
            implement(
                &krate,
                input,
                &content,
                &assertions,
                &quote! {
                    __shapes.object::<Self>(#name, |__shapes| ::std::vec![#(#shapes)*])
                },
                &quote! {
                    __out.object(|__out| {
                        #(#writes)*
                        ::core::result::Result::Ok(())
                    })
                },
                &quote! {
                    let __from = __from.object(<Self as __factum::Snapshot>::EXPECTED)?;
                    ::core::result::Result::Ok(Self { #(#reads)* })
                },
            )
        }
        Some(errors) if input.generics.params.is_empty() => {
            // Type-checks and never runs: nothing else shall complain that this is no snapshot. What only the types
            // show is reported all the same.
            let body = quote! { ::core::unreachable!() };
            let empty = implement(&krate, input, &content, &assertions, &body, &body, &body);
            quote! { #errors #empty }
        }
        Some(errors) => errors,
    }
}

fn implement(
    krate: &Path,
    input: &DeriveInput,
    content: &TokenStream,
    assertions: &TokenStream,
    shape: &TokenStream,
    write: &TokenStream,
    read: &TokenStream,
) -> TokenStream {
    let ident = &input.ident;
    let implementation = quote! {
        #[automatically_derived]
        impl __factum::Snapshot for #ident {
            const EXPECTED: &'static str = "an object";
            #content

            fn shape(__shapes: &mut __factum::Shapes) -> __factum::Shape {
                #shape
            }

            fn write(
                &self,
                __out: __factum::ValueWriter<'_>,
            ) -> ::core::result::Result<__factum::Written, __factum::EncodeError> {
                #write
            }

            fn read(
                __from: &__factum::JsonValue<'_>,
            ) -> ::core::result::Result<Self, __factum::Poison> {
                #read
            }
        }

        #assertions
    };
    in_its_own_scope(krate, &implementation)
}
