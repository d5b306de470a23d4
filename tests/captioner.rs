//! The captioner as a whole: gradients against central differences, per-example norms and sums against batches of one, all
//! engines against the oracle, and writing token by token against reading whole texts.

use std::collections::BTreeMap;
use std::path::Path;

use veilgrad::checkpoint::{Checkpoint, Tensor};
use veilgrad::cpu::CpuEngine;
use veilgrad::data::words::Words;
use veilgrad::eval::captioner::{Eye, Judge, Pen, open};
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::graph::{Mode, Options, Plan};
use veilgrad::model::captioner::{CaptionerConfig, shifted, training_graph};
use veilgrad::model::init_values;
use veilgrad::record::{Engine, Session};
use veilgrad::rng::{Key, normal};

/// A model small enough for thousands of evaluations.
fn tiny(biased: bool) -> CaptionerConfig {
    CaptionerConfig {
        image: 8,
        patch: 4,
        width: 8,
        depth: 2,
        heads: 2,
        decoder_width: 12,
        decoder_depth: 2,
        decoder_heads: 3,
        biased,
        length: 6,
        vocabulary: 11,
    }
}

/// Captions as padded ids: repeated words, the shortest there is, the longest, none at all.
const TEXTS: [[u32; 6]; 4] = [[1, 5, 5, 7, 2, 0], [1, 2, 0, 0, 0, 0], [1, 3, 4, 3, 10, 2], [0; 6]];

fn image(config: &CaptionerConfig, i: usize) -> Vec<f32> {
    let mut rng = Key::from_seed(70).stream(i as u64);
    (0..3 * config.image * config.image).map(|_| normal(&mut rng) as f32).collect()
}

/// A lowered model with parameters, on an engine.
struct Rig {
    plan: Plan,
    session: Box<dyn Session>,
}

impl Rig {
    fn new(engine: &dyn Engine, config: &CaptionerConfig, batch: usize, private: bool) -> Self {
        let graph = training_graph(config, batch).unwrap();
        let loss = graph.loss;
        let mode = if private { Mode::PerExample { loss } } else { Mode::Plain { loss } };
        let plan = graph.graph.lower(&Options::new(mode, engine).fetch(&[loss])).unwrap();
        assert_eq!(plan.memory.total(), plan.layout.bytes());
        let mut session = engine.open(&plan.layout).unwrap();
        for (i, slot) in plan.params.iter().enumerate() {
            // Off their constants, or the gradients of biases and norms would test little.
            let mut rng = Key::from_seed(5).stream(1000 + i as u64);
            let values = init_values(&slot.spec, i, &Key::from_seed(5));
            let values: Vec<f32> = values.iter().map(|x| x + 0.05 * normal(&mut rng) as f32).collect();
            session.write(slot.values, &values).unwrap();
        }
        if let Some((slice, words)) = &plan.segments {
            session.write_u32(*slice, words).unwrap();
        }
        Rig { plan, session }
    }

    /// Writes examples of these numbers; `None` is padding.
    fn load(&mut self, config: &CaptionerConfig, members: &[Option<usize>]) {
        let (mut images, mut tokens, mut targets, mut weights) = (vec![], vec![], vec![], vec![]);
        for member in members {
            let i = member.unwrap_or(0);
            images.extend(image(config, i));
            let (input, target) = shifted(&TEXTS[i]);
            tokens.extend(input);
            targets.extend(target);
            weights.push(member.is_some() as u8 as f32);
        }
        let input = |name: &str| self.plan.input(name).unwrap();
        self.session.write(input("images"), &images).unwrap();
        self.session.write_u32(input("tokens"), &tokens).unwrap();
        self.session.write_u32(input("targets"), &targets).unwrap();
        self.session.write(self.plan.weights.unwrap(), &weights).unwrap();
    }

    fn run(&mut self, recordings: &[fn(&Plan) -> &veilgrad::record::Recording]) {
        for recording in recordings {
            let program = self.session.prepare(recording(&self.plan)).unwrap();
            self.session.run(program).unwrap();
        }
    }

    fn losses(&mut self) -> Vec<f64> {
        self.run(&[|p| &p.forward]);
        self.session.read(self.plan.fetched[0]).unwrap().into_iter().map(f64::from).collect()
    }

    fn gradients(&mut self) -> BTreeMap<String, Vec<f64>> {
        let trained = self.plan.params.iter().filter_map(|s| Some((s.spec.name.clone(), s.grad?)));
        let trained: Vec<_> = trained.collect();
        let read = |(name, slice)| {
            let values: Vec<f64> = self.session.read(slice).unwrap().into_iter().map(f64::from).collect();
            (name, values)
        };
        trained.into_iter().map(read).collect()
    }

    /// The summed gradient of these examples.
    fn gradient(
        &mut self,
        config: &CaptionerConfig,
        members: &[Option<usize>],
    ) -> BTreeMap<String, Vec<f64>> {
        self.load(config, members);
        self.run(&[|p| &p.zero, |p| &p.forward, |p| &p.backward, |p| &p.sums]);
        self.gradients()
    }

    /// Per parameter the squared norm of each example's gradient, then the sum weighted by `factors`.
    fn norms_and_sums(
        &mut self,
        config: &CaptionerConfig,
        members: &[Option<usize>],
        factors: &[f32],
    ) -> (BTreeMap<String, Vec<f64>>, BTreeMap<String, Vec<f64>>) {
        self.load(config, members);
        self.session.write(self.plan.factors.unwrap(), factors).unwrap();
        self.run(&[|p| &p.zero, |p| &p.forward, |p| &p.backward, |p| &p.sums]);
        let all = self.session.read(self.plan.norms.unwrap()).unwrap();
        let rows =
            all.chunks(self.plan.stride).map(|r| r[..members.len()].iter().map(|&x| x as f64).collect());
        (self.plan.norm_names.iter().cloned().zip(rows).collect(), self.gradients())
    }
}

fn close(what: &str, got: &[f64], want: &[f64], tolerance: f64, scale: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}[{k}]: {g}, want {w}");
    }
}

fn largest(values: &BTreeMap<String, Vec<f64>>) -> f64 {
    values.values().flatten().fold(0.0, |m, x| m.max(x.abs()))
}

#[test]
fn gradients_match_central_differences() {
    for biased in [false, true] {
        let config = tiny(biased);
        let mut rig = Rig::new(&CpuEngine::<f64>::new(), &config, 3, false);
        let members = [Some(0), Some(1), Some(2)];
        let gradient = rig.gradient(&config, &members);
        let scale = largest(&gradient);
        let slots = rig.plan.params.clone();
        let mut checked = 0;
        for slot in slots.iter().filter(|s| s.grad.is_some()) {
            let g = &gradient[&slot.spec.name];
            let before = rig.session.read(slot.values).unwrap();
            for k in (0..g.len()).step_by(g.len().div_ceil(8)) {
                // A step that f32 holds exactly; losses are read in f32, which bounds the difference.
                let h = 1.0 / 1024.0;
                let mut moved = |by: f32| -> f64 {
                    let mut values = before.clone();
                    values[k] += by;
                    let step = (values[k] - before[k]) as f64;
                    rig.session.write(slot.values, &values).unwrap();
                    rig.losses().iter().sum::<f64>() * step.signum()
                };
                let numeric = (moved(h) + moved(-h)) / (2.0 * h as f64);
                let error = (numeric - g[k]).abs();
                assert!(error <= 2e-3 * scale, "{}[{k}]: {numeric}, got {}", slot.spec.name, g[k]);
                checked += 1;
            }
            rig.session.write(slot.values, &before).unwrap();
        }
        assert!(checked > 300, "{checked}");
    }
}

#[test]
fn norms_and_sums_equal_batches_of_one_on_every_engine() {
    let gpu = GpuEngine::open(&Selector::named("lavapipe")).expect("lavapipe is installed");
    let (double, single) = (CpuEngine::<f64>::new(), CpuEngine::<f32>::new());
    for biased in [false, true] {
        let config = tiny(biased);
        // The fourth place is padding; example 3 has no caption.
        let members = [Some(0), Some(1), Some(2), None, Some(3)];
        let factors = [1.0, 0.25, 0.5, 0.0, 1.0];
        let mut one = Rig::new(&double, &config, 1, false);
        let alone: Vec<_> = members.iter().map(|m| one.gradient(&config, &[*m])).collect();
        assert_eq!((largest(&alone[3]), largest(&alone[4])), (0.0, 0.0));
        let engines: [(&dyn Engine, f64); 3] = [(&double, 1e-6), (&single, 1e-4), (&gpu, 1e-4)];
        for (engine, tolerance) in engines {
            let (norms, sums) =
                Rig::new(engine, &config, 5, true).norms_and_sums(&config, &members, &factors);
            assert_eq!(norms.len(), sums.len(), "every trained parameter has a norm");
            let total = |i: usize| alone[i].values().flatten().map(|g| g * g).sum::<f64>();
            for (name, norms) in &norms {
                for (i, norm) in norms.iter().enumerate() {
                    let want: f64 = alone[i][name].iter().map(|g| g * g).sum();
                    let what = format!("{}: norm of {name}, example {i}", engine.describe());
                    close(&what, &[*norm], &[want], tolerance, total(i).max(1e-30));
                }
            }
            let scale = largest(&sums);
            for (name, sum) in &sums {
                let want: Vec<f64> = (0..sum.len())
                    .map(|k| alone.iter().zip(factors).map(|(g, f)| g[name][k] * f as f64).sum())
                    .collect();
                close(&format!("{}: {name}", engine.describe()), sum, &want, tolerance, scale);
            }
        }
    }
}

/// Parameters as a checkpoint of a model that knows a few words.
fn checkpoint(config: &CaptionerConfig, words: &Words) -> Checkpoint {
    let graph = training_graph(config, 1).unwrap().graph;
    let mut file = Checkpoint::default();
    for (i, spec) in graph.params().iter().enumerate() {
        let values = init_values(spec, i, &Key::from_seed(9));
        file.tensors.insert(spec.name.clone(), Tensor { shape: spec.shape.clone(), values });
    }
    file.metadata.insert("vocabulary".into(), words.to_json());
    file
}

#[test]
fn writing_token_by_token_equals_reading_whole_texts() {
    let words = Words::of_texts(["red heart", "green apple", "a man with a hat"].into_iter()).unwrap();
    let preset = CaptionerConfig::preset("cap-micro32").unwrap();
    let config = CaptionerConfig { vocabulary: words.len(), length: 8, ..preset };
    let file = checkpoint(&config, &words);
    let path = Path::new("model.safetensors");
    let (known, known_words) = open(&file, path).unwrap();
    assert_eq!(known, config);
    let gpu = GpuEngine::open(&Selector::named("lavapipe")).expect("lavapipe is installed");
    for engine in [&CpuEngine::<f32>::new() as &dyn Engine, &gpu] {
        let mut eye = Eye::open(engine, &config, &file, path, 3).unwrap();
        let images: Vec<f32> = (0..3).flat_map(|i| image(&config, i)).collect();
        let memories = eye.look(&images, 2).unwrap();
        assert_eq!(
            (memories.len(), memories[0].mean.len(), memories[0].block_means.len()),
            (2, 128, 6 * 128)
        );
        let mut pen = Pen::open(engine, &config, &known_words, &file, path, 3).unwrap();
        let texts = [words.encode("red apple", 8), words.encode("a man with a green hat", 8)];
        pen.begin(&memories.iter().collect::<Vec<_>>()).unwrap();
        let mut sums = [(0.0f64, 0); 2];
        for t in 0..7 {
            let next = pen.append(&[texts[0][t], texts[1][t]]).unwrap();
            for (row, sum) in sums.iter_mut().enumerate() {
                let target = texts[row][t + 1];
                if target != 0 {
                    sum.0 -= next[row * words.len() + target as usize] as f64;
                    sum.1 += 1;
                }
            }
        }
        for tokens in [8, 7] {
            // A text of whole length, and one that leaves room.
            let mut judge = Judge::open(engine, &config, &file, path, 2, tokens).unwrap();
            let row = 8 - tokens;
            let texts: Vec<Vec<u32>> = vec![texts[1 - row][..tokens].to_vec()];
            let losses = judge.losses(&memories[1 - row], &texts).unwrap();
            let want = sums[1 - row].0 / sums[1 - row].1 as f64;
            assert!(
                (losses[0] as f64 - want).abs() <= 1e-4 * want,
                "{} {losses:?} {want}",
                engine.describe()
            );
        }
        // The likeliest word each time, alone or beside others, is the same text.
        let greedy = pen.greedy(&memories.iter().collect::<Vec<_>>()).unwrap();
        let alone = pen.greedy(&[&memories[1]]).unwrap();
        assert_eq!(greedy[1].ids, alone[0].ids);
        assert!(greedy.iter().all(|c| c.log_probability <= 0.0 && c.ids.len() < 8));
        // A beam is as likely as its text, read whole.
        let beams = pen.beam(&memories[1]).unwrap();
        let mut judge = Judge::open(engine, &config, &file, path, 2, 8).unwrap();
        for beam in beams.iter().chain(&greedy[1..]).filter(|b| b.ids.len() < 6 && !b.ids.contains(&0)) {
            let loss = judge.losses(&memories[1], &[words.frame(&beam.ids, 8)]).unwrap()[0] as f64;
            assert!(
                (loss + beam.log_probability).abs() <= 1e-4 * loss,
                "{} {beam:?} {loss}",
                engine.describe()
            );
        }
        assert!(beams.windows(2).all(|w| w[0].log_probability >= w[1].log_probability));
        assert!(pen.append(&[1]).is_ok());
    }
}

#[test]
fn checkpoints_of_other_models_are_refused() {
    let words = Words::of_texts(["red heart"].into_iter()).unwrap();
    let preset = CaptionerConfig::preset("cap-micro32").unwrap();
    let config = CaptionerConfig { vocabulary: words.len(), ..preset };
    let path = Path::new("m.safetensors");
    let mut file = checkpoint(&config, &words);
    file.metadata.insert("vocabulary".into(), Words::of_texts(["a b c"].into_iter()).unwrap().to_json());
    assert!(open(&file, path).unwrap_err().to_string().contains("words"));
    let mut file = checkpoint(&config, &words);
    file.tensors.remove("cls_token");
    assert!(open(&file, path).unwrap_err().to_string().contains("cls_token"));
}
