//! `derive(Snapshot)`

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DataEnum, DataStruct, DeriveInput, Fields, Path, parse_quote};

use crate::attribute::{Errors, arguments};
use crate::choice::Choice;
use crate::event::crate_path;
use crate::fields::{
    Carrier, Claims, WireField, check_contents, in_its_own_scope, named_fields, refuse_equal_names,
};
use crate::hook::Hook;
use crate::{newtype, personal};

pub(crate) fn derive(input: &DeriveInput) -> TokenStream {
    match &input.data {
        Data::Enum(data) => derive_choice(input, data),
        Data::Struct(DataStruct {
            fields: Fields::Unnamed(fields),
            ..
        }) if fields.unnamed.len() == 1 => newtype::derive(input, &fields.unnamed[0]),
        _ => derive_object(input),
    }
}

fn derive_object(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let mut krate: Path = parse_quote!(::factum);
    let mut validate = Hook::default();
    let allowed = ["validate", "crate"];
    for argument in arguments(&input.attrs, "snapshot", &allowed, &mut errors).good {
        if argument.key == "validate" {
            validate = Hook::read(&argument, &mut errors);
            continue;
        }
        let text = argument.text(&mut errors);
        if let Some(path) = text.and_then(|text| crate_path(&text, &mut errors)) {
            krate = path;
        }
    }
    let is_event_too = has(&input.attrs, "event");
    let mut fields = Vec::new();
    for field in named_fields(input, "a snapshot", &mut errors) {
        if !is_event_too {
            refuse_event_attributes(&field.attrs, &mut errors);
        }
        let claims = Claims::read(field, "snapshot", &mut errors);
        fields.extend(WireField::new(field, claims));
    }
    refuse_equal_names(&fields, &mut errors);
    let carrier = Carrier::Snapshot {
        ident: &input.ident,
    };
    let assertions = check_contents(&fields, &carrier, &mut errors);
    let personal = personal::content(&fields, &input.ident);

    let writes = fields.iter().map(WireField::write);
    let reads = fields.iter().map(WireField::read);
    let shapes = fields.iter().map(WireField::shape);
    let rules = fields.iter().map(|field| field.statics());
    let name = input.ident.unraw().to_string();
    let function = validate.constant(&input.ident);
    let validated = validate.check_written();
    let read = validate.check_read(&quote! { Self { #(#reads)* } });
    let implementation = Implementation {
        krate,
        items: quote! {
            const EXPECTED: &'static str = "an object";
            const CONTENT: __factum::Content = __factum::Content {
                personal: #personal,
                ..__factum::Content::PLAIN
            };
        },
        assertions,
        rules: quote! { #(#rules)* #function },
        shape: quote! { __shapes.object::<Self>(#name, |__shapes| ::std::vec![#(#shapes)*]) },
        write: quote! {
            __out.object(|__out| {
                #(#writes)*
                #validated
                ::core::result::Result::Ok(())
            })
        },
        read: quote! {
            let __from = __from.object(<Self as __factum::Snapshot>::EXPECTED)?;
            #read
        },
    };
    implementation.unless(errors, input)
}

fn derive_choice(input: &DeriveInput, data: &DataEnum) -> TokenStream {
    let mut errors = Errors::default();
    let mut krate: Path = parse_quote!(::factum);
    for argument in arguments(&input.attrs, "snapshot", &["crate"], &mut errors).good {
        let text = argument.text(&mut errors);
        if let Some(path) = text.and_then(|text| crate_path(&text, &mut errors)) {
            krate = path;
        }
    }
    refuse_event_attributes(&input.attrs, &mut errors);
    let choice = Choice::read(input, data, &mut errors);
    let expected = choice.expected();
    let implementation = Implementation {
        krate,
        items: quote! { const EXPECTED: &'static str = #expected; },
        assertions: TokenStream::new(),
        rules: TokenStream::new(),
        shape: choice.shape(),
        write: choice.write(),
        read: choice.read_value(),
    };
    implementation.unless(errors, input)
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident(name))
}

/// `#[event(text)]` on a snapshot's field would look as if it did something.
fn refuse_event_attributes(attributes: &[Attribute], errors: &mut Errors) {
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("event"))
    {
        let message = "this is a snapshot and no event: write `#[snapshot(…)]`";
        errors.push(attribute.path().span(), message);
    }
}

/// The code of an implementation.
pub(crate) struct Implementation {
    pub(crate) krate: Path,
    /// `EXPECTED`, and whatever else isn't left to the trait.
    pub(crate) items: TokenStream,
    /// What only the types show, asked for beside the implementation; also after a mistake.
    pub(crate) assertions: TokenStream,
    /// What stands beside the implementation.
    pub(crate) rules: TokenStream,
    pub(crate) shape: TokenStream,
    pub(crate) write: TokenStream,
    pub(crate) read: TokenStream,
}

impl Implementation {
    /// The implementation, or the mistakes.
    pub(crate) fn unless(self, errors: Errors, input: &DeriveInput) -> TokenStream {
        match errors.into_compile_errors() {
            None => self.into_code(input),
            Some(errors) if input.generics.params.is_empty() => {
                // Type-checks and never runs: nothing else shall complain that this is no snapshot.
                let body = quote! { ::core::unreachable!() };
                let empty = Implementation {
                    rules: TokenStream::new(),
                    shape: body.clone(),
                    write: body.clone(),
                    read: body,
                    ..self
                };
                let empty = empty.into_code(input);
                quote! { #errors #empty }
            }
            Some(errors) => errors,
        }
    }

    fn into_code(self, input: &DeriveInput) -> TokenStream {
        let Implementation {
            krate,
            items,
            assertions,
            rules,
            shape,
            write,
            read,
        } = self;
        let ident = &input.ident;
        let implementation = quote! {
            #rules

            #[automatically_derived]
            impl __factum::Snapshot for #ident {
                #items

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
        in_its_own_scope(&krate, &implementation)
    }
}
