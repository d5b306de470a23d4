//! The privacy layer: accounting, sampling, clipping, noise.
//!
//! `accounting` and `sampling` know nothing of devices, graphs or kernels and can be used alone. [`config::PrivacyConfig`]
//! ties everything together; [`clip::ClippedSum`] becomes a gradient only through [`noise::NoisyGrad`].

pub mod accounting;
pub mod clip;
pub mod config;
pub mod noise;
pub(crate) mod normals;
pub mod oracle;
pub mod sampling;
