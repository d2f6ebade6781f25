//! Forms a cluster from nodes with blank disks. After a failure the operation can be repeated from anywhere: the same
//! disks always form the same cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use api::admin::formation_client::FormationClient;
use api::admin::roster_node::Standing;
use api::admin::{
    AddNodeRequest, Disk, FormRequest, FormResponse, Genesis, Host, JoinRequest, LookRequest, LookResponse, RosterNode,
};
use base::limits::CLUSTER_NODES;
use client::Fault;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use crate::endpoints::Endpoints;
use crate::fault;
use crate::{Client, Error};

/// Timeout of a node's response. Formatting takes long because it fills files with zeros.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Timeout of one node before the next one is tried.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause between attempts at a node that does not respond.
const PAUSE: Duration = Duration::from_millis(100);

/// Forms a cluster from the nodes with gRPC endpoints at these addresses: all of them, and no others. Has no effect if
/// they are a cluster already, also if nodes have joined or left it since.
///
/// # Errors
/// [`Error::Invalid`] if they cannot form a cluster. [`Error::Exists`] if one of them belongs to another cluster or has
/// another disk than the cluster was formed with. [`Error::Unavailable`] if one did not respond within `patience`.
/// Repeating the call is safe.
pub async fn form<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>, patience: Duration) -> Result<Genesis, Error> {
    let until = Instant::now() + patience;
    let names: Vec<String> = endpoints.into_iter().map(|name| name.as_ref().to_owned()).collect();
    let endpoints = Endpoints::parse(&names)?;
    let mut looks = Vec::new();
    for endpoint in 0..endpoints.count() {
        looks.push(ask(&endpoints, endpoint, until, LookRequest {}, look).await?);
    }
    let disks = match (disks(&looks), formed_already(&looks)) {
        (Ok(disks), _) => disks,
        (Err(error), None) => return Err(error),
        // They are not the founding members. Only the roster says whether they are the present ones.
        (Err(error), Some(genesis)) => {
            let left = until.saturating_duration_since(Instant::now()).max(PAUSE);
            let Ok(roster) = Client::connect(names)?.with_deadline(left).nodes().await else { return Err(error) };
            return check_listed(&genesis, &roster, &looks).map(|()| genesis);
        }
    };
    let mut formed = None;
    for endpoint in 0..endpoints.count() {
        let request = FormRequest { disks: disks.clone() };
        formed = ask(&endpoints, endpoint, until, request, format).await?.genesis;
    }
    formed.ok_or_else(|| Error::Unavailable("a node returned no cluster after formation".to_owned()))
}

/// The nodes that the configurations of the nodes at these addresses name, and that are not among them.
///
/// # Errors
/// [`Error::Unavailable`] if one did not respond within `patience`.
pub async fn left_out<S: AsRef<str>>(
    endpoints: impl IntoIterator<Item = S>,
    patience: Duration,
) -> Result<BTreeSet<u32>, Error> {
    let until = Instant::now() + patience;
    let endpoints = Endpoints::parse(endpoints)?;
    let (mut there, mut named) = (BTreeSet::new(), BTreeSet::new());
    for endpoint in 0..endpoints.count() {
        let look = ask(&endpoints, endpoint, until, LookRequest {}, look).await?;
        there.extend(look.disk.map(|disk| disk.node));
        named.extend(look.peers);
    }
    Ok(&named - &there)
}

/// The identity and state that a node reports, also before it is a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The number of the node, according to its configuration or its disk.
    pub node: u32,
    /// The id of its cluster; `None` while its disk is blank.
    pub cluster: Option<String>,
}

/// Queries the identity of the node at an address.
///
/// # Errors
/// [`Error::Unavailable`] if it did not respond within a second.
pub async fn identity(endpoint: &str) -> Result<Identity, Error> {
    let endpoints = Endpoints::parse([endpoint])?;
    let found = ask(&endpoints, 0, Instant::now() + LOOK_TIME_MAX, LookRequest {}, look).await?;
    let node = found.disk.map(|disk| disk.node).unwrap_or_default();
    Ok(Identity { node, cluster: found.genesis.map(|genesis| genesis.cluster) })
}

/// A node that has joined a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The id of the cluster: 32 hexadecimal digits.
    pub cluster: String,
    /// The number of the node.
    pub node: u32,
}

/// Adds the node at `newcomer`, which has a blank disk, to the cluster with nodes at these endpoints. The cluster first
/// commits the node to its roster, and then the node's disk is formatted. So after a failure the call can be repeated,
/// and another disk never takes the node's place.
///
/// # Errors
/// [`Error::Exists`] if the node belongs to another cluster, if its number or an address is taken, or if it has left
/// this cluster. [`Error::Precondition`] if its version differs. [`Error::Unavailable`] if a node did not respond within
/// `patience`. Repeating the call is safe.
pub async fn join<S: AsRef<str>>(
    newcomer: &str,
    endpoints: impl IntoIterator<Item = S>,
    patience: Duration,
) -> Result<Joined, Error> {
    let until = Instant::now() + patience;
    let names: Vec<String> = endpoints.into_iter().map(|name| name.as_ref().to_owned()).collect();
    let cluster = look_at_any(&Endpoints::parse(&names)?, until).await?;
    let endpoint = Endpoints::parse([newcomer])?;
    let newcomer = ask(&endpoint, 0, until, LookRequest {}, look).await?;
    let request = request(&cluster, newcomer)?;
    let node = request.node;
    let left = until.saturating_duration_since(Instant::now()).max(PAUSE);
    let roster = Client::connect(names)?.with_deadline(left).add_node(request).await?;
    let there = roster.into_iter().filter(|node| node.standing() != Standing::Left);
    let hosts =
        there.map(|RosterNode { node, incarnation, peer, .. }| Host { disk: Some(Disk { node, incarnation }), peer });
    let cluster = cluster.genesis.map(|genesis| genesis.cluster).unwrap_or_default();
    let invitation = JoinRequest { cluster: cluster.clone(), hosts: hosts.collect() };
    ask(&endpoint, 0, until, invitation, invite).await?;
    Ok(Joined { cluster, node })
}

/// Asks the cluster's nodes in turn until one responds.
async fn look_at_any(endpoints: &Endpoints, until: Instant) -> Result<LookResponse, Error> {
    let mut last = Error::Unavailable("no node responds".to_owned());
    for endpoint in (0..endpoints.count()).cycle() {
        let soon = until.min(Instant::now() + LOOK_TIME_MAX);
        match ask(endpoints, endpoint, soon, LookRequest {}, look).await {
            Ok(found) if found.genesis.is_some() => return Ok(found),
            Ok(_) => {
                let name = endpoints.name(endpoint);
                return Err(Error::Precondition(format!(
                    "the node at {name} has a blank disk and is not a member of a cluster yet"
                )));
            }
            Err(error) => last = error,
        }
        if Instant::now() + PAUSE > until {
            break;
        }
    }
    Err(last)
}

/// The request to add a node, after checks of its version and disk.
fn request(cluster: &LookResponse, newcomer: LookResponse) -> Result<AddNodeRequest, Error> {
    let LookResponse { disk, genesis, format, protocol, peer, grpc, version, .. } = newcomer;
    let Some(Disk { node, incarnation }) = disk else {
        return Err(Error::Invalid("the node did not report its disk".to_owned()));
    };
    let name = |genesis: &Option<Genesis>| genesis.as_ref().map(|genesis| genesis.cluster.clone());
    let (ours, theirs) = (name(&cluster.genesis).unwrap_or_default(), name(&genesis));
    if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
        return Err(Error::Exists(format!(
            "node {node} is a member of cluster {theirs} and cannot join cluster {ours}"
        )));
    }
    if (format, protocol) != (cluster.format, cluster.protocol) {
        return Err(Error::Precondition(format!(
            "node {node} runs version {version} with disk format {format} and protocol {protocol}, but the cluster runs \
             version {} with disk format {} and protocol {}",
            cluster.version, cluster.format, cluster.protocol
        )));
    }
    Ok(AddNodeRequest { node, incarnation, peer, grpc })
}

type Channel = FormationClient<tonic::transport::Channel>;

async fn look(mut node: Channel, request: LookRequest) -> Result<LookResponse, Status> {
    Ok(node.look(request).await?.into_inner())
}

async fn invite(mut node: Channel, request: JoinRequest) -> Result<FormResponse, Status> {
    Ok(node.join(request).await?.into_inner())
}

async fn format(mut node: Channel, request: FormRequest) -> Result<FormResponse, Status> {
    Ok(node.form(request).await?.into_inner())
}

/// Sends a request to one node until it responds or the time is over: all of these requests are idempotent.
async fn ask<Q: Clone, A, F: Future<Output = Result<A, Status>>>(
    endpoints: &Endpoints,
    endpoint: usize,
    until: Instant,
    question: Q,
    put: impl Fn(Channel, Q) -> F,
) -> Result<A, Error> {
    loop {
        let attempt = async {
            let connection = endpoints.connection(endpoint).await.map_err(Fault::NotSent)?;
            let answer = put(FormationClient::new(connection.channel.clone()), question.clone()).await;
            let result = endpoints.judged(endpoint, answer.map_err(|status| fault::of(&status)));
            if result.is_err() {
                endpoints.drop_connection(&connection).await;
            }
            result
        };
        let left = until.saturating_duration_since(Instant::now());
        let fault = match timeout(ANSWER_TIME_MAX.min(left), attempt).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Fault::Definite(error))) => return Err(error),
            Ok(Err(fault)) => Some(fault),
            Err(_) => None,
        };
        if until.saturating_duration_since(Instant::now()) < PAUSE {
            let name = endpoints.name(endpoint);
            let reason = fault.map_or_else(|| "no response".to_owned(), Fault::reason);
            return Err(Error::Unavailable(format!("the node at {name}: {reason}")));
        }
        sleep(PAUSE).await;
    }
}

/// The cluster of which all nodes are members, if there is one. Nodes that joined later list other members.
fn formed_already(looks: &[LookResponse]) -> Option<Genesis> {
    let genesis = looks.first()?.genesis.as_ref()?;
    let is_member = |look: &LookResponse| look.genesis.as_ref().is_some_and(|other| other.cluster == genesis.cluster);
    looks.iter().all(is_member).then(|| genesis.clone())
}

/// Checks that every present member of the cluster is listed.
fn check_listed(genesis: &Genesis, roster: &[RosterNode], looks: &[LookResponse]) -> Result<(), Error> {
    let is_listed = |node: &RosterNode| {
        let disk = Disk { node: node.node, incarnation: node.incarnation };
        looks.iter().any(|look| look.disk == Some(disk))
    };
    match roster.iter().find(|node| node.standing() != Standing::Left && !is_listed(node)) {
        Some(missing) => Err(not_listed(missing.node, &genesis.cluster)),
        None => Ok(()),
    }
}

fn not_listed(node: u32, cluster: &str) -> Error {
    Error::Invalid(format!("node {node} of cluster {cluster} is not listed"))
}

/// The disks of the cluster, from the responses of its nodes.
fn disks(looks: &[LookResponse]) -> Result<Vec<Disk>, Error> {
    let mut disks: Vec<Disk> = looks.iter().filter_map(|look| look.disk).collect();
    disks.sort_by_key(|disk| disk.node);
    if disks.len() < looks.len() {
        return Err(Error::Invalid("a node did not report its disk".to_owned()));
    }
    if let Some(twice) = disks.windows(2).find(|pair| pair[0].node == pair[1].node) {
        return Err(Error::Invalid(format!(
            "node {} is listed twice, or two nodes have the same number",
            twice[0].node
        )));
    }
    let formats: BTreeSet<u32> = looks.iter().map(|look| look.format).collect();
    if formats.len() > 1 {
        return Err(Error::Precondition(format!("the nodes have different versions, with disk formats {formats:?}")));
    }
    let Some(genesis) = looks.iter().find_map(|look| look.genesis.clone()) else {
        if CLUSTER_NODES.contains(&disks.len()) {
            return Ok(disks);
        }
        let count = disks.len();
        return Err(Error::Invalid(format!("a cluster is formed of 1, 3, 5 or 7 nodes, not {count}")));
    };
    check_against(&genesis, looks, &disks)?;
    Ok(genesis.disks)
}

/// Checks whether an interrupted formation can be completed with these nodes.
fn check_against(genesis: &Genesis, looks: &[LookResponse], disks: &[Disk]) -> Result<(), Error> {
    let cluster = &genesis.cluster;
    if let Some(other) = looks.iter().filter_map(|look| look.genesis.as_ref()).find(|other| *other != genesis) {
        let others = &other.cluster;
        if cluster == others {
            return Err(Error::Exists(format!("the nodes disagree on the founding members of cluster {cluster}")));
        }
        return Err(Error::Exists(format!("the nodes are members of different clusters: {cluster} and {others}")));
    }
    for disk in disks {
        match genesis.disks.iter().find(|member| member.node == disk.node) {
            Some(member) if member == disk => {}
            Some(_) => {
                return Err(Error::Exists(format!(
                    "node {} has another disk than when cluster {cluster} was formed: a node that lost its disk or data \
                     cannot be formed again",
                    disk.node
                )));
            }
            None => {
                return Err(Error::Exists(format!("node {} is not a member of cluster {cluster}", disk.node)));
            }
        }
    }
    match genesis.disks.iter().find(|member| !disks.contains(member)) {
        Some(missing) => Err(not_listed(missing.node, cluster)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(node: u32, incarnation: u64) -> Disk {
        Disk { node, incarnation }
    }

    fn blank(node: u32) -> LookResponse {
        LookResponse { disk: Some(disk(node, u64::from(node))), format: 3, ..LookResponse::default() }
    }

    fn formed(node: u32, cluster: &str, of: &[u32]) -> LookResponse {
        let disks = of.iter().map(|node| disk(*node, u64::from(*node))).collect();
        LookResponse { genesis: Some(Genesis { cluster: cluster.to_owned(), disks }), ..blank(node) }
    }

    fn nodes(looks: &[LookResponse]) -> Result<Vec<u32>, Error> {
        disks(looks).map(|disks| disks.iter().map(|disk| disk.node).collect())
    }

    #[test]
    fn formation_accepts_blank_or_partly_formed() {
        assert_eq!(nodes(&[blank(2), blank(1), blank(3)]), Ok(vec![1, 2, 3]));
        assert_eq!(nodes(&[blank(1)]), Ok(vec![1]));
        assert_eq!(nodes(&[blank(1), formed(2, "u", &[1, 2, 3]), blank(3)]), Ok(vec![1, 2, 3]));
        let all = [1, 2, 3].map(|node| formed(node, "u", &[1, 2, 3]));
        assert_eq!(nodes(&all), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn members_of_one_cluster_are_formed_already() {
        let cluster = |looks: &[LookResponse]| formed_already(looks).map(|genesis| genesis.cluster);
        // Node 3 has left, and node 4 joined.
        let members = [formed(1, "u", &[1, 2, 3]), formed(2, "u", &[1, 2, 3]), formed(4, "u", &[1, 2, 4])];
        assert_eq!(cluster(&members), Some("u".to_owned()));
        assert_eq!(cluster(&members[..1]), Some("u".to_owned()));
        assert_eq!(cluster(&[formed(1, "u", &[1, 2, 3]), formed(2, "v", &[1, 2, 3])]), None);
        assert_eq!(cluster(&[formed(1, "u", &[1, 2, 3]), blank(2)]), None);
        assert_eq!(cluster(&[]), None);

        let roster = |nodes: &[(u32, Standing)]| {
            let node = |(node, standing): &(u32, Standing)| RosterNode {
                node: *node,
                incarnation: u64::from(*node),
                standing: (*standing).into(),
                ..RosterNode::default()
            };
            nodes.iter().map(node).collect::<Vec<_>>()
        };
        let genesis = members[0].genesis.clone().expect("it is formed");
        let (member, left) = (Standing::Stays, Standing::Left);
        let present = roster(&[(1, member), (2, member), (3, left), (4, member)]);
        assert_eq!(check_listed(&genesis, &present, &members), Ok(()));
        let missing = check_listed(&genesis, &present, &members[..2]);
        assert_eq!(missing, Err(Error::Invalid("node 4 of cluster u is not listed".to_owned())));
    }

    #[test]
    fn join_requires_blank_disk_and_same_version() {
        let cluster = formed(1, "u", &[1, 2, 3]);
        let newcomer = LookResponse { peer: "p".to_owned(), grpc: "g".to_owned(), ..blank(4) };
        let request = super::request;
        let added = request(&cluster, newcomer.clone()).unwrap();
        assert_eq!((added.node, added.incarnation, &*added.peer, &*added.grpc), (4, 4, "p", "g"));
        assert!(request(&cluster, formed(4, "u", &[1, 2, 3, 4])).is_ok(), "it has joined already");
        let other = request(&cluster, formed(4, "v", &[4])).unwrap_err();
        assert!(matches!(&other, Error::Exists(why) if why.contains("cluster v")), "{other}");
        for wrong in [LookResponse { format: 9, ..newcomer.clone() }, LookResponse { protocol: 9, ..newcomer }] {
            let refused = request(&cluster, wrong).unwrap_err();
            assert!(matches!(&refused, Error::Precondition(why) if why.contains('9')), "{refused}");
        }
    }

    #[test]
    fn rejects_inconsistent_formation() {
        let another_format = LookResponse { format: 4, ..blank(3) };
        for wrong in
            [&[blank(1), blank(2)][..], &[blank(1), blank(1), blank(2)], &[formed(1, "u", &[1, 2, 3]), blank(2)]]
        {
            assert!(matches!(disks(wrong), Err(Error::Invalid(_))), "{wrong:?}");
        }
        let wrong = disks(&[blank(1), blank(2), another_format]);
        assert!(matches!(wrong, Err(Error::Precondition(_))), "{wrong:?}");
        let another_disk = LookResponse { disk: Some(disk(2, 99)), ..blank(2) };
        for wrong in [
            &[formed(1, "u", &[1, 2, 3]), formed(2, "v", &[2, 4, 5]), blank(3)][..],
            &[formed(1, "u", &[1, 2, 3]), another_disk, blank(3)],
            &[formed(1, "u", &[1, 2, 3]), blank(2), blank(4)],
        ] {
            assert!(matches!(disks(wrong), Err(Error::Exists(_))), "{wrong:?}");
        }
    }
}
