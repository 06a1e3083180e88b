//! Lists: columns on a terminal, tabs and full values elsewhere.

use std::io::{self, IsTerminal as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

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

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// As it is printed on this process's stdout, without a line break at its end.
    pub(crate) fn text(&self) -> String {
        self.write(io::stdout().is_terminal())
    }

    fn write(&self, terminal: bool) -> String {
        if !terminal {
            let lines = std::iter::once(self.header.join("\t"))
                .chain(self.rows.iter().map(|row| row.join("\t")));
            return lines.collect::<Vec<_>>().join("\n");
        }
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(&self.header)
            .add_rows(&self.rows);
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

    #[test]
    fn a_pipe_gets_tabs_and_a_terminal_columns() {
        let mut list = List::new(&["KEY", "WAITING"], &[1]);
        list.row(["a".to_owned(), "12".to_owned()]);
        assert_eq!(list.write(false), "KEY\tWAITING\na\t12");
        assert_eq!(list.write(true), "KEY  WAITING\na         12");
    }
}
