//! A field's type, as far as its spelling tells.

use syn::{GenericArgument, Ident, PathArguments, PathSegment, Type};

/// The last segment of a type's path, such as `Vec<u64>` of `std::vec::Vec<u64>`.
pub(crate) fn named(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        // What a `macro_rules!` puts in.
        Type::Group(group) => named(&group.elem),
        Type::Paren(paren) => named(&paren.elem),
        _ => None,
    }
}

/// The types in the angle brackets.
pub(crate) fn arguments(segment: &PathSegment) -> Vec<&Type> {
    match &segment.arguments {
        PathArguments::AngleBracketed(list) => list
            .args
            .iter()
            .filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The type of the values that `Option`, `Vec`, `Box`, `Personal` and `BTreeMap` hold, if it is one of those.
pub(crate) fn held(ty: &Type) -> Option<&Type> {
    let segment = named(ty)?;
    let arguments = arguments(segment);
    match (segment.ident.to_string().as_str(), &arguments[..]) {
        ("Option" | "Vec" | "Box" | "Personal", [held]) | ("BTreeMap", [_, held]) => Some(held),
        _ => None,
    }
}

/// The type at the bottom of `Option<Vec<…>>`.
pub(crate) fn innermost(ty: &Type) -> &Type {
    held(ty).map_or(ty, innermost)
}

/// Whether the values at the bottom are of a type that holds nothing but itself, by its name. Such a type needs no
/// look at what the compiler knows.
pub(crate) fn is_plain(ty: &Type) -> bool {
    const PLAIN: &[&str] = &[
        "bool",
        "String",
        "u8",
        "u16",
        "u32",
        "u64",
        "i8",
        "i16",
        "i32",
        "i64",
        "f64",
        "NonZeroU8",
        "NonZeroU16",
        "NonZeroU32",
        "NonZeroU64",
        "NonZeroI8",
        "NonZeroI16",
        "NonZeroI32",
        "NonZeroI64",
        "Uuid",
        "Date",
        "OffsetDateTime",
        "Amount",
        "PositiveAmount",
        "Money",
        "Currency",
        "EventId",
        "AggregateId",
    ];
    !says_personal(ty)
        && named(innermost(ty)).is_some_and(|segment| {
            segment.arguments.is_none() && PLAIN.iter().any(|name| segment.ident == name)
        })
}

/// Whether `Personal<…>` is spelled out in it.
pub(crate) fn says_personal(ty: &Type) -> bool {
    let Some(segment) = named(ty) else {
        return false;
    };
    let arguments = arguments(segment);
    (segment.ident == "Personal" && arguments.len() == 1)
        || arguments.into_iter().any(says_personal)
}

/// Whether it names the type that it is a field of, as in `Vec<Tree>` of `Tree`.
pub(crate) fn names_itself(ty: &Type, own: &Ident) -> bool {
    named(ty).is_some_and(|segment| {
        segment.ident == *own
            || segment.ident == "Self"
            || arguments(segment)
                .into_iter()
                .any(|ty| names_itself(ty, own))
    })
}

#[cfg(test)]
mod tests {
    use quote::ToTokens as _;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_type_is_looked_into() {
        let bottom = |ty: Type| innermost(&ty).to_token_stream().to_string();
        assert_eq!(bottom(parse_quote!(u64)), "u64");
        assert_eq!(bottom(parse_quote!(Option<Vec<Box<f64>>>)), "f64");
        assert_eq!(bottom(parse_quote!(std::option::Option<f64>)), "f64");
        assert_eq!(bottom(parse_quote!(BTreeMap<String, Vec<i64>>)), "i64");
        assert_eq!(bottom(parse_quote!(Personal<u64>)), "u64");
        assert_eq!(bottom(parse_quote!(Option)), "Option");
        assert_eq!(bottom(parse_quote!(Shelf<u64>)), "Shelf < u64 >");

        assert!(says_personal(&parse_quote!(
            Option<factum::Personal<String>>
        )));
        assert!(says_personal(
            &parse_quote!(BTreeMap<String, Personal<String>>)
        ));
        assert!(!says_personal(&parse_quote!(Personal)));
        assert!(!says_personal(&parse_quote!(Vec<String>)));

        let own: Ident = parse_quote!(Tree);
        assert!(names_itself(&parse_quote!(Vec<Tree>), &own));
        assert!(names_itself(&parse_quote!(Option<Box<Self>>), &own));
        assert!(!names_itself(&parse_quote!(Vec<TreeItem>), &own));
    }
}
