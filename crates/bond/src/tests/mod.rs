//! Bonds on a virtual clock: the program runs in a real engine, the app is driven like in the daemon, and a
//! simulated partner speaks LACP at the other ends of the links.

mod balance;
mod elephants;
mod failover;
mod frames;
mod modes;
mod negotiated;
mod overload;
mod planned;
mod random;
mod reload;
mod requests;
mod rig;
