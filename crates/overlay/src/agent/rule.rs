//! The nftables rule that marks frames of established connections. The rule is in a table of our own, which
//! the kernel removes when our socket closes (`NFT_TABLE_F_OWNER`).
//!
//! As text, it is
//!
//! ```text
//! table inet weir_NAME {
//!     flags owner
//!     chain forward {
//!         type filter hook forward priority 2147483647; policy accept;
//!         meta mark & WANTS != 0 ct state & established != 0 meta mark set meta mark | ESTABLISHED
//!         meta mark & WANTS != 0 ct status & (snat | dnat) != 0 meta mark set meta mark | TRANSLATED
//!     }
//! }
//! ```

use std::io;
use weir_netlink::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, Protocol, Request, Socket};
use weir_netlink::{attribute, dump, find, nested, text};

const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
/// NFNL_SUBSYS_NFTABLES.
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFPROTO_INET: u8 = 1;

/// NFT_REG_1, NFT_META_MARK, NFT_CT_STATE, NFT_CT_STATUS, NFT_CMP_NEQ.
const REGISTER: u32 = 1;
const META_MARK: u32 = 3;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const NOT_EQUAL: u32 = 1;
/// NF_CT_STATE_BIT(IP_CT_ESTABLISHED).
const STATE_ESTABLISHED: u32 = 2;
/// IPS_SRC_NAT and IPS_DST_NAT: the connection is translated.
const STATUS_NAT: u32 = 0x30;

/// The prefix of our tables' names.
const PREFIX: &str = "weir_";

/// Returns the name of an overlay's table.
pub fn name_of(overlay: &str) -> String {
    format!("{PREFIX}{overlay}")
}

/// The rule; dropping it removes the table.
pub struct Rule {
    _owner: Socket,
}

impl Rule {
    /// Creates the table. Frames with one of the bits `wants` whose connection is established get the bit
    /// `established`, and those that NAT translates get the bit `translated`.
    pub fn make(name: &str, wants: u32, [established, translated]: [u32; 2]) -> io::Result<Rule> {
        let rules = [(CT_STATE, STATE_ESTABLISHED, established), (CT_STATUS, STATUS_NAT, translated)];
        let batch = batch(&name_of(name), wants, rules);
        Ok(Rule { _owner: carry_out(&batch)? })
    }
}

/// One of our tables in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTable {
    pub name: String,
    /// Whether it is removed with the process that created it.
    pub has_owner: bool,
}

/// Returns our tables in this network namespace.
pub fn tables() -> io::Result<Vec<NftTable>> {
    let table = |body: &[u8]| {
        const OWNER: u16 = 7;
        let rest = body.get(4..)?;
        let name = text(find(rest, 1)?);
        let has_owner = find(rest, OWNER).is_some();
        name.starts_with(PREFIX).then_some(NftTable { name, has_owner })
    };
    let question = [NFPROTO_INET, 0, 0, 0];
    let answers = dump(Protocol::Netfilter, NFTABLES << 8 | NFT_MSG_GETTABLE, &question)?;
    Ok(answers.iter().filter_map(|(_, body)| table(body)).collect())
}

/// Removes a table.
pub fn remove(table: &str) -> io::Result<()> {
    let removal =
        message(NFTABLES << 8 | NFT_MSG_DELTABLE, NLM_F_ACK, (NFPROTO_INET, 0), &[self::name(1, table)]);
    let batch =
        [message(BATCH_BEGIN, 0, (0, NFTABLES), &[]), removal, message(BATCH_END, 0, (0, NFTABLES), &[])];
    carry_out(&batch.concat()).map(drop)
}

/// Sends the kernel a batch. Returns the socket, which owns what was created.
fn carry_out(batch: &[u8]) -> io::Result<Socket> {
    let mut owner = Socket::open(Protocol::Netfilter)?;
    owner.commit(batch)?;
    Ok(owner)
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn name(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, format!("{value}\0").as_bytes())
}

/// An expression of a rule, with its attributes.
fn expression(what: &str, values: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[name(1, what), nested(2, values)])
}

/// A value to compare or combine with a register, in host byte order.
fn data(kind: u16, value: u32) -> Vec<u8> {
    nested(kind, &[attribute(1, &value.to_ne_bytes())])
}

/// Masks the register with `mask`, then XORs it with `flip`.
fn bits(mask: u32, flip: u32) -> Vec<u8> {
    let registers = [number(1, REGISTER), number(2, REGISTER), number(3, 4)];
    expression("bitwise", &[registers.concat(), data(4, mask), data(5, flip)])
}

fn message(kind: u16, flags: u16, (family, resource): (u8, u16), attributes: &[Vec<u8>]) -> Vec<u8> {
    let [high, low] = resource.to_be_bytes();
    let body = [&[family, 0, high, low][..], &attributes.concat()].concat();
    Request { kind, flags, body: &body }.encode()
}

/// Builds a rule: frames with one of the bits `wants`, whose connection has one of the bits `has` in `what`,
/// get the bit `gets`.
fn rule(wants: u32, (what, has, gets): (u32, u32, u32)) -> Vec<u8> {
    let load_mark = expression("meta", &[number(1, REGISTER), number(2, META_MARK)]);
    let is_not_zero = || expression("cmp", &[number(1, REGISTER), number(2, NOT_EQUAL), data(3, 0)]);
    let expressions = [
        load_mark.clone(),
        bits(wants, 0),
        is_not_zero(),
        expression("ct", &[number(1, REGISTER), number(2, what)]),
        bits(has, 0),
        is_not_zero(),
        load_mark,
        bits(!gets, gets),
        expression("meta", &[number(2, META_MARK), number(3, REGISTER)]),
    ];
    nested(4, &expressions)
}

fn batch(table: &str, wants: u32, rules: [(u32, u32, u32); 2]) -> Vec<u8> {
    const OWNER: u32 = 2;
    const FORWARD: u32 = 2;
    const LAST: u32 = i32::MAX as u32;
    let of = |kind: u16, flags, body: &[Vec<u8>]| {
        message(NFTABLES << 8 | kind, flags | NLM_F_ACK, (NFPROTO_INET, 0), body)
    };
    let hook = nested(4, &[number(1, FORWARD), number(2, LAST)]);
    let rule = |one| {
        let body = [name(1, table), name(2, "forward"), rule(wants, one)];
        of(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &body)
    };
    [
        message(BATCH_BEGIN, 0, (0, NFTABLES), &[]),
        of(NFT_MSG_NEWTABLE, NLM_F_CREATE, &[name(1, table), number(2, OWNER)]),
        of(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &[name(1, table), name(3, "forward"), hook, name(7, "filter")]),
        rule(rules[0]),
        rule(rules[1]),
        message(BATCH_END, 0, (0, NFTABLES), &[]),
    ]
    .concat()
}
