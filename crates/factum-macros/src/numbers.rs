//! Fault 9: what a number loses on its way through another language.

use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::attribute::Errors;
use crate::fields::{Carrier, WireField};
use crate::wire_type::{innermost, is_plain, named, names_itself};

/// The greatest integer that JavaScript tells from its neighbours, 2^53-1; a test compares it with the core's.
const MAX_SAFE_INTEGER: i128 = (1 << 53) - 1;

/// Reports what the spelling tells; what only the types tell is asked for by the code that is returned.
pub(crate) fn check(
    field: &WireField<'_>,
    carrier: &Carrier<'_>,
    errors: &mut Errors,
) -> TokenStream {
    let mut assertions = TokenStream::new();
    let ty = field.ty;
    let name = field.ident.unraw().to_string();
    let attribute = carrier.attribute();
    let bottom = named(innermost(ty));
    let is_one_of = |names: &[&str]| {
        bottom.is_some_and(|segment| {
            segment.arguments.is_none() && names.iter().any(|name| segment.ident == name)
        })
    };
    let is_known = is_plain(ty);

    if !field.claims.float {
        let message = format!(
            "`{name}` holds a floating-point number, which rounds: 0.1 + 0.2 is not 0.3. For money write `Money` or \
             `Amount`, for a count an integer; if the value is measured, say why a float is right: \
             `#[{attribute}(float = \"…\")]` (listing fault 9)"
        );
        if is_one_of(&["f64"]) {
            errors.push_on(innermost(ty), message);
        } else if !is_known && !names_itself(ty, carrier.ident()) {
            assertions.extend(quote_spanned! { ty.span() =>
                #[allow(clippy::panic, clippy::manual_assert)]
                const _: () = if <#ty as __factum::Snapshot>::CONTENT.float {
                    ::core::panic!("{}", #message)
                };
            });
        }
    }
    // As text in the envelope, whatever it is.
    let is_envelopes_own = matches!(carrier, Carrier::Event { .. }) && field.name == "aggregateId";
    if !field.as_text && !is_envelopes_own && field.claims.range_is_safe != Some(true) {
        let signed = is_one_of(&["i64", "NonZeroI64"]);
        let min = if signed { -MAX_SAFE_INTEGER } else { 0 };
        let range = format!("`#[{attribute}(range(min = {min}, max = {MAX_SAFE_INTEGER}))]`");
        let message = if field.claims.range_is_safe.is_some() {
            format!(
                "the range of `{name}` reaches further than JavaScript's integers, beyond which it reads another \
                 one: end it on both sides within {range}, or write the integer as text, `#[{attribute}(text)]` \
                 (listing fault 9)"
            )
        } else {
            format!(
                "`{name}` holds an integer of 64 bits, and beyond {MAX_SAFE_INTEGER} JavaScript reads another one: \
                 write it as text, `#[{attribute}(text)]`, or keep it within a range, {range}, or take 32 bits \
                 (listing fault 9)"
            )
        };
        if is_one_of(&["u64", "i64", "NonZeroU64", "NonZeroI64"]) {
            errors.push_on(innermost(ty), message);
        } else if !is_known && !names_itself(ty, carrier.ident()) {
            assertions.extend(quote_spanned! { ty.span() =>
                #[allow(clippy::panic, clippy::manual_assert)]
                const _: () = if <#ty as __factum::Snapshot>::CONTENT.large_integer {
                    ::core::panic!("{}", #message)
                };
            });
        }
    }
    assertions
}

/// Whether integers between the bounds are the same in JavaScript. An absent lower bound is no bound; that of an
/// unsigned type is its own.
pub(crate) fn is_safe(min: Option<i128>, max: Option<i128>, ty: &syn::Type) -> bool {
    let is_unsigned = named(innermost(ty))
        .is_some_and(|segment| segment.ident == "u64" || segment.ident == "NonZeroU64");
    let min = min.or(is_unsigned.then_some(0));
    min.is_some_and(|min| min >= -MAX_SAFE_INTEGER)
        && max.is_some_and(|max| max <= MAX_SAFE_INTEGER)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_range_is_safe_within_what_javascript_holds() {
        let unsigned = parse_quote!(Option<u64>);
        let signed = parse_quote!(i64);
        let max = Some(MAX_SAFE_INTEGER);
        assert!(is_safe(Some(1), max, &unsigned));
        assert!(is_safe(None, max, &unsigned));
        assert!(!is_safe(Some(1), None, &unsigned));
        assert!(!is_safe(Some(1), Some(MAX_SAFE_INTEGER + 1), &unsigned));
        assert!(is_safe(Some(-MAX_SAFE_INTEGER), max, &signed));
        assert!(!is_safe(Some(-MAX_SAFE_INTEGER - 1), max, &signed));
        assert!(!is_safe(None, max, &signed));
        // As a type of another name it may be signed.
        assert!(!is_safe(None, max, &parse_quote!(Serial)));
    }

    #[test]
    fn listing_fault_09_what_a_number_would_lose_does_not_compile() {
        let refused = |ty: &str, attribute: &str| {
            let ty: syn::Type = syn::parse_str(ty).unwrap();
            let attribute: Vec<syn::Attribute> = match attribute {
                "" => Vec::new(),
                inner => {
                    let inner: proc_macro2::TokenStream = inner.parse().unwrap();
                    vec![parse_quote!(#[snapshot(#inner)])]
                }
            };
            let derived = crate::snapshot::derive(&parse_quote! {
                struct Item { #(#attribute)* value: #ty }
            });
            derived.to_string().contains("compile_error")
        };
        for ty in [
            "f64",
            "Option<f64>",
            "Vec<Vec<f64>>",
            "BTreeMap<String, Box<f64>>",
        ] {
            assert!(refused(ty, ""), "{ty}");
            assert!(!refused(ty, "float = \"a scale measures it\""), "{ty}");
        }
        for ty in [
            "u64",
            "i64",
            "NonZeroU64",
            "NonZeroI64",
            "Option<u64>",
            "std::vec::Vec<Option<i64>>",
        ] {
            assert!(refused(ty, ""), "{ty}");
            assert!(!refused(ty, "text"), "{ty}");
            assert!(
                !refused(
                    ty,
                    "range(min = -9_007_199_254_740_991, max = 9007199254740991)"
                ),
                "{ty}"
            );
            assert!(
                refused(ty, "range(min = 1, max = 9007199254740992)"),
                "{ty}"
            );
            assert!(refused(ty, "range(min = 1)"), "{ty}");
            assert!(refused(ty, "float = \"a scale measures it\""), "{ty}");
        }
        for ty in [
            "u32",
            "i32",
            "Amount",
            "Money",
            "Option<NonZeroU32>",
            "Vec<u8>",
            "bool",
            "String",
        ] {
            assert!(!refused(ty, ""), "{ty}");
        }
    }

    #[test]
    fn the_limit_is_the_cores() {
        use factum_event::{Shape, Shapes, Snapshot as _};
        let shape = u64::shape(&mut Shapes::default());
        assert!(matches!(
            shape,
            Shape::Integer {
                max: MAX_SAFE_INTEGER,
                ..
            }
        ));
    }
}
