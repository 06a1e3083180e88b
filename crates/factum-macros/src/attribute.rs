//! `#[event(…)]` and `#[snapshot(…)]`: read as a whole, every mistake reported.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Path, Token, parenthesized, token};

/// Mistakes found so far; they are reported together, so that one build shows all of them.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    /// With the span of all the tokens.
    pub(crate) fn push_on(
        &mut self,
        tokens: impl quote::ToTokens,
        message: impl std::fmt::Display,
    ) {
        self.add(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn into_compile_errors(self) -> Option<proc_macro2::TokenStream> {
        self.0.map(|errors| errors.into_compile_error())
    }
}

/// `key`, `key = value` or `key(inner, …)`
pub(crate) struct Argument {
    pub(crate) key: Ident,
    value: Option<Expr>,
    /// What stands in the parentheses.
    inner: Option<Vec<Argument>>,
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        // `crate` is a keyword.
        let key = input.call(Ident::parse_any).map_err(|error| {
            let message =
                "a key belongs here: `key`, `key = …` or `key(…)`, as in `length(max = 40)`";
            syn::Error::new(error.span(), message)
        })?;
        let mut value = None;
        let mut inner = None;
        if input.peek(token::Paren) {
            let content;
            parenthesized!(content in input);
            let arguments = Punctuated::<Argument, Token![,]>::parse_terminated(&content)?;
            inner = Some(arguments.into_iter().collect());
        } else if input.parse::<Option<Token![=]>>()?.is_some() {
            value = Some(ungrouped(input.parse()?));
        }
        Ok(Argument { key, value, inner })
    }
}

/// What a `$literal` of a macro by example stands for.
fn ungrouped(mut value: Expr) -> Expr {
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    value
}

impl Argument {
    /// The text of `key = "text"`.
    pub(crate) fn text(&self, errors: &mut Errors) -> Option<LitStr> {
        match &self.value {
            Some(Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            })) => Some(text.clone()),
            Some(other) => {
                let message = format!("`{}` takes text: write `{0} = \"…\"`", self.key);
                errors.push(other.span(), message);
                None
            }
            None => {
                let message = format!("`{}` has no value: write `{0} = \"…\"`", self.key);
                errors.push(self.key.span(), message);
                None
            }
        }
    }

    /// The value of `key = value`.
    pub(crate) fn value(&self) -> Option<&Expr> {
        self.value.as_ref()
    }

    /// What stands in the parentheses of `key(…)`.
    pub(crate) fn inner(&self) -> Option<&[Argument]> {
        self.inner.as_deref()
    }

    /// The path of `key = some::Type`; `example` is such a name.
    pub(crate) fn rust_path(&self, example: &str, errors: &mut Errors) -> Option<Path> {
        match &self.value {
            Some(Expr::Path(path)) if path.qself.is_none() && path.attrs.is_empty() => {
                Some(path.path.clone())
            }
            Some(other) => {
                let message = format!(
                    "`{}` takes the Rust name, without quotes: write `{0} = {example}`",
                    self.key
                );
                errors.push(other.span(), message);
                None
            }
            None => {
                let message = format!("`{}` has no value: write `{0} = {example}`", self.key);
                errors.push(self.key.span(), message);
                None
            }
        }
    }

    /// That a bare `key` has no value.
    pub(crate) fn check_flag(&self, errors: &mut Errors) {
        if let Some(value) = &self.value {
            errors.push(
                value.span(),
                format!("`{}` takes no value: remove it", self.key),
            );
        } else if self.inner.is_some() {
            errors.push(
                self.key.span(),
                format!("`{}` takes no parentheses: remove them", self.key),
            );
        }
    }
}

/// The arguments of all attributes called `name`.
pub(crate) struct Arguments {
    /// In order, without unknown and repeated ones.
    pub(crate) good: Vec<Argument>,
    /// Whether an attribute couldn't be read at all, so that nobody knows what it holds.
    pub(crate) unreadable: bool,
}

/// Reads all attributes called `name`.
pub(crate) fn arguments(
    attributes: &[Attribute],
    name: &str,
    allowed: &[&str],
    errors: &mut Errors,
) -> Arguments {
    let mut good: Vec<Argument> = Vec::new();
    let mut unreadable = false;
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident(name))
    {
        let Meta::List(list) = &attribute.meta else {
            let message = format!(
                "`#[{name}]` says nothing: it takes `{}` here, in parentheses",
                allowed.join("`, `")
            );
            errors.push(attribute.path().span(), message);
            unreadable = true;
            continue;
        };
        match list.parse_args_with(Punctuated::<Argument, Token![,]>::parse_terminated) {
            Err(error) => {
                unreadable = true;
                errors.add(error);
            }
            Ok(parsed) => {
                for argument in parsed {
                    let key = argument.key.to_string();
                    if !allowed.contains(&key.as_str()) {
                        let known = allowed.join("`, `");
                        let message =
                            format!("unknown key `{key}`: `#[{name}(…)]` takes `{known}` here");
                        errors.push(argument.key.span(), message);
                    } else if good.iter().any(|earlier| earlier.key == argument.key) {
                        errors.push(
                            argument.key.span(),
                            format!("`{key}` is given twice: remove one"),
                        );
                    } else {
                        good.push(argument);
                    }
                }
            }
        }
    }
    Arguments { good, unreadable }
}

/// Reports every `#[serde(…)]`: it would look as if it changed the wire form, and it doesn't.
pub(crate) fn refuse_serde(attributes: &[Attribute], errors: &mut Errors) {
    let named = "a field is called on the wire as in Rust, in camelCase";
    refuse_serde_where(attributes, named, errors);
}

/// The same, where `named` says how names on the wire come about.
pub(crate) fn refuse_serde_where(attributes: &[Attribute], named: &str, errors: &mut Errors) {
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("serde"))
    {
        errors.push(
            attribute.path().span(),
            format!(
                "serde attributes don't change how an event is written or read: remove it; {named}"
            ),
        );
    }
}
