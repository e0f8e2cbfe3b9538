//! An answer with its error bound, and the errors of creating and merging sketches.

use thiserror::Error;

/// An estimate, with bounds of the true value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The most likely value, unless the sketch documents another choice, such as an upper bound.
    pub value: f64,
    /// The lower bound: the truth is not less than this, with probability `confidence`.
    pub low: f64,
    /// The upper bound: the truth is not more than this, with probability `confidence`.
    pub high: f64,
    /// Probability, over the secrets, that the truth lies between `low` and `high`; 1 is certain.
    pub confidence: f64,
}

impl Estimate {
    /// A value that is known exactly.
    #[must_use]
    pub const fn exact(value: f64) -> Estimate {
        Estimate { value, low: value, high: value, confidence: 1.0 }
    }

    /// A value with a relative standard error: bounds at `sigmas` standard errors of a normal distribution.
    #[must_use]
    pub fn normal(value: f64, relative_error: f64, sigmas: Sigmas) -> Estimate {
        let half = value * relative_error * sigmas.count();
        Estimate { value, low: (value - half).max(0.0), high: value + half, confidence: sigmas.confidence() }
    }

    /// Returns true if the true value is between the bounds.
    #[must_use]
    pub fn holds(&self, truth: f64) -> bool {
        self.low <= truth && truth <= self.high
    }
}

/// How many standard errors lie between a value and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sigmas {
    /// 95.4 %.
    Two,
    /// 99.7 %.
    Three,
}

impl Sigmas {
    const fn count(self) -> f64 {
        match self {
            Sigmas::Two => 2.0,
            Sigmas::Three => 3.0,
        }
    }

    const fn confidence(self) -> f64 {
        match self {
            Sigmas::Two => 0.954,
            Sigmas::Three => 0.997,
        }
    }
}

/// The largest size of a sketch: larger ones are a mistake, and indices have 32 bits.
pub const BYTES_MAX: usize = 1 << 30;

/// The memory given to a sketch is too little or too much.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{bytes} bytes: a sketch of this kind has {least} to {BYTES_MAX} bytes")]
pub struct SizeError {
    /// The memory that was given to the sketch, in bytes.
    pub bytes: usize,
    /// The least memory for this kind of sketch, in bytes.
    pub least: usize,
}

impl SizeError {
    /// Returns the memory if it is neither less than `least` nor too much.
    pub fn check(bytes: usize, least: usize) -> Result<usize, SizeError> {
        if bytes < least || bytes > BYTES_MAX { Err(SizeError { bytes, least }) } else { Ok(bytes) }
    }
}

/// Two sketches cannot be merged: their seeds or their sizes differ.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the sketches have different seeds or sizes")]
pub struct MergeError;

impl MergeError {
    /// Returns the error unless the sketches are `alike`.
    pub fn unless(alike: bool) -> Result<(), MergeError> {
        if alike { Ok(()) } else { Err(MergeError) }
    }
}
