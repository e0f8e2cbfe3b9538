//! Premises of labs and benchmarks: traffic has flowed, a rival has forwarded, a fault has happened. Without
//! its premise, a result means nothing, however good it looks, so a lab or bench fails and names the premise.

/// A premise that does not hold.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("this shows nothing: {0}")]
pub struct Unmet(String);

/// Fails unless a premise holds.
///
/// # Errors
/// The premise does not hold; `otherwise` describes what is wrong.
pub fn premise(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Unmet> {
    if holds { Ok(()) } else { Err(Unmet(otherwise())) }
}

/// Fails unless traffic was carried: `amount` is a rate or a count, and must be above zero.
///
/// # Errors
/// `who` has carried nothing, or an unknown amount.
pub fn carried(who: &str, amount: f64) -> Result<(), Unmet> {
    premise(amount.is_finite() && amount > 0.0, || format!("{who} has carried nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_premise_that_does_not_hold_says_what_is_wrong() {
        assert_eq!(premise(true, || unreachable!()), Ok(()));
        let unmet = premise(false, || "the elephant has ended".into()).unwrap_err().to_string();
        assert_eq!(unmet, "this shows nothing: the elephant has ended");
    }

    #[test]
    fn neither_nothing_nor_an_unknown_amount_is_something() {
        assert_eq!(carried("testpmd", 0.1), Ok(()));
        for amount in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let unmet = carried("testpmd", amount).unwrap_err().to_string();
            assert_eq!(unmet, "this shows nothing: testpmd has carried nothing", "{amount}");
        }
    }
}
