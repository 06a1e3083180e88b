//! The codes of the closed, public lists, from crates that follow the standards.

use crate::contract::CodeList;
use crate::currency::Currency;

impl CodeList {
    /// Whether the text is a code of the list, in the list's own case.
    ///
    /// ```
    /// # use factum_event::CodeList;
    /// assert!(CodeList::Country.contains("DE"));
    /// assert!(CodeList::Language.contains("de"));
    /// assert!(CodeList::Currency.contains("EUR"));
    /// assert!(!CodeList::Country.contains("de"));
    /// ```
    #[must_use]
    pub fn contains(self, code: &str) -> bool {
        match self {
            CodeList::Currency => code.parse::<Currency>().is_ok(),
            CodeList::Country => rust_iso3166::ALPHA2_MAP.contains_key(code),
            CodeList::Language => isolang::Language::from_639_1(code).is_some(),
        }
    }

    /// Every code, sorted: for exports.
    ///
    /// ```
    /// # use factum_event::CodeList;
    /// assert_eq!(CodeList::Country.codes().len(), 249);
    /// ```
    #[must_use]
    pub fn codes(self) -> Vec<&'static str> {
        let mut codes: Vec<&'static str> = match self {
            CodeList::Currency => Currency::all().map(Currency::code).collect(),
            CodeList::Country => rust_iso3166::ALL_ALPHA2.to_vec(),
            CodeList::Language => isolang::languages()
                .filter_map(|language| language.to_639_1())
                .collect(),
        };
        codes.sort_unstable();
        codes
    }

    /// What a reader expects, as a noun.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            CodeList::Currency => "a currency code (ISO 4217), such as \"EUR\"",
            CodeList::Country => "a country code (ISO 3166-1 alpha-2), such as \"DE\"",
            CodeList::Language => "a language code (ISO 639-1), such as \"de\"",
        }
    }
}
