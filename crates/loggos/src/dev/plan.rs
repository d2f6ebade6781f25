//! The plan of a local cluster, stored before any disk is formatted, so that an interrupted formation continues with
//! the same numbers, and nothing is formatted twice.
//!
//! `cluster.toml` has `formed = false` until every node's directory is formatted and forced. From then on, a directory
//! that is missing or blank counts as a lost disk (guarantee 6).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base::{ClusterId, Incarnation, Member, NodeId};
use serde::{Deserialize, Serialize};
use store::StoreError;
use store::identity::Identity;

use runtime::files::{OsFiles, STORE};
use runtime::random;

const FILE: &str = "cluster.toml";
/// Supported numbers of nodes of a local cluster.
const NODE_COUNTS: [u32; 3] = [1, 3, 5];
const NODE_COUNT_DEFAULT: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// 32 hexadecimal digits.
    cluster: String,
    /// Whether every node was formatted.
    formed: bool,
    nodes: Vec<PlannedNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PlannedNode {
    node: u32,
    /// 16 hexadecimal digits.
    incarnation: String,
    /// Its process has reported that it has left the cluster. It is not started again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left: bool,
}

/// Why there is no usable plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("--nodes {0}: a local cluster has 1, 3 or 5 nodes")]
    NodeCount(u32),
    #[error(
        "--nodes {asked}: the cluster in {directory} has {planned} nodes; a different number requires another --data"
    )]
    OtherNodeCount { asked: u32, planned: usize, directory: String },
    #[error("{0} contains nodes but no cluster.toml; refusing to form a cluster over them")]
    NodesWithoutPlan(String),
    #[error("{path}: {problem}")]
    Damaged { path: String, problem: String },
    #[error("node {node}: {error}")]
    Format { node: u32, error: StoreError },
    #[error("can't write {path}: {error}")]
    Io { path: String, error: io::Error },
}

impl PlanError {
    pub(crate) fn is_wrong_use(&self) -> bool {
        matches!(self, Self::NodeCount(_) | Self::OtherNodeCount { .. })
    }

    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::Io { path, error }
    }
}

/// The directory of a node.
pub(crate) fn node_directory(data: &Path, node: u32) -> PathBuf {
    data.join(format!("node-{node}"))
}

/// Creates the cluster's directory if necessary, and returns its absolute path, which does not depend on the working
/// directory.
pub(crate) fn make_directory(data: &Path) -> Result<PathBuf, PlanError> {
    fs::create_dir_all(data).and_then(|()| fs::canonicalize(data)).map_err(PlanError::io(data))
}

/// The number of nodes of a cluster that is not formed yet; `None` if it is.
pub(crate) fn to_be_formed(data: &Path, nodes: Option<u32>) -> Option<u32> {
    (!data.join(FILE).exists()).then(|| nodes.unwrap_or(NODE_COUNT_DEFAULT))
}

/// Checks the number of nodes before anything is created.
pub(crate) fn check_count(nodes: Option<u32>) -> Result<(), PlanError> {
    match nodes {
        Some(count) if !NODE_COUNTS.contains(&count) => Err(PlanError::NodeCount(count)),
        _ => Ok(()),
    }
}

impl Plan {
    /// Reads the plan of a cluster or creates one, and completes its formation.
    pub(crate) fn form(data: &Path, nodes: Option<u32>) -> Result<Self, PlanError> {
        check_count(nodes)?;
        let mut plan = match Self::read(data)? {
            Some(plan) => plan,
            None => Self::make(data, nodes.unwrap_or(NODE_COUNT_DEFAULT))?,
        };
        if let Some(asked) = nodes
            && asked as usize != plan.nodes.len()
        {
            let directory = data.display().to_string();
            return Err(PlanError::OtherNodeCount { asked, planned: plan.nodes.len(), directory });
        }
        if !plan.formed {
            plan.format_nodes(data)?;
            plan.formed = true;
            plan.write(data)?;
        }
        Ok(plan)
    }

    /// The cluster's identifier, as in a configuration.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().map(|planned| planned.node)
    }

    /// Whether a node has left the cluster.
    pub(crate) fn has_left(&self, node: u32) -> bool {
        self.nodes.iter().any(|planned| planned.node == node && planned.left)
    }

    /// Records that a node has left the cluster.
    pub(crate) fn mark_left(&mut self, data: &Path, node: u32) -> Result<(), PlanError> {
        let Some(planned) = self.nodes.iter_mut().find(|planned| planned.node == node) else { return Ok(()) };
        planned.left = true;
        self.write(data)
    }

    /// The reason why a node cannot be started: it has left the cluster, or its disk is missing or belongs to another
    /// node.
    pub(crate) fn refusal(&self, data: &Path, node: u32) -> Option<String> {
        if self.has_left(node) {
            return Some(format!("node {node} is not started: it has left the cluster"));
        }
        let wanted = self.identity(data, node).ok()?;
        let directory = node_directory(data, node);
        let found = store::identity::read(&OsFiles::new(&directory.join(STORE)));
        let problem = match found {
            Ok(Some(found)) if found == wanted => return None,
            Ok(Some(found)) => format!(
                "it contains node {} of cluster {}, incarnation {:x}; cluster.toml expects node {node} of cluster {}, \
                 incarnation {:x}",
                found.node, found.cluster, found.incarnation.0, wanted.cluster, wanted.incarnation.0
            ),
            Ok(None) => "its data is missing. It is not formatted again: a blank disk with the identity of a member \
                         would have lost its promises and acknowledged writes"
                .to_owned(),
            Err(error) => error.to_string(),
        };
        Some(format!("node {node} is not started: {}: {problem}", directory.display()))
    }

    fn read(data: &Path) -> Result<Option<Self>, PlanError> {
        let path = data.join(FILE);
        let damaged = |problem| PlanError::Damaged { path: path.display().to_string(), problem };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let plan: Self = toml::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        // Validates all fields, so that later uses cannot fail.
        for planned in &plan.nodes {
            plan.identity(data, planned.node)?;
        }
        Ok(Some(plan))
    }

    fn make(data: &Path, count: u32) -> Result<Self, PlanError> {
        if node_directory(data, 1).exists() {
            return Err(PlanError::NodesWithoutPlan(data.display().to_string()));
        }
        let urandom = Path::new("/dev/urandom");
        let random = random::bytes(16 + 8 * count as usize).map_err(PlanError::io(urandom))?;
        let (cluster, incarnations) = random.split_at(16);
        let nodes = (1..).zip(incarnations.chunks(8));
        let plan = Self {
            cluster: hexadecimal(cluster),
            formed: false,
            nodes: nodes
                .map(|(node, bytes)| PlannedNode { node, incarnation: hexadecimal(bytes), left: false })
                .collect(),
        };
        plan.write(data)?;
        Ok(plan)
    }

    /// Stores the plan atomically, and forces it and its directory.
    fn write(&self, data: &Path) -> Result<(), PlanError> {
        let path = data.join(FILE);
        let beside = data.join(format!("{FILE}.new"));
        let text = toml::to_string(self)
            .map_err(|error| PlanError::Damaged { path: path.display().to_string(), problem: error.to_string() })?;
        let write = || {
            let mut file = File::create(&beside)?;
            writeln!(file, "# The cluster formed by `loggos dev` in this directory. Do not edit.")?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &path)?;
            File::open(data)?.sync_all()
        };
        write().map_err(PlanError::io(&path))
    }

    fn format_nodes(&self, data: &Path) -> Result<(), PlanError> {
        for node in self.nodes() {
            let store = node_directory(data, node).join(STORE);
            fs::create_dir_all(&store).map_err(PlanError::io(&store))?;
            let force = || File::open(node_directory(data, node))?.sync_all();
            force().map_err(PlanError::io(&store))?;
            let identity = self.identity(data, node)?;
            store::format(&OsFiles::new(&store), &identity, &store::Config::default())
                .map_err(|error| PlanError::Format { node, error })?;
        }
        File::open(data).and_then(|directory| directory.sync_all()).map_err(PlanError::io(data))
    }

    fn identity(&self, data: &Path, node: u32) -> Result<Identity, PlanError> {
        self.parse(node).ok_or_else(|| PlanError::Damaged {
            path: data.join(FILE).display().to_string(),
            problem: "invalid number".to_owned(),
        })
    }

    fn parse(&self, node: u32) -> Option<Identity> {
        let cluster = ClusterId(u128::from_str_radix(&self.cluster, 16).ok()?);
        let members: Option<Vec<Member>> = self.nodes.iter().map(PlannedNode::member).collect();
        let members = members?;
        let own = members.iter().find(|member| member.node.0 == node)?;
        Some(Identity { cluster, node: own.node, incarnation: own.incarnation, members, hosts: Vec::new() })
    }
}

impl PlannedNode {
    fn member(&self) -> Option<Member> {
        let incarnation = u64::from_str_radix(&self.incarnation, 16).ok()?;
        Some(Member { node: NodeId(self.node), incarnation: Incarnation(incarnation) })
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn formation_is_idempotent() {
        let scratch = TempDir::new().unwrap();
        let plan = Plan::form(scratch.path(), None).unwrap();
        assert_eq!(plan.nodes().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(plan.nodes().all(|node| plan.refusal(scratch.path(), node).is_none()));
        assert_eq!(Plan::form(scratch.path(), Some(3)).unwrap(), plan);
        let refused = Plan::form(scratch.path(), Some(5)).unwrap_err();
        assert!(refused.is_wrong_use() && refused.to_string().contains("has 3 nodes"), "{refused}");
    }

    #[test]
    fn interrupted_formation_keeps_its_ids() {
        let scratch = TempDir::new().unwrap();
        let made = Plan::make(scratch.path(), 1).unwrap();
        let formed = Plan::form(scratch.path(), None).unwrap();
        assert_eq!(formed, Plan { formed: true, ..made });
    }

    #[test]
    fn lost_node_directory_is_not_reformatted() {
        let scratch = TempDir::new().unwrap();
        Plan::form(scratch.path(), Some(1)).unwrap();
        fs::remove_dir_all(node_directory(scratch.path(), 1)).unwrap();
        let plan = Plan::form(scratch.path(), None).unwrap();
        let refusal = plan.refusal(scratch.path(), 1).unwrap();
        assert!(refusal.contains("node 1 is not started") && refusal.contains("not formatted again"), "{refusal}");
        assert!(!node_directory(scratch.path(), 1).exists());
    }

    #[test]
    fn departed_node_is_not_started() {
        let scratch = TempDir::new().unwrap();
        let mut plan = Plan::form(scratch.path(), None).unwrap();
        plan.mark_left(scratch.path(), 3).unwrap();
        let plan = Plan::form(scratch.path(), Some(3)).unwrap();
        assert_eq!(plan.nodes().filter(|node| plan.has_left(*node)).collect::<Vec<_>>(), [3]);
        assert!(plan.refusal(scratch.path(), 3).unwrap().ends_with("it has left the cluster"));
        assert_eq!(plan.refusal(scratch.path(), 2), None);
    }

    #[test]
    fn lost_plan_is_not_recreated() {
        let scratch = TempDir::new().unwrap();
        Plan::form(scratch.path(), Some(1)).unwrap();
        fs::remove_file(scratch.path().join(FILE)).unwrap();
        assert!(matches!(Plan::form(scratch.path(), None), Err(PlanError::NodesWithoutPlan(_))));
        assert!(matches!(Plan::form(scratch.path(), Some(2)), Err(PlanError::NodeCount(2))));
    }
}
