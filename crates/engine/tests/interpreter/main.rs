//! The specification sentence by sentence (docs/reference/pipes.md): a test's name begins with the number of
//! the sentence it holds the interpreter to. Expectations are written by hand, or computed by etherparse,
//! which shares nothing with weir.

mod actions;
mod forwarding;
mod frames;
mod matching;
mod monitors;
mod setup;
mod tunnels;
