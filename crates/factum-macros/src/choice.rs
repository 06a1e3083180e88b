//! `derive(Snapshot)` on an enum: one of named values, as text.

use heck::ToSnakeCase;
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{DataEnum, DeriveInput, Fields, Ident, LitStr, Type, Variant};

use crate::attribute::{Argument, Errors, arguments, refuse_serde_where};

/// An error names so many values at most.
const MAX_NAMES_IN_A_TEXT: usize = 20;

const NAMED: &str = "a value on the wire is the variant's name in snake_case, or what \
                     `#[snapshot(name = \"…\")]` says";

/// An enum as it stands on the wire. After a mistake, incomplete.
pub(crate) struct Choice<'a> {
    named: Vec<(&'a Ident, String)>,
    /// The catch-all.
    other: Option<&'a Ident>,
}

impl<'a> Choice<'a> {
    pub(crate) fn read(input: &DeriveInput, data: &'a DataEnum, errors: &mut Errors) -> Choice<'a> {
        if let Some(first) = input.generics.params.first() {
            let message = "a snapshot has one form on the wire: remove the generic parameters";
            errors.push(first.span(), message);
        }
        refuse_serde_where(&input.attrs, NAMED, errors);
        let mut named: Vec<(&Ident, String)> = Vec::new();
        let mut other = None;
        for variant in &data.variants {
            refuse_serde_where(&variant.attrs, NAMED, errors);
            for field in &variant.fields {
                refuse_serde_where(&field.attrs, NAMED, errors);
            }
            let (name, mark) = variant_arguments(variant, errors);
            if let Some(mark) = mark {
                if let Some(name) = name {
                    let message = "the catch-all keeps whatever it read: remove `name`";
                    errors.push(name.span(), message);
                }
                if let Some(first) = other {
                    let message = format!("`{first}` is the catch-all already: an enum has one");
                    errors.push(mark, message);
                } else {
                    other = Some(&variant.ident);
                }
                if !holds_one_string(&variant.fields) {
                    let message = format!(
                        "the catch-all keeps the raw text: write `{}(String)`",
                        variant.ident
                    );
                    errors.push(variant.ident.span(), message);
                }
                continue;
            }
            if !matches!(variant.fields, Fields::Unit) {
                let message = "a named value carries no data: remove it; the catch-all for unknown \
                               values is `#[snapshot(other)] Other(String)`";
                errors.push(variant.fields.span(), message);
            }
            let (value, at) = match name {
                Some(name) => (name.value(), name.span()),
                None => {
                    let value = variant.ident.unraw().to_string().to_snake_case();
                    (value, variant.ident.span())
                }
            };
            if value.is_empty() || value.chars().any(char::is_control) {
                errors.push(
                    at,
                    "the value is the text on the wire: write at least one character, and no control \
                     characters",
                );
            }
            if let Some((earlier, _)) = named.iter().find(|(_, earlier)| *earlier == value) {
                let message = format!(
                    "`{earlier}` and `{}` are both \"{value}\" on the wire: give one another \
                     `#[snapshot(name = \"…\")]`",
                    variant.ident
                );
                errors.push(at, message);
            }
            named.push((&variant.ident, value));
        }
        if named.is_empty() && data.variants.len() <= 1 {
            let message = "the enum names no value: add variants, or take `String` in its place";
            errors.push(input.ident.span(), message);
        }
        Choice { named, other }
    }

    /// The text that completes "expected …".
    pub(crate) fn expected(&self) -> String {
        if self.other.is_some() {
            return "text".to_owned();
        }
        let shown: Vec<String> = self
            .named
            .iter()
            .take(MAX_NAMES_IN_A_TEXT)
            .map(|(_, value)| format!("\"{value}\""))
            .collect();
        let more = self.named.len() - shown.len();
        let rest = if more > 0 {
            format!(" or {more} more")
        } else {
            String::new()
        };
        format!("one of {}{rest}", shown.join(", "))
    }

    pub(crate) fn shape(&self) -> TokenStream {
        let values = self.named.iter().map(|(_, value)| value);
        let open = self.other.is_some();
        quote! {
            // It refers to no snapshot.
            let _ = __shapes;
            __factum::Shape::Choice {
                values: ::std::vec![#(::std::string::String::from(#values)),*],
                open: #open,
            }
        }
    }

    pub(crate) fn write(&self) -> TokenStream {
        let named = self.named.iter().map(|(variant, value)| {
            quote! { Self::#variant => __out.text(#value), }
        });
        let other = self.other.map(|variant| {
            let values = self.named.iter().map(|(_, value)| value);
            quote! { Self::#variant(__text) => __out.other(__text, &[#(#values),*]), }
        });
        quote! { match self { #(#named)* #other } }
    }

    pub(crate) fn read_value(&self) -> TokenStream {
        let named = self.named.iter().map(|(variant, value)| {
            quote! { #value => ::core::result::Result::Ok(Self::#variant), }
        });
        let other = match self.other {
            Some(variant) => quote! {
                __other => ::core::result::Result::Ok(
                    Self::#variant(::std::string::String::from(__other)),
                ),
            },
            None => quote! {
                _ => ::core::result::Result::Err(
                    __from.not_named(<Self as __factum::Snapshot>::EXPECTED),
                ),
            },
        };
        quote! {
            match __from.text(<Self as __factum::Snapshot>::EXPECTED)? { #(#named)* #other }
        }
    }
}

/// The name on the wire, and where the catch-all is marked.
fn variant_arguments(variant: &Variant, errors: &mut Errors) -> (Option<LitStr>, Option<Span>) {
    let mut name = None;
    let mut other = None;
    let mut take = |argument: &Argument, errors: &mut Errors| {
        if argument.key == "other" {
            argument.check_flag(errors);
            other = Some(argument.key.span());
        } else {
            name = argument.text(errors);
        }
    };
    for attribute in ["snapshot", "event"] {
        for argument in &arguments(&variant.attrs, attribute, &["name", "other"], errors).good {
            take(argument, errors);
        }
    }
    (name, other)
}

fn holds_one_string(fields: &Fields) -> bool {
    let Fields::Unnamed(fields) = fields else {
        return false;
    };
    fields.unnamed.len() == 1
        && matches!(&fields.unnamed[0].ty, Type::Path(path)
            if path.path.segments.last().is_some_and(|last| last.ident == "String"))
}
