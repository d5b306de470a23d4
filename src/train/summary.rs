//! What a run says before its first step.

use serde::Serialize;

use super::recipe::Recipe;
use super::run::RunOptions;
use super::stepper::Stepper;
use crate::data::Source;
use crate::error::Result;
use crate::privacy::accounting::Rdp;
use crate::privacy::config::PrivacyConfig;
use crate::record::Engine;
use crate::rng::Key;

/// What is known before the first step.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What is trained on.
    pub data: String,
    /// Where.
    pub device: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Step it starts from.
    pub start: u64,
    /// Logical batch, expected in a private run.
    pub batch: u64,
    /// Physical batch.
    pub physical_batch: u64,
    /// Bytes on the device, all of them known now.
    pub memory_bytes: u64,
    /// The guarantee, in private runs.
    pub privacy: Option<PrivacySummary>,
    /// What was left out of the data, and what the user should know.
    pub warnings: Vec<String>,
}

/// The mechanism and its cost: the content of `privacy.json`.
#[derive(Clone, Debug, Serialize)]
pub struct PrivacySummary {
    /// In words.
    pub mechanism: &'static str,
    /// Which data sets are neighbours.
    pub neighbouring: &'static str,
    /// How epsilon was computed.
    pub accountant: &'static str,
    /// N.
    pub examples: u64,
    /// q.
    pub sampling_rate: f64,
    /// sigma.
    pub noise_multiplier: f64,
    /// C.
    pub clipping_norm: f64,
    /// Steps accounted for.
    pub steps: u64,
    /// Epsilon of these steps.
    pub epsilon: f64,
    /// Delta.
    pub delta: f64,
    /// Whether noise comes from a public seed: then there is no guarantee against whoever knows it.
    pub public_seed: bool,
}

/// Collects what is known.
///
/// # Errors
/// None in practice: the mechanism was accepted before.
#[expect(clippy::too_many_arguments, reason = "all that is known before a run")]
pub(super) fn summarise(
    engine: &dyn Engine,
    recipe: &Recipe,
    options: &RunOptions,
    stepper: &Stepper,
    source: Option<&dyn Source>,
    privacy: &Option<(PrivacyConfig, Rdp)>,
    start: u64,
    key: &Key,
) -> Result<Summary> {
    let mut warnings: Vec<String> = source.map(|s| s.warnings().to_vec()).unwrap_or_default();
    if privacy.is_some() && key.is_public() {
        warnings.push("--seed: whoever knows the seed can subtract the noise; use it for tests only".into());
    }
    if privacy.is_some() && options.log_unprotected {
        warnings.push("--log-unprotected: the logged loss is not covered by the guarantee".into());
    }
    let privacy = match privacy {
        Some((p, one)) => Some(PrivacySummary {
            mechanism: "Poisson-sampled Gaussian (DP-SGD), clipped per example, noise divided by the expected batch",
            neighbouring: "add or remove one example",
            accountant: "RDP (Mironov, Talwar, Zhang 2019), conversion of Balle et al. 2020",
            examples: p.examples(),
            sampling_rate: p.sampling_rate(),
            noise_multiplier: p.noise_multiplier(),
            clipping_norm: p.clip().bound(),
            steps: p.steps(),
            epsilon: one.repeated(p.steps()).epsilon(p.delta())?.value,
            delta: p.delta(),
            public_seed: key.is_public(),
        }),
        None => None,
    };
    let plan = stepper.plan();
    let trained = plan.params.iter().filter(|p| p.grad.is_some());
    Ok(Summary {
        data: source.map_or("synthetic images, drawn as they are needed".into(), |s| s.describe()),
        device: engine.describe(),
        parameters: trained.map(|p| p.spec.shape.len() as u64).sum(),
        steps: recipe.train.steps,
        start,
        batch: recipe.train.batch,
        physical_batch: plan.batch as u64,
        memory_bytes: stepper.bytes(),
        privacy,
        warnings,
    })
}
