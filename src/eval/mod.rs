//! What a trained model is worth: pictures of its reconstructions, and probes of its features.

pub mod features;
pub mod pictures;
pub mod probe;
