//! What a trained model is worth: pictures of its reconstructions, and probes of its features.

pub mod captioner;
pub mod features;
pub mod few_shot;
mod part;
pub mod pictures;
pub mod probe;
pub mod represent;
pub mod zero_shot;
