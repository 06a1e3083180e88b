//! One thing that keeps a service from starting, said so that it can be mended.

use std::fmt;

/// One thing that is wrong, with the rule it breaks, where it was found and what to do.
///
/// Problems are collected, never thrown one by one: a start that fails names all of them.
/// No text of a problem quotes a setting's value, because a value may be a secret, or a
/// secret that was put into the wrong setting.
///
/// ```text
/// error[CFG-4]: the topic `orders.confirmed` does not exist
///   where: consumer `billing-order-confirmed`, Kafka at localhost:9092
///   mend:  create it (the service that publishes it owns it), or correct `topic = …`
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    rule: &'static str,
    what: String,
    place: String,
    mend: String,
    database_is_away: bool,
}

impl Problem {
    pub(crate) fn new(
        rule: &'static str,
        place: impl Into<String>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Problem {
        Problem {
            rule,
            what: what.into(),
            place: place.into(),
            mend: mend.into(),
            database_is_away: false,
        }
    }

    /// The same, of a database that can't be reached or lets nobody in.
    pub(crate) fn of_database_away(self) -> Problem {
        Problem {
            database_is_away: true,
            ..self
        }
    }

    /// Whether it is that the database can't be reached or lets nobody in: what else is wrong there, nobody knows yet.
    #[must_use]
    pub fn is_database_away(&self) -> bool {
        self.database_is_away
    }

    /// The id of the rule that is broken, such as `CFG-4`.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// What is wrong.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Where it was found: an environment variable, a consumer, a topic, a server.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What to do about it.
    #[must_use]
    pub fn mend(&self) -> &str {
        &self.mend
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.rule, self.what)?;
        writeln!(f, "  where: {}", self.place)?;
        write!(f, "  mend:  {}", self.mend)
    }
}

/// Writes a heading with the number of problems, then each of them, separated by empty lines.
pub(crate) fn write_list(
    f: &mut fmt::Formatter<'_>,
    subject: &str,
    problems: &[Problem],
) -> fmt::Result {
    let noun = if problems.len() == 1 {
        "problem"
    } else {
        "problems"
    };
    write!(f, "{subject}: {} {noun}", problems.len())?;
    for problem in problems {
        write!(f, "\n\n{problem}")?;
    }
    Ok(())
}

/// `2 consumers`, `1 consumer`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_where_and_mend() {
        let problem = Problem::new("CFG-4", "Kafka at a:1", "the topic is gone", "create it");
        assert_eq!(
            problem.to_string(),
            "error[CFG-4]: the topic is gone\n  where: Kafka at a:1\n  mend:  create it"
        );
    }

    #[test]
    fn counts_are_words() {
        assert_eq!(counted(1, "consumer"), "1 consumer");
        assert_eq!(counted(0, "consumer"), "0 consumers");
    }
}
