//! Generates Rust counterparts of the types that an eBPF program shares with user space: those that
//! `SHARED(...)` names (include/map.h), and the types of their members. They are read from the BTF of a
//! compiled object (docs.kernel.org/bpf/btf.html), so that a layout is written only in C. The generated code
//! checks at compile time that Rust gives its structures the same layout.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Kinds of types, as in linux/btf.h.
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const RESTRICT: u32 = 11;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// How the names of the variables that `SHARED` declares begin. Each points to a shared type.
const SHARED: &str = "shared_with_user_space_";

/// Writes the shared types of an object to a Rust file.
pub fn generate(object: &Path, target: &Path) {
    let elf = std::fs::read(object).expect("the compiler has written it");
    let types = Types::read(section(&elf, ".BTF"));
    let mut code = BTreeMap::new();
    for variable in 1..types.heads.len() {
        if types.kind(variable) == VARIABLE && types.name(variable).starts_with(SHARED) {
            let pointer = types.resolve(types.number(variable, 8));
            types.rust(types.number(pointer, 8), &mut code);
        }
    }
    let code: String = code.into_values().collect();
    std::fs::write(target, code).expect("cargo's output folder is writable");
}

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn text(bytes: &[u8], at: usize) -> &str {
    let text = bytes[at..].split(|byte| *byte == 0).next().expect("a text has an end");
    std::str::from_utf8(text).expect("names are ASCII")
}

/// Returns a section of a little-endian ELF file of 64 bits.
fn section<'a>(elf: &'a [u8], name: &str) -> &'a [u8] {
    let half = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
    let head = |section: usize| &elf[number(elf, 0x28) + section * half(0x3a)..];
    let body = |section: usize| &elf[number(head(section), 0x18)..][..number(head(section), 0x20)];
    let names = body(half(0x3e));
    let found = (0..half(0x3c)).find(|section| text(names, number(head(*section), 0)) == name);
    body(found.unwrap_or_else(|| panic!("the object has no section {name}")))
}

/// The types of an object. They are numbered; 0 is `void`.
struct Types<'a> {
    texts: &'a [u8],
    /// Each type, and everything behind it.
    heads: Vec<&'a [u8]>,
}

impl<'a> Types<'a> {
    fn read(btf: &'a [u8]) -> Types<'a> {
        let [head, types, length, texts] = [4, 8, 12, 16].map(|at| number(btf, at));
        let mut rest = &btf[head + types..][..length];
        let mut all = Types { texts: &btf[head + texts..], heads: vec![&[0; 12]] };
        while !rest.is_empty() {
            all.heads.push(rest);
            let last = all.heads.len() - 1;
            let bytes = match all.kind(last) {
                INT | VARIABLE | DECLARATION_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | SECTION | ENUM64 => 12 * all.count(last),
                ENUM | PROTOTYPE => 8 * all.count(last),
                _ => 0,
            };
            rest = &rest[12 + bytes..];
        }
        all
    }

    fn number(&self, of: usize, at: usize) -> usize {
        number(self.heads[of], at)
    }

    fn name(&self, of: usize) -> &'a str {
        text(self.texts, self.number(of, 0))
    }

    fn kind(&self, of: usize) -> u32 {
        self.number(of, 4) as u32 >> 24 & 0x1f
    }

    /// Returns the number of members or values.
    fn count(&self, of: usize) -> usize {
        self.number(of, 4) & 0xffff
    }

    /// Returns the name and the type of each member of a structure, and its offset in bytes.
    fn members(&self, of: usize) -> impl Iterator<Item = (&'a str, usize, usize)> {
        (0..self.count(of)).map(move |member| {
            let at = 12 + member * 12;
            let bits = self.number(of, at + 8);
            assert!(
                bits < 1 << 24 && bits.is_multiple_of(8),
                "{}: bit-fields cannot be shared",
                self.name(of)
            );
            (text(self.texts, self.number(of, at)), self.number(of, at + 4), bits / 8)
        })
    }

    /// Returns the type behind aliases and qualifiers.
    fn resolve(&self, of: usize) -> usize {
        if (TYPEDEF..=RESTRICT).contains(&self.kind(of)) { self.resolve(self.number(of, 8)) } else { of }
    }

    /// Returns size and alignment of a type in bytes.
    fn size(&self, of: usize) -> (usize, usize) {
        let of = self.resolve(of);
        let size = self.number(of, 8);
        match self.kind(of) {
            ARRAY => {
                let (size, align) = self.size(self.number(of, 12));
                (size * self.number(of, 20), align)
            }
            STRUCT | UNION => {
                let aligns = self.members(of).map(|(_, member, _)| self.size(member).1);
                (size, aligns.max().unwrap_or(1))
            }
            _ => (size, size),
        }
    }

    /// Returns the name of a type in Rust, and generates what it needs.
    fn rust(&self, of: usize, code: &mut BTreeMap<String, String>) -> String {
        let of = self.resolve(of);
        let (size, align) = self.size(of);
        match self.kind(of) {
            INT => format!("u{}", 8 * size),
            ARRAY => format!("[{}; {}]", self.rust(self.number(of, 12), code), self.number(of, 20)),
            UNION => format!("[u{}; {}]", 8 * align, size / align),
            ENUM => {
                code.insert(self.name(of).to_string(), self.enumeration(of));
                format!("u{}", 8 * size)
            }
            STRUCT => {
                if !code.contains_key(self.name(of)) {
                    let made = self.structure(of, code);
                    code.insert(self.name(of).to_string(), made);
                }
                camel_case(self.name(of))
            }
            other => panic!("`{}` cannot be shared: it has type kind {other} of BTF", self.name(of)),
        }
    }

    /// Returns constants for the values of an enumeration, and its names in lower case.
    fn enumeration(&self, of: usize) -> String {
        let (mut code, mut names) = (String::new(), Vec::new());
        for value in (0..self.count(of)).map(|value| 12 + value * 8) {
            let name = text(self.texts, self.number(of, value));
            let _ = writeln!(code, "pub const {name}: usize = {};", self.number(of, value + 4));
            names.push(name.to_ascii_lowercase());
        }
        let (name, count) = (self.name(of).to_ascii_uppercase(), names.len());
        code + &format!("pub const {name}_NAMES: [&str; {count}] = {names:?};\n")
    }

    fn structure(&self, of: usize, code: &mut BTreeMap<String, String>) -> String {
        let (name, size) = (camel_case(self.name(of)), self.size(of).0);
        let [mut fields, mut checks, mut reads, mut writes] = [const { String::new() }; 4];
        for (field, member, offset) in self.members(of) {
            let (end, rust) = (offset + self.size(member).0, self.rust(member, code));
            let _ = writeln!(fields, "pub {field}: {rust},");
            let _ = writeln!(checks, "assert!(core::mem::offset_of!({name}, {field}) == {offset});");
            let _ = writeln!(reads, "{field}: Plain::read(&bytes[{offset}..{end}]),");
            let _ = writeln!(writes, "self.{field}.write(&mut bytes[{offset}..{end}]);");
        }
        format!(
            "#[repr(C)]\n#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n\
            pub struct {name} {{\n{fields}}}\n\
            const _: () = {{\nassert!(size_of::<{name}>() == {size});\n{checks}}};\n\
            impl Plain for {name} {{\n\
            fn read(bytes: &[u8]) -> Self {{\n{name} {{\n{reads}}}\n}}\n\
            fn write(&self, bytes: &mut [u8]) {{\n{writes}}}\n}}\n\
            impl {name} {{\n\
            pub const SIZE: usize = {size};\n\
            pub fn of(bytes: &[u8; {size}]) -> Self {{\nPlain::read(bytes)\n}}\n\
            pub fn bytes(&self) -> [u8; {size}] {{\n\
            let mut bytes = [0; {size}];\nself.write(&mut bytes);\nbytes\n}}\n}}\n\
            impl Default for {name} {{\n\
            fn default() -> Self {{\nSelf::of(&[0; {size}])\n}}\n}}\n"
        )
    }
}

/// Returns the name of a structure as Rust writes it.
fn camel_case(name: &str) -> String {
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    name.split('_').filter(|word| !word.is_empty()).map(capital).collect()
}
