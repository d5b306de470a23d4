//! Training: recipes, the step on a device, the loop around it, and what may leave it.

pub mod feed;
pub mod recipe;
pub mod run;
pub mod state;
pub mod stepper;
mod summary;
pub mod task;
