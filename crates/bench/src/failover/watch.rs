//! Polls the survivors for their status, and records when each stage of an election is first reported.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sdk::admin::{Cohort, StatusResponse};
use terminal::Stop;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::cluster::Term;
use super::super::target::TABLE;

/// Delay between a response and the next query to the same node.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
/// Timeout of a query.
const PATIENCE: Duration = Duration::from_millis(500);

/// The observed times of an election's stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) before: Term,
    /// A survivor had promised a newer epoch.
    pub(crate) stood: Option<Instant>,
    /// A survivor was leader.
    pub(crate) elected: Option<Instant>,
    pub(crate) leader: Option<u32>,
    /// The new leader had committed an entry of its own epoch.
    pub(crate) open: Option<Instant>,
}

impl Marks {
    pub(crate) fn new(before: Term) -> Self {
        Self { before, stood: None, elected: None, leader: None, open: None }
    }

    /// Records a response. Only a leader's own report of its leadership counts: it knows that it has a majority.
    fn see(&mut self, now: Instant, status: &StatusResponse) {
        let cohort = status.cohorts.iter().find(|cohort| cohort.table == TABLE);
        let Some(cohort) = cohort.filter(|cohort| cohort.epoch > self.before.epoch) else { return };
        self.stood.get_or_insert(now);
        if cohort.leader != Some(status.node) {
            return;
        }
        self.elected.get_or_insert(now);
        self.leader.get_or_insert(status.node);
        if has_committed_its_own(cohort, status.node) {
            self.open.get_or_insert(now);
        }
    }
}

fn has_committed_its_own(cohort: &Cohort, node: u32) -> bool {
    let own = cohort.replicas.iter().find(|replica| replica.node == node);
    own.and_then(|replica| replica.committed_lsn).is_some_and(|lsn| lsn.epoch == cohort.epoch)
}

pub(crate) struct Watch {
    marks: Rc<RefCell<Marks>>,
    _questions: JoinSet<()>,
}

impl Watch {
    /// Connects to the nodes at these endpoints and starts to poll them.
    pub(crate) async fn begin(endpoints: &[String], before: Term) -> Result<Self, Stop> {
        let marks = Rc::new(RefCell::new(Marks::new(before)));
        let mut questions = JoinSet::new();
        for endpoint in endpoints {
            let client = sdk::Client::connect([endpoint])?.with_deadline(PATIENCE);
            client.status().await?;
            questions.spawn_local(ask(client, Rc::clone(&marks)));
        }
        Ok(Self { marks, _questions: questions })
    }

    pub(crate) fn stop(self) -> Marks {
        *self.marks.borrow()
    }
}

/// Polls one node until the election is complete: polling must not add load to the rest of the run.
async fn ask(client: sdk::Client, marks: Rc<RefCell<Marks>>) {
    while marks.borrow().open.is_none() {
        if let Ok(status) = client.status().await {
            marks.borrow_mut().see(Instant::now(), &status);
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::admin::{Lsn, Replica};

    fn status(node: u32, epoch: u64, leader: Option<u32>, committed: u64) -> StatusResponse {
        let committed_lsn = Some(Lsn { epoch: committed, sequence: 9 });
        let replicas = vec![Replica { node, last_lsn: committed_lsn, committed_lsn, doubtful: false }];
        let cohort = |table: &str, epoch| Cohort {
            cohort: 2,
            table: table.into(),
            leader,
            epoch,
            replicas: replicas.clone(),
            ..Cohort::default()
        };
        let cohorts = vec![cohort("another", 77), cohort(TABLE, epoch)];
        StatusResponse { node, incarnation: 1, boot: 1, cohorts, ..StatusResponse::default() }
    }

    #[test]
    fn election_steps_recorded_once() {
        let mut marks = Marks::new(Term { epoch: 4, leader: 1 });
        let now = Instant::now();
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        marks.see(at(0), &status(2, 4, Some(1), 4));
        assert_eq!((marks.stood, marks.elected, marks.open), (None, None, None));
        marks.see(at(1), &status(3, 5, None, 4));
        marks.see(at(2), &status(2, 5, Some(3), 4));
        assert_eq!((marks.stood, marks.elected), (Some(at(1)), None), "only a leader knows that it leads");
        marks.see(at(3), &status(3, 5, Some(3), 4));
        marks.see(at(4), &status(3, 5, Some(3), 5));
        marks.see(at(5), &status(3, 5, Some(3), 5));
        assert_eq!((marks.stood, marks.elected, marks.open), (Some(at(1)), Some(at(3)), Some(at(4))));
        assert_eq!(marks.leader, Some(3));
    }
}
