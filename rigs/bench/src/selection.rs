//! The measurements that a command line names.

use anyhow::{Result, ensure};

/// Named measurements; all of them if none is named.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a>(&'a [String]);

impl<'a> Selection<'a> {
    /// Selects some of the measurements with the names `known`.
    ///
    /// # Errors
    /// A name is not among them: it would select nothing.
    pub fn new<'b>(names: &'a [String], known: impl IntoIterator<Item = &'b str>) -> Result<Selection<'a>> {
        let known: Vec<&str> = known.into_iter().collect();
        for name in names {
            ensure!(known.contains(&name.as_str()), "nothing is named `{name}`: use {}", known.join(", "));
        }
        Ok(Selection(names))
    }

    /// Returns true if a measurement is selected.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|one| one == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_selects_nothing_is_refused() {
        let known = ["rate", "cost"];
        let all = Selection::new(&[], known).expect("all of them");
        assert!(all.has("rate") && all.has("cost"));
        let names = ["cost".to_string()];
        let one = Selection::new(&names, known).expect("one of them");
        assert!(one.has("cost") && !one.has("rate"));
        let error = Selection::new(&["speed".to_string()], known).expect_err("no such name").to_string();
        assert_eq!(error, "nothing is named `speed`: use rate, cost");
    }
}
