//! GitHub's annotations: a finding beside the line that it is about.

/// `::error file=…,line=…,title=…::…`
pub(super) fn error(file: &str, line: usize, title: &str, message: &str) -> String {
    format!(
        "::error file={},line={line},title={}::{}",
        property(file),
        property(title),
        data(message)
    )
}

/// What ends a command must not stand in it.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_command_or_a_property_is_escaped() {
        assert_eq!(
            error("a,b:c.rs", 3, "100%: x", "one\ntwo, 50%: y"),
            "::error file=a%2Cb%3Ac.rs,line=3,title=100%25%3A x::one%0Atwo, 50%25: y"
        );
    }
}
