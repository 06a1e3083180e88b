//! What `main` returns.

use std::error::Error as StdError;
use std::fmt;

/// What `main` returns, so that a failed start reads well:
///
/// ```no_run
/// # use factum::{Config, Service};
/// # async fn start() -> factum::Result {
/// let config = Config::from_env()?; // any error type converts
/// Service::builder(config).relay().run().await?;
/// Ok(())
/// # }
/// ```
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Any error, on its way out of `main`.
///
/// A program that ends with it prints its [`Debug`] form, which is therefore written for a person:
/// the error's own text, then its causes, line by line. It takes every error through `?`, and for
/// that reason is no [`std::error::Error`] itself: inside a program keep the typed errors.
pub struct Error {
    inner: Box<dyn StdError + Send + Sync>,
}

impl Error {
    /// The error that was converted, to be asked for its type.
    ///
    /// ```
    /// let error = factum::Error::from(std::io::Error::other("no room"));
    /// assert!(error.inner().is::<std::io::Error>());
    /// ```
    #[must_use]
    pub fn inner(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.inner
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Error {
        Error {
            inner: Box::new(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.inner.to_string();
        f.write_str(&shown)?;
        let mut cause = self.inner.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors quote their cause already.
            if !shown.contains(&text) {
                write!(f, "\n  because: {text}")?;
                shown.push_str(&text);
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer {
        text: &'static str,
        cause: std::io::Error,
    }

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.text)
        }
    }

    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.cause)
        }
    }

    #[test]
    fn debug_reads_as_text_with_each_cause_once() {
        let outer = |text| {
            Error::from(Outer {
                text,
                cause: std::io::Error::other("the disk is full"),
            })
        };
        assert_eq!(
            format!("{:?}", outer("nothing was written")),
            "nothing was written\n  because: the disk is full"
        );
        assert_eq!(
            format!("{:?}", outer("nothing was written: the disk is full")),
            "nothing was written: the disk is full"
        );
    }
}
