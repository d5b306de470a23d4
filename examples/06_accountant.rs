//! The accountant alone: what the published settings of ViP (arXiv 2306.08842) and DP-Cap (arXiv 2403.02506) cost.
//!
//! Needs no device, no model and no data. Success: about 8.0 for the settings made for epsilon 8, 1.99 for epsilon 2, noise of
//! 2.48 for epsilon 1, and a refusal of shuffled batches.

use veilgrad::Result;
use veilgrad::privacy::accounting::{ALL, Budget, Event, NeighbouringRelation};

/// Images in the de-duplicated LAION subset that both systems train on.
const EXAMPLES: u64 = 233_804_767;

fn main() -> Result<()> {
    let n = EXAMPLES as f64;
    println!("{:28} {:>10} {:>8} {:>7} {:>10}  epsilon", "setting", "batch", "sigma", "steps", "delta");
    for (name, batch, sigma, steps, delta) in [
        ("ViP", 98_304.0, 0.48, 6000, 0.5 / n),
        ("ViP, published command", 81_920.0, 0.5, 6000, 0.5 / n),
        ("DP-Cap, epsilon 8", 1_310_720.0, 0.728, 5708, 1.0 / n),
        ("DP-Cap, epsilon 2", 1_310_720.0, 1.18, 2854, 1.0 / n),
        ("DP-Cap, batch 200,000", 200_000.0, 0.513, 5708, 1.0 / n),
    ] {
        // What happened, as data; whoever prices it later must agree with today.
        let event = Event::dpsgd(batch / n, sigma, steps);
        print!("{name:28} {batch:>10} {sigma:>8} {steps:>7} {delta:>10.2e} ");
        for kind in ALL {
            let mut accountant = (kind.start)(NeighbouringRelation::AddOrRemoveOne)?;
            accountant.compose(&event)?;
            print!(" {} {:.3}", kind.name, accountant.epsilon(delta)?.value);
        }
        println!();
    }

    // Leave one quantity blank to have it solved for: here the noise of DP-Cap at epsilon 1.
    let plan = Budget {
        examples: Some(EXAMPLES),
        batch: Some(1_310_720.0),
        steps: Some(5708),
        epsilon: Some(1.0),
        delta: Some(1.0 / n),
        ..Budget::default()
    };
    println!("\n{}", plan.solve()?);

    // Batches from a shuffled data set are not Poisson-sampled, and are never priced as if they were.
    let step = Box::new(Event::Gaussian { noise_multiplier: 0.728 });
    let shuffled = Event::Shuffled { batches: 178, event: step }.times(32);
    let mut accountant = (ALL[0].start)(NeighbouringRelation::AddOrRemoveOne)?;
    println!("\n{}", accountant.compose(&shuffled).expect_err("refused"));
    Ok(())
}
