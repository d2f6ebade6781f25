//! Tables for people: columns as wide as their widest cell, the last one as long as it likes.

use std::fmt;

/// Lines of cells under a heading.
#[derive(Clone, Debug)]
pub(crate) struct Table<const N: usize> {
    lines: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Self {
        Self { lines: vec![heading.map(str::to_owned)] }
    }

    pub(crate) fn add(&mut self, line: [String; N]) {
        self.lines.push(line);
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
    /// Nothing at all if there is only the heading.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.len() == 1 {
            return Ok(());
        }
        let widths = self.widths();
        for line in &self.lines {
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
    fn cells_stand_below_each_other() {
        let mut table = Table::new(["KEY", "VALUE"]);
        assert_eq!(table.to_string(), "");
        table.add(["JFK".into(), "New York".into()]);
        table.add(["Zürich".into(), "".into()]);
        assert_eq!(table.to_string(), "KEY     VALUE\nJFK     New York\nZürich  \n");
    }
}
