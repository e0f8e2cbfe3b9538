//! Keys chosen for a known seed do nothing to a sketch with another one.

use super::*;

/// Keys that collide with one victim in every row of a Count-Min with a known seed raise it there, and
/// nowhere else.
#[test]
fn keys_that_collide_under_a_known_seed_do_not_under_another() {
    let width = 64;
    let victim = five_tuple(1 << 40);
    let sketch = |seed: &Seed| CountMin::<u32, 2>::with_bytes(8 * width, seed).unwrap();
    let raised = |seed: &Seed, keys: &[[u64; 2]]| {
        let (mut sketch, hash) = (sketch(seed), KeyHash::new(seed));
        keys.iter().for_each(|key| _ = sketch.update(hash.hash(key), 1));
        sketch.size(hash.hash(&victim))
    };
    let hostile: Vec<[u64; 2]> =
        (0..400_000).map(five_tuple).filter(|key| raised(&SEED, &[*key]) == 1).collect();
    assert!(hostile.len() > 50);
    assert_eq!(raised(&SEED, &hostile), hostile.len() as u64);
    let expected = hostile.len() as u64 / width as u64;
    for word in 0..20 {
        let elsewhere = raised(&Seed::new([word, 77]), &hostile);
        assert!(elsewhere <= 6 * expected + 6, "{elsewhere} of {}", hostile.len());
    }
}
