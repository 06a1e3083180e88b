//! Lists: columns on a terminal, tabs and full values elsewhere.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::plain;
use crate::screen::{Screen, shortened};

/// No column is made narrower than this to fit a terminal.
const NARROWEST: usize = 10;

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct List {
    header: Vec<&'static str>,
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl List {
    /// A list without rows. Headers are capitals; `right` names the columns that hold numbers.
    pub(crate) fn new(header: &[&'static str], right: &[usize]) -> List {
        List {
            header: header.to_vec(),
            right: right.to_vec(),
            rows: Vec::new(),
        }
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
        let widths = self.widths(width);
        let rows = self.rows.iter().map(|row| {
            let cells = row.iter().zip(&widths);
            cells.map(|(cell, width)| shortened(cell, *width))
        });
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(&self.header)
            .add_rows(rows);
        for column in &self.right {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        // The preset sets a blank before and behind each column.
        let text = table.to_string();
        let lines = text
            .lines()
            .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// How wide each column may be, so that a row fits: the widest text gives way first, numbers never do.
    fn widths(&self, screen: usize) -> Vec<usize> {
        const GAP: usize = 2;
        let mut widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells.chain([self.header[column].len()]).max().unwrap_or(0)
            })
            .collect();
        loop {
            let all: usize = widths.iter().map(|width| width + GAP).sum();
            if all <= screen + GAP {
                return widths;
            }
            let widest = (0..widths.len())
                .filter(|column| !self.right.contains(column) && widths[*column] > NARROWEST)
                .max_by_key(|column| widths[*column]);
            match widest {
                Some(column) => widths[column] -= 1,
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
        let mut list = List::new(&["KEY", "CONSUMER", "WAITING"], &[2]);
        let (key, consumer) = ("7c1e55aa-09d2", "billing-order-confirmed");
        list.row([key.into(), consumer.into(), "12345678".into()]);
        assert_eq!(
            list.write(terminal(40)),
            "KEY            CONSUMER          WAITING\n7c1e55aa-09d2  billing..firmed  12345678"
        );
        assert_eq!(
            list.write(PIPE).lines().nth(1),
            Some("7c1e55aa-09d2\tbilling-order-confirmed\t12345678")
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
