//! `validate = path::to::function` on an event or a snapshot.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprPath, Ident};

use crate::attribute::{Argument, Errors};

const FORM: &str = "`validate` takes the path of a function, `fn(&Self) -> Result<(), Invalid>`: write \
                    `validate = path::to::function`";

/// The function of `validate`, if there is one.
#[derive(Default)]
pub(crate) struct Hook(Option<ExprPath>);

impl Hook {
    pub(crate) fn read(argument: &Argument, errors: &mut Errors) -> Hook {
        match argument.value() {
            Some(Expr::Path(path)) => return Hook(Some(path.clone())),
            Some(other) => errors.push(other.span(), FORM),
            None => errors.push(argument.key.span(), FORM),
        }
        Hook(None)
    }

    /// A constant with the function, to stand beside the implementation: a function with another
    /// signature is one error.
    pub(crate) fn constant(&self, of: &Ident) -> TokenStream {
        let constant = self.0.as_ref().map(|function| {
            quote_spanned! { function.span() =>
                const __VALIDATE: fn(&#of) -> ::core::result::Result<(), __factum::Invalid> =
                    #function;
            }
        });
        quote! { #constant }
    }

    /// The statement that checks a value after its fields were written: so that the function, here as
    /// when reading, sees only values whose fields keep their own constraints.
    pub(crate) fn check_written(&self) -> TokenStream {
        if self.0.is_none() {
            return TokenStream::new();
        }
        quote! { __factum::check_written(self, __VALIDATE, __out.place())?; }
    }

    /// The expression of the result: `value` was read, and is checked.
    pub(crate) fn check_read(&self, value: &TokenStream) -> TokenStream {
        if self.0.is_none() {
            return quote! { ::core::result::Result::Ok(#value) };
        }
        quote! {
            let __read = #value;
            __factum::check_read(&__read, __VALIDATE, __from.place())?;
            ::core::result::Result::Ok(__read)
        }
    }
}
