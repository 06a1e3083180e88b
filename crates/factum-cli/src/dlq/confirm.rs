//! Asking before many events are touched.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::events;
use crate::outcome::Exit;
use crate::plain;
use crate::target::Trouble;

/// So many events are touched without a question.
const WITHOUT_QUESTION: i64 = 10;

/// Lets a person type the consumer's name; a program says `--yes`.
pub(super) fn confirm(doing: &str, n: i64, consumer: &str, yes: bool) -> Result<(), Trouble> {
    if yes || n <= WITHOUT_QUESTION {
        return Ok(());
    }
    let refused = |what: String, why: &str, mend: String| Trouble::Refused {
        exit: Exit::Refused,
        code: "DLQ-NOT-CONFIRMED",
        what,
        place: format!("{doing} {} of {}", events(n), plain::line(consumer)),
        why: why.to_owned(),
        mend,
    };
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(refused(
            "nobody is there to confirm it".to_owned(),
            "more than 10 events are touched only with a confirmation",
            "repeat the command with --yes".to_owned(),
        ));
    }
    let mut answer = String::new();
    let asked = write!(
        io::stderr(),
        "Type the consumer's name to {doing} {}, {}: ",
        events(n),
        plain::line(consumer)
    )
    .and_then(|()| io::stderr().flush())
    .and_then(|()| io::stdin().lock().read_line(&mut answer));
    if asked.is_ok() && answer.trim() == consumer {
        return Ok(());
    }
    Err(refused(
        "what was typed is not the consumer's name".to_owned(),
        "nothing was done",
        "repeat the command, and type the name in full".to_owned(),
    ))
}
