//! DNS queries over UDP (RFC 1035 section 4).

use super::{Server, open, said};
use std::hash::{BuildHasher, RandomState};
use weir_app::check::Outcome;

/// Length of the header; the question follows.
const HEADER: usize = 12;
/// Type A and class IN.
const A_IN: [u8; 4] = [0, 1, 0, 1];
const RCODES: [&str; 6] = ["noerror", "formerr", "servfail", "nxdomain", "notimp", "refused"];

/// Asks for the addresses of a name, and judges the answer by its response code.
pub async fn ask(server: Server<'_>, name: &str, rcode: Option<u8>) -> Outcome {
    let id = RandomState::new().hash_one(name) as u16;
    let query = query(id, name);
    let socket = open(server).await.map_err(|error| said(&error))?;
    socket.send(&query).await?;
    loop {
        let answer = socket.receive(|answer| code(answer, &query).is_some()).await?;
        // Anything that does not answer this query may be a late answer to another, or forged.
        if let Some(code) = code(&answer, &query) {
            return match rcode {
                Some(wanted) if wanted != code => Err(format!("the answer is {}", word(code))),
                _ => Ok(()),
            };
        }
    }
}

fn word(code: u8) -> String {
    RCODES.get(usize::from(code)).map_or_else(|| format!("rcode {code}"), |word| (*word).to_string())
}

/// Builds a query without recursion: the server must answer by itself.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    query.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.push(0);
    query.extend(A_IN);
    query
}

/// Returns the response code of an answer to the query: the same id, opcode and question (servers may leave
/// the question out together with an error). `None` if it answers something else.
fn code(answer: &[u8], query: &[u8]) -> Option<u8> {
    let (head, rest) = answer.split_at_checked(HEADER)?;
    let is_response = head[2] & 0xf8 == 0x80;
    let questions = u16::from_be_bytes([head[4], head[5]]);
    let code = head[3] & 0x0f;
    let asked = &query[HEADER..];
    let same = match questions {
        1 => rest.len() >= asked.len() && rest[..asked.len()].eq_ignore_ascii_case(asked),
        0 => code != 0,
        _ => false,
    };
    (head[..2] == query[..2] && is_response && same).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(query: &[u8], flags: [u8; 2]) -> Vec<u8> {
        let mut answer = query.to_vec();
        answer[2..4].copy_from_slice(&flags);
        answer
    }

    #[test]
    fn a_query_is_as_in_the_rfc() {
        let written = query(0x1234, "a.example");
        let wanted = b"\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
        assert_eq!(written, wanted);
        assert_eq!(query(0, "").len(), HEADER + 1 + 4, "the root");
    }

    #[test]
    fn only_answers_to_the_query_count() {
        let query = query(7, "a.example");
        assert_eq!(code(&answer(&query, [0x84, 0x00]), &query), Some(0));
        assert_eq!(code(&answer(&query, [0x80, 0x03]), &query), Some(3));
        assert_eq!(code(&answer(&query, [0x04, 0x00]), &query), None, "a query, not a response");
        assert_eq!(code(&answer(&query, [0xa8, 0x00]), &query), None, "another opcode");
        let mut other = answer(&query, [0x84, 0x00]);
        other[1] = 8;
        assert_eq!(code(&other, &query), None, "another id");
        let mut other = answer(&query, [0x84, 0x00]);
        other[HEADER + 1] = b'b';
        assert_eq!(code(&other, &query), None, "another name");
        other[HEADER + 1] = b'A';
        assert_eq!(code(&other, &query), Some(0), "names are without case");
        let mut bare = answer(&query, [0x80, 0x05])[..HEADER].to_vec();
        bare[5] = 0;
        assert_eq!(code(&bare, &query), Some(5), "an error without the question");
        for length in 0..query.len() {
            assert_eq!(code(&answer(&query, [0x84, 0x00])[..length], &query), None, "cut to {length}");
        }
    }
}
