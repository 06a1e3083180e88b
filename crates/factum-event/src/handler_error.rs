//! What a handler fails with.

use std::error::Error;
use std::fmt;

/// Why a handler could not handle an event: transient unless it says otherwise (RTRY-2).
///
/// `?` turns any error into a transient one, which is retried with a delay, up to the attempts of
/// the policy. An error that no retry can mend is [`permanent`](Self::permanent): the event goes to
/// the dead letters at once.
///
/// ```
/// # use factum_event::HandlerError;
/// fn bill(text: &str) -> Result<u32, HandlerError> {
///     let cents: u32 = text.parse()?; // any error: retried
///     if cents == 0 {
///         return Err(HandlerError::permanent("nothing to bill")); // dead letter
///     }
///     Ok(cents)
/// }
/// assert!(!bill("x").unwrap_err().is_permanent());
/// assert!(bill("0").unwrap_err().is_permanent());
/// ```
///
/// What is stored and logged is [`describe`](Self::describe): the text that was given here, or the
/// name of the error's type, and never an error's own text, because it may quote the payload (public
/// case 58). Factum's own errors hold no value, so theirs is kept: `tx.call(…).await?` says what is wrong with the
/// call, and is permanent where no retry can mend it.
///
/// It is no [`std::error::Error`] itself, so that `?` can take every one.
pub struct HandlerError {
    permanent: bool,
    description: Description,
    source: Option<Box<dyn Error + Send + Sync + 'static>>,
}

enum Description {
    Given(String),
    /// The name of the type that the error had before it was boxed.
    TypeName(&'static str),
}

impl HandlerError {
    /// No retry can mend it: a dead letter at once. The text is stored with the dead letter, so it
    /// names no value of the payload.
    pub fn permanent(description: impl Into<String>) -> HandlerError {
        HandlerError::given(true, description.into())
    }

    /// A retry may mend it. The text is stored, so it names no value of the payload.
    pub fn transient(description: impl Into<String>) -> HandlerError {
        HandlerError::given(false, description.into())
    }

    fn given(permanent: bool, description: String) -> HandlerError {
        HandlerError {
            permanent,
            description: Description::Given(description),
            source: None,
        }
    }

    /// Keeps the error that led to this one. It is not stored and not shown.
    ///
    /// ```
    /// # use factum_event::HandlerError;
    /// let error = "x".parse::<u32>().map_err(|e| {
    ///     HandlerError::permanent("the customer number is no number").with_source(e)
    /// });
    /// assert!(error.unwrap_err().source().is_some());
    /// ```
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn Error + Send + Sync + 'static>>,
    ) -> HandlerError {
        self.source = Some(source.into());
        self
    }

    /// The same error as a permanent one.
    ///
    /// ```
    /// # use factum_event::HandlerError;
    /// let error = "x".parse::<u32>().map_err(|e| HandlerError::from(e).into_permanent());
    /// assert!(error.unwrap_err().is_permanent());
    /// ```
    #[must_use]
    pub fn into_permanent(mut self) -> HandlerError {
        self.permanent = true;
        self
    }

    /// Whether no retry can mend it.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The error that led to this one.
    pub fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// Whether its text was given, and isn't the name of a type.
    pub fn is_described(&self) -> bool {
        matches!(self.description, Description::Given(_))
    }

    /// What may be stored and logged: the given text, or the type name of the error.
    pub fn describe(&self) -> String {
        match &self.description {
            Description::Given(text) => text.clone(),
            Description::TypeName(name) => (*name).to_owned(),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        HandlerError {
            permanent: false,
            description: Description::TypeName(std::any::type_name::<E>()),
            source: Some(Box::new(error)),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.permanent {
            "permanent"
        } else {
            "transient"
        };
        match &self.description {
            Description::Given(text) => write!(f, "{kind}: {text}"),
            Description::TypeName(name) => write!(f, "{kind}: {name}"),
        }
    }
}

/// As [`Display`](fmt::Display): the error's own text may quote the payload.
impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerError({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no such customer: {0}")]
    struct Quoting(&'static str);

    const CANARY: &str = "jane@example.com";

    fn fails() -> Result<(), HandlerError> {
        Err(Quoting(CANARY))?;
        Ok(())
    }

    #[test]
    fn any_error_is_transient_unless_it_is_made_permanent() {
        let error = fails().unwrap_err();
        assert!(!error.is_permanent());
        assert!(error.into_permanent().is_permanent());
        assert!(HandlerError::permanent("x").is_permanent());
        assert!(!HandlerError::transient("x").is_permanent());
    }

    #[test]
    fn case_58_the_text_of_a_foreign_error_is_never_shown() {
        let from_question_mark = fails().unwrap_err();
        let with_source = HandlerError::transient("no customer").with_source(Quoting(CANARY));
        for error in [&from_question_mark, &with_source] {
            for text in [error.describe(), error.to_string(), format!("{error:?}")] {
                assert!(!text.contains(CANARY), "{text}");
            }
            let source = error.source().expect("the source is kept for the runtime");
            assert!(source.downcast_ref::<Quoting>().is_some());
        }
        assert!(from_question_mark.describe().ends_with("Quoting"));
        assert!(!from_question_mark.is_described() && with_source.is_described());
        assert_eq!(with_source.to_string(), "transient: no customer");
    }
}
