//! The mechanism: clipped sums against the definition, hostile norms, the noise word for word and in distribution.

mod clip;
mod mechanism;
mod noise;
mod rig;
