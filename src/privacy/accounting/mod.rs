//! What a mechanism costs: events, the RDP accountant, calibration. Imports std and the crate's error alone, so that
//! an auditor can read and reuse it by itself.

mod calibrate;
mod event;
mod rdp;

pub use calibrate::{noise_multiplier, steps};
pub use event::Event;
pub use rdp::{Epsilon, Rdp, default_orders, sampled_gaussian, vip_orders};
