//! Loads programs into the kernel despite arriving signals. The verifier gives up with `EAGAIN` once a signal
//! is pending for the thread, even one that no handler receives: from a debugger, or when a container is
//! frozen and thawed. libbpf retries for the same reason; aya 0.14 does not.

use aya::programs::ProgramError;
use std::io::ErrorKind::WouldBlock;

/// Attempts per load. libbpf makes five; two refusals in a row have occurred on a busy machine.
const ATTEMPTS: usize = 10;

/// Calls `load` until no signal interrupts it, up to a limit.
///
/// # Errors
/// Returns any other kernel error at once, and otherwise the error of the last attempt.
pub fn uninterrupted(load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    let is_interruption = |error: &ProgramError| match error {
        ProgramError::LoadError { io_error, .. } => io_error.kind() == WouldBlock,
        _ => false,
    };
    repeat(load, is_interruption)
}

fn repeat<E>(
    mut attempt: impl FnMut() -> Result<(), E>,
    is_interruption: impl Fn(&E) -> bool,
) -> Result<(), E> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if is_interruption(&error) => {}
            other => return other,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes attempts of which the first `interrupted` are interrupted and the next one returns `then`.
    /// Returns the number of attempts and the result.
    fn attempts(interrupted: usize, then: Result<(), &'static str>) -> (usize, Result<(), &'static str>) {
        let mut count = 0;
        let attempt = || {
            count += 1;
            if count <= interrupted { Err("interrupted") } else { then }
        };
        let result = repeat(attempt, |error| *error == "interrupted");
        (count, result)
    }

    #[test]
    fn an_interrupted_load_is_repeated_and_another_error_is_not() {
        assert_eq!(attempts(0, Ok(())), (1, Ok(())));
        assert_eq!(attempts(2, Ok(())), (3, Ok(())));
        assert_eq!(attempts(1, Err("refused")), (2, Err("refused")));
        assert_eq!(attempts(usize::MAX, Ok(())), (ATTEMPTS, Err("interrupted")));
    }
}
