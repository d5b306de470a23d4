//! A masked autoencoder on a CPU session, with readable gradients.

use std::collections::BTreeMap;

use veilgrad::cpu::{CpuEngine, CpuSession, TwinReal};
use veilgrad::graph::{Mode, Options, Plan};
use veilgrad::model::init_values;
use veilgrad::model::mae::{MaeConfig, Mask, training_graph};
use veilgrad::record::{Program, Session};
use veilgrad::rng::{Key, normal};

/// One example: image and mask.
#[derive(Clone)]
pub struct Example {
    pub image: Vec<f32>,
    pub mask: Mask,
}

/// A model small enough for thousands of evaluations.
pub fn tiny() -> MaeConfig {
    MaeConfig {
        image: 12,
        patch: 4,
        width: 8,
        depth: 2,
        heads: 2,
        decoder_width: 12,
        decoder_depth: 1,
        decoder_heads: 3,
        mask_ratio: 0.6,
        ..MaeConfig::preset("micro32").unwrap()
    }
}

/// The example of this number: always the same.
pub fn example(config: &MaeConfig, i: u64) -> Example {
    let key = Key::from_seed(1000 + i);
    let mut rng = key.stream(0);
    let image = (0..3 * config.image * config.image).map(|_| normal(&mut rng) as f32).collect();
    let mut mask = Mask::default();
    mask.push(config, &key, 1, i);
    Example { image, mask }
}

/// Whether two numbers agree, relative to their size or, near zero, absolutely.
pub fn close(a: f64, b: f64, tol: f64) -> bool {
    (a - b).abs() <= tol * (1e-3 + a.abs().max(b.abs()))
}

/// Parameters that are the same in every rig. Biases and LayerNorm weights are off their constants, or their gradients
/// would test little.
pub fn start_values(plan: &Plan) -> Vec<Vec<f64>> {
    let key = Key::from_seed(5);
    let slots = plan.params.iter().enumerate();
    slots
        .map(|(i, slot)| {
            let mut rng = key.stream(1000 + i as u64);
            let values = init_values(&slot.spec, i, &key);
            values.into_iter().map(|x| x as f64 + 0.05 * normal(&mut rng)).collect()
        })
        .collect()
}

/// The inputs of a physical batch.
pub struct Loaded {
    images: Vec<f32>,
    mask: Mask,
    weights: Vec<f32>,
}

/// A physical batch; `None` is padding.
pub fn batch_of(config: &MaeConfig, examples: &[Option<Example>]) -> Loaded {
    let mut loaded = Loaded { images: Vec::new(), mask: Mask::default(), weights: Vec::new() };
    let padding = example(config, 999);
    for e in examples {
        let used = e.as_ref().unwrap_or(&padding);
        loaded.images.extend_from_slice(&used.image);
        let mask = &mut loaded.mask;
        mask.patches.extend(&used.mask.patches);
        mask.positions.extend(&used.mask.positions);
        mask.source.extend(&used.mask.source);
        mask.target.extend(&used.mask.target);
        mask.mask.extend(&used.mask.mask);
        loaded.weights.push(if e.is_some() { 1.0 } else { 0.0 });
    }
    loaded
}

impl Loaded {
    pub fn write(&self, plan: &Plan, session: &mut dyn Session) {
        let input = |name: &str| plan.input(name).unwrap();
        session.write(input("images"), &self.images).unwrap();
        session.write_u32(input("patches"), &self.mask.patches).unwrap();
        session.write_u32(input("positions"), &self.mask.positions).unwrap();
        session.write_u32(input("source"), &self.mask.source).unwrap();
        session.write_u32(input("target"), &self.mask.target).unwrap();
        session.write(input("mask"), &self.mask.mask).unwrap();
        session.write(plan.weights.unwrap(), &self.weights).unwrap();
    }
}

pub struct Rig<F: TwinReal> {
    config: MaeConfig,
    plan: Plan,
    session: CpuSession<F>,
    forward: Program,
    backward: Program,
    sums: Program,
    zero: Program,
    loss: veilgrad::record::Slice,
}

impl<F: TwinReal> Rig<F> {
    pub fn new(config: &MaeConfig, batch: usize, per_example: bool) -> Self {
        let graph = training_graph(config, batch).unwrap();
        let loss = graph.loss;
        let mode = if per_example { Mode::PerExample { loss } } else { Mode::Plain { loss } };
        let engine = CpuEngine::<F>::new();
        let plan = graph.graph.lower(&Options::new(mode, &engine).fetch(&[loss])).unwrap();
        let mut session = engine.session(&plan.layout);
        for (slot, values) in plan.params.iter().zip(start_values(&plan)) {
            let values: Vec<F> = values.into_iter().map(F::of).collect();
            session.write_real(slot.values, &values).unwrap();
        }
        if let Some((slice, words)) = &plan.segments {
            session.write_u32(*slice, words).unwrap();
        }
        let forward = session.prepare(&plan.forward).unwrap();
        let backward = session.prepare(&plan.backward).unwrap();
        let sums = session.prepare(&plan.sums).unwrap();
        let zero = session.prepare(&plan.zero).unwrap();
        let loss = plan.fetched[0];
        Rig { config: config.clone(), plan, session, forward, backward, sums, zero, loss }
    }

    fn load(&mut self, examples: &[Option<Example>]) {
        batch_of(&self.config, examples).write(&self.plan, &mut self.session);
    }

    fn read_gradients(&mut self) -> BTreeMap<String, Vec<f64>> {
        let mut out = BTreeMap::new();
        for slot in &self.plan.params {
            if let Some(grad) = slot.grad {
                let values = self.session.read_real(grad).unwrap();
                out.insert(slot.spec.name.clone(), values.into_iter().map(|x| x.as_f64()).collect());
            }
        }
        out
    }

    /// The summed gradient in plain mode.
    pub fn gradient(&mut self, examples: &[Option<Example>]) -> BTreeMap<String, Vec<f64>> {
        self.load(examples);
        for program in [self.zero, self.forward, self.backward, self.sums] {
            self.session.run(program).unwrap();
        }
        self.read_gradients()
    }

    /// The summed loss with one element of a parameter moved by `h`.
    pub fn loss_with(&mut self, examples: &[Option<Example>], name: &str, k: usize, h: f64) -> f64 {
        self.load(examples);
        let slice = self.plan.param(name).unwrap().values;
        let before = self.session.read_real(slice).unwrap();
        let mut moved = before.clone();
        moved[k] += F::of(h);
        self.session.write_real(slice, &moved).unwrap();
        self.session.run(self.forward).unwrap();
        self.session.write_real(slice, &before).unwrap();
        self.session.read_real(self.loss).unwrap().into_iter().map(|x| x.as_f64()).sum()
    }

    /// Per parameter, the squared norm of each example's gradient.
    pub fn norms(&mut self, examples: &[Option<Example>]) -> BTreeMap<String, Vec<f64>> {
        self.load(examples);
        for program in [self.zero, self.forward, self.backward] {
            self.session.run(program).unwrap();
        }
        let all = self.session.read_real(self.plan.norms.unwrap()).unwrap();
        let rows =
            all.chunks(self.plan.stride).map(|r| r[..examples.len()].iter().map(|x| x.as_f64()).collect());
        self.plan.norm_names.iter().cloned().zip(rows).collect()
    }

    /// The weighted gradient sum in per-example mode.
    pub fn sums(&mut self, examples: &[Option<Example>], factors: &[f64]) -> BTreeMap<String, Vec<f64>> {
        self.norms(examples);
        let factors: Vec<F> = factors.iter().map(|&f| F::of(f)).collect();
        self.session.write_real(self.plan.factors.unwrap(), &factors).unwrap();
        self.session.run(self.sums).unwrap();
        self.read_gradients()
    }
}
