//! Metrics of the operating system process, with the names that Prometheus's client libraries customarily use.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

/// A snapshot of the process. Values that cannot be read are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    /// CPU time, user and system, in seconds.
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    /// Start time, in seconds since 1970.
    pub(crate) start_time_seconds: f64,
    pub(crate) threads: u64,
    pub(crate) open_fds: u64,
    pub(crate) max_fds: u64,
}

impl Process {
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let open_fds = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self {
            open_fds: open_fds as u64,
            max_fds: max_fds(&read("/proc/self/limits")),
            ..Self::of(&read("/proc/self/stat"), boot_time(&read("/proc/stat")))
        }
    }

    /// Parses `stat` (proc_pid_stat(5)) on a machine that booted at `boot_time`.
    fn of(stat: &str, boot_time: f64) -> Self {
        // The second field is the command name, which may contain any characters.
        let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
        let fields: Vec<u64> = fields.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        // `fields` starts with the manual's field 4.
        let field = |number: usize| fields.get(number - 4).copied().unwrap_or(0);
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Self {
            cpu_seconds: seconds(field(14) + field(15)),
            threads: field(20),
            start_time_seconds: boot_time + seconds(field(22)),
            resident_bytes: field(24) * page_size() as u64,
            ..Self::default()
        }
    }
}

/// Physical memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Process::of(&stat, 0.0).resident_bytes
}

fn boot_time(stat: &str) -> f64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0.0)
}

fn max_fds(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stat_with_special_process_name() {
        let mut stat = "1 (a) b (c) S".to_owned();
        (4..=52).for_each(|number| stat.push_str(&format!(" {number}")));
        let process = Process::of(&stat, 1_000.0);
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!(process.cpu_seconds, 29.0 / ticks);
        assert_eq!(process.start_time_seconds, 1_000.0 + 22.0 / ticks);
        assert_eq!((process.threads, process.resident_bytes), (20, 24 * page_size() as u64));
    }

    #[test]
    fn reads_own_process_metrics() {
        let process = Process::look();
        assert!(process.resident_bytes > 1 << 16 && process.threads > 0, "{process:?}");
        assert!(process.open_fds > 2 && process.max_fds >= process.open_fds, "{process:?}");
        assert!(process.start_time_seconds > 1.6e9, "{process:?}");
        assert_eq!(Process::of("", 0.0), Process::default());
    }
}
