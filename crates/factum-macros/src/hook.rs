//! `validate = path::to::function` on an event or a snapshot.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprPath};

use crate::attribute::{Argument, Errors};

const FORM: &str = "`validate` takes the path of a function, `fn(&Self) -> Result<(), Invalid>`: write \
                    `validate = path::to::function`";

/// The function, if it is one.
pub(crate) fn function(argument: &Argument, errors: &mut Errors) -> Option<ExprPath> {
    match argument.value() {
        Some(Expr::Path(path)) => Some(path.clone()),
        Some(other) => {
            errors.push(other.span(), FORM);
            None
        }
        None => {
            errors.push(argument.key.span(), FORM);
            None
        }
    }
}

/// The statement that checks a value after its fields were written: so that the function, here as when
/// reading, sees only values whose fields keep their own constraints.
pub(crate) fn check_written(function: Option<&ExprPath>) -> TokenStream {
    match function {
        Some(function) => quote_spanned! { function.span() =>
            __factum::check_written::<Self>(self, #function, __out.place())?;
        },
        None => TokenStream::new(),
    }
}

/// The expression of the result: `value` was read, and is checked.
pub(crate) fn check_read(function: Option<&ExprPath>, value: TokenStream) -> TokenStream {
    match function {
        Some(function) => {
            let check = quote_spanned! { function.span() =>
                __factum::check_read::<Self>(&__read, #function, __from.place())?;
            };
            quote! {
                let __read = #value;
                #check
                ::core::result::Result::Ok(__read)
            }
        }
        None => quote! { ::core::result::Result::Ok(#value) },
    }
}
