//! The bond on a virtual clock: its program in a real engine, the app driven as whoever runs it does, and a partner that
//! speaks LACP at the other ends of its links.

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
