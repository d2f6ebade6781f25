//! `loggos disk ...`: virtual disks.

use base::limits::{DISK_BLOCK_BYTES, DISK_BYTES_MAX, DISK_STRIPES_MAX};
use clap::Subcommand;
use sdk::admin::DiskAttachment;
use sdk::{Client, DiskDescription};
use serde_json::json;
use terminal::{Output, Stop};

use super::Cluster;
use super::status::combined_view;

mod check;

/// Commands on virtual disks. Any client of the Network Block Device protocol attaches a disk by its name, at port
/// 10808 + N of node N.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a disk, unless it exists. Its bytes are zeros, and take no space.
    Create {
        /// Name of the disk: letters, digits, '_', '-' and '.'; not '.' or '..', and not starting with '-'.
        name: String,
        /// Size: K, M, G, T and P are powers of 1024, as in 20G or 1.5T; KB, MB, GB, TB and PB are powers of 1000.
        #[arg(long, value_name = "SIZE", value_parser = size)]
        size: u64,
        /// Number of stripes, each with a leader of its own [default: 1 below 1G, 4 below 1T, else 8].
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(DISK_STRIPES_MAX)))]
        stripes: Option<u32>,
        /// Replicas of each stripe: 1, 3 or 5 [default: 3, or as many as there are nodes].
        #[arg(long, value_name = "N")]
        replicas: Option<u32>,
        /// Clients can attach it only under the name of a holder, as NAME@HOLDER: the last one that did alone can change it.
        #[arg(long)]
        exclusive: bool,
    },
    /// List the disks.
    List,
    /// Show a disk's size, its holder and the clients that have attached it.
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
    /// End the right of a disk's holder, and the requests of its clients. Then every client may change the disk again.
    Release {
        /// Name of the disk.
        name: String,
    },
    /// Delete a disk and all its data permanently, without confirmation.
    Delete {
        /// Name of the disk.
        name: String,
        /// Also if it is attached or held. Do not wait for nodes that cannot be reached: their replicas are lost for good.
        #[arg(long)]
        force: bool,
    },
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match command {
        Command::Create { name, size, stripes, replicas, exclusive } => {
            let disk = client.disk(&name);
            let create = disk.create(size).stripes(stripes.unwrap_or(0)).replicas(replicas.unwrap_or(0));
            let existed = create.exclusive(exclusive).send().await?;
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
        Command::Info { name } => info(cluster, &client, output, &name).await,
        Command::Check { name } => check::run(cluster, output, &name).await,
        Command::Resize { name, size } => {
            client.disk(&name).resize(size).await?;
            let text = shown(size);
            output.acknowledge(&json!({ "disk": name, "bytes": size }), || format!("disk {name} has {text}"));
            Ok(())
        }
        Command::Release { name } => {
            client.disk(&name).release().await?;
            output.acknowledge(&json!({ "disk": name, "released": true }), || format!("disk {name} has no holder"));
            Ok(())
        }
        Command::Delete { name, force } => {
            if !force && let Some((node, attachment)) = attachments(cluster, &name).await?.first() {
                return Err(Stop::Refused(format!(
                    "disk {name} is attached by {} through node {node}: --force deletes it nevertheless",
                    attachment.client
                )));
            }
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

async fn info(cluster: &Cluster, client: &Client, output: Output, name: &str) -> Result<(), Stop> {
    let disk = client.disk(name);
    let (description, holders) = (disk.describe().await?, disk.holders().await?);
    let attachments = attachments(cluster, name).await?;
    let clients = attachments.iter().map(|(node, attachment)| {
        json!({ "client": attachment.client, "node": node, "holder": attachment.holder, "since_ns": attachment.since_ns })
    });
    let mut object = object(&description);
    object["holders"] = json!(holders);
    object["clients"] = clients.collect();
    output.print(&object, || {
        let holders = holders.iter().map(|holder| format!("\nheld by {holder}"));
        let clients = attachments.iter().map(|(node, DiskAttachment { client, holder, .. })| {
            let holder = if holder.is_empty() { String::new() } else { format!(" as {holder}") };
            format!("\nattached by {client}{holder} through node {node}")
        });
        let lines: String = holders.chain(clients).collect();
        format!("{}{lines}", line(&description))
    })
}

/// The connections of NBD clients to a disk, at the nodes that respond.
async fn attachments(cluster: &Cluster, disk: &str) -> Result<Vec<(u32, DiskAttachment)>, Stop> {
    let mut all = combined_view(cluster).await?.attachments;
    all.retain(|(_, attachment)| attachment.disk == disk);
    Ok(all)
}

fn object(disk: &DiskDescription) -> serde_json::Value {
    let DiskDescription { name, bytes, stripes, created, is_exclusive } = disk;
    json!({
        "disk": name, "bytes": bytes, "stripes": stripes, "created_ns": created.0, "exclusive": is_exclusive,
    })
}

fn line(disk: &DiskDescription) -> String {
    let stripes = base::counted(disk.stripes.into(), "stripe");
    let exclusive = if disk.is_exclusive { "  exclusive" } else { "" };
    format!("{}  {}  {stripes}{exclusive}", disk.name, shown(disk.bytes))
}

/// Maximum digits of a size.
const DIGITS_MAX: usize = 20;

const UNITS: [(&str, u64); 5] = [("P", 1 << 50), ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// A size in the largest unit that represents it exactly.
fn shown(bytes: u64) -> String {
    let exact = UNITS.iter().find(|(_, unit)| bytes.is_multiple_of(*unit) && bytes > 0);
    exact.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Parses a size such as `20G`, `1.5T`, `20GiB`, `20GB` or `4096`.
fn size(text: &str) -> Result<u64, String> {
    let invalid = || "not a size such as 20G, 1.5T, 512MB or 4096".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || number.len() > DIGITS_MAX || unit.is_empty() && number.contains('.')
    {
        return Err(invalid());
    }
    let (name, base) = match (unit.strip_suffix("iB"), unit.strip_suffix('B')) {
        (Some(name), _) => (name, 1_024),
        (None, Some(name)) => (name, 1_000),
        (None, None) => (unit, 1_024),
    };
    let factor: u128 = match name {
        "" => 1,
        name => {
            let power = UNITS.iter().rev().position(|(unit, _)| unit.eq_ignore_ascii_case(name)).ok_or_else(invalid)?;
            u128::pow(base, power as u32 + 1)
        }
    };
    let scale = 10_u128.pow(fraction.len() as u32);
    let parts: u128 = format!("{whole}{fraction}").parse().map_err(|_| invalid())?;
    let bytes = parts * factor / scale;
    let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes <= DISK_BYTES_MAX).ok_or("above the limit of 1P")?;
    // A fraction, or a power of 1000, need not be a number of blocks.
    let bytes = if factor > 1 && base == 1_000 || number.contains('.') {
        bytes.next_multiple_of(DISK_BLOCK_BYTES)
    } else {
        bytes
    };
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
        assert_eq!((size("1.5G"), size("0.5k")), (Ok(3 << 29), Ok(4_096)));
        assert_eq!((size("10GB"), size("4096B")), (Ok(10_000_003_072), Ok(4_096)));
        for invalid in
            ["", "G", "-1", "1.5", "1.G", ".5G", "1.2.3G", "0", "0.0G", "100", "2P", "99999999999999999999", "1X"]
        {
            assert!(size(invalid).is_err(), "{invalid}");
        }
        for invalid in ["1GG", "1e3", "1iBB", "B", "111111111111111111111G"] {
            assert!(size(invalid).is_err(), "{invalid}");
        }
        assert_eq!([20 << 30, 4_096, (1 << 30) + 4_096].map(shown), ["20G", "4K", "1048580K"]);
    }
}
