use base::codec::Wire as _;
use base::codec::testing::check_golden;
use base::{Incarnation, Member, Membership, Timestamp};

use super::*;

fn entry(sequence: u64, previous: Lsn, members: Option<Membership>) -> Entry {
    let lsn = Lsn::new(3, sequence);
    Entry { lsn, previous, timestamp: Timestamp(-9), payload: "payload".into(), members: members.map(Into::into) }
}

fn samples() -> Vec<Message> {
    let (epoch, last, promised) = (Epoch(3), Lsn::new(2, 4), Epoch(5));
    let (sent, commit, committed) = (Monotonic(11), Sequence(4), Sequence(3));
    let membership = Membership::of(vec![Member { node: NodeId(1), incarnation: Incarnation(6) }]).by_plan(2);
    let entries = vec![entry(5, last, None), entry(6, Lsn::new(3, 5), Some(membership.clone()))];
    let reply = |reply, voted| {
        let at = Monotonic(12);
        Message::ProposeReply { epoch, sent, voted, reply, committed, doubtful: !voted, at }
    };
    vec![
        Message::PreVote { epoch, last },
        Message::PreVoteReply { epoch, granted: true, integrity: LogIntegrity::Whole, promised },
        Message::Prepare { epoch, last },
        Message::PrepareReply { epoch, granted: false, integrity: LogIntegrity::Forgetful, promised },
        Message::PrepareReply { epoch, granted: true, integrity: LogIntegrity::Damaged, promised },
        Message::Propose { epoch, previous: last, entries: Vec::new(), commit, sent, heard: None },
        Message::Propose { epoch, previous: last, entries, commit, sent, heard: Some(Monotonic(9)) },
        reply(Reply::Matched(Sequence(4)), true),
        reply(Reply::Missing(Gap { after: Sequence(4), through: Sequence(7) }), false),
        reply(Reply::Apart(last), true),
        Message::Superseded { promised },
        Message::ViewCheck { check: 8 },
        Message::ViewReply { check: 8, epoch, stamp: None, commit },
        Message::ViewReply { check: 8, epoch, stamp: Some(Stamp { committed, membership: membership.into() }), commit },
        Message::Release { epoch, successor: None },
        Message::Release { epoch, successor: Some(NodeId(2)) },
    ]
}

#[test]
fn golden_messages() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/message/golden.txt");
    check_golden(path, &samples(), Message::to_bytes, Message::from_bytes);
}

#[test]
fn decoder_checks_chain_of_entries() {
    let broken = vec![entry(5, Lsn::new(2, 4), None), entry(7, Lsn::new(3, 6), None)];
    let previous = Lsn::new(2, 4);
    let (epoch, commit, sent) = (Epoch(3), Sequence(0), Monotonic(1));
    let message = Message::Propose { epoch, previous, entries: broken, commit, sent, heard: None };
    let error = DecodeError::Invalid { what: "chain of predecessors in a proposal" };
    assert_eq!(Message::from_bytes(message.to_bytes()), Err(error));
}
