//! Clusters of nodes started individually on blank disks: how a cluster is formed, interruptions, and refusals.

use std::fs;

use api::admin::Disk;
use tonic::Code;

use crate::hosts::Hosts;

#[test]
fn forms_cluster_from_blank_nodes() {
    let mut hosts = Hosts::new();
    (1..=3).for_each(|node| hosts.start(node, ""));
    let disks = [1, 2, 3].map(|node| hosts.look(node).disk.expect("every node has a disk"));
    let at = hosts.all();
    hosts.run(&["columns", "--at", &at, "--timeout", "500ms", "create", "t"]).failed(3, &["blank"]);
    hosts.run(&["admin", "form", "--at", &hosts.grpc(1), "--at", &hosts.grpc(2)]).failed(2, &["1, 3, 5 or 7"]);

    // An interrupted formation: one node is formed, and another was restarted and kept its announced incarnation.
    let other_disk = Disk { incarnation: 1, ..disks[1] };
    assert_eq!(hosts.form(2, &[disks[0], other_disk, disks[2]]), Err(Code::AlreadyExists));
    assert_eq!(hosts.form(1, &disks), Ok(()));
    hosts.kill(3);
    hosts.start(3, "");
    let formed = hosts.admin_form().ok();
    let cluster = formed.split_whitespace().nth(1).expect("its name").to_owned();
    assert!(formed.contains("nodes 1, 2, 3"), "{formed}");
    assert_eq!(hosts.admin_form().ok(), formed, "done already");

    hosts.run(&["columns", "--at", &at, "create", "t"]).ok();
    hosts.run(&["columns", "--at", &at, "put", "t", "k", "c", "v"]).ok();
    for node in 1..=3 {
        let genesis = hosts.look(node).genesis.expect("it is formed");
        assert_eq!((&genesis.cluster, &genesis.disks[..]), (&cluster, &disks[..]));
        assert_eq!(
            hosts.form(node, &disks[..1]),
            Err(if node == 1 { Code::AlreadyExists } else { Code::InvalidArgument })
        );
        let read = hosts.run(&["columns", "--at", &hosts.grpc(node), "--json", "get", "t", "k", "c"]).ok();
        assert!(read.contains("\"value\":\"v\""), "{read}");
    }

    // A disk that lost everything is not formed again, and a node configured for a cluster exits if its disk is blank.
    hosts.kill(3);
    fs::remove_dir_all(hosts.scratch.path().join("host-3")).expect("its data");
    hosts.start(3, "");
    assert_ne!(hosts.look(3).disk, Some(disks[2]));
    hosts.admin_form().failed(1, &["node 3", "another disk"]);
    hosts.kill(3);
    hosts.start(3, &format!("cluster = \"{cluster}\""));
    let (_, refused) = hosts.running.last_mut().expect("it was just started");
    assert_eq!(refused.wait().expect("a child").code(), Some(3));
    hosts.run(&["columns", "--at", &at, "put", "t", "k", "c", "w"]).ok();
}
