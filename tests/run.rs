//! The training loop: the same bytes after a resume, and nothing secret in what leaves it.

use std::fs;
use std::path::{Path, PathBuf};

use veilgrad::Error;
use veilgrad::cpu::CpuEngine;
use veilgrad::train::recipe::Recipe;
use veilgrad::train::run::{Run, RunOptions};

fn recipe(steps: u64, private: bool) -> Recipe {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = format!(
        "[model]\nsize = \"micro32\"\n[data]\npath = \"{}\"\n[train]\nsteps = {steps}\nbatch = 3\nphysical_batch = 2\n\
         learning_rate = 1e-3\ncheckpoint_seconds = 0\n",
        root.join("assets/emoji32/test-00000.tar").display()
    );
    if private {
        text.push_str("[privacy]\nclipping_norm = 0.1\nnoise_multiplier = 0.7\n");
    }
    Recipe::parse(&text, Path::new("test.toml")).unwrap()
}

/// A captioner of the emoji, private or not, with the words of their public names.
fn captioner(steps: u64, private: bool) -> Recipe {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = format!(
        "[model]\nsize = \"cap-micro32\"\n[data]\npath = \"{0}/assets/emoji32/test-00000.tar\"\n[text]\nlength = 12\n\
         vocabulary = \"{0}/assets/vocab/emoji-names.txt\"\n[train]\nsteps = {steps}\nbatch = 3\nphysical_batch = 2\n\
         learning_rate = 1e-3\nschedule = \"constant\"\ncheckpoint_seconds = 0\n",
        root.display()
    );
    if private {
        text.push_str("[privacy]\nclipping_norm = 1.0\nnoise_multiplier = 0.7\n");
    }
    Recipe::parse(&text, Path::new("test.toml")).unwrap()
}

fn run(out: &Path, steps: u64, private: bool, change: impl FnOnce(&mut RunOptions)) -> Result<Run, Error> {
    let mut options = RunOptions { out: Some(out.to_path_buf()), ..RunOptions::default() };
    change(&mut options);
    fs::create_dir_all(out).unwrap();
    Run::new(&CpuEngine::<f32>::new(), recipe(steps, private), options)
}

fn bytes(out: &Path) -> Vec<u8> {
    fs::read(out.join("model.safetensors")).unwrap()
}

#[test]
fn a_resumed_run_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for private in [true, false] {
        let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
        let seeded = |o: &mut RunOptions| o.seed = Some(5);
        run(&whole, 5, private, seeded).unwrap().train(|_| true).unwrap();
        let mut first = run(&parts, 5, private, seeded).unwrap();
        let stopped = first.train(|record| record.step < 2);
        assert!(matches!(stopped, Err(Error::Interrupted(_))) && first.step() == 2);
        drop(first);
        assert_ne!(bytes(&whole), bytes(&parts));
        for stop in [3, 5] {
            let mut more = run(&parts, 5, private, |o| o.resume = true).unwrap();
            let _ = more.train(|record| record.step < stop);
        }
        assert!(bytes(&whole) == bytes(&parts), "private: {private}");
        let lines = fs::read_to_string(parts.join("metrics.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 5, "{lines}");
        assert_eq!(lines.contains("loss"), !private, "a private run logs no loss");
        fs::remove_dir_all(&whole).unwrap();
        fs::remove_dir_all(&parts).unwrap();
    }
}

#[test]
fn another_recipe_or_other_data_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut first = run(&out, 3, true, |_| ()).unwrap();
    let _ = first.train(|record| record.step < 1);
    let refused = run(&out, 4, true, |o| o.resume = true).err().expect("another recipe").to_string();
    assert!(refused.contains("recipe") && refused.contains("noise"), "{refused}");
    fs::remove_file(out.join("state/key")).unwrap();
    assert!(run(&out, 3, true, |o| o.resume = true).is_err());
    assert!(run(&folder.path().join("none"), 3, true, |o| o.resume = true).is_err());
}

#[test]
fn nothing_that_leaves_the_run_holds_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut r = run(&out, 2, true, |_| ()).unwrap();
    r.train(|_| true).unwrap();
    let key = fs::read(out.join("state/key")).unwrap();
    assert_eq!(key.len(), 32);
    let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
    let mut files: Vec<PathBuf> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.is_file());
    assert!(files.len() >= 4, "{files:?}");
    for file in files.iter().chain([&out.join("state/state.safetensors")]) {
        let content = fs::read(file).unwrap();
        assert!(!content.windows(16).any(|w| w == &key[..16]), "{}", file.display());
        assert!(!String::from_utf8_lossy(&content).contains(&hex[..32]), "{}", file.display());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&out.join("state")), mode(&out.join("state/key"))), (0o700, 0o600));
    }
    let again = folder.path().join("again");
    run(&again, 2, true, |_| ()).unwrap();
    assert_ne!(fs::read(again.join("state/key")).unwrap(), key, "every run has a key of its own");
}

#[test]
fn epsilon_is_known_before_and_spent_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut r = run(folder.path(), 4, true, |_| ()).unwrap();
    let planned = r.summary().privacy.clone().unwrap();
    assert_eq!(r.spent().unwrap().unwrap().0, 0.0);
    let mut seen = Vec::new();
    r.train(|record| {
        seen.push(record.epsilon.unwrap());
        true
    })
    .unwrap();
    assert!(seen.windows(2).all(|w| w[0] < w[1]) && seen.len() == 4, "{seen:?}");
    assert!((seen[3] - planned.epsilon).abs() <= 1e-9);
    let file: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("privacy.json")).unwrap()).unwrap();
    assert_eq!((file["steps"].as_u64(), file["epsilon"].as_f64()), (Some(4), Some(seen[3])));
    assert_eq!(file["sampling_rate"].as_f64(), Some(3.0 / 1130.0));
    let picture = r.pictures(2).unwrap().expect("an autoencoder shows pictures");
    assert!(picture.width() > 200 && picture.height() > 150);
}

#[test]
fn a_public_seed_is_told_after_a_resume_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let told = |out: &Path| {
        let file: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("privacy.json")).unwrap()).unwrap();
        file["public_seed"].as_bool().unwrap()
    };
    let mut first = run(&out, 3, true, |o| o.seed = Some(5)).unwrap();
    let _ = first.train(|record| record.step < 1);
    assert!(told(&out));
    let mut more = run(&out, 3, true, |o| o.resume = true).unwrap();
    assert!(more.summary().warnings.iter().any(|w| w.contains("seed")), "{:?}", more.summary().warnings);
    more.train(|_| true).unwrap();
    assert!(told(&out));
    let secret = folder.path().join("secret");
    run(&secret, 1, true, |_| ()).unwrap().train(|_| true).unwrap();
    assert!(!told(&secret));
}

#[test]
fn a_captioner_starts_from_an_autoencoder_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let engine = CpuEngine::<f32>::new();
    let encoder = folder.path().join("encoder");
    let mut recipe = recipe(1, false);
    recipe.model.qkv_bias = false;
    fs::create_dir_all(&encoder).unwrap();
    let options = RunOptions { out: Some(encoder.clone()), ..RunOptions::default() };
    Run::new(&engine, recipe, options).unwrap().train(|_| true).unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    for private in [true, false] {
        let start = |out: &Path, resume: bool| {
            fs::create_dir_all(out).unwrap();
            let init = (!resume).then(|| encoder.join("model.safetensors"));
            let options = RunOptions {
                out: Some(out.to_path_buf()),
                init,
                seed: (!resume).then_some(3),
                resume,
                ..RunOptions::default()
            };
            Run::new(&engine, captioner(3, private), options).unwrap()
        };
        let mut run = start(&whole, false);
        assert!(
            run.summary().warnings.iter().any(|w| w.contains("start fresh")),
            "{:?}",
            run.summary().warnings
        );
        run.train(|_| true).unwrap();
        let _ = start(&parts, false).train(|record| record.step < 2);
        start(&parts, true).train(|_| true).unwrap();
        assert!(bytes(&whole) == bytes(&parts), "private: {private}");
        fs::remove_dir_all(&whole).unwrap();
        fs::remove_dir_all(&parts).unwrap();
    }
    // An encoder with biases has tensors that no captioner takes, but gives it all that it wants; one without is complete.
    let file = veilgrad::checkpoint::Checkpoint::read(&encoder.join("model.safetensors")).unwrap();
    assert!(!file.tensors.contains_key("blocks.0.attn.qkv.bias"));
}

#[test]
fn a_simulated_batch_keeps_the_noise_of_a_step() {
    let recipe = Recipe {
        train: veilgrad::train::recipe::Train { batch: 100, ..captioner(3, true).train },
        ..captioner(3, true)
    };
    let simulated = recipe.simulated(10, 0.7).unwrap();
    assert_eq!(simulated.train.batch, 10);
    assert!((simulated.privacy.as_ref().unwrap().noise_multiplier.unwrap() - 0.07).abs() <= 1e-12);
    assert_eq!(simulated.train.learning_rate, recipe.train.learning_rate);
    assert!(recipe.simulated(100, 0.7).is_err() && recipe.simulated(0, 0.7).is_err());
    assert!(captioner(3, false).simulated(1, 0.7).is_err());
}
