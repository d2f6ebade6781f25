//! The workloads: scripts built into pgbench, and others.

use clap::ValueEnum;
use serde::Serialize;

/// Rows of the indexed table for each unit of the scale.
const INDEXED_ROWS: usize = 10_000;
/// Rows of a range.
const RANGE_ROWS: usize = 100;
/// Accounts for each unit of the scale, in pgbench's data.
const ACCOUNTS: usize = 100_000;
/// Spreads the values of the index. A prime, so that they are unique as long as it does not divide the number of rows.
const SPREAD: usize = 1_000_003;

/// The tables of pgbench with their keys, which pgbench itself adds to filled tables only. A table for reads by a secondary
/// index.
pub(super) const TABLES: &str = "
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE TABLE bench_indexed (id int PRIMARY KEY, code int NOT NULL UNIQUE, filler text NOT NULL);
";

/// What each transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Workload {
    /// pgbench's select-only: one account by its key.
    PointRead,
    /// pgbench's TPC-B (sort of): three updates, one read and one insert.
    TpcB,
    /// One row by a unique secondary index.
    IndexRead,
    /// 100 consecutive accounts.
    RangeScan,
    /// Counts and sums all accounts.
    Aggregate,
}

impl Workload {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PointRead => "point-read",
            Self::TpcB => "tpc-b",
            Self::IndexRead => "index-read",
            Self::RangeScan => "range-scan",
            Self::Aggregate => "aggregate",
        }
    }

    /// pgbench's built-in script, if it is one.
    pub(super) fn builtin(self) -> Option<&'static str> {
        match self {
            Self::PointRead => Some("select-only"),
            Self::TpcB => Some("tpcb-like"),
            Self::IndexRead | Self::RangeScan | Self::Aggregate => None,
        }
    }

    /// The script, if pgbench has none.
    pub(super) fn script(self, scale: usize) -> String {
        match self {
            Self::PointRead | Self::TpcB => String::new(),
            Self::IndexRead => format!(
                "\\set code random(0, {})\nSELECT id, filler FROM bench_indexed WHERE code = :code;\n",
                scale * INDEXED_ROWS - 1
            ),
            Self::RangeScan => format!(
                "\\set first random(1, {})\n\\set last :first + {}\nSELECT aid, abalance FROM pgbench_accounts \
                 WHERE aid BETWEEN :first AND :last ORDER BY aid;\n",
                scale * ACCOUNTS - RANGE_ROWS + 1,
                RANGE_ROWS - 1
            ),
            Self::Aggregate => "SELECT count(*), sum(abalance) FROM pgbench_accounts;\n".to_owned(),
        }
    }

    /// The sampling rate of the latency log: logging all transactions would slow down the fast ones.
    pub(super) fn logged(self) -> f64 {
        match self {
            Self::PointRead | Self::IndexRead | Self::RangeScan => 0.1,
            Self::TpcB | Self::Aggregate => 1.0,
        }
    }
}

/// The rows of the indexed table, as COPY reads them.
pub(super) fn indexed_rows(scale: usize) -> Vec<String> {
    let rows = scale * INDEXED_ROWS;
    let row = |id: usize| format!("{id}\t{}\t{id:084}\n", id * SPREAD % rows);
    (0..rows).map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn indexed_values_are_unique() {
        let rows = indexed_rows(3).concat();
        let codes: BTreeSet<usize> = rows.lines().filter_map(|row| row.split('\t').nth(1)?.parse().ok()).collect();
        assert_eq!((codes.len(), codes.last()), (30_000, Some(&29_999)));
    }

    #[test]
    fn range_ends_with_the_last_account() {
        let script = Workload::RangeScan.script(2);
        assert!(script.starts_with("\\set first random(1, 199901)\n\\set last :first + 99\n"), "{script}");
    }
}
