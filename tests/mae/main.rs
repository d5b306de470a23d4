//! The masked autoencoder as a whole: gradients against central differences, per-example norms and clipped sums
//! against batches of one.

mod clipping;
mod rig;

use rig::{Rig, close, example, tiny};
use veilgrad::cpu::CpuEngine;
use veilgrad::graph::Mode;
use veilgrad::model::mae::MaeConfig;

#[test]
fn gradients_match_central_differences() {
    let config = tiny();
    let mut rig = Rig::<f64>::new(&config, 3, false);
    let examples: Vec<_> = (0..3).map(|i| Some(example(&config, i))).collect();
    let gradient = rig.gradient(&examples);
    let scale = gradient.values().flatten().fold(0.0f64, |m, g| m.max(g.abs()));
    let mut checked = 0;
    for (name, g) in &gradient {
        for k in (0..g.len()).step_by(g.len().div_ceil(12)) {
            let h = 1e-5;
            let numeric =
                (rig.loss_with(&examples, name, k, h) - rig.loss_with(&examples, name, k, -h)) / (2.0 * h);
            assert!((numeric - g[k]).abs() <= 1e-6 * scale, "{name}[{k}]: {} against {numeric}", g[k]);
            checked += 1;
        }
    }
    assert!(checked > 200 && gradient.len() > 40);
}

#[test]
fn norms_and_sums_equal_batches_of_one() {
    for config in [tiny(), MaeConfig { train_positions: true, norm_pix: true, ..tiny() }] {
        let examples: Vec<_> = (0..4).map(|i| (i != 2).then(|| example(&config, i))).collect();
        let mut batch = Rig::<f64>::new(&config, 4, true);
        let mut one = Rig::<f64>::new(&config, 1, false);
        let singles: Vec<_> = examples.iter().map(|e| one.gradient(std::slice::from_ref(e))).collect();
        let norms = batch.norms(&examples);
        for (i, single) in singles.iter().enumerate() {
            for (name, norm) in &norms {
                let want: f64 = single[name].iter().map(|g| g * g).sum();
                // Padding has weight zero, so its gradient is zero too.
                assert!(close(norm[i], want, 1e-9), "{name} of example {i}: {} against {want}", norm[i]);
            }
        }
        for factors in [vec![1.0; 4], vec![0.0; 4], vec![0.5, 1.0, 0.0, 0.25]] {
            let sums = batch.sums(&examples, &factors);
            for (name, sum) in &sums {
                for (k, s) in sum.iter().enumerate() {
                    let want: f64 = singles.iter().zip(&factors).map(|(g, f)| g[name][k] * f).sum();
                    assert!(close(*s, want, 1e-9), "{name}[{k}]: {s} against {want}");
                }
            }
        }
    }
}

#[test]
fn every_trainable_parameter_has_a_norm() {
    let config = MaeConfig { train_positions: true, ..tiny() };
    let graph = veilgrad::model::mae::training_graph(&config, 2).unwrap();
    let options =
        veilgrad::graph::Options::new(Mode::PerExample { loss: graph.loss }, &CpuEngine::<f32>::new());
    let plan = graph.graph.lower(&options).unwrap();
    let mut trained: Vec<&str> =
        graph.graph.params().iter().filter(|p| p.trainable).map(|p| p.name.as_str()).collect();
    let mut normed: Vec<&str> = plan.norm_names.iter().map(String::as_str).collect();
    trained.sort_unstable();
    normed.sort_unstable();
    assert_eq!(trained, normed);
    assert_eq!(plan.memory.total(), plan.layout.bytes());
}
