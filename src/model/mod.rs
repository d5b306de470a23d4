//! Models: which ops, in which order, under which parameter names. A model only calls graph builders; it
//! records no command and names no kernel.

pub mod captioner;
pub mod mae;
mod net;
pub mod positions;
mod vit;

pub use net::{Net, init_values};
