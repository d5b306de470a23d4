//! What a mechanism costs, and what a target allows. Imports std, the crate's error and `rustfft` alone, so that an auditor can
//! read and reuse it by itself.
//!
//! - [`Event`]: what happened, as plain data that never changes meaning.
//! - [`Accountant`]: adds up events and answers with an upper bound on epsilon; [`ALL`] lists the accountants.
//! - [`Pld`]: the tight answer, between an upper and a lower bound that are both certified.
//! - [`sampled_gaussian`]: the one formula behind the Renyi accountant [`Rdp`].
//! - [`Solver`]: noise, steps or sampling rate from a target epsilon, always on the safe side; [`Budget`] asks by leaving one
//!   of the four blank.
//!
//! ```
//! use veilgrad::privacy::accounting::{self, Event, Rdp};
//!
//! let mut accountant = Rdp::default();
//! accountant.compose(&Event::dpsgd(0.01, 1.1, 10_000))?;
//! let epsilon = accountant.epsilon(1e-5)?.value;
//! assert!(5.6 < epsilon && epsilon < 5.64);
//!
//! let sigma = accounting::noise_multiplier(2.0, 1e-5, 0.01, 10_000)?;
//! assert!(sigma > 1.1);
//! # Ok::<(), veilgrad::Error>(())
//! ```

mod accountant;
mod budget;
mod calibrate;
mod event;
mod math;
mod moment;
mod normal;
mod pld;
mod rdp;

pub use accountant::{ALL, Accountant, Epsilon, Kind, by_name};
pub use budget::{Budget, Outcome, Quantity};
pub use calibrate::{MAX_STEPS, Solver, noise_multiplier, steps};
pub use event::{Event, NeighbouringRelation};
pub use moment::sampled_gaussian;
pub use pld::Pld;
pub use rdp::{Rdp, default_orders, vip_orders};
