//! `loggos disk ...`: virtual disks.

use base::limits::{DISK_BLOCK_BYTES, DISK_BYTES_MAX, DISK_STRIPES_MAX};
use clap::Subcommand;
use sdk::{Client, DiskDescription};
use serde_json::json;
use terminal::{Output, Stop};

use super::Cluster;

mod check;

/// Commands on virtual disks. Any client of the Network Block Device protocol attaches a disk by its name, at port
/// 10808 + N of node N.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a disk, unless it exists. Its bytes are zeros, and take no space.
    Create {
        /// Name of the disk: letters, digits, '_', '-' and '.'; not '.' or '..', and not starting with '-'.
        name: String,
        /// Size, such as 20G, 512M or 1T (powers of 1024).
        #[arg(long, value_name = "SIZE", value_parser = size)]
        size: u64,
        /// Number of stripes, each with a leader of its own [default: 1 below 1G, 4 below 1T, else 8].
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(DISK_STRIPES_MAX)))]
        stripes: Option<u32>,
        /// Replicas of each stripe: 1, 3 or 5 [default: 3, or as many as there are nodes].
        #[arg(long, value_name = "N")]
        replicas: Option<u32>,
    },
    /// List the disks.
    List,
    /// Show a disk's size and stripes.
    Info {
        /// Name of the disk.
        name: String,
    },
    /// Read the blocks of all replicas, and verify their checksums. Names the damaged ones.
    ///
    /// Blocks that a replica has only in memory and in its log are not counted: the log has checksums of its own.
    Check {
        /// Name of the disk.
        name: String,
    },
    /// Let a disk grow, while it is attached. Clients see the new size when they attach it again.
    Resize {
        /// Name of the disk.
        name: String,
        /// The new size, not below the current one.
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Delete a disk and all its data permanently, without confirmation.
    Delete {
        /// Name of the disk.
        name: String,
        /// Do not wait for nodes that cannot be reached: their replicas are lost for good.
        #[arg(long)]
        force: bool,
    },
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match command {
        Command::Create { name, size, stripes, replicas } => {
            let disk = client.disk(&name);
            let create = disk.create(size).stripes(stripes.unwrap_or(0)).replicas(replicas.unwrap_or(0));
            let existed = create.send().await?;
            let what = if existed { "already exists" } else { "created" };
            let size_text = shown(size);
            output.acknowledge(&json!({ "disk": name, "bytes": size, "existed": existed }), || {
                format!("disk {name} of {size_text} {what}")
            });
            if replicas == Some(1) {
                output.warn(&format!("disk {name} has one replica: if its node is lost, so is the data"));
            }
            Ok(())
        }
        Command::List => list(&client, output).await,
        Command::Info { name } => {
            let disk = client.disk(&name).describe().await?;
            output.print(&object(&disk), || line(&disk))
        }
        Command::Check { name } => check::run(cluster, output, &name).await,
        Command::Resize { name, size } => {
            client.disk(&name).resize(size).await?;
            let text = shown(size);
            output.acknowledge(&json!({ "disk": name, "bytes": size }), || format!("disk {name} has {text}"));
            Ok(())
        }
        Command::Delete { name, force } => {
            client.disk(&name).delete(force).await?;
            output.acknowledge(&json!({ "disk": name, "deleted": true }), || format!("disk {name} deleted"));
            Ok(())
        }
    }
}

async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for disk in client.list_disks().await? {
        output.print(&object(&disk), || line(&disk))?;
    }
    Ok(())
}

fn object(disk: &DiskDescription) -> serde_json::Value {
    json!({ "disk": disk.name, "bytes": disk.bytes, "stripes": disk.stripes, "created_ns": disk.created.0 })
}

fn line(disk: &DiskDescription) -> String {
    let stripes = base::counted(disk.stripes.into(), "stripe");
    format!("{}  {}  {stripes}", disk.name, shown(disk.bytes))
}

const UNITS: [(&str, u64); 5] = [("P", 1 << 50), ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// A size in the largest unit that represents it exactly.
fn shown(bytes: u64) -> String {
    let exact = UNITS.iter().find(|(_, unit)| bytes.is_multiple_of(*unit) && bytes > 0);
    exact.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Parses a size such as `20G`, `20GiB` or `4096`.
fn size(text: &str) -> Result<u64, String> {
    let invalid = || "not a size such as 20G, 512M or 4096".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let factor = match unit {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(invalid)?.1,
    };
    let bytes = number.checked_mul(factor).filter(|bytes| *bytes <= DISK_BYTES_MAX);
    let bytes = bytes.ok_or_else(|| "above the limit of 1P".to_owned())?;
    if bytes == 0 || !bytes.is_multiple_of(DISK_BLOCK_BYTES) {
        return Err(format!("a size is a multiple of {DISK_BLOCK_BYTES}"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!((size("20G"), size("1g"), size("4096")), (Ok(20 << 30), Ok(1 << 30), Ok(4_096)));
        assert_eq!((size("8K"), size("1TiB"), size("1P")), (Ok(8_192), Ok(1 << 40), Ok(1 << 50)));
        for invalid in ["", "G", "-1", "1.5G", "0", "100", "2P", "99999999999999999999", "1X", "1GG"] {
            assert!(size(invalid).is_err(), "{invalid}");
        }
        assert_eq!([20 << 30, 4_096, (1 << 30) + 4_096].map(shown), ["20G", "4K", "1048580K"]);
    }
}
