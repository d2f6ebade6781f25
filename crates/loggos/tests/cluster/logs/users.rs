//! Users of a log: some append, some read single positions or request the tail, some follow it from the beginning. All
//! record requests, responses and times.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::SplitMix64;
use sdk::{Error, Log};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::history::{Append, History, Name, Outcome, Tail, batch};

/// Calls must return by their deadline; this allows for a busy machine.
const SLACK: Duration = Duration::from_secs(2);
/// Maximum time between two deliveries to a follower, under any fault.
pub(super) const FOLLOWER_PATIENCE: Duration = Duration::from_secs(40);
const READ: u64 = 24;
const PAUSE_MAX_MS: u64 = 12;

/// The state shared by all users.
#[derive(Clone)]
pub(super) struct Book {
    history: Arc<Mutex<History>>,
    /// The start of the common clock of the history.
    began: Instant,
    pub(super) until: Instant,
}

impl Book {
    pub(super) fn new(trouble: Duration) -> Self {
        let began = Instant::now();
        Self { history: Arc::default(), began, until: began + trouble }
    }

    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut History) -> T) -> T {
        look(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records entries returned to a user.
    #[track_caller]
    pub(super) fn saw(&self, whom: &str, entries: &[sdk::Entry]) {
        let violation = self.with(|history| entries.iter().find_map(|entry| history.saw(entry).err()));
        assert_eq!(violation, None, "{whom}");
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    #[track_caller]
    fn in_time(&self, called: u64, deadline: Duration) {
        let took = Duration::from_nanos(self.now() - called);
        assert!(took < deadline + SLACK, "a call with {deadline:?} was answered after {took:?}");
    }
}

/// A user with a client of some node.
pub(super) struct User {
    pub(super) number: u32,
    pub(super) log: Log,
    pub(super) deadline: Duration,
    pub(super) book: Book,
    pub(super) random: SplitMix64,
}

impl User {
    async fn pause(&mut self) {
        sleep(Duration::from_millis(1 + self.random.below(PAUSE_MAX_MS))).await;
    }

    /// Appends until the faults are over.
    pub(super) async fn append_on(mut self) {
        for number in 0.. {
            if self.book.is_over() {
                return;
            }
            self.append((self.number, number)).await;
            self.pause().await;
        }
    }

    pub(super) async fn append(&self, name: Name) -> Outcome {
        let called = self.book.now();
        let answer = self.log.append(batch(name)).await;
        let returned = self.book.now();
        self.book.in_time(called, self.deadline);
        let outcome = match answer {
            Ok(position) => Outcome::At(position),
            Err(Error::OutcomeUnknown(_)) => Outcome::Unknown,
            Err(Error::Unavailable(_)) => Outcome::NotDone,
            Err(error) => panic!("append {name:?} was answered with {error:?}"),
        };
        self.book.with(|history| history.appends.push(Append { name, called, returned, outcome }));
        outcome
    }

    /// Requests the tail, and reads positions below or slightly above it, until the faults are over.
    pub(super) async fn look_on(mut self) {
        let mut known = 0;
        while !self.book.is_over() {
            if self.random.below(3) == 0 {
                known = self.tail().await.unwrap_or(known);
            } else {
                let from = self.random.below(known + 4);
                let wait = Duration::from_millis([0, 30][self.random.below(2) as usize]);
                self.read(from, wait).await;
            }
            self.pause().await;
        }
    }

    /// The tail, if available.
    pub(super) async fn tail(&self) -> Option<u64> {
        let called = self.book.now();
        let answer = self.log.tail().await;
        self.book.in_time(called, self.deadline);
        match answer {
            Ok(position) => {
                self.book.with(|history| history.tails.push(Tail { called, position }));
                Some(position)
            }
            Err(Error::Unavailable(_)) => None,
            Err(error) => panic!("a question for the tail was answered with {error:?}"),
        }
    }

    async fn read(&mut self, from: u64, wait: Duration) {
        let called = self.book.now();
        let count = 1 + self.random.below(READ) as u32;
        let answer = self.log.read_waiting(from, count, wait).await;
        self.book.in_time(called, self.deadline);
        match answer {
            Ok(entries) => {
                assert!(
                    entries.iter().map(|entry| entry.position).eq(from..from + entries.len() as u64),
                    "{entries:?}"
                );
                self.book.saw("a reader", &entries);
            }
            Err(Error::Unavailable(_)) => {}
            Err(error) => panic!("a read at {from} was answered with {error:?}"),
        }
    }

    /// Reads the whole log below a position.
    pub(super) async fn read_all(&self, end: u64) {
        let mut next = 0;
        while next < end {
            let entries = self.log.read_waiting(next, 256, Duration::from_secs(1)).await;
            let entries = entries.unwrap_or_else(|error| panic!("position {next} can't be read: {error}"));
            next = entries.last().unwrap_or_else(|| panic!("nothing lies at {next}, below {end}")).after();
            self.book.saw("who reads it all", &entries);
        }
    }

    /// Follows the log from the beginning up to a position that is set later.
    pub(super) async fn follow(self, mut end: watch::Receiver<Option<u64>>) {
        let mut subscription = self.log.subscribe(0);
        let whom = format!("follower {}", self.number);
        let mut next = 0;
        loop {
            if end.borrow().is_some_and(|end| next >= end) {
                return;
            }
            let entries = tokio::select! {
                // The sender is gone: the test has failed.
                changed = end.changed(), if end.borrow().is_none() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                told = timeout(FOLLOWER_PATIENCE, subscription.next_many()) => told,
            };
            let entries = entries.unwrap_or_else(|_| panic!("{whom} waits for position {next}"));
            let entries = entries.expect("no end").unwrap_or_else(|error| panic!("{whom} at {next}: {error}"));
            for entry in &entries {
                assert_eq!(entry.position, next, "{whom}: each position once, in order");
                next = entry.after();
            }
            let heard =
                |history: &mut History| entries.iter().find_map(|entry| history.heard(self.number, entry).err());
            assert_eq!(self.book.with(heard), None, "{whom}");
        }
    }
}
