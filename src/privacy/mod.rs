//! The privacy layer: accounting, sampling, clipping, noise.
//!
//! `accounting` and `sampling` know nothing of devices, graphs or kernels and can be used alone.

pub mod accounting;
pub mod sampling;
