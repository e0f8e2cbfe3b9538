//! From text to a recipe: the text is split into words, each part of the recipe takes the words it knows, and
//! a word that no part takes is an error.

use super::{
    Addresses, Arp, Body, Checksum, EXTENSIONS_MAX, Extension, ExtensionKind, FLAG_LETTERS, FRAME_MAX,
    Fragment, Icmp, Ip, NESTING_MAX, NOP, OPTIONS_MAX, Recipe, TTL, Tag, Tcp, Transport, Udp, WINDOW, tunnel,
};
use crate::{
    ETHER_QINQ, ETHER_VLAN, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, TunnelKind,
    TunnelPorts, read_hex, read_mac,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

const MAC: &str = "a MAC address like 02:00:00:00:00:01";
const IPV4: &str = "an IPv4 address";
const ADDRESS: &str = "an IPv4 or IPv6 address";
const TAG: &str = "VID, VID.PCP or VID.PCP.dei, at most 4095.7, optionally followed by @0x8100 or @0x88a8";
const BITS_2: &str = "a number, at most 3";
const BITS_6: &str = "a number, at most 63";
const BITS_8: &str = "a number, at most 255";
const BITS_16: &str = "a number, at most 65535";
const BITS_20: &str = "a number, at most 0xfffff";
const BITS_24: &str = "a number, at most 0xffffff";
const BITS_32: &str = "a number of 32 bits, or of 16 with IPv4";
const HEX: &str = "an even number of hex digits";
const CHECKSUM: &str = "good, bad or a number of 16 bits";
const ANY: &str = "any frame but hex=";
const FRAME: &str = "any frame but hex=, and no IP packet directly inside a tunnel";
const IP: &str = "an IP packet (no type=, no arp=)";
const V4: &str = "IPv4 addresses";
const V6: &str = "IPv6 addresses";
const PORTS: &str = "proto=udp or proto=tcp, and no frag= beyond 0";
const IN_TCP: &str = "proto=tcp, and no frag= beyond 0";
const IN_ICMP: &str = "proto=icmp or proto=icmpv6, and no frag= beyond 0";

/// Every key, with the form of its value and where it applies.
pub const KEYS: &[(&str, &str, &str)] = &[
    ("eth.src", MAC, FRAME),
    ("eth.dst", MAC, FRAME),
    ("vlan", TAG, FRAME),
    ("second_vlan", TAG, "a frame with vlan="),
    ("type", BITS_16, "a frame without arp= and IP"),
    ("arp", "request or reply", "a frame without type= and IP"),
    ("sender_ip", IPV4, "a frame with arp="),
    ("target_ip", IPV4, "a frame with arp="),
    ("src", ADDRESS, IP),
    ("dst", ADDRESS, IP),
    ("proto", "udp, tcp, icmp, icmpv6 or a number (then the L4 header is part of payload=)", IP),
    ("ttl", BITS_8, IP),
    ("dscp", BITS_6, IP),
    ("ecn", BITS_2, IP),
    ("id", BITS_32, "IPv4 addresses, or an IPv6 packet with frag="),
    ("df", "0 or 1", V4),
    ("frag", "OFFSET, or OFFSET+ when more follow; a multiple of 8, at most 65528", IP),
    ("options", "a number of 4-byte words, at most 10", V4),
    ("ip_options", "hex digits of whole 4-byte words, at most 40 bytes", "IPv4 addresses, and no options="),
    ("ip_csum", CHECKSUM, V4),
    ("flow_label", BITS_20, V6),
    (
        "ext",
        "hbh, dst, routing and ah, optionally with content as in hbh:HEX, separated by commas, at most 16",
        V6,
    ),
    ("sport", BITS_16, PORTS),
    ("dport", BITS_16, PORTS),
    ("flags", "letters of FSRPAUEC, or none", IN_TCP),
    ("seq", "a number of 32 bits", IN_TCP),
    ("ack", "a number of 32 bits", IN_TCP),
    ("window", BITS_16, IN_TCP),
    ("tcp_options", "hex digits of whole 4-byte words, at most 40 bytes", IN_TCP),
    ("icmp_type", BITS_8, IN_ICMP),
    ("icmp_code", BITS_8, IN_ICMP),
    ("icmp_rest", "a number of 32 bits", IN_ICMP),
    ("csum", CHECKSUM, "TCP, UDP or ICMP, and no frag= beyond 0"),
    ("udp_csum", "0 or full", "proto=udp without csum="),
    ("tunnel", "vxlan, geneve, gre, ipip or gue", "proto=udp or no proto=, and no frag= beyond 0"),
    ("vni", BITS_24, "tunnel=vxlan or tunnel=geneve without header="),
    ("key", "a number of 32 bits", "tunnel=gre without header="),
    ("header", HEX, "tunnel="),
    ("inside", "ethernet or ip", "tunnel=geneve or tunnel=gre"),
    ("inner", "a recipe in parentheses: inner(src=10.1.0.1 dst=10.1.0.2)", "a tunnel, and no frag= beyond 0"),
    ("payload", HEX, ANY),
    ("len", BITS_16, ANY),
    ("trailer", HEX, ANY),
    ("hex", HEX, "a recipe alone"),
];

/// Why a text is not a recipe: which word is wrong, where it is, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError {
    /// Offset of the word in the text, in bytes.
    pub at: usize,
    /// The offending word.
    pub word: String,
    /// What is wrong with the word.
    pub problem: WordError,
}

/// What is wrong with a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordError {
    /// The word has no `=` and is not `inner(...)`.
    NotKeyValue,
    /// No such key.
    UnknownKey,
    /// The key occurs twice.
    Twice,
    /// The value does not have the form that the key takes; the form is given.
    Expected(&'static str),
    /// The key does not apply, because something that it needs is missing; what it needs is given.
    OutOfPlace(&'static str),
    /// Source and destination are of different families.
    Families,
    /// A parenthesis is missing, or there is one too many.
    Parenthesis,
    /// Recipes are nested more deeply than [`NESTING_MAX`].
    TooDeep,
    /// The frame would be longer than [`FRAME_MAX`]; its length in bytes is given.
    TooLong(usize),
    /// `len=` is less than the length of headers and payload in bytes, which is given.
    TooShort(usize),
}

impl std::error::Error for RecipeError {}

impl std::fmt::Display for RecipeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` at column {}: ", self.word, self.at + 1)?;
        match &self.problem {
            WordError::NotKeyValue => write!(f, "write key=value, or inner(...)"),
            WordError::UnknownKey => {
                let keys: Vec<&str> = KEYS.iter().map(|(key, ..)| *key).collect();
                write!(f, "no such key; the keys are {}", keys.join(" "))
            }
            WordError::Twice => write!(f, "the key appears twice; write it once"),
            WordError::Expected(value) => write!(f, "the value must be {value}"),
            WordError::OutOfPlace(needs) => write!(f, "it does not apply here; it needs {needs}"),
            WordError::Families => write!(f, "source and destination must both be IPv4 or both be IPv6"),
            WordError::Parenthesis => write!(f, "unbalanced parentheses; close each inner( with a )"),
            WordError::TooDeep => {
                write!(f, "more than {NESTING_MAX} nested recipes; remove one")
            }
            WordError::TooLong(bytes) => {
                write!(f, "the frame would have {bytes} bytes; {FRAME_MAX} is the limit")
            }
            WordError::TooShort(bytes) => {
                write!(f, "headers and payload have {bytes} bytes; len= must not be less")
            }
        }
    }
}

impl FromStr for Recipe {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Recipe, RecipeError> {
        recipe(TextSpan { text, at: 0 }, 0, true)
    }
}

/// A part of the text and where it begins.
#[derive(Clone, Copy)]
pub(super) struct TextSpan<'t> {
    text: &'t str,
    at: usize,
}

impl TextSpan<'_> {
    fn error(&self, problem: WordError) -> RecipeError {
        RecipeError { at: self.at, word: self.text.to_string(), problem }
    }
}

/// Reads a recipe for a frame, or for an IP packet without Ethernet.
pub(super) fn recipe(place: TextSpan<'_>, depth: usize, ethernet: bool) -> Result<Recipe, RecipeError> {
    let mut words = RecipeWords::split(place, depth)?;
    let mut recipe = Recipe::default();
    if ethernet {
        if let Some(bytes) = words.value("hex", read_hex)? {
            words.done()?;
            return limited(Recipe { body: Body::Raw(bytes), ..recipe }, place, None, 0);
        }
        frame(&mut recipe, &mut words)?;
    } else {
        recipe.body = ip(&mut words).map(Body::Ip)?;
    }
    recipe.payload = words.value("payload", read_hex)?.unwrap_or_default();
    recipe.trailer = words.value("trailer", read_hex)?.unwrap_or_default();
    let length_word = words.find("len");
    recipe.length = words.number("len", FRAME_MAX as u64)?.map(|length| length as usize);
    words.done()?;
    limited(recipe, place, length_word, if ethernet { 0 } else { ETHERNET })
}

/// Ethernet and what follows it.
fn frame(recipe: &mut Recipe, words: &mut RecipeWords<'_>) -> Result<(), RecipeError> {
    recipe.eth_src = words.value("eth.src", read_mac)?.unwrap_or(recipe.eth_src);
    recipe.eth_dst = words.value("eth.dst", read_mac)?.unwrap_or(recipe.eth_dst);
    recipe.vlan = words.value("vlan", tag)?;
    if recipe.vlan.is_some() {
        recipe.second_vlan = words.value("second_vlan", tag)?;
    }
    recipe.body = body(words)?;
    Ok(())
}

/// Returns the recipe if its frame is within the limits; `less` of its bytes do not count.
fn limited(
    mut recipe: Recipe,
    place: TextSpan<'_>,
    length_word: Option<TextSpan<'_>>,
    less: usize,
) -> Result<Recipe, RecipeError> {
    let length = recipe.length.take();
    let needed = recipe.build().len() - less;
    recipe.length = length;
    match (length, length_word) {
        _ if needed > FRAME_MAX => Err(place.error(WordError::TooLong(needed))),
        (Some(length), Some(word)) if length < needed => Err(word.error(WordError::TooShort(needed))),
        _ => Ok(recipe),
    }
}

fn body(words: &mut RecipeWords<'_>) -> Result<Body, RecipeError> {
    if let Some(is_reply) =
        words.value("arp", |value| choice(value, &[("request", false), ("reply", true)]))?
    {
        let sender_ip = words.value("sender_ip", parsed)?.unwrap_or(Ipv4Addr::new(10, 0, 0, 1));
        let target_ip = words.value("target_ip", parsed)?.unwrap_or(Ipv4Addr::new(10, 0, 0, 2));
        return Ok(Body::Arp(Arp { is_reply, sender_ip, target_ip }));
    }
    if let Some(ether_type) = words.number("type", 0xffff)? {
        return Ok(Body::Ethernet(ether_type as u16));
    }
    ip(words).map(Body::Ip)
}

fn ip(words: &mut RecipeWords<'_>) -> Result<Ip, RecipeError> {
    let addresses = addresses(words)?;
    let is_ipv4 = addresses.is_ipv4();
    let mut ip = Ip { addresses, ..Ip::default() };
    ip.ttl = words.number("ttl", 0xff)?.map_or(TTL, |ttl| ttl as u8);
    ip.dscp = words.number("dscp", 63)?.unwrap_or(0) as u8;
    ip.ecn = words.number("ecn", 3)?.unwrap_or(0) as u8;
    ip.fragment = words.value("frag", fragment)?;
    if is_ipv4 {
        ip.identification = words.number("id", 0xffff)?.unwrap_or(0) as u32;
        ip.dont_fragment = words.number("df", 1)? == Some(1);
        ip.options = match words.number("options", OPTIONS_MAX as u64)? {
            Some(count) => vec![NOP; count as usize * 4],
            None => words.value("ip_options", options)?.unwrap_or_default(),
        };
        ip.checksum = words.value("ip_csum", checksum)?.unwrap_or_default();
    } else {
        if ip.fragment.is_some() {
            ip.identification = words.number("id", 0xffff_ffff)?.unwrap_or(0) as u32;
        }
        ip.flow_label = words.number("flow_label", 0xf_ffff)?.unwrap_or(0) as u32;
        ip.extensions = words.value("ext", extensions)?.unwrap_or_default();
    }
    let is_first = ip.fragment.is_none_or(|part| part.offset == 0);
    ip.transport = transport(words, is_ipv4, is_first)?;
    Ok(ip)
}

/// Both addresses; a missing one defaults to the other's family.
fn addresses(words: &mut RecipeWords<'_>) -> Result<Addresses, RecipeError> {
    let dst_word = words.find("dst");
    let (src, dst) = (words.value("src", parsed::<IpAddr>)?, words.value("dst", parsed::<IpAddr>)?);
    let Addresses::V4(v4_src, v4_dst) = Ip::default().addresses else { unreachable!("the default is IPv4") };
    let v6 = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    match (src, dst) {
        (None, None) => Ok(Addresses::V4(v4_src, v4_dst)),
        (Some(IpAddr::V4(src)), None) => Ok(Addresses::V4(src, v4_dst)),
        (None, Some(IpAddr::V4(dst))) => Ok(Addresses::V4(v4_src, dst)),
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => Ok(Addresses::V4(src, dst)),
        (Some(IpAddr::V6(src)), None) => Ok(Addresses::V6(src, v6(2))),
        (None, Some(IpAddr::V6(dst))) => Ok(Addresses::V6(v6(1), dst)),
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => Ok(Addresses::V6(src, dst)),
        _ => Err(dst_word.unwrap_or(words.whole).error(WordError::Families)),
    }
}

/// A protocol given by name has a header; one given by number has none.
enum Protocol {
    Named(u8),
    Number(u8),
}

fn transport(words: &mut RecipeWords<'_>, is_ipv4: bool, is_first: bool) -> Result<Transport, RecipeError> {
    let kind = if is_first { tunnel::kind(words)? } else { None };
    if let Some(kind) = kind.filter(|kind| !kind.is_udp()) {
        return tunnel::tunnel(kind, words).map(Transport::Tunnel);
    }
    let word = words.find("proto");
    let protocol = words.value("proto", protocol)?.unwrap_or(Protocol::Named(PROTOCOL_UDP));
    match (protocol, word) {
        (Protocol::Named(PROTOCOL_ICMP), Some(word)) if !is_ipv4 => {
            Err(word.error(WordError::OutOfPlace(V4)))
        }
        (Protocol::Named(PROTOCOL_ICMPV6), Some(word)) if is_ipv4 => {
            Err(word.error(WordError::OutOfPlace(V6)))
        }
        (Protocol::Named(PROTOCOL_UDP), _) if is_first => udp(words, kind).map(Transport::Udp),
        (Protocol::Named(PROTOCOL_TCP), _) if is_first => tcp(words).map(Transport::Tcp),
        (Protocol::Named(_), _) if is_first => {
            icmp(words, if is_ipv4 { 8 } else { 128 }).map(Transport::Icmp)
        }
        (Protocol::Named(number) | Protocol::Number(number), _) => Ok(Transport::Other(number)),
    }
}

fn udp(words: &mut RecipeWords<'_>, kind: Option<TunnelKind>) -> Result<Udp, RecipeError> {
    let tunnel = kind.map(|kind| tunnel::tunnel(kind, words)).transpose()?;
    let (dport, usual) = match kind {
        // RFC 7348 §5: the outer checksum should be zero.
        Some(kind) => (TunnelPorts::STANDARD.of(kind), Checksum::Value(0)),
        None => (2000, Checksum::Good),
    };
    let sport = words.number("sport", 0xffff)?.unwrap_or(1000) as u16;
    let dport = words.number("dport", 0xffff)?.map_or(dport, |port| port as u16);
    let checksum = match words.value("csum", checksum)? {
        Some(checksum) => checksum,
        None => {
            words.choice("udp_csum", &[("0", Checksum::Value(0)), ("full", Checksum::Good)])?.unwrap_or(usual)
        }
    };
    Ok(Udp { sport, dport, checksum, tunnel })
}

fn tcp(words: &mut RecipeWords<'_>) -> Result<Tcp, RecipeError> {
    Ok(Tcp {
        sport: words.number("sport", 0xffff)?.unwrap_or(1000) as u16,
        dport: words.number("dport", 0xffff)?.unwrap_or(2000) as u16,
        sequence: words.number("seq", 0xffff_ffff)?.unwrap_or(0) as u32,
        acknowledgment: words.number("ack", 0xffff_ffff)?.unwrap_or(0) as u32,
        flags: words.value("flags", flags)?.unwrap_or(2),
        window: words.number("window", 0xffff)?.map_or(WINDOW, |window| window as u16),
        options: words.value("tcp_options", options)?.unwrap_or_default(),
        checksum: words.value("csum", checksum)?.unwrap_or_default(),
    })
}

/// Reads an ICMP header; the default is that of an echo request.
fn icmp(words: &mut RecipeWords<'_>, kind: u8) -> Result<Icmp, RecipeError> {
    Ok(Icmp {
        kind: words.number("icmp_type", 0xff)?.map_or(kind, |kind| kind as u8),
        code: words.number("icmp_code", 0xff)?.unwrap_or(0) as u8,
        rest: words.number("icmp_rest", 0xffff_ffff)?.unwrap_or(0) as u32,
        checksum: words.value("csum", checksum)?.unwrap_or_default(),
    })
}

/// A word: a key of [`KEYS`], its value, and both as they stand in the text.
#[derive(Clone, Copy)]
pub(super) struct Word<'t> {
    key: &'static (&'static str, &'static str, &'static str),
    pub(super) value: TextSpan<'t>,
    place: TextSpan<'t>,
}

impl<'t> Word<'t> {
    fn read(place: TextSpan<'t>) -> Result<Word<'t>, RecipeError> {
        let (key, value) = match place.text.strip_prefix("inner(").and_then(|rest| rest.strip_suffix(')')) {
            Some(value) => ("inner", value),
            None if place.text.contains(['(', ')']) => return Err(place.error(WordError::Parenthesis)),
            None => place.text.split_once('=').ok_or_else(|| place.error(WordError::NotKeyValue))?,
        };
        let value = TextSpan { text: value, at: place.at + key.len() + 1 };
        let key =
            KEYS.iter().find(|(name, ..)| *name == key).ok_or_else(|| place.error(WordError::UnknownKey))?;
        Ok(Word { key, value, place })
    }
}

/// The words of a recipe that have not been taken yet.
pub(super) struct RecipeWords<'t> {
    words: Vec<Word<'t>>,
    whole: TextSpan<'t>,
    pub(super) depth: usize,
}

impl<'t> RecipeWords<'t> {
    fn split(whole: TextSpan<'t>, depth: usize) -> Result<RecipeWords<'t>, RecipeError> {
        if depth > NESTING_MAX {
            return Err(whole.error(WordError::TooDeep));
        }
        let mut words: Vec<Word<'t>> = Vec::new();
        let mut at = 0;
        loop {
            at += whole.text[at..].len() - whole.text[at..].trim_start().len();
            let length = word_length(&whole.text[at..]);
            if length == 0 {
                return Ok(RecipeWords { words, whole, depth });
            }
            let word = Word::read(TextSpan { text: &whole.text[at..at + length], at: whole.at + at })?;
            if words.iter().any(|earlier| earlier.key.0 == word.key.0) {
                return Err(word.place.error(WordError::Twice));
            }
            words.push(word);
            at += length;
        }
    }

    pub(super) fn find(&self, key: &str) -> Option<TextSpan<'t>> {
        self.words.iter().find(|word| word.key.0 == key).map(|word| word.place)
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Word<'t>> {
        let index = self.words.iter().position(|word| word.key.0 == key)?;
        Some(self.words.swap_remove(index))
    }

    /// Takes a key's value, if the key is present.
    pub(super) fn value<T>(
        &mut self,
        key: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, RecipeError> {
        let Some(word) = self.take(key) else { return Ok(None) };
        read(word.value.text).map(Some).ok_or_else(|| word.place.error(WordError::Expected(word.key.1)))
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, RecipeError> {
        self.value(key, |value| choice(value, choices))
    }

    pub(super) fn number(&mut self, key: &str, max: u64) -> Result<Option<u64>, RecipeError> {
        self.value(key, |value| number(value).filter(|&number| number <= max))
    }

    /// Checks that every word was taken; the first one left does not apply.
    fn done(self) -> Result<(), RecipeError> {
        match self.words.iter().min_by_key(|word| word.place.at) {
            Some(word) => Err(word.place.error(WordError::OutOfPlace(word.key.2))),
            None => Ok(()),
        }
    }
}

/// Number of bytes up to the first white space outside parentheses.
fn word_length(text: &str) -> usize {
    let mut open = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => open += 1,
            ')' => open = open.saturating_sub(1),
            _ if open == 0 && character.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

fn parsed<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok()
}

/// Digits, or `0x` and hex digits.
fn number(value: &str) -> Option<u64> {
    let (digits, radix) = value.strip_prefix("0x").map_or((value, 10), |digits| (digits, 16));
    let all_digits = digits.chars().all(|character| character.is_digit(radix));
    if all_digits { u64::from_str_radix(digits, radix).ok() } else { None }
}

fn tag(value: &str) -> Option<Tag> {
    let (value, tpid) = value.split_once('@').map_or((value, None), |(value, tpid)| (value, Some(tpid)));
    let tpid = match tpid {
        Some(tpid) => {
            Some(number(tpid).filter(|tpid| [ETHER_VLAN, ETHER_QINQ].map(u64::from).contains(tpid))?)
        }
        None => None,
    };
    let (value, dei) = value.strip_suffix(".dei").map_or((value, false), |value| (value, true));
    let (vid, pcp) = value.split_once('.').unwrap_or((value, "0"));
    let vid = number(vid).filter(|&vid| vid <= 0xfff)? as u16;
    let pcp = number(pcp).filter(|&pcp| pcp <= 7)? as u8;
    Some(Tag { vid, pcp, dei, tpid: tpid.map(|tpid| tpid as u16) })
}

fn protocol(value: &str) -> Option<Protocol> {
    Some(match value {
        "udp" => Protocol::Named(PROTOCOL_UDP),
        "tcp" => Protocol::Named(PROTOCOL_TCP),
        "icmp" => Protocol::Named(PROTOCOL_ICMP),
        "icmpv6" => Protocol::Named(PROTOCOL_ICMPV6),
        _ => Protocol::Number(number(value)?.try_into().ok()?),
    })
}

fn fragment(value: &str) -> Option<Fragment> {
    let digits = value.strip_suffix('+');
    let offset = number(digits.unwrap_or(value)).filter(|&offset| offset <= 0xfff8 && offset % 8 == 0)?;
    Some(Fragment { offset: offset as u16, more: digits.is_some() })
}

fn extensions(value: &str) -> Option<Vec<Extension>> {
    let extensions: Option<Vec<Extension>> = value.split(',').map(extension).collect();
    extensions.filter(|extensions| extensions.len() <= EXTENSIONS_MAX)
}

fn extension(value: &str) -> Option<Extension> {
    let (name, content) =
        value.split_once(':').map_or((value, None), |(name, content)| (name, Some(content)));
    let kind = ExtensionKind::ALL.into_iter().find(|kind| kind.name() == name)?;
    let Some(content) = content else { return Some(kind.blank()) };
    let content = read_hex(content)?;
    let (bytes, most) = (2 + content.len(), kind.bytes(u8::MAX));
    let fits = bytes >= kind.bytes(0) && bytes <= most && bytes.is_multiple_of(kind.unit());
    fits.then_some(Extension { kind, content })
}

fn flags(value: &str) -> Option<u8> {
    if value == "none" {
        return Some(0);
    }
    let bits: Option<Vec<u8>> = value.chars().map(|letter| Some(1 << FLAG_LETTERS.find(letter)?)).collect();
    bits.filter(|bits| !bits.is_empty()).map(|bits| bits.iter().fold(0, |all, bit| all | bit))
}

fn options(value: &str) -> Option<Vec<u8>> {
    read_hex(value).filter(|options| options.len() <= OPTIONS_MAX * 4 && options.len().is_multiple_of(4))
}

fn checksum(value: &str) -> Option<Checksum> {
    match value {
        "good" => Some(Checksum::Good),
        "bad" => Some(Checksum::Bad),
        _ => Some(Checksum::Value(number(value)?.try_into().ok()?)),
    }
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Option<T> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice)
}
