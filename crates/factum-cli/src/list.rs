//! Lists: columns on a terminal, tabs and full values elsewhere.

use std::io::{self, Write as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::plain;
use crate::screen::{Screen, shortened};

/// No column is made narrower than this to fit a terminal.
const NARROWEST: usize = 10;
/// What stands under these headers is copied into other commands, so it is never cut.
const COPIED: [&str; 8] = [
    "CONSUMER", "ENDPOINT", "FROM", "GROUP", "ID", "KEY", "RUN", "TOPIC",
];

/// Blanks between two columns.
const GAP: usize = 2;

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct List {
    header: Vec<&'static str>,
    right: Vec<usize>,
    below: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl List {
    /// A list without rows. Headers are capitals; `right` names the columns that hold numbers.
    pub(crate) fn new(header: &[&'static str], right: &[usize]) -> List {
        List {
            header: header.to_vec(),
            right: right.to_vec(),
            below: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Columns that stand in full under their row when a terminal is too narrow: the first of them first, and only
    /// as many as needed.
    pub(crate) fn below(mut self, columns: &[usize]) -> List {
        self.below = columns.to_vec();
        self
    }

    /// Adds a row. Control characters in its cells are escaped.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.map(|cell| plain::line(&cell).into_owned());
        self.rows.push(cells.into());
    }

    /// As it is printed on this process's stdout, without a line break at its end.
    pub(crate) fn text(&self) -> String {
        self.write(Screen::stdout())
    }

    fn write(&self, screen: Screen) -> String {
        let Some(width) = screen.width else {
            let lines = std::iter::once(self.header.join("\t"))
                .chain(self.rows.iter().map(|row| row.join("\t")));
            return lines.collect::<Vec<_>>().join("\n");
        };
        let (beside, below) = self.placed(width);
        let widths = self.widths(&beside, width);
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(beside.iter().map(|column| self.header[*column]));
        for row in &self.rows {
            let cells = beside.iter().zip(&widths);
            table.add_row(cells.map(|(column, width)| shortened(&row[*column], *width)));
        }
        for (place, column) in beside.iter().enumerate() {
            if self.right.contains(column)
                && let Some(column) = table.column_mut(place)
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        // The preset sets a blank before and behind each column.
        let text = table.to_string();
        let mut lines = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let line = line.strip_prefix(' ').unwrap_or(line).trim_end();
            lines.push(line.to_owned());
            // The first line is the header.
            let Some(row) = place.checked_sub(1).and_then(|row| self.rows.get(row)) else {
                continue;
            };
            let said = below
                .iter()
                .filter(|column| !row[**column].is_empty() && row[**column] != "-");
            lines.extend(said.map(|column| {
                format!(
                    "    {:<8}  {}",
                    self.header[*column].to_lowercase(),
                    row[*column]
                )
            }));
        }
        lines.join("\n")
    }

    /// Which columns stand beside each other, and which under their row.
    fn placed(&self, screen: usize) -> (Vec<usize>, Vec<usize>) {
        let mut beside: Vec<usize> = (0..self.header.len()).collect();
        let mut below = Vec::new();
        for column in &self.below {
            if self.width(&beside) <= screen {
                break;
            }
            beside.retain(|other| other != column);
            below.push(*column);
        }
        below.sort_unstable();
        (beside, below)
    }

    /// How wide the columns are together if none is cut.
    fn width(&self, columns: &[usize]) -> usize {
        let all: usize = columns
            .iter()
            .map(|column| self.widest(*column) + GAP)
            .sum();
        all.saturating_sub(GAP)
    }

    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.chain([self.header[column].len()]).max().unwrap_or(0)
    }

    /// How wide each of these columns may be, so that a row fits: the widest text gives way first, numbers and what is
    /// copied never do.
    fn widths(&self, columns: &[usize], screen: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = columns.iter().map(|column| self.widest(*column)).collect();
        let may_be_cut = |column: &usize| {
            !self.right.contains(column) && !COPIED.contains(&self.header[*column])
        };
        loop {
            let all: usize = widths.iter().map(|width| width + GAP).sum();
            if all <= screen + GAP {
                return widths;
            }
            let widest = (0..widths.len())
                .filter(|place| widths[*place] > NARROWEST && may_be_cut(&columns[*place]))
                .max_by_key(|place| widths[*place]);
            match widest {
                Some(place) => widths[place] -= 1,
                None => return widths,
            }
        }
    }
}

/// A moment in UTC, to the second: `2026-11-30T14:20:05Z`.
pub(crate) fn moment(at: OffsetDateTime) -> String {
    at.to_offset(time::UtcOffset::UTC)
        .replace_nanosecond(0)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_else(|| at.to_string())
}

/// Says something beside the data.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", plain::lines(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIPE: Screen = Screen { width: None };

    fn terminal(width: usize) -> Screen {
        Screen { width: Some(width) }
    }

    #[test]
    fn a_pipe_gets_tabs_and_a_terminal_columns() {
        let mut list = List::new(&["KEY", "WAITING"], &[1]);
        list.row(["a".to_owned(), "12".to_owned()]);
        assert_eq!(list.write(PIPE), "KEY\tWAITING\na\t12");
        assert_eq!(list.write(terminal(80)), "KEY  WAITING\na         12");
    }

    #[test]
    fn on_a_narrow_terminal_the_widest_text_loses_its_middle_and_a_number_nothing() {
        let mut list = List::new(&["KEY", "WHERE", "WAITING"], &[2]);
        let (key, place) = ("7c1e55aa-09d2", "$.positions[].quantity");
        list.row([key.into(), place.into(), "12345678".into()]);
        assert_eq!(
            list.write(terminal(40)),
            "KEY            WHERE             WAITING\n7c1e55aa-09d2  $.posit..antity  12345678"
        );
        assert_eq!(
            list.write(PIPE).lines().nth(1),
            Some("7c1e55aa-09d2\t$.positions[].quantity\t12345678")
        );
    }

    #[test]
    fn what_is_copied_is_never_cut_and_a_cause_moves_under_its_row() {
        let mut list = List::new(&["KEY", "NEXT", "CAUSE", "CONSUMER"], &[]).below(&[2, 3]);
        let key = "0197a1b2-0000-7000-8000-00000000eeee";
        let (cause, consumer) = ("SQLSTATE 42P01: no such table", "billing-order-confirmed");
        list.row([key.into(), "held".into(), cause.into(), consumer.into()]);
        list.row(["k".into(), "now".into(), String::new(), consumer.into()]);
        assert_eq!(
            list.write(terminal(70)),
            format!(
                "{:<36}  NEXT  CONSUMER\n{key}  held  {consumer}\n    cause     {cause}\n{:<36}  now   {consumer}",
                "KEY", "k"
            )
        );
        assert_eq!(
            list.write(terminal(30)),
            format!(
                "{:<36}  NEXT\n{key}  held\n    cause     {cause}\n    consumer  {consumer}\n{:<36}  now\n    \
                 consumer  {consumer}",
                "KEY", "k"
            )
        );
    }

    #[test]
    fn a_cell_stays_within_its_row() {
        let mut list = List::new(&["KEY", "WAITING"], &[]);
        list.row(["a\tb\nc\u{1b}[2J".to_owned(), String::new()]);
        assert_eq!(
            list.write(PIPE),
            "KEY\tWAITING\na\\u0009b\\u000ac\\u001b[2J\t"
        );
    }
}
