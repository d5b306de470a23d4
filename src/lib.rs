//! Differentially private training of vision transformers in WGSL compute shaders.

#![warn(missing_docs)]

pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod cpu;
pub mod data;
pub mod error;
pub mod eval;
pub mod files;
pub mod gpu;
pub mod graph;
pub mod kernel;
pub mod model;
pub mod ops;
pub mod optim;
pub mod privacy;
pub mod record;
pub mod rng;
pub mod shape;
pub mod train;
pub mod wgsl;

pub use error::{Error, Result};
