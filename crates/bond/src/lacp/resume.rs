//! LACP continues in the process that takes over from this one: each member processes its partner's last
//! message, as an LACPDU, and need not wait to see whether the partner stays.
//!
//! The partner does not notice: it receives the same system, port and state again before its timer expires.

use super::lacpdu::{LacpPdu, Pdu, parse};
use super::machine::Lacp;
use super::member::Member;

impl Lacp {
    /// Returns the last messages of the partners of members that send, as LACPDUs, by the members' numbers.
    pub fn last_pdus(&self) -> Vec<(u16, Vec<u8>)> {
        let sends = |(_, member): &(&u16, &Member)| member.sends() && member.is_current();
        let pdu =
            |member: &Member| LacpPdu { actor: member.partner, partner: member.actor, collector_delay: 0 };
        let one = |(number, member): (&u16, &Member)| (*number, pdu(member).frame(member.settings.mac));
        self.members.iter().filter(sends).map(one).collect()
    }

    /// Makes a member process an LACPDU from [`Lacp::last_pdus`] as soon as its link is up, and use the link
    /// at once. Anything else is ignored.
    pub fn resume(&mut self, number: u16, bytes: &[u8]) {
        if let Ok(Pdu::Lacp(pdu)) = parse(bytes) {
            self.remembered.insert(number, pdu);
        }
    }

    /// Processes the remembered LACPDU, if there is one, of a member whose link is up.
    pub(super) fn remember(&mut self, now_ns: u64, number: u16) {
        let Some(pdu) = self.remembered.remove(&number) else { return };
        if let Some(member) = self.members.get_mut(&number)
            && pdu.partner.is_same_port(&member.actor)
        {
            member.resumes = true;
            member.receive(now_ns, &pdu);
        }
    }
}
