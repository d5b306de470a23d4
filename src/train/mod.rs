//! Training: recipes, the step on a device, the loop around it, and what may leave it.

pub mod recipe;
pub mod stepper;
