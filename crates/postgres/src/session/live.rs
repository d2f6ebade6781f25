//! The published state of a session, and the rows of the system catalogs about the sessions of this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sql::system::{Live, SessionRow};

use super::Session;
use crate::activity::{Activity, SessionActivity};
use crate::database::Database;

/// The content of the system catalogs that is not in the schema.
#[derive(Debug)]
struct Shown {
    activity: Arc<Activity>,
    database: Arc<Database>,
}

impl Live for Shown {
    fn sessions(&self) -> Vec<SessionRow> {
        self.activity.sessions()
    }

    fn size(&self, id: u32) -> Option<u64> {
        self.database.size_of(id)
    }

    fn database_size(&self, name: &str) -> Option<u64> {
        (name == self.database.name).then(|| self.database.size()).flatten()
    }
}

impl Session {
    /// The number by which the client can cancel statements.
    pub(crate) fn set_process(&mut self, process: i32) {
        self.process = process;
    }

    /// The published state of this session.
    pub(crate) fn activity(&self, client: Option<SocketAddr>) -> SessionActivity {
        let application = self.settings.get("application_name").unwrap_or_default().to_owned();
        SessionActivity::new(self.process, &self.database.name, &self.user, application, client)
    }

    /// The duration from which on a statement is logged.
    pub(crate) fn log_min_duration(&self) -> Option<Duration> {
        self.settings.log_min_duration()
    }

    /// The name of its database.
    pub(crate) fn database_name(&self) -> &str {
        &self.database.name
    }

    /// The source of the system catalogs' rows about this process.
    pub(super) fn live(&self) -> Arc<dyn Live> {
        Arc::new(Shown { activity: Arc::clone(self.databases.activity()), database: Arc::clone(&self.database) })
    }
}
