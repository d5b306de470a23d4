//! The privacy oracle: what one example can do to the clipped sum of a whole model, on every engine.

use std::sync::OnceLock;

use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::graph::{Mode, Options, Plan};
use veilgrad::model::mae::{MaeConfig, training_graph};
use veilgrad::privacy::clip::{ClipCounts, ClipRule, Clipped};
use veilgrad::record::{Engine, Program, Session};

use crate::rig::{Example, Rig, batch_of, example, start_values, tiny};

fn engines() -> [&'static dyn Engine; 2] {
    static GPU: OnceLock<GpuEngine> = OnceLock::new();
    static CPU: OnceLock<CpuEngine<f32>> = OnceLock::new();
    let gpu =
        GPU.get_or_init(|| GpuEngine::open(&Selector::named("lavapipe")).expect("lavapipe is installed"));
    [CPU.get_or_init(CpuEngine::new), gpu]
}

const CLIP: f64 = 0.05;

struct Machine {
    config: MaeConfig,
    plan: Plan,
    session: Box<dyn Session>,
    zero: Program,
    physical: Program,
    clipped: Clipped,
}

impl Machine {
    fn new(engine: &dyn Engine, config: &MaeConfig, batch: usize, norm: f64) -> Self {
        let graph = training_graph(config, batch).unwrap();
        let options = Options::new(Mode::PerExample { loss: graph.loss }, engine);
        let mut plan = graph.graph.lower(&options).unwrap();
        let clipped = Clipped::new(&mut plan, ClipRule::Flat { norm }).unwrap();
        let mut session = engine.open(&plan.layout).unwrap();
        for (slot, values) in plan.params.iter().zip(start_values(&plan)) {
            let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            session.write(slot.values, &values).unwrap();
        }
        let (segments, words) = plan.segments.clone().unwrap();
        session.write_u32(segments, &words).unwrap();
        let zero = session.prepare(&plan.zero).unwrap();
        let physical = session.prepare(&clipped.physical).unwrap();
        Machine { config: config.clone(), plan, session, zero, physical, clipped }
    }

    /// The clipped sum of a logical batch, split into this machine's physical batches.
    fn sum(&mut self, logical: &[Option<Example>]) -> (Vec<f32>, ClipCounts) {
        self.session.run(self.zero).unwrap();
        let size = self.plan.batch;
        for start in (0..logical.len().max(1)).step_by(size) {
            let members: Vec<Option<Example>> =
                (start..start + size).map(|i| logical.get(i).cloned().flatten()).collect();
            batch_of(&self.config, &members).write(&self.plan, self.session.as_mut());
            self.session.run(self.physical).unwrap();
        }
        let grads = self.plan.chunks.iter().flat_map(|c| self.session.read(c.grads).unwrap()).collect();
        let counts = self.clipped.counter.read(self.session.as_mut()).unwrap();
        (grads, counts)
    }
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&x| x as f64 * x as f64).sum::<f64>().sqrt()
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn with_pixels(mut e: Example, f: impl Fn(f32) -> f32) -> Example {
    e.image.iter_mut().for_each(|x| *x = f(*x));
    e
}

#[test]
fn the_clipped_sum_is_that_of_batches_of_one() {
    let config = tiny();
    // Mild examples stay under the bound, loud ones are clipped.
    let logical: Vec<Example> =
        (0..7).map(|i| with_pixels(example(&config, i), |x| x * [0.02, 1.0, 5.0][i as usize % 3])).collect();
    let mut one = Rig::<f64>::new(&config, 1, false);
    let gradients: Vec<_> = logical.iter().map(|e| one.gradient(&[Some(e.clone())])).collect();
    let norms: Vec<f64> =
        gradients.iter().map(|g| g.values().flatten().map(|x| x * x).sum::<f64>().sqrt()).collect();
    // A bound that some examples keep and some exceed.
    let mut sorted = norms.clone();
    sorted.sort_by(f64::total_cmp);
    let bound = 0.5 * (sorted[2] + sorted[3]);
    let mut want = std::collections::BTreeMap::new();
    for (gradient, norm) in gradients.iter().zip(&norms) {
        for (name, g) in gradient {
            let sum = want.entry(name.clone()).or_insert_with(|| vec![0.0; g.len()]);
            sum.iter_mut().zip(g).for_each(|(s, g)| *s += g * (bound / norm).min(1.0));
        }
    }
    let logical: Vec<Option<Example>> = logical.into_iter().map(Some).collect();
    for engine in engines() {
        for size in [1, 3, 8] {
            let mut machine = Machine::new(engine, &config, size, bound);
            let (_, counts) = machine.sum(&logical);
            assert_eq!(counts, ClipCounts { examples: 7, clipped: 4, not_finite: 0 });
            let scale = want.values().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
            for slot in machine.plan.params.iter().filter(|s| s.grad.is_some()) {
                let got = machine.session.read(slot.grad.unwrap()).unwrap();
                for (k, (g, w)) in got.iter().zip(&want[&slot.spec.name]).enumerate() {
                    let error = (*g as f64 - w).abs();
                    assert!(
                        error <= 1e-4 * scale,
                        "{} {size}: {}[{k}] {g} {w}",
                        engine.describe(),
                        slot.spec.name
                    );
                }
            }
        }
    }
}

#[test]
fn no_example_moves_the_sum_by_more_than_the_bound() {
    let config = tiny();
    // The third place is padding, or the strange example.
    let base: Vec<Option<Example>> = (0..5).map(|i| (i != 2).then(|| example(&config, i))).collect();
    type Change = fn(f32) -> f32;
    let strange: [(&str, Change); 7] = [
        ("ordinary", |x| x),
        ("huge", |x| x * 1e4),
        ("overflowing", |x| x * 1e30),
        ("zero", |_| 0.0),
        ("denormal", |x| x * 1e-40),
        ("infinite", |_| f32::INFINITY),
        ("nan", |x| if x > 0.0 { f32::NAN } else { x }),
    ];
    for engine in engines() {
        let mut machine = Machine::new(engine, &config, 5, CLIP);
        let (without, _) = machine.sum(&base);
        for (name, f) in strange {
            let mut logical = base.clone();
            logical[2] = Some(with_pixels(example(&config, 40), f));
            let (with, counts) = machine.sum(&logical);
            let what = format!("{name} on {}", engine.describe());
            assert!(with.iter().all(|x| x.is_finite()), "{what}");
            let moved = norm(&difference(&with, &without));
            assert!(moved <= CLIP * (1.0 + 1e-5), "{what}: moves by {moved}");
            let bad = ["overflowing", "infinite", "nan"].contains(&name);
            assert_eq!(counts.not_finite, bad as u64, "{what}");
            // A dropped example leaves no trace at all.
            assert!(!bad || moved == 0.0, "{what}: moves by {moved}");
            assert!(bad || moved > 0.0 || name == "zero", "{what} does not count");
        }
    }
}

#[test]
fn an_empty_batch_gives_zero_and_splits_agree() {
    let config = tiny();
    let logical: Vec<Option<Example>> = (0..8).map(|i| Some(example(&config, i))).collect();
    for engine in engines() {
        let (empty, counts) = Machine::new(engine, &config, 3, CLIP).sum(&[]);
        assert!(empty.iter().all(|x| *x == 0.0) && counts == ClipCounts::default());
        let (whole, _) = Machine::new(engine, &config, 8, CLIP).sum(&logical);
        for size in [1, 3] {
            let (split, _) = Machine::new(engine, &config, size, CLIP).sum(&logical);
            let error = norm(&difference(&split, &whole)) / norm(&whole);
            assert!(error <= 1e-5, "{size}: {error}");
        }
        let (again, _) = Machine::new(engine, &config, 8, CLIP).sum(&logical);
        assert!(again == whole, "the same bytes twice on {}", engine.describe());
    }
}
