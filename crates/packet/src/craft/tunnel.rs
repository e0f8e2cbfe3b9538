//! Tunnels in recipes: any kind of [`TunnelKind`], its header in plain words (`vni=7`) or byte by byte
//! (`header=...`), and the frame or packet inside.

use super::describe::{Description, recipe_of};
use super::words::{RecipeWords, recipe};
use super::{Addresses, Body, NESTING_MAX, Recipe, RecipeError};
use crate::tunnel::Inside;
use crate::{TunnelKind, read_hex};

/// A tunnel header and what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The kind of tunnel, which determines the default header and where it may be.
    pub kind: TunnelKind,
    /// VNI (24 bits) or GRE key (32 bits); `None` if the kind has no ID or the header leaves it out.
    pub id: Option<u32>,
    /// The header byte by byte, if plain words cannot describe it.
    pub header: Option<Vec<u8>>,
    /// Whether the tunnel carries Ethernet rather than IP without Ethernet.
    pub ethernet: bool,
    /// What the tunnel carries, without the Ethernet header for an IP packet; the payload follows.
    pub inner: Option<Box<Recipe>>,
}

/// Length of the Ethernet header, which an inner IP packet does not have.
const ETHERNET: usize = 14;

impl Tunnel {
    /// What follows the header.
    pub(super) fn inside(&self) -> Inside {
        match self.inner.as_ref().map(|inner| &inner.body) {
            _ if self.ethernet => Inside::Ethernet,
            Some(Body::Ip(ip)) if matches!(ip.addresses, Addresses::V6(..)) => Inside::Ipv6,
            _ => Inside::Ipv4,
        }
    }

    pub(super) fn build(&self) -> Vec<u8> {
        let mut packet = self.header.clone().unwrap_or_else(|| self.plain());
        if let Some(inner) = &self.inner {
            packet.extend(if self.ethernet { inner.build() } else { inner.build_ip() });
        }
        packet
    }

    fn plain(&self) -> Vec<u8> {
        let mut header = vec![0; self.kind.header_length(self.id.is_some())];
        self.kind.write(&mut header, self.id);
        self.kind.carry(&mut header, self.inside());
        header
    }

    /// The tunnel at the start of `bytes`, and its length in bytes; a payload follows.
    pub(super) fn read(
        kind: TunnelKind,
        protocol: u8,
        bytes: &[u8],
        nesting: usize,
    ) -> Option<(Tunnel, usize)> {
        let header = kind.read(bytes, protocol).ok()?;
        let (raw, behind) = bytes.split_at(header.length);
        let ethernet = header.inside == Some(Inside::Ethernet);
        // The inner frame is described only up to the depth that a text may express.
        let wanted = header.inside.filter(|_| !behind.is_empty() && nesting < NESTING_MAX);
        let inner = wanted.and_then(|inside| match inside {
            Inside::Ethernet => Some(recipe_of(behind, nesting + 1)),
            _ => Recipe::of_ip(behind, inside, nesting + 1),
        });
        let length = if inner.is_some() { bytes.len() } else { header.length };
        let id = header.id.map(|id| id.value);
        let mut tunnel = Tunnel { kind, id, header: None, ethernet, inner: inner.map(Box::new) };
        if tunnel.plain() != raw {
            (tunnel.id, tunnel.header) = (None, Some(raw.to_vec()));
        }
        // Without a header, the protocol number says what is inside.
        (tunnel.kind.protocol(tunnel.inside()) == protocol).then_some((tunnel, length))
    }

    pub(super) fn say(&self, line: &mut Description) {
        if self.kind != TunnelKind::Vxlan || self.header.is_some() {
            line.say("tunnel", self.kind);
        }
        if let (Some((word, _)), Some(id)) = (self.kind.spec().id, self.id) {
            line.say(word, id);
        }
        if let Some(header) = &self.header {
            line.bytes("header", header);
        }
        if self.ethernet != self.kind.spec().ethernet_first {
            line.say("inside", if self.ethernet { "ethernet" } else { "ip" });
        }
        if let Some(inner) = &self.inner {
            line.words.push(if line.is_short {
                format!("inner({inner:#})")
            } else {
                format!("inner({inner})")
            });
        }
    }
}

/// The kind of tunnel that the words mean: the named one, or else VXLAN if there is a VNI or an inner frame.
pub(super) fn kind(words: &mut RecipeWords<'_>) -> Result<Option<TunnelKind>, RecipeError> {
    let named = words.value("tunnel", TunnelKind::from_word)?;
    let meant = words.find("vni").is_some() || words.find("inner").is_some();
    Ok(named.or(meant.then_some(TunnelKind::Vxlan)))
}

/// The tunnel of this kind that the words describe.
pub(super) fn tunnel(kind: TunnelKind, words: &mut RecipeWords<'_>) -> Result<Tunnel, RecipeError> {
    let spec = kind.spec();
    let header = words.value("header", read_hex)?;
    let id = match spec.id.filter(|_| header.is_none()) {
        Some((word, bits)) => words.number(word, (1 << bits) - 1)?.map(|id| id as u32),
        None => None,
    };
    let id = id.or((spec.id_needed && header.is_none()).then_some(0));
    let ethernet = match (spec.ethernet, spec.ip) {
        (true, true) => {
            words.choice("inside", &[("ethernet", true), ("ip", false)])?.unwrap_or(spec.ethernet_first)
        }
        (ethernet, _) => ethernet,
    };
    let depth = words.depth + 1;
    let inner = words.take("inner").map(|word| recipe(word.value, depth, ethernet)).transpose()?;
    Ok(Tunnel { kind, id, header, ethernet, inner: inner.map(Box::new) })
}

impl Recipe {
    /// The IP packet without its Ethernet header, which lengths do not count either.
    pub(super) fn build_ip(&self) -> Vec<u8> {
        let length = self.length.map(|length| length + ETHERNET);
        Recipe { length, ..self.clone() }.build().split_off(ETHERNET)
    }

    /// The recipe of an IP packet.
    fn of_ip(packet: &[u8], inside: Inside, nesting: usize) -> Option<Recipe> {
        let frame = Recipe { body: Body::Ethernet(inside.ether_type()), ..Recipe::default() };
        let mut recipe = recipe_of(&[&frame.build(), packet].concat(), nesting);
        recipe.length = recipe.length.map(|length| length - ETHERNET);
        matches!(recipe.body, Body::Ip(_)).then_some(recipe)
    }
}
