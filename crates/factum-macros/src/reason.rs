//! A reason that is given in place for an exception to a rule.

use syn::LitStr;

use crate::attribute::Errors;

/// Fewer words are no reason.
const MIN_REASON_WORDS: usize = 3;

/// Whether the text tells a reader why; an error otherwise.
pub(crate) fn check_reason(key: &str, reason: &LitStr, errors: &mut Errors) -> bool {
    let is_word = |word: &str| word.chars().any(char::is_alphanumeric);
    let words = reason
        .value()
        .split_whitespace()
        .filter(|word| is_word(word))
        .count();
    let told = words >= MIN_REASON_WORDS;
    if !told {
        let message = format!(
            "`{key}` takes the reason, for those who read this later: say it in {MIN_REASON_WORDS} words or more"
        );
        errors.push(reason.span(), message);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_a_few_words() {
        for (text, told) in [
            ("a shop's public address", true),
            ("measured by a sensor", true),
            ("", false),
            ("no", false),
            ("not personal", false),
            ("- - - -", false),
        ] {
            let text = LitStr::new(text, proc_macro2::Span::call_site());
            let mut errors = Errors::default();
            assert_eq!(
                check_reason("float", &text, &mut errors),
                told,
                "{}",
                text.value()
            );
            assert_eq!(errors.into_compile_errors().is_none(), told);
        }
    }
}
