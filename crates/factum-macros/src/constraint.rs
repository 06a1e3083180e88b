//! `length(…)`, `range(…)`, `pattern = "…"`, `items(…)` and `code = "…"` on a field.

use std::cmp::Ordering;

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ExprUnary, Ident, Lit, LitStr, Type, UnOp};

use crate::attribute::{Argument, Errors};
use crate::numbers::is_safe;
use crate::pattern::check_pattern;

/// The keys that this file reads.
pub(crate) const KEYS: [&str; 5] = ["length", "range", "pattern", "items", "code"];

/// The constraints of one field, each a static of the generated code.
#[derive(Default)]
pub(crate) struct Constraints(Vec<Constraint>);

struct Constraint {
    /// The key.
    key: Span,
    name: &'static str,
    /// The name of the static.
    ident: Ident,
    /// The type of the rule.
    rule: Ident,
    /// The trait that says which types it fits.
    fits: Ident,
    /// The arguments of its constructor.
    arguments: TokenStream,
}

impl Constraints {
    /// Reads those among a field's arguments that are constraints.
    pub(crate) fn read(field: &Ident, arguments: &[Argument], errors: &mut Errors) -> Constraints {
        let mut constraints = Vec::new();
        for argument in arguments {
            let Some(name) = KEYS.into_iter().find(|key| argument.key == key) else {
                continue;
            };
            let read = match name {
                "length" => counts(argument, "characters", errors)
                    .map(|arguments| ("Length", "TextValue", arguments)),
                "items" => counts(argument, "items", errors)
                    .map(|arguments| ("Items", "ListValue", arguments)),
                "pattern" => {
                    pattern(argument, errors).map(|arguments| ("Pattern", "TextValue", arguments))
                }
                "code" => code(argument, errors).map(|list| ("Code", "TextValue", list)),
                _ => range(argument, errors),
            };
            if let Some((rule, fits, arguments)) = read {
                constraints.push(Constraint {
                    key: argument.key.span(),
                    name,
                    ident: format_ident!("__{}_{}", name.to_uppercase(), field.unraw()),
                    rule: Ident::new(rule, Span::call_site()),
                    fits: Ident::new(fits, Span::call_site()),
                    arguments,
                });
            }
        }
        let has = |name| constraints.iter().any(|constraint| constraint.name == name);
        if has("code") {
            for other in constraints
                .iter()
                .filter(|constraint| ["length", "pattern"].contains(&constraint.name))
            {
                let message = format!("a code has its own form: remove `{}`", other.name);
                errors.push(other.key, message);
            }
        }
        // The order in which they are checked: the cheap ones first.
        constraints.sort_by_key(|constraint| match constraint.name {
            "items" => 0,
            "range" => 1,
            "length" => 2,
            "code" => 3,
            _ => 4,
        });
        Constraints(constraints)
    }

    /// Reports those that a field called `aggregate_id` can't have: it is the envelope's own, whose form every
    /// contract shares.
    pub(crate) fn refuse_text(&self, errors: &mut Errors) {
        for constraint in &self.0 {
            if constraint.fits == "TextValue" {
                let message = format!(
                    "`aggregateId` has one form in every contract, text of 1 to 255 bytes: remove \
                     `{}`, or give the field a name of its own, such as `order_ref` (EVT-2)",
                    constraint.name
                );
                errors.push(constraint.key, message);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules, to stand beside the implementation, so that reading and writing share them. `as_text`
    /// is whether an integer is written as text, and so has no limit as a number.
    pub(crate) fn statics(&self, ty: &Type, as_text: bool) -> TokenStream {
        let statics = self.0.iter().map(|constraint| {
            let Constraint {
                key,
                ident,
                rule,
                fits,
                arguments,
                ..
            } = constraint;
            // Spanned to the key, where the compiler shows the text.
            let within = (rule == "WholeRange").then(|| {
                let greatest_number = if as_text {
                    quote! { ::core::primitive::i128::MAX }
                } else {
                    quote! { <#ty as __factum::#fits>::GREATEST_NUMBER }
                };
                quote_spanned! { *key =>
                    const _: () = match __factum::WholeRange::new(#arguments).misfit(
                        <#ty as __factum::#fits>::LEAST,
                        <#ty as __factum::#fits>::GREATEST,
                        #greatest_number,
                    ) {
                        ::core::option::Option::None => (),
                        ::core::option::Option::Some(text) => ::core::panic!("{}", text),
                    };
                }
            });
            quote! {
                #[allow(non_upper_case_globals)]
                static #ident: __factum::#rule = __factum::#rule::new(#arguments);
                #within
            }
        });
        quote! { #(#statics)* }
    }

    /// The statements that check `value`, a reference, which stands at `place`.
    pub(crate) fn checks(
        &self,
        ty: &Type,
        value: &TokenStream,
        place: &TokenStream,
    ) -> TokenStream {
        let checks = self.0.iter().map(|Constraint { ident, fits, .. }| {
            quote! { <#ty as __factum::#fits>::check(#value, &#ident, #place)?; }
        });
        quote! { #(#checks)* }
    }

    /// The expression of the shape that they leave of `shape`.
    pub(crate) fn narrow(&self, shape: TokenStream) -> TokenStream {
        self.0
            .iter()
            .fold(shape, |shape, Constraint { ident, .. }| {
                quote! { #ident.narrow(#shape) }
            })
    }
}

type Read = Option<(&'static str, &'static str, TokenStream)>;

/// `length(min = 1, max = 40)` and `items(…)`
fn counts(argument: &Argument, noun: &str, errors: &mut Errors) -> Option<TokenStream> {
    let key = &argument.key;
    let mut bounds: [Option<(u32, Span)>; 2] = [None, None];
    for (name, value) in limits(argument, &["min", "max"], errors)? {
        let Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) = &value
        else {
            let message = format!("a number of {noun} is a whole number: `{key}({name} = 1)`");
            errors.push(value.span(), message);
            return None;
        };
        match number.base10_parse::<u32>() {
            Ok(0) => {
                let mend = if name == "min" {
                    "`min = 0` bounds nothing: leave it out"
                } else {
                    "`max = 0` leaves nothing to say: remove the field"
                };
                errors.push(number.span(), mend);
                return None;
            }
            Ok(count) => bounds[usize::from(name == "max")] = Some((count, number.span())),
            Err(_) => {
                let message = format!("a number of {noun} is at most {}", u32::MAX);
                errors.push(number.span(), message);
                return None;
            }
        }
    }
    if let [Some((min, _)), Some((max, at))] = bounds
        && min > max
    {
        errors.push(at, NOTHING_FITS);
        return None;
    }
    let [min, max] = bounds.map(|bound| option(bound.map(|(count, _)| quote! { #count })));
    Some(quote! { #min, #max })
}

const NOTHING_FITS: &str = "`max` lies below `min`, so that no value fits: exchange them";

/// `pattern = "…"`
fn pattern(argument: &Argument, errors: &mut Errors) -> Option<TokenStream> {
    let text = text_or_parentheses(argument, errors)?;
    match check_pattern(&text.value()) {
        Ok(()) => Some(quote! { #text }),
        Err(message) => {
            errors.push(text.span(), message);
            None
        }
    }
}

/// `code = "country"`
fn code(argument: &Argument, errors: &mut Errors) -> Option<TokenStream> {
    let text = text_or_parentheses(argument, errors)?;
    let list = match text.value().as_str() {
        "country" => "Country",
        "language" => "Language",
        "currency" => "Currency",
        _ => {
            let message = "the lists of codes are \"country\" (ISO 3166-1 alpha-2), \"language\" \
                           (ISO 639-1) and \"currency\" (ISO 4217)";
            errors.push(text.span(), message);
            return None;
        }
    };
    let list = Ident::new(list, Span::call_site());
    Some(quote! { __factum::CodeList::#list })
}

fn text_or_parentheses(argument: &Argument, errors: &mut Errors) -> Option<LitStr> {
    if argument.inner().is_some() {
        let message = format!("`{0}` takes text: write `{0} = \"…\"`", argument.key);
        errors.push(argument.key.span(), message);
        return None;
    }
    argument.text(errors)
}

/// A bound of a range as it is written.
enum Bound {
    Whole(i128),
    Fraction(f64),
    Amount(String),
}

/// `range(min = 1, max = 10)`
fn range(argument: &Argument, errors: &mut Errors) -> Read {
    let keys = ["min", "max", "greater_than", "less_than"];
    let mut bounds: [Option<(Bound, bool, Span)>; 2] = [None, None];
    for (name, value) in limits(argument, &keys, errors)? {
        let bound = bound(&value, errors)?;
        let excluded = name == "greater_than" || name == "less_than";
        let side = usize::from(name == "max" || name == "less_than");
        if bounds[side].is_some() {
            let message = if side == 0 {
                "`min` and `greater_than` bound the same side: remove one"
            } else {
                "`max` and `less_than` bound the same side: remove one"
            };
            errors.push(value.span(), message);
            return None;
        }
        bounds[side] = Some((bound, excluded, value.span()));
    }
    let any = |test: &dyn Fn(&Bound, bool) -> bool| {
        bounds
            .iter()
            .flatten()
            .any(|(bound, excluded, _)| test(bound, *excluded))
    };
    if any(&|bound, excluded| excluded || matches!(bound, Bound::Amount(_))) {
        return amount_range(bounds, errors);
    }
    if any(&|bound, _| matches!(bound, Bound::Fraction(_))) {
        let double = |bound: Option<(Bound, bool, Span)>| {
            bound.map(|(bound, _, at)| match bound {
                Bound::Fraction(bound) => (bound, at),
                // The nearest double, as the field's values are doubles.
                Bound::Whole(bound) => (bound as f64, at),
                Bound::Amount(_) => (0.0, at),
            })
        };
        let bounds = bounds.map(double);
        if let [Some((min, _)), Some((max, at))] = bounds
            && min > max
        {
            errors.push(at, NOTHING_FITS);
            return None;
        }
        let [min, max] = bounds.map(|bound| option(bound.map(|(bound, _)| quote! { #bound })));
        return Some(("DoubleRange", "DoubleRangeValue", quote! { #min, #max }));
    }
    let whole = |bound: Option<(Bound, bool, Span)>| {
        bound.map(|(bound, _, at)| match bound {
            Bound::Whole(bound) => (bound, at),
            Bound::Fraction(_) | Bound::Amount(_) => (0, at),
        })
    };
    let bounds = bounds.map(whole);
    if let [Some((min, _)), Some((max, at))] = bounds
        && min > max
    {
        errors.push(at, NOTHING_FITS);
        return None;
    }
    let [min, max] = bounds.map(|bound| option(bound.map(|(bound, _)| quote! { #bound })));
    Some(("WholeRange", "WholeRangeValue", quote! { #min, #max }))
}

fn amount_range(bounds: [Option<(Bound, bool, Span)>; 2], errors: &mut Errors) -> Read {
    let mut texts: [Option<(String, bool, Span)>; 2] = [None, None];
    for (text, bound) in texts.iter_mut().zip(bounds) {
        let Some((bound, excluded, at)) = bound else {
            continue;
        };
        let written = match bound {
            Bound::Amount(text) => text,
            Bound::Whole(bound) => bound.to_string(),
            Bound::Fraction(_) => {
                let message = "an amount is exact, and a number with a decimal point isn't: write the \
                               bound as text, such as \"0.01\"";
                errors.push(at, message);
                return None;
            }
        };
        if !is_amount(&written) {
            let message = "a bound of an amount is a decimal number in plain notation, such as \
                           \"0.01\", below 10^18, with at most 38 digits";
            errors.push(at, message);
            return None;
        }
        *text = Some((written, excluded, at));
    }
    if let [Some((min, more_than, _)), Some((max, less_than, at))] = &texts {
        match compare_amounts(min, max) {
            Ordering::Greater => {
                errors.push(*at, NOTHING_FITS);
                return None;
            }
            Ordering::Equal if *more_than || *less_than => {
                errors.push(
                    *at,
                    "no amount lies between the bounds: widen the range, or include them with `min` \
                     and `max`",
                );
                return None;
            }
            _ => {}
        }
    }
    let [min, max] =
        texts.map(|text| option(text.map(|(text, excluded, _)| quote! { (#text, #excluded) })));
    Some(("AmountRange", "AmountRangeValue", quote! { #min, #max }))
}

/// The inner arguments, each with its value; none of them is a mistake.
fn limits(argument: &Argument, known: &[&str], errors: &mut Errors) -> Option<Vec<(String, Expr)>> {
    let key = &argument.key;
    let example = format!("write `{key}(min = 1, max = 10)`");
    let Some(inner) = argument.inner() else {
        errors.push(
            key.span(),
            format!("`{key}` takes its bounds in parentheses: {example}"),
        );
        return None;
    };
    let mut limits: Vec<(String, Expr)> = Vec::new();
    for limit in inner {
        let name = limit.key.to_string();
        if !known.contains(&name.as_str()) {
            let known = known.join("`, `");
            let message = format!("unknown key `{name}`: `{key}(…)` takes `{known}`");
            errors.push(limit.key.span(), message);
            return None;
        }
        let Some(value) = limit.value() else {
            let message = format!("`{name}` has no value: write `{name} = 1`");
            errors.push(limit.key.span(), message);
            return None;
        };
        if limits.iter().any(|(earlier, _)| *earlier == name) {
            let message = format!("`{name}` is given twice: remove one");
            errors.push(limit.key.span(), message);
            return None;
        }
        limits.push((name, value.clone()));
    }
    if limits.is_empty() {
        errors.push(key.span(), format!("`{key}` bounds nothing: {example}"));
        return None;
    }
    Some(limits)
}

fn bound(value: &Expr, errors: &mut Errors) -> Option<Bound> {
    const NOT_A_LITERAL: &str = "a bound is a number that stands here, since every export shows it: \
                                 write it as a literal; the bound of an amount may be text, such as \
                                 \"0.01\"";
    let (negative, literal) = match value {
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => (true, &**expr),
        literal => (false, literal),
    };
    let Expr::Lit(ExprLit { lit, .. }) = literal else {
        errors.push(value.span(), NOT_A_LITERAL);
        return None;
    };
    let read = match lit {
        Lit::Int(number) if number.suffix().is_empty() => number
            .base10_parse::<i128>()
            .ok()
            .map(|number| Bound::Whole(if negative { -number } else { number })),
        Lit::Float(number) if number.suffix().is_empty() => number
            .base10_parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .map(|number| Bound::Fraction(if negative { -number } else { number })),
        Lit::Str(text) if !negative => Some(Bound::Amount(text.value())),
        _ => None,
    };
    if read.is_none() {
        errors.push(value.span(), NOT_A_LITERAL);
    }
    read
}

fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote! { ::core::option::Option::Some(#value) },
        None => quote! { ::core::option::Option::None },
    }
}

/// Whether the text is an amount in plain notation.
///
/// The rule of `Amount` in factum-event, which this crate can't depend on. A test below compares the two.
fn is_amount(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((_, "")) => return false,
        Some(parts) => parts,
        None => (unsigned, ""),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let fraction = fraction.trim_end_matches('0');
    let significant = format!("{whole}{fraction}");
    !whole.is_empty()
        && (whole == "0" || !whole.starts_with('0'))
        && digits(whole)
        && digits(
            unsigned
                .split_once('.')
                .map_or("", |(_, fraction)| fraction),
        )
        && whole.len() <= 18
        && fraction.len() <= 38
        && significant.trim_matches('0').len() <= 38
}

/// Compares two amounts in plain notation.
fn compare_amounts(one: &str, other: &str) -> Ordering {
    fn parts(text: &str) -> (bool, String, String) {
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let whole = format!("{whole:0>18}");
        let fraction = fraction.trim_end_matches('0').to_owned();
        let is_zero = whole.bytes().all(|byte| byte == b'0') && fraction.is_empty();
        (text.starts_with('-') && !is_zero, whole, fraction)
    }
    let (one_negative, one_whole, one_fraction) = parts(one);
    let (other_negative, other_whole, other_fraction) = parts(other);
    let magnitudes = (one_whole, one_fraction).cmp(&(other_whole, other_fraction));
    match (one_negative, other_negative) {
        (false, false) => magnitudes,
        (true, true) => magnitudes.reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    }
}

/// Whether `range(min = …, max = …)` keeps an integer of 64 bits within what JavaScript holds.
pub(crate) fn keeps_integers_safe(range: &Argument, ty: &Type) -> bool {
    let bound = |key: &str| {
        range
            .inner()
            .into_iter()
            .flatten()
            .find(|argument| argument.key == key)
            .and_then(|argument| integer(argument.value()?))
    };
    is_safe(bound("min"), bound("max"), ty)
}

fn integer(value: &Expr) -> Option<i128> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(digits),
            ..
        }) => digits.base10_parse().ok(),
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => Some(-integer(expr)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_what_the_core_takes_for_an_amount() {
        let long = |whole: usize, fraction: usize| {
            format!("{}.{}", "9".repeat(whole), "9".repeat(fraction))
        };
        for text in [
            "0",
            "0.01",
            "-0.01",
            "10.50",
            "999999999999999999",
            "1000000000000000000",
            "",
            "-",
            ".5",
            "5.",
            "01",
            "+1",
            " 1",
            "1_000",
            "one",
            "1.2.3",
            &long(18, 20),
            &long(18, 21),
            &format!("0.{}", "9".repeat(38)),
            &format!("0.{}", "9".repeat(39)),
            &format!("0.1{}", "0".repeat(60)),
        ] {
            let core = text.parse::<factum_event::Amount>();
            assert_eq!(is_amount(text), core.is_ok(), "{text:?}");
        }
        // Plain notation alone, so that every export can show it.
        assert!(!is_amount("1e3"));
    }

    #[test]
    fn amounts_are_compared_by_value() {
        let ascending = [
            "-10", "-9.5", "-0.01", "0", "0.009", "0.01", "0.1", "2", "10.5", "11",
        ];
        for (i, one) in ascending.iter().enumerate() {
            for (j, other) in ascending.iter().enumerate() {
                assert_eq!(compare_amounts(one, other), i.cmp(&j), "{one} {other}");
            }
        }
        assert_eq!(compare_amounts("0.50", "0.5"), Ordering::Equal);
        assert_eq!(compare_amounts("-0", "0"), Ordering::Equal);
    }
}
