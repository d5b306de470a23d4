//! Both systems against PyTorch: with the same weights and inputs the loss, every gradient of one example, ten AdamW steps and
//! five greedy tokens agree. tests/oracle/parity.py wrote the fixtures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use veilgrad::checkpoint::Checkpoint;
use veilgrad::cpu::CpuEngine;
use veilgrad::data::words::Words;
use veilgrad::eval::captioner::{Eye, Pen};
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::graph::{Graph, Value};
use veilgrad::model::captioner::{self, CaptionerConfig, shifted};
use veilgrad::model::mae::{self, MaeConfig};
use veilgrad::optim::adamw::AdamW;
use veilgrad::record::Engine;
use veilgrad::rng::Key;
use veilgrad::train::stepper::{Guarantee, Performance, Stepper};

fn fixture(name: &str) -> (Checkpoint, PathBuf) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    (Checkpoint::read(&path).unwrap(), path)
}

/// Tensors whose names start with `prefix`, without it.
fn part(file: &Checkpoint, prefix: &str) -> Checkpoint {
    let mut out = Checkpoint::default();
    for (name, tensor) in &file.tensors {
        if let Some(name) = name.strip_prefix(prefix) {
            out.tensors.insert(name.to_owned(), tensor.clone());
        }
    }
    assert!(!out.tensors.is_empty(), "{prefix}");
    out
}

fn ids(file: &Checkpoint, name: &str) -> Vec<u32> {
    file.tensors[name].values.iter().map(|&x| x as u32).collect()
}

fn close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-4f32, |m, x| m.max(x.abs()));
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}[{k}]: {g}, PyTorch has {w} (of {scale})");
    }
}

/// Loss and gradients at the start, then ten steps of AdamW, all against the fixture.
fn compare(
    engine: &dyn Engine,
    graph: &Graph,
    loss: Value,
    file: &Checkpoint,
    path: &Path,
    write: impl Fn(&mut Stepper),
) {
    let device = engine.describe();
    let optimizer = AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.05 };
    let guarantee = Guarantee::NotPrivate { batch: 1.0 };
    let key = Key::from_seed(0);
    let performance = Performance::default();
    let mut stepper =
        Stepper::new(engine, graph, loss, guarantee, &optimizer, &performance, None, &key).unwrap();
    let (params, grads, stepped) = (part(file, "param."), part(file, "grad."), part(file, "stepped."));
    let slots = stepper.plan().params.clone();
    assert_eq!(params.tensors.len(), slots.len(), "as many parameters as PyTorch's");
    stepper.load(&params, path, false).unwrap();
    write(&mut stepper);
    for (step, want) in file.tensors["losses"].values.iter().enumerate() {
        stepper.begin().unwrap();
        stepper.accumulate(&[1.0]).unwrap();
        let losses = stepper.unprotected_losses().unwrap();
        close(&format!("{device}: loss {step}"), &losses, &[*want], 2e-4);
        if step == 0 {
            close(&format!("{device}: first loss"), &losses, &file.tensors["loss"].values, 1e-5);
            for slot in slots.iter().filter(|s| s.grad.is_some()) {
                let got = stepper.session().read(slot.grad.unwrap()).unwrap();
                let want = &grads.tensors[&slot.spec.name].values;
                close(&format!("{device}: gradient of {}", slot.spec.name), &got, want, 2e-4);
            }
            assert_eq!(grads.tensors.len(), slots.iter().filter(|s| s.grad.is_some()).count());
        }
        stepper.finish(step as u64, 1e-2).unwrap();
    }
    let after = stepper.save(false).unwrap();
    for (name, want) in &stepped.tensors {
        let what = format!("{device}: {name} after ten steps");
        let (got, want) = (&after.tensors[name].values, &want.values);
        if name.ends_with("attn.qkv.bias") {
            // A bias of all keys moves all scores of a query alike: its gradient is zero up to rounding, whose sign Adam
            // follows. The losses show that it changes nothing else.
            let third = want.len() / 3;
            close(&what, &got[..third], &want[..third], 2e-3);
            close(&what, &got[2 * third..], &want[2 * third..], 2e-3);
        } else {
            close(&what, got, want, 2e-3);
        }
    }
}

fn engines() -> [Box<dyn Engine>; 2] {
    let gpu = GpuEngine::open(&Selector::named("lavapipe")).expect("lavapipe is installed");
    [Box::new(CpuEngine::<f32>::new()), Box::new(gpu)]
}

#[test]
fn vip_agrees_with_pytorch() {
    let (file, path) = fixture("parity-vip.safetensors");
    let kept = ids(&file, "kept");
    let config = MaeConfig {
        image: 12,
        patch: 4,
        width: 16,
        depth: 2,
        heads: 2,
        decoder_width: 12,
        decoder_depth: 2,
        decoder_heads: 3,
        mask_ratio: 0.66,
        ..MaeConfig::preset("micro32").unwrap()
    };
    assert_eq!((config.patches(), config.kept()), (9, kept.len()));
    let positions: Vec<u32> = [0].into_iter().chain(kept.iter().map(|p| p + 1)).collect();
    let mut source = vec![1 + kept.len() as u32; 10];
    let mut mask = vec![1.0; 9];
    source[0] = 0;
    for (rank, &patch) in kept.iter().enumerate() {
        source[1 + patch as usize] = 1 + rank as u32;
        mask[patch as usize] = 0.0;
    }
    let graph = mae::training_graph(&config, 1).unwrap();
    for engine in engines() {
        compare(engine.as_ref(), &graph.graph, graph.loss, &file, &path, |stepper| {
            let input = |name: &str| stepper.plan().input(name).unwrap();
            let (images, mask_slice) = (input("images"), input("mask"));
            let tables =
                [("patches", &kept), ("positions", &positions), ("source", &source), ("target", &positions)];
            let tables = tables.map(|(name, values)| (input(name), values));
            stepper.session().write(images, &file.tensors["image"].values).unwrap();
            stepper.session().write(mask_slice, &mask).unwrap();
            for (slice, values) in tables {
                stepper.session().write_u32(slice, values).unwrap();
            }
        });
    }
}

#[test]
fn dp_cap_agrees_with_pytorch() {
    let (file, path) = fixture("parity-dpcap.safetensors");
    let config = CaptionerConfig {
        image: 12,
        patch: 4,
        width: 16,
        depth: 2,
        heads: 2,
        decoder_width: 12,
        decoder_depth: 2,
        decoder_heads: 3,
        biased: false,
        length: 7,
        vocabulary: 23,
    };
    let (tokens, targets) = shifted(&ids(&file, "ids"));
    let graph = captioner::training_graph(&config, 1).unwrap();
    for engine in engines() {
        compare(engine.as_ref(), &graph.graph, graph.loss, &file, &path, |stepper| {
            let input = |name: &str| stepper.plan().input(name).unwrap();
            let (images, tokens_slice, targets_slice) = (input("images"), input("tokens"), input("targets"));
            stepper.session().write(images, &file.tensors["image"].values).unwrap();
            stepper.session().write_u32(tokens_slice, &tokens).unwrap();
            stepper.session().write_u32(targets_slice, &targets).unwrap();
        });
        let params = part(&file, "param.");
        let mut eye = Eye::open(engine.as_ref(), &config, &params, &path, 1).unwrap();
        let memory = eye.look(&file.tensors["image"].values, 1).unwrap().remove(0);
        let words = Arc::new(Words::bert().unwrap());
        let mut pen = Pen::open(engine.as_ref(), &config, &words, &params, &path, 1).unwrap();
        pen.begin(&[&memory]).unwrap();
        let mut last = 1;
        let mut written = Vec::new();
        for _ in 0..5 {
            let next = pen.append(&[last]).unwrap();
            let best = next.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            last = best.0 as u32;
            written.push(last);
        }
        assert_eq!(written, ids(&file, "greedy"), "{}", engine.describe());
    }
}
