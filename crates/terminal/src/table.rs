//! Aligned text output: each column is as wide as its widest cell, except the last one.

use std::fmt;

/// Rows of cells with a heading.
#[derive(Clone, Debug)]
pub struct Table<const N: usize> {
    lines: Vec<[String; N]>,
    /// Whether the heading was printed before.
    omits_heading: bool,
}

impl<const N: usize> Table<N> {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(heading: [&str; N]) -> Self {
        Self { lines: vec![heading.map(str::to_owned)], omits_heading: false }
    }

    pub fn add(&mut self, line: [String; N]) {
        self.lines.push(line);
    }

    /// Omits the heading, but keeps its width.
    pub fn omit_heading(&mut self) {
        self.omits_heading = true;
    }

    fn widths(&self) -> [usize; N] {
        let mut widths = [0; N];
        for line in &self.lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    /// Prints nothing if there is only the heading.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.len() == 1 {
            return Ok(());
        }
        let widths = self.widths();
        for line in self.lines.iter().skip(usize::from(self.omits_heading)) {
            let (last, others) = line.split_last().expect("a table has columns");
            for (cell, width) in others.iter().zip(widths) {
                write!(f, "{cell:width$}  ")?;
            }
            writeln!(f, "{last}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let mut table = Table::new(["KEY", "VALUE"]);
        assert_eq!(table.to_string(), "");
        table.add(["JFK".into(), "New York".into()]);
        table.add(["Zürich".into(), "".into()]);
        assert_eq!(table.to_string(), "KEY     VALUE\nJFK     New York\nZürich  \n");
        table.omit_heading();
        assert_eq!(table.to_string(), "JFK     New York\nZürich  \n");
    }
}
