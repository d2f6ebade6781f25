//! Resource usage of the servers' processes: CPU time of all threads, and memory; and the machine's load.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use terminal::Stop;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers(Vec<Server>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    /// The node's directory, or the pid if only that is known.
    name: String,
    pid: u32,
    /// Whether the processes that it has started count as well.
    is_family: bool,
}

impl Servers {
    /// The processes with these pids, or those with `pid` files in a data directory of `loggos dev`.
    pub(crate) fn of(pids: &[u32], data: Option<&Path>) -> Result<Self, Stop> {
        match data {
            None => {
                Ok(Self(pids.iter().map(|pid| Server { name: pid.to_string(), pid: *pid, is_family: false }).collect()))
            }
            Some(data) => in_directory(data).map(Self),
        }
    }

    /// The processes with these pids and all that they have started, such as the one process for each connection of
    /// PostgreSQL. Those that have ended count once their parent has noticed.
    pub(crate) fn families(pids: &[u32]) -> Self {
        Self(pids.iter().map(|pid| Server { name: pid.to_string(), pid: *pid, is_family: true }).collect())
    }

    /// CPU time of all of them since they started; `None` if there are none.
    pub(crate) fn cpu_time(&self) -> Result<Option<Duration>, Stop> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut ticks = 0;
        for Server { pid, is_family, .. } in &self.0 {
            ticks += if *is_family { family_ticks(*pid)? } else { read(*pid, "stat", ticks_of)? };
        }
        Ok(Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)))
    }

    /// CPU time of each since it started, and the bytes that it has written to files, by name.
    pub(crate) fn cpu_and_written(&self) -> Result<BTreeMap<String, (Duration, u64)>, Stop> {
        let used = |server: &Server| {
            let ticks = read(server.pid, "stat", ticks_of)?;
            let cpu = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
            Ok((server.name.clone(), (cpu, read(server.pid, "io", written_bytes_of)?)))
        };
        self.0.iter().map(used).collect()
    }

    /// Resident memory of each in KiB, by name.
    pub(crate) fn resident_kib(&self) -> Result<BTreeMap<String, u64>, Stop> {
        let resident = |server: &Server| Ok((server.name.clone(), read(server.pid, "status", resident_kib_of)?));
        self.0.iter().map(resident).collect()
    }
}

/// Ticks of a process and of all that it has started.
fn family_ticks(pid: u32) -> Result<u64, Stop> {
    let mut ticks = read(pid, "stat", |stat| Some(ticks_of(stat)? + ended_ticks_of(stat)?))?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
        // It may have ended since.
        ticks += family_ticks(child).unwrap_or(0);
    }
    Ok(ticks)
}

/// Reads a number from a file of a process in `/proc`.
fn read(pid: u32, file: &str, number_of: impl FnOnce(&str) -> Option<u64>) -> Result<u64, Stop> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(Stop::io(format!("read {path}")))?;
    number_of(&text).ok_or_else(|| Stop::invalid(format!("{path} has an unexpected format")))
}

fn in_directory(data: &Path) -> Result<Vec<Server>, Stop> {
    let mut servers = Vec::new();
    let reading = format!("read {}", data.display());
    for entry in fs::read_dir(data).map_err(Stop::io(reading.clone()))? {
        let node = entry.map_err(Stop::io(reading.clone()))?;
        let name = node.file_name().to_string_lossy().into_owned();
        if !name.starts_with("node-") {
            continue;
        }
        let path = node.path().join("pid");
        // A node that is down has no pid file, or an empty one.
        let text = fs::read_to_string(&path).unwrap_or_default();
        if text.trim().is_empty() {
            continue;
        }
        let wrong = || Stop::invalid(format!("{} holds no process id", path.display()));
        servers.push(Server { name, pid: text.trim().parse().map_err(|_| wrong())?, is_family: false });
    }
    if servers.is_empty() {
        return Err(Stop::invalid(format!("no node is running in {}", data.display())));
    }
    Ok(servers)
}

/// User and system time from `/proc/PID/stat`: fields 14 and 15. Field 2 is the command in parentheses, which may
/// contain any characters.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// User and system time of children that have ended, from `/proc/PID/stat`: fields 16 and 17.
fn ended_ticks_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(13);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// `VmRSS` from `/proc/PID/status`.
fn resident_kib_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `write_bytes` from `/proc/PID/io`: bytes that the process caused to be sent to the storage.
fn written_bytes_of(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

/// The machine's load average over the last minute.
pub(crate) fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_sums_user_and_system() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 7 20 0 4 0 100 0 0";
        assert_eq!(ticks_of(stat), Some(300));
        assert_eq!(ticks_of("42 (cut"), None);
        assert_eq!(ended_ticks_of(stat), Some(14));
    }

    #[test]
    fn family_includes_children() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        // On a busy machine it takes a while until the child has run.
        let alone = loop {
            let alone = Servers::of(&[child.id()], None).expect("a process").cpu_time().expect("Linux");
            if alone > Some(Duration::ZERO) {
                break alone;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let family = Servers::families(&[std::process::id()]).cpu_time().expect("Linux");
        child.kill().and_then(|()| child.wait()).expect("it runs");
        assert!(alone > Some(Duration::ZERO) && family >= alone, "{family:?} {alone:?}");
    }

    #[test]
    fn parses_resident_memory() {
        assert_eq!(resident_kib_of("VmHWM:\t    9000 kB\nVmRSS:\t    8712 kB\n"), Some(8_712));
        assert_eq!(resident_kib_of("Name:\tx\n"), None);
    }

    #[test]
    fn parses_written_bytes() {
        assert_eq!(written_bytes_of("wchar: 5\nread_bytes: 0\nwrite_bytes: 8192\n"), Some(8_192));
        assert_eq!(written_bytes_of("wchar: 5\n"), None);
    }

    #[test]
    fn measures_own_process() {
        let servers = Servers::of(&[std::process::id()], None).expect("a process");
        assert!(servers.cpu_time().expect("Linux").is_some());
        assert!(servers.resident_kib().expect("Linux").values().all(|kib| *kib > 1_000));
        assert_eq!(Servers(Vec::new()).cpu_time().expect("nothing to read"), None);
    }
}
