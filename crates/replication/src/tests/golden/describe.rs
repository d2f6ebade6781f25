//! The output of golden scripts: messages, entries and roles in one line each.

use base::{Entry, LogRecord, Lsn, Member, NodeId, SharedMembership};

use crate::cohort::Role;
use crate::message::{Gap, Reply};
use crate::{Cohort, Message, Output};

pub(super) fn name(node: NodeId) -> String {
    format!("n{node}")
}

pub(super) fn role(cohort: &Cohort) -> String {
    match &cohort.role {
        Role::Follower { leader: None, .. } => "follower".to_owned(),
        Role::Follower { leader: Some(leader), .. } => format!("follower of {}", name(*leader)),
        Role::PreCandidate { .. } => "pre-candidate".to_owned(),
        Role::Candidate { .. } => "candidate".to_owned(),
        Role::Leader(leader) if leader.open => "leader".to_owned(),
        Role::Appointed { .. } => "appointed".to_owned(),
        Role::Leader(_) => "leader (barrier not committed)".to_owned(),
    }
}

pub(super) fn members(members: &SharedMembership) -> String {
    if members.is_empty() {
        return "no membership".to_owned();
    }
    let list = |members: &[Member]| members.iter().map(|member| name(member.node)).collect::<Vec<_>>().join(",");
    let learners = if members.learners().is_empty() { String::new() } else { " learners=".to_owned() };
    format!("voters={}{learners}{}", list(members.voters()), list(members.learners()))
}

pub(super) fn entry(entry: &Entry) -> String {
    match &entry.members {
        Some(changed) => format!("{} {}", entry.lsn, members(changed)),
        None if entry.payload.is_empty() => format!("{} barrier", entry.lsn),
        None => format!("{} {}", entry.lsn, String::from_utf8_lossy(&entry.payload)),
    }
}

/// The entry that an output appends or applies, after the verb.
pub(super) fn accepted(output: &Output) -> (&'static str, Option<&Entry>) {
    match output {
        Output::Append { record: LogRecord::Entry(entry), .. } => ("append", Some(entry)),
        Output::Apply(entry) => ("apply", Some(entry)),
        _ => ("", None),
    }
}

pub(super) fn entry_lsn(record: &LogRecord) -> Option<Lsn> {
    if let LogRecord::Entry(entry) = record { Some(entry.lsn) } else { None }
}

/// LSNs in order, with consecutive ones of the same epoch as a range: `1.1..1.20 2.21`.
pub(super) fn ranges(lsns: impl IntoIterator<Item = Lsn>) -> String {
    let mut ranges: Vec<(Lsn, Lsn)> = Vec::new();
    for lsn in lsns {
        match ranges.last_mut() {
            Some((_, last)) if last.epoch == lsn.epoch && last.sequence.next() == lsn.sequence => *last = lsn,
            _ => ranges.push((lsn, lsn)),
        }
    }
    let range = |(first, last): &(Lsn, Lsn)| if first == last { first.to_string() } else { format!("{first}..{last}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(" ")
}

pub(super) fn kind(sent: &Message) -> String {
    message(sent).split(' ').next().unwrap_or_default().to_owned()
}

pub(super) fn message(message: &Message) -> String {
    let verdict = |granted: &bool| if *granted { "granted" } else { "refused" };
    match message {
        Message::PreVote { epoch, last } => format!("PreVote epoch={epoch} last={last}"),
        Message::PreVoteReply { epoch, granted, promised, .. } => {
            format!("PreVoteReply epoch={epoch} {} promised={promised}", verdict(granted))
        }
        Message::Prepare { epoch, last } => format!("Prepare epoch={epoch} last={last}"),
        Message::PrepareReply { epoch, granted, promised, .. } => {
            format!("PrepareReply epoch={epoch} {} promised={promised}", verdict(granted))
        }
        Message::Propose { previous, entries, commit, .. } => {
            format!("Propose base={previous} [{}] commit={commit}", ranges(entries.iter().map(|entry| entry.lsn)))
        }
        Message::ProposeReply { voted, reply, committed, doubtful, .. } => {
            let reply = match reply {
                Reply::Matched(through) => format!("matched={through}"),
                Reply::Missing(Gap { after, through }) => format!("missing={}..{through}", after.next()),
                Reply::Apart(lsn) => format!("apart={lsn}"),
            };
            let (vote, doubt) = (if *voted { " vote" } else { "" }, if *doubtful { " doubtful" } else { "" });
            format!("ProposeReply {reply} commit={committed}{vote}{doubt}")
        }
        Message::Superseded { promised } => format!("Superseded promised={promised}"),
        Message::ViewCheck { check } => format!("ViewCheck {check}"),
        Message::ViewReply { check, epoch, stamp, commit } => {
            let stamp = stamp.as_ref().map_or_else(String::new, |stamp| format!(" index={}", stamp.committed));
            format!("ViewReply {check} epoch={epoch} commit={commit}{stamp}")
        }
        Message::Release { epoch, successor } => {
            format!("Release epoch={epoch} successor={}", successor.map_or_else(|| "none".to_owned(), name))
        }
    }
}
