//! Keys, decoded from the bytes that a terminal sends for them.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// An arrow.
    Up,
    /// An arrow.
    Down,
    /// An arrow.
    Left,
    /// An arrow.
    Right,
    /// Tab.
    Tab,
    /// Tab with shift.
    BackTab,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the beginning.
    Home,
    /// To the end.
    End,
    /// Escape.
    Escape,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

const ESCAPE: u8 = 0x1b;

/// Takes the keys off the front of `bytes`. An incomplete sequence stays there; bytes that mean no key are
/// dropped.
pub fn take(bytes: &mut Vec<u8>) -> Vec<Key> {
    let (mut keys, mut at) = (Vec::new(), 0);
    while let Some((key, length)) = first(&bytes[at..]) {
        keys.extend(key);
        at += length;
    }
    bytes.drain(..at);
    keys
}

/// Returns the first key, if the bytes mean a key, and the number of its bytes; `None` if the sequence is
/// incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let key = match *bytes.first()? {
        ESCAPE => return sequence(bytes),
        b'\t' => Key::Tab,
        3 => Key::Interrupt,
        12 => Key::Redraw,
        26 => Key::Suspend,
        byte @ b' '..=b'~' => Key::Char(char::from(byte)),
        _ => return Some((None, 1)),
    };
    Some((Some(key), 1))
}

/// Decodes a sequence that begins with an escape: `ESC [ PARAMETERS FINAL` or `ESC O FINAL`.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    if !matches!(bytes.get(1)?, b'[' | b'O') {
        return Some((Some(Key::Escape), 1));
    }
    let end = 2 + bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte))?;
    let key = match (bytes[end], &bytes[2..end]) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'Z', _) => Key::BackTab,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => return Some((None, end + 1)),
    };
    Some((Some(key), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(bytes: &[u8]) -> (Vec<Key>, Vec<u8>) {
        let mut bytes = bytes.to_vec();
        let keys = take(&mut bytes);
        (keys, bytes)
    }

    #[test]
    fn keys_are_read_from_their_bytes() {
        let all = keys(b"q\t\x1b[A\x1bOB\x1b[1;5C\x1b[D\x1b[Z\x1b[5~\x1b[6~\x1b[H\x1b[4~\x03\x1a\x0c");
        let expected = [
            Key::Char('q'),
            Key::Tab,
            Key::Up,
            Key::Down,
            Key::Right,
            Key::Left,
            Key::BackTab,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Interrupt,
            Key::Suspend,
            Key::Redraw,
        ];
        assert_eq!(all, (expected.to_vec(), Vec::new()));
    }

    #[test]
    fn a_sequence_that_is_not_complete_waits_and_an_unknown_one_is_skipped() {
        assert_eq!(keys(b"p\x1b["), (vec![Key::Char('p')], b"\x1b[".to_vec()));
        assert_eq!(keys(b"\x1b"), (Vec::new(), b"\x1b".to_vec()));
        assert_eq!(keys(b"\x1b[15~\x1bq"), (vec![Key::Escape, Key::Char('q')], Vec::new()));
        assert_eq!(keys("\u{e4}q".as_bytes()), (vec![Key::Char('q')], Vec::new()));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_bytes_arrive(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let (mut pending, mut one_by_one) = (Vec::new(), Vec::new());
            for byte in &bytes {
                pending.push(*byte);
                one_by_one.extend(take(&mut pending));
            }
            prop_assert_eq!(keys(&bytes), (one_by_one, pending));
        }
    }
}
