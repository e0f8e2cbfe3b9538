//! A table of rules against a scan of all rules.

use super::rule::prefixes;
use super::*;
use proptest::prelude::*;

impl<const W: usize> Acl<W> {
    /// Returns the id of the rule that wins for a key.
    fn lookup(&self, key: &[u64; W]) -> Option<u32> {
        let mut best = None;
        for &number in &self.visits {
            let tuple = &self.tuples[number as usize];
            if best.is_some_and(|best| best < tuple.best) {
                break;
            }
            let hash = tuple.hash(key);
            if self.filter.may_have(hash) == 1 {
                let words = std::array::from_fn(|word| key[word] & tuple.mask[word]);
                let row = self.entries.get(hash, &EntryKey { words, tuple: number });
                let found = row.and_then(|row| self.entries.row(row)).map(|entry| entry.best);
                best = best.into_iter().chain(found).min();
            }
        }
        best.map(|rank| rank as u32)
    }
}

fn rule(id: u32, priority: u32, key: u64, mask: u64) -> Rule<1> {
    Rule { id, priority, key: [key], mask: [mask], ranges: [None; 2] }
}

fn range(shift: u32, low: u16, high: u16) -> Option<PortRange> {
    Some(PortRange { word: 0, shift, low, high })
}

#[test]
fn ranges_are_cut_into_the_fewest_prefixes() {
    assert_eq!(prefixes(0, u16::MAX), [(0, 0)]);
    assert_eq!(prefixes(80, 80), [(80, u16::MAX)]);
    assert_eq!(prefixes(1024, u16::MAX).len(), 6);
    assert_eq!(prefixes(1, u16::MAX - 1).len(), 30);
}

#[test]
fn equal_priorities_are_ranked_by_id() {
    let mut acl = Acl::with_capacity(4, 1);
    for id in [2, 1, 3] {
        assert_eq!(acl.insert(rule(id, 7, 5, 0xFF)), Ok(()));
    }
    assert_eq!(acl.insert(rule(2, 0, 0, 0)), Err(AclError::Exists(2)));
    assert_eq!(acl.lookup(&[0x105]), Some(1));
    assert!(acl.remove(1).is_some());
    assert_eq!(acl.lookup(&[0x105]), Some(2));
    assert_eq!(acl.insert(rule(9, 6, 0, 0)), Ok(()), "matches all");
    assert_eq!(acl.lookup(&[0x105]), Some(9));
    assert_eq!(acl.tuples(), 2);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut acl = Acl::with_capacity(2, 1);
    let ranged = |ranges| Rule { ranges, ..rule(1, 0, 0, 0) };
    assert_eq!(acl.insert(ranged([range(0, 5, 4), None])), Err(AclError::BadRange));
    assert_eq!(acl.insert(ranged([range(49, 4, 5), None])), Err(AclError::BadRange));
    assert_eq!(acl.insert(ranged([range(0, 4, 5), range(15, 4, 5)])), Err(AclError::BadRange));
    assert_eq!(
        acl.insert(ranged([Some(PortRange { word: 1, shift: 0, low: 0, high: 0 }), None])),
        Err(AclError::BadRange)
    );
    assert_eq!(acl.insert(ranged([range(0, 1, 65534), range(16, 1, 65534)])), Err(AclError::TooManyPieces));
    assert_eq!((acl.len(), acl.tuples()), (0, 0));
    assert_eq!(acl.insert(ranged([range(0, 1, 65534), range(16, 80, 80)])), Ok(()));
    assert_eq!(acl.insert(rule(2, 0, 0, 0)), Ok(()));
    assert_eq!(acl.insert(rule(3, 0, 0, 0)), Err(AclError::Full));
    assert_eq!(acl.len(), 2);
}

#[test]
fn masks_are_limited() {
    let mut acl = Acl::with_capacity(1000, 1);
    for id in 0..TUPLES_MAX as u32 {
        assert_eq!(acl.insert(rule(id, 0, 0, u64::from(id))), Ok(()));
    }
    assert_eq!(acl.insert(rule(1000, 0, 0, 1000)), Err(AclError::TooManyTuples));
    let two = [range(0, 0, 1), None];
    assert_eq!(acl.insert(Rule { ranges: two, ..rule(1001, 0, 0, 0) }), Err(AclError::TooManyTuples));
    assert!(acl.remove(255).is_some());
    assert_eq!(acl.insert(rule(1000, 0, 0, 1000)), Ok(()));
}

#[test]
fn entries_run_out_and_come_back() {
    let mut acl = Acl::with_capacity(100, 1);
    let wide =
        |id: u32| Rule { ranges: [range(0, 1, 65534), None], ..rule(id, id, u64::from(id) << 32, !0 << 32) };
    let fitted = (0..100).take_while(|&id| acl.insert(wide(id)).is_ok()).count() as u32;
    assert!((26..100).contains(&fitted), "{fitted}");
    assert_eq!(acl.insert(wide(fitted)), Err(AclError::Full));
    assert_eq!(acl.lookup(&[u64::from(fitted) << 32 | 5]), None, "rolled back");
    for _ in 0..10 {
        assert!(acl.remove(0).is_some());
        assert_eq!(acl.insert(wide(0)), Ok(()));
    }
    for id in 0..fitted {
        assert!(acl.remove(id).is_some());
    }
    assert_eq!((acl.tuples(), acl.entries.len(), acl.links.free()), (0, 0, acl.entries.capacity()));
}

/// Compares every rule, one after the other.
fn scan(rules: &[Rule<2>], key: &[u64; 2]) -> Option<u32> {
    let in_range =
        |range: &PortRange| (range.low..=range.high).contains(&((key[range.word] >> range.shift) as u16));
    let matches = |rule: &&Rule<2>| {
        let fields = rule.ranges.iter().flatten().fold([0, 0], |mut fields, range| {
            fields[range.word] |= 0xFFFF << range.shift;
            fields
        });
        let equal = (0..2).all(|word| (key[word] ^ rule.key[word]) & rule.mask[word] & !fields[word] == 0);
        equal && rule.ranges.iter().flatten().all(in_range)
    };
    rules.iter().filter(matches).min_by_key(|rule| (rule.priority, rule.id)).map(|rule| rule.id)
}

fn any_rule() -> impl Strategy<Value = Rule<2>> {
    let mask = prop_oneof![Just(0_u64), Just(0x3), Just(0x7_0003), Just(u64::MAX)];
    let port = |word| {
        let bounds = (0_u16..9, prop_oneof![0_u16..9, Just(u16::MAX)]);
        prop::option::weighted(
            0.4,
            bounds.prop_map(move |(low, high)| PortRange { word, shift: 16, low, high }),
        )
    };
    let parts = (0_u32..40, 0_u32..6, [0_u64..4, 0_u64..4], [mask.clone(), mask], (port(0), port(1)));
    parts.prop_map(|(id, priority, key, mask, ranges)| Rule {
        id,
        priority,
        key,
        mask,
        ranges: [ranges.0, ranges.1],
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn it_finds_what_a_scan_finds(
        steps in prop::collection::vec((any_rule(), 0_u8..4), 1..80),
        probes in prop::collection::vec([0_u64..4, 0_u64..12], 64),
        mask: u64,
        capacity in 1_usize..50,
        seed: u64,
    ) {
        let (mut acl, mut twin) = (Acl::with_capacity(capacity, seed), Vec::<Rule<2>>::new());
        for (rule, operation) in steps {
            let at = twin.iter().position(|other| other.id == rule.id);
            if operation == 0 {
                prop_assert_eq!(acl.remove(rule.id), at.map(|at| twin.swap_remove(at)));
            } else if acl.insert(rule).is_ok() {
                prop_assert_eq!(at, None);
                twin.push(rule);
            }
            prop_assert_eq!(acl.len(), twin.len());
        }
        // Ports in both words, so that ranges matter.
        let keys = std::array::from_fn(|i| [probes[i][0] | probes[i][1] << 16, probes[i][0] |
            probes[63 - i][1] << 16]);
        let mut ids = [0; 64];
        let hits = acl.lookup_batch(&keys, mask, &mut ids);
        for i in 0..64 {
            let expected = scan(&twin, &keys[i]);
            prop_assert_eq!(acl.lookup(&keys[i]), expected);
            prop_assert_eq!((hits >> i & 1 == 1).then_some(ids[i]), expected.filter(|_| mask >> i & 1 == 1));
        }
    }
}
