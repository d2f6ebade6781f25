//! Forming a universe of nodes that run on blank disks. It may be cut short anywhere and done again, by anybody: the same
//! disks always come to the same universe.

use std::collections::BTreeSet;
use std::time::Duration;

use api::admin::formation_client::FormationClient;
use api::admin::{Disk, FormRequest, FormResponse, Genesis, LookRequest, LookResponse};
use base::limits::UNIVERSE_NODES;
use client::Fault;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use crate::Error;
use crate::endpoints::Endpoints;
use crate::fault;

/// How long a node may take for an answer; formatting fills some files with zeros.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Between two attempts at a node that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Forms a universe of the nodes that serve gRPC at these endpoints: all of them, and no others. A universe that they are
/// all members of already is left as it is.
///
/// # Errors
/// [`Error::Invalid`] when they can't be a universe, [`Error::Exists`] when one of them belongs to another one or has
/// another disk than the universe was formed with, [`Error::Unavailable`] when one did not answer within `patience`: to
/// try again does no harm.
pub async fn form<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>, patience: Duration) -> Result<Genesis, Error> {
    let until = Instant::now() + patience;
    let endpoints = Endpoints::parse(endpoints)?;
    let mut looks = Vec::new();
    for endpoint in 0..endpoints.count() {
        looks.push(ask(&endpoints, endpoint, until, LookRequest {}, look).await?);
    }
    let disks = disks(&looks)?;
    let mut formed = None;
    for endpoint in 0..endpoints.count() {
        let request = FormRequest { disks: disks.clone() };
        formed = ask(&endpoints, endpoint, until, request, format).await?.genesis;
    }
    formed.ok_or_else(|| Error::Unavailable("a node did not say what it was formed as".to_owned()))
}

type Channel = FormationClient<tonic::transport::Channel>;

async fn look(mut node: Channel, request: LookRequest) -> Result<LookResponse, Status> {
    Ok(node.look(request).await?.into_inner())
}

async fn format(mut node: Channel, request: FormRequest) -> Result<FormResponse, Status> {
    Ok(node.form(request).await?.into_inner())
}

/// Asks one node, again and again until it answers: each question may be put any number of times.
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
            match answer {
                Ok(answer) => Ok(answer),
                Err(status) => {
                    endpoints.drop_connection(&connection).await;
                    Err(fault::of(&status))
                }
            }
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
            let reason = fault.map_or_else(|| "it does not answer".to_owned(), Fault::reason);
            return Err(Error::Unavailable(format!("the node at {name}: {reason}")));
        }
        sleep(PAUSE).await;
    }
}

/// The disks that the universe is formed of, by what its nodes say.
fn disks(looks: &[LookResponse]) -> Result<Vec<Disk>, Error> {
    let mut disks: Vec<Disk> = looks.iter().filter_map(|look| look.disk).collect();
    disks.sort_by_key(|disk| disk.node);
    if disks.len() < looks.len() {
        return Err(Error::Invalid("a node does not say what disk it has".to_owned()));
    }
    if let Some(twice) = disks.windows(2).find(|pair| pair[0].node == pair[1].node) {
        return Err(Error::Invalid(format!("node {} is named twice, or two nodes have its number", twice[0].node)));
    }
    let formats: BTreeSet<u32> = looks.iter().map(|look| look.format).collect();
    if formats.len() > 1 {
        return Err(Error::Invalid(format!("the nodes are of different versions: they write formats {formats:?}")));
    }
    let Some(genesis) = looks.iter().find_map(|look| look.genesis.clone()) else {
        if UNIVERSE_NODES.contains(&disks.len()) {
            return Ok(disks);
        }
        let count = disks.len();
        return Err(Error::Invalid(format!("a universe is formed of 1, 3, 5 or 7 nodes, and {count} are named")));
    };
    check_against(&genesis, looks, &disks)?;
    Ok(genesis.disks)
}

/// Whether what was begun can be ended with these nodes.
fn check_against(genesis: &Genesis, looks: &[LookResponse], disks: &[Disk]) -> Result<(), Error> {
    let universe = &genesis.universe;
    if let Some(other) = looks.iter().filter_map(|look| look.genesis.as_ref()).find(|other| *other != genesis) {
        let others = &other.universe;
        return Err(Error::Exists(format!("the nodes are members of two universes, {universe} and {others}")));
    }
    for disk in disks {
        match genesis.disks.iter().find(|member| member.node == disk.node) {
            Some(member) if member == disk => {}
            Some(_) => {
                return Err(Error::Exists(format!(
                    "node {} has another disk than the one that universe {universe} was formed with: a disk that was \
                     lost, or whose data was removed, is not formed once more",
                    disk.node
                )));
            }
            None => {
                return Err(Error::Exists(format!("node {} is no member of universe {universe}", disk.node)));
            }
        }
    }
    match genesis.disks.iter().find(|member| !disks.contains(member)) {
        Some(missing) => {
            Err(Error::Invalid(format!("node {} is a member of universe {universe} and is not named", missing.node)))
        }
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

    fn formed(node: u32, universe: &str, of: &[u32]) -> LookResponse {
        let disks = of.iter().map(|node| disk(*node, u64::from(*node))).collect();
        LookResponse { genesis: Some(Genesis { universe: universe.to_owned(), disks }), ..blank(node) }
    }

    fn nodes(looks: &[LookResponse]) -> Result<Vec<u32>, Error> {
        disks(looks).map(|disks| disks.iter().map(|disk| disk.node).collect())
    }

    #[test]
    fn blank_nodes_become_a_universe_and_what_was_begun_is_ended() {
        assert_eq!(nodes(&[blank(2), blank(1), blank(3)]), Ok(vec![1, 2, 3]));
        assert_eq!(nodes(&[blank(1)]), Ok(vec![1]));
        assert_eq!(nodes(&[blank(1), formed(2, "u", &[1, 2, 3]), blank(3)]), Ok(vec![1, 2, 3]));
        let all = [1, 2, 3].map(|node| formed(node, "u", &[1, 2, 3]));
        assert_eq!(nodes(&all), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn what_cannot_be_one_universe_is_not_formed() {
        let another_format = LookResponse { format: 4, ..blank(3) };
        for wrong in [
            &[blank(1), blank(2)][..],
            &[blank(1), blank(1), blank(2)],
            &[blank(1), blank(2), another_format],
            &[formed(1, "u", &[1, 2, 3]), blank(2)],
        ] {
            assert!(matches!(disks(wrong), Err(Error::Invalid(_))), "{wrong:?}");
        }
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
