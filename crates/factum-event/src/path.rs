//! Where in an event a value stands, such as `$.items[3].price`.

/// A longer path is cut: it goes into dead letters and logs, which have limits of their own.
const MAX_PATH_BYTES: usize = 512;
/// A longer key is not shown: it is hardly a name.
const MAX_SHOWN_KEY_BYTES: usize = 64;

/// A path as a list that lives on the stack of the reader or writer, so that nothing is allocated
/// until there is a fault to report.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    /// An entry of a map whose keys are data and so are never shown.
    Entry(&'a Path<'a>),
}

impl Path<'_> {
    pub(crate) fn render(&self) -> String {
        self.render_before(Vec::new())
    }

    /// Renders the path with more of it: `relative` is such as `items[3].price`, or empty.
    pub(crate) fn render_with(&self, relative: &str) -> String {
        let mut segments = Vec::new();
        for step in relative.split('.').filter(|step| !step.is_empty()) {
            let (name, indices) = step.split_at(step.find('[').unwrap_or(step.len()));
            if !name.is_empty() {
                segments.push(Segment::field(name));
            }
            for index in indices.split_inclusive(']') {
                let index = index
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'));
                segments.push(match index.map(|index| (index, index.parse())) {
                    Some((_, Ok(index))) => Segment::Index(index),
                    Some(("*", _)) => Segment::Entry,
                    _ => Segment::HiddenField,
                });
            }
        }
        segments.reverse();
        self.render_before(segments)
    }

    /// `segments` go from the fault outwards, and this path goes on.
    fn render_before(&self, mut segments: Vec<Segment>) -> String {
        let mut at = self;
        loop {
            at = match at {
                Path::Root => break,
                Path::Field(parent, name) => {
                    segments.push(Segment::field(name));
                    parent
                }
                Path::Index(parent, index) => {
                    segments.push(Segment::Index(*index));
                    parent
                }
                Path::Entry(parent) => {
                    segments.push(Segment::Entry);
                    parent
                }
            };
        }
        render_reversed(&segments)
    }
}

/// One step of a path, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    Field(String),
    HiddenField,
    Index(usize),
    Entry,
}

impl Segment {
    /// A key is shown when it looks like a name that a programmer chose. Anything else may be
    /// data, such as an e-mail address.
    pub(crate) fn field(key: &str) -> Segment {
        let mut bytes = key.bytes();
        let named = bytes
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && key.len() <= MAX_SHOWN_KEY_BYTES;
        if named {
            Segment::Field(key.to_owned())
        } else {
            Segment::HiddenField
        }
    }
}

/// Renders steps that were collected from the fault outwards.
pub(crate) fn render_reversed(segments: &[Segment]) -> String {
    let mut path = String::from("$");
    for segment in segments.iter().rev() {
        let before = path.len();
        match segment {
            Segment::Field(name) => {
                path.push('.');
                path.push_str(name);
            }
            Segment::HiddenField => path.push_str("['…']"),
            Segment::Index(index) => path.push_str(&format!("[{index}]")),
            Segment::Entry => path.push_str("[*]"),
        }
        if path.len() > MAX_PATH_BYTES - "…".len() {
            path.truncate(before);
            path.push('…');
            break;
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_from_the_outside_in() {
        let items = Path::Field(&Path::Root, "items");
        let third = Path::Index(&items, 3);
        let price = Path::Field(&third, "price");
        assert_eq!(price.render(), "$.items[3].price");
        assert_eq!(Path::Root.render(), "$");
        assert_eq!(Path::Entry(&items).render(), "$.items[*]");
    }

    #[test]
    fn a_relative_path_goes_on_where_the_path_ends() {
        let items = Path::Field(&Path::Root, "items");
        let third = Path::Index(&items, 3);
        for (relative, whole) in [
            ("", "$.items[3]"),
            ("price", "$.items[3].price"),
            ("[2]", "$.items[3][2]"),
            (
                "taxes[0].rates[12][1].name",
                "$.items[3].taxes[0].rates[12][1].name",
            ),
            ("labels[*]", "$.items[3].labels[*]"),
            ("jane doe", "$.items[3]['…']"),
            ("a[jane]", "$.items[3].a['…']"),
            ("a[1", "$.items[3].a['…']"),
        ] {
            assert_eq!(third.render_with(relative), whole, "{relative}");
        }
    }

    #[test]
    fn a_key_that_may_be_data_is_not_shown() {
        for key in ["jane@example.com", "", "a b", "1a", "é", &"a".repeat(65)] {
            assert_eq!(Path::Field(&Path::Root, key).render(), "$['…']");
        }
        assert_eq!(Path::Field(&Path::Root, &"a".repeat(64)).render().len(), 66);
    }

    #[test]
    fn a_long_path_is_cut() {
        let segments = vec![Segment::Field("a".repeat(64)); 32];
        let path = render_reversed(&segments);
        assert!(path.len() <= MAX_PATH_BYTES, "{} bytes", path.len());
        assert!(path.ends_with('…'));
    }
}
