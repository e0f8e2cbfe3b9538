//! The rule of nftables that tells which connections are established: a table of our own, which the kernel
//! removes when our socket closes (`NFT_TABLE_F_OWNER`).
//!
//! In text it is
//!
//! ```text
//! table inet weir_NAME {
//!     flags owner
//!     chain forward {
//!         type filter hook forward priority 2147483647; policy accept;
//!         meta mark & WANTS != 0 ct state & established != 0 meta mark set meta mark | ESTABLISHED
//!     }
//! }
//! ```

use rustix::fd::OwnedFd;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};
use std::io;

use port::netlink::{messages, word};

const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
/// NFNL_SUBSYS_NFTABLES.
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFPROTO_INET: u8 = 1;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// NFT_REG_1, NFT_META_MARK, NFT_CT_STATE, NFT_CMP_NEQ.
const REGISTER: u32 = 1;
const META_MARK: u32 = 3;
const CT_STATE: u32 = 0;
const NOT_EQUAL: u32 = 1;
/// NF_CT_STATE_BIT(IP_CT_ESTABLISHED).
const STATE_ESTABLISHED: u32 = 2;

/// The rule; dropping it removes the table.
pub struct Rule {
    _owner: OwnedFd,
}

impl Rule {
    /// Makes the table. Frames with one of the bits `wants` whose connection is established get the bit
    /// `established`.
    pub fn make(name: &str, wants: u32, established: u32) -> io::Result<Rule> {
        let owner =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(NETFILTER))?;
        bind(&owner, &SocketAddrNetlink::new(0, 0))?;
        let batch = batch(&format!("weir_{name}"), wants, established);
        sendto(&owner, &batch, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = vec![0; 65536];
        // One answer for each message that asks for one.
        let mut left = 3;
        while left > 0 {
            let (_, length) = recv(&owner, &mut buffer[..], RecvFlags::empty())?;
            for (kind, body) in messages(&buffer[..length]) {
                const NLMSG_ERROR: u16 = 2;
                if kind != NLMSG_ERROR {
                    continue;
                }
                left -= 1;
                match word(body) as i32 {
                    0 => {}
                    error => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
        }
        Ok(Rule { _owner: owner })
    }
}

/// Returns an attribute.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns an attribute of attributes.
fn nested(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
    const NESTED: u16 = 1 << 15;
    attribute(kind | NESTED, &values.concat())
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

/// A value that is compared or combined with a register, in the order of the machine.
fn data(kind: u16, value: u32) -> Vec<u8> {
    nested(kind, &[attribute(1, &value.to_ne_bytes())])
}

/// The register becomes its bits `mask`, changed by `flip`.
fn bits(mask: u32, flip: u32) -> Vec<u8> {
    let registers = [number(1, REGISTER), number(2, REGISTER), number(3, 4)];
    expression("bitwise", &[registers.concat(), data(4, mask), data(5, flip)])
}

fn message(kind: u16, flags: u16, (family, resource): (u8, u16), body: &[Vec<u8>]) -> Vec<u8> {
    let body = body.concat();
    let mut bytes = ((20 + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn batch(table: &str, wants: u32, established: u32) -> Vec<u8> {
    const OWNER: u32 = 2;
    const FORWARD: u32 = 2;
    const LAST: u32 = i32::MAX as u32;
    let load_mark = expression("meta", &[number(1, REGISTER), number(2, META_MARK)]);
    let is_not_zero = || expression("cmp", &[number(1, REGISTER), number(2, NOT_EQUAL), data(3, 0)]);
    let rule = [
        load_mark.clone(),
        bits(wants, 0),
        is_not_zero(),
        expression("ct", &[number(1, REGISTER), number(2, CT_STATE)]),
        bits(STATE_ESTABLISHED, 0),
        is_not_zero(),
        load_mark,
        bits(!established, established),
        expression("meta", &[number(2, META_MARK), number(3, REGISTER)]),
    ];
    let of = |kind: u16, flags, body: &[Vec<u8>]| {
        message(NFTABLES << 8 | kind, flags | NLM_F_ACK, (NFPROTO_INET, 0), body)
    };
    let hook = nested(4, &[number(1, FORWARD), number(2, LAST)]);
    [
        message(BATCH_BEGIN, 0, (0, NFTABLES), &[]),
        of(NFT_MSG_NEWTABLE, NLM_F_CREATE, &[name(1, table), number(2, OWNER)]),
        of(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &[name(1, table), name(3, "forward"), hook, name(7, "filter")]),
        of(
            NFT_MSG_NEWRULE,
            NLM_F_CREATE | NLM_F_APPEND,
            &[name(1, table), name(2, "forward"), nested(4, &rule)],
        ),
        message(BATCH_END, 0, (0, NFTABLES), &[]),
    ]
    .concat()
}
