//! `loggos disk check`: reads all blocks of all replicas and verifies their checksums.

use std::collections::{BTreeMap, BTreeSet};

use base::counted;
use base::limits::DISK_BLOCK_BYTES;
use indicatif::{ProgressBar, ProgressStyle};
use sdk::admin::roster_node::Standing;
use sdk::{Client, Disk, Error};
use serde_json::json;
use streams::layout::{Layout, StripeId};
use terminal::{Output, Stop};

use super::Cluster;

/// The findings at one replica of a stripe.
struct Found {
    verified: u64,
    /// Offsets on the disk.
    damaged: Vec<u64>,
}

/// Verifies all replicas of a disk, and prints a line for each.
pub(super) async fn run(cluster: &Cluster, output: Output, name: &str) -> Result<(), Stop> {
    let client = &cluster.client()?;
    let disk = client.disk(name).describe().await?;
    let ranges = client.table(name).describe().await?.ranges;
    let nodes = client.nodes().await?;
    let there = nodes.into_iter().filter(|node| node.standing() != Standing::Left);
    let addresses: BTreeMap<u32, String> = there.map(|node| (node.node, node.grpc)).collect();
    let layout = u16::try_from(disk.stripes).ok().and_then(Layout::new);
    let layout = layout.ok_or_else(|| Stop::Refused(format!("disk {name} has {} stripes", disk.stripes)))?;
    let replicas = ranges
        .iter()
        .enumerate()
        .flat_map(|(stripe, range)| range.members.iter().map(move |node| (stripe as u32, *node)).collect::<Vec<_>>());
    let replicas: Vec<(u32, u32)> = replicas.collect();
    let blocks_of = |stripe: u32| {
        let (_, end) = layout.local(StripeId(stripe as u16), 0, disk.bytes);
        end.div_ceil(DISK_BLOCK_BYTES)
    };
    let bar = progress_bar(replicas.iter().map(|(stripe, _)| blocks_of(*stripe)).sum());
    let (mut damaged, mut unchecked) = (0, Vec::new());
    let mut silent = BTreeSet::new();
    for (stripe, node) in replicas {
        let begin = bar.position();
        bar.set_message(format!("stripe {stripe} at node {node}"));
        let found = match addresses.get(&node).filter(|_| !silent.contains(&node)) {
            Some(address) => {
                let there = Client::connect([address])?.with_deadline(cluster.deadline()).disk(name);
                check_replica(&there, &layout, stripe, |block| bar.set_position(begin + block)).await
            }
            None => Err(Error::Unavailable("the node does not respond".to_owned())),
        };
        bar.set_position(begin + blocks_of(stripe));
        match found {
            Ok(Found { verified, damaged: offsets }) => {
                damaged += offsets.len();
                let object =
                    json!({ "stripe": stripe, "node": node, "verified_blocks": verified, "damaged_offsets": offsets });
                bar.suspend(|| output.print(&object, || line(stripe, node, verified, &offsets)))?;
            }
            Err(error @ Error::NotFound(_)) => return Err(error.into()),
            Err(error) => {
                // Its other stripes would have to wait as long.
                silent.insert(node);
                output.warn(&format!("stripe {stripe} at node {node} is not checked: {error}"));
                unchecked.push(format!("stripe {stripe} at node {node}"));
            }
        }
    }
    bar.finish_and_clear();
    if damaged > 0 {
        let blocks = counted(damaged as u64, "damaged block");
        let what = "move the stripe away from the node (`loggos admin move DISK --stripe N --to NODE,...`, with --force if no \
                    other node is free), and back: its replica is then copied again";
        return Err(Stop::Refused(format!("{blocks}: {what}")));
    }
    match &unchecked[..] {
        [] => Ok(()),
        _ => Err(Error::Unavailable(format!("not checked: {}", unchecked.join("; "))).into()),
    }
}

async fn check_replica(there: &Disk, layout: &Layout, stripe: u32, at: impl Fn(u64)) -> Result<Found, Error> {
    let mut found = Found { verified: 0, damaged: Vec::new() };
    let mut next = Some(0);
    while let Some(first) = next {
        let part = there.check(stripe, first).await?;
        found.verified += part.verified;
        let offset = |block: u64| layout.offset(StripeId(stripe as u16), block * DISK_BLOCK_BYTES);
        found.damaged.extend(part.damaged.into_iter().map(offset));
        next = part.next;
        at(next.unwrap_or(0));
    }
    Ok(found)
}

fn line(stripe: u32, node: u32, verified: u64, damaged: &[u64]) -> String {
    let sound = format!("stripe {stripe} at node {node}: {} verified", counted(verified, "block"));
    match damaged {
        [] => sound,
        offsets => {
            let offsets: Vec<String> = offsets.iter().map(u64::to_string).collect();
            format!("{sound}, damaged at bytes {} of the disk", offsets.join(", "))
        }
    }
}

/// Drawn only if standard error is a terminal.
fn progress_bar(blocks: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:32} {percent:>3}%  {msg}  {eta} left");
    ProgressBar::new(blocks).with_style(style.expect("the template is a constant"))
}
