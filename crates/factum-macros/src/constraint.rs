//! The constraints that a field's attribute declares.

use syn::{Expr, ExprLit, ExprUnary, Lit, Type, UnOp};

use crate::attribute::Argument;
use crate::numbers::is_safe;

/// The keys of a field's attribute that constrain its value.
pub(crate) const CONSTRAINTS: [&str; 5] = ["length", "range", "pattern", "items", "code"];

/// Whether `range(min = …, max = …)` keeps an integer of 64 bits within what JavaScript holds.
pub(crate) fn keeps_integers_safe(range: &Argument, ty: &Type) -> bool {
    let bound = |key: &str| {
        range
            .inner()
            .iter()
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
