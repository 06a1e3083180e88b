//! The words of a name, however it is spelled.

/// The words of a name in lower case: `OrderPaidOut`, `order_paid_out` and `orderPaidOut` have the same.
///
/// Capitals in a row are one word (`IBANChanged` is `iban`, `changed`), and digits belong to the word before
/// them (`ConfirmedV2` is `confirmed`, `v2`).
pub(crate) fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = Vec::new();
    let mut word = String::new();
    for (at, letter) in letters.iter().enumerate() {
        if !letter.is_alphanumeric() {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            continue;
        }
        let before = at.checked_sub(1).map(|before| letters[before]);
        let next_is_small = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| !before.is_uppercase() || next_is_small);
        if begins && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        word.extend(letter.to_lowercase());
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// The words as a type's name: `OrderPaidOut`.
pub(crate) fn pascal_case(words: &[String]) -> String {
    let mut name = String::new();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        name.push_str(letters.as_str());
    }
    name
}

/// How many words at the end of `words` are spelled `spelling` when they are written as one, if any.
///
/// So `e_mail` ends in "email", and `emailed` doesn't.
pub(crate) fn ending(words: &[String], spelling: &str) -> Option<usize> {
    let mut rest = spelling;
    for (count, word) in words.iter().rev().enumerate() {
        if rest.is_empty() {
            return Some(count);
        }
        rest = rest.strip_suffix(word.as_str())?;
    }
    rest.is_empty().then_some(words.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_words_in_every_spelling() {
        for (name, expected) in [
            ("OrderPaidOut", "order paid out"),
            ("order_paid_out", "order paid out"),
            ("orderPaidOut", "order paid out"),
            ("order-paid-out", "order paid out"),
            ("IBANChanged", "iban changed"),
            ("VATReportFiled", "vat report filed"),
            ("OrderConfirmedV2", "order confirmed v2"),
            ("Level2Reached", "level2 reached"),
            ("address_line_1", "address line 1"),
            ("_hidden", "hidden"),
            ("E_MAIL", "e mail"),
            ("ÄnderungErfasst", "änderung erfasst"),
            ("", ""),
        ] {
            assert_eq!(words(name).join(" "), expected, "{name}");
        }
    }

    #[test]
    fn an_ending_is_made_of_whole_words() {
        let count = |name: &str, spelling: &str| ending(&words(name), spelling);
        assert_eq!(count("customer_e_mail", "email"), Some(2));
        assert_eq!(count("customer_email", "email"), Some(1));
        assert_eq!(count("email", "email"), Some(1));
        assert_eq!(count("emailed", "email"), None);
        assert_eq!(count("ship", "ip"), None);
        assert_eq!(count("order_paid_out", "paidout"), Some(2));
        assert_eq!(count("order_paid_out", "idout"), None);
        assert_eq!(count("out", "paidout"), None);
    }
}
