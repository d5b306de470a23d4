//! The command as a user runs it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn veilgrad(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn run(arguments: &[&str]) -> Output {
    veilgrad(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_explains_itself() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for command in [
        "devices",
        "pretrain",
        "probe",
        "caption",
        "classify",
        "features",
        "fewshot",
        "order",
        "budget",
        "synthetic",
        "check",
        "bench",
        "demo",
    ] {
        assert!(help.contains(command), "{command}");
        let own = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        assert!(own.len() > 200, "{command}");
    }
}

#[test]
fn devices_say_what_auto_takes() {
    let found = json(&["devices", "--json"]);
    assert!(found["cpu"].as_str().unwrap().contains("cpu") && found["why"].as_str().unwrap().len() > 5);
    let lavapipe = found["adapters"].as_array().unwrap().iter().any(|a| a["kind"] == "software");
    assert!(lavapipe, "the tests need lavapipe: {found}");
    assert!(error(&["bench", "step", "--device", "no such adapter"]).contains("no such adapter"));
}

#[test]
fn budgets() {
    let published = [
        "budget",
        "--examples",
        "233804767",
        "--batch",
        "98304",
        "--steps",
        "6000",
        "--noise-multiplier",
        "0.48",
        "--accountant",
        "rdp-vip",
        "--json",
    ];
    let epsilon = json(&published)["epsilon"].as_f64().unwrap();
    assert!((epsilon - 7.988).abs() <= 1e-3, "{epsilon}");
    let solve = [
        "budget",
        "--sampling-rate",
        "0.01",
        "--steps",
        "1000",
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--json",
    ];
    let solved = json(&solve);
    let epsilon = solved["epsilon"].as_f64().unwrap();
    assert!(epsilon <= 2.0 && epsilon > 1.99, "{solved}");
    assert!(error(&["budget", "--sampling-rate", "0.01", "--delta", "1e-5"]).contains("--steps"));
    assert!(
        error(&[
            "budget",
            "--sampling-rate",
            "1.5",
            "--steps",
            "1",
            "--noise-multiplier",
            "1",
            "--delta",
            "1e-5"
        ])
        .contains("1.5")
    );
}

#[test]
fn bad_recipes_name_file_field_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, "[model]\nsize = \"micro32\"\n[data]\nsynthetic = true\n[train]\nsteps = 1\nbatch = 4\nlearning_rat = 1\n").unwrap();
    let message = error(&["pretrain", path.to_str().unwrap()]);
    assert!(message.contains("r.toml") && message.contains("did you mean `learning_rate`"), "{message}");
    assert!(error(&["pretrain", "none.toml"]).contains("none.toml"));
    assert!(error(&["probe", path.to_str().unwrap(), "--train", "x", "--test", "y"]).contains("safetensors"));
}

#[test]
fn shipped_recipes_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/recipes");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        veilgrad::train::recipe::Recipe::read(&path).unwrap_or_else(|e| panic!("{e}"));
        seen += 1;
    }
    assert!(seen >= 8, "{seen}");
}

fn pretrain(recipe: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = veilgrad(&["pretrain", recipe.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    command.args(["--device", "cpu", "--json"]).args(more);
    command
}

/// Killed (SIGKILL) at several moments, a run resumed to its end gives the bytes of one that was not.
#[test]
fn a_killed_run_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("r.toml");
    let text = "[model]\nsize = \"micro32\"\n[data]\npath = \"assets/emoji32/test-00000.tar\"\n[train]\nsteps = 12\nbatch = 4\n\
                physical_batch = 4\nlearning_rate = 1e-3\ncheckpoint_seconds = 0\n[privacy]\nclipping_norm = 0.1\nnoise_multiplier = 1.0\n";
    fs::write(&recipe, text).unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let output = pretrain(&recipe, &whole, &["--seed", "3"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut more: Vec<&str> = vec!["--seed", "3"];
    for lines in [2, 4, 3] {
        let mut child =
            pretrain(&recipe, &parts, &more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(out.lines().take(lines).count(), lines, "the run prints a line a step");
        child.kill().unwrap();
        child.wait().unwrap();
        more = vec!["--resume"];
    }
    let output = pretrain(&recipe, &parts, &more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = |out: &Path| fs::read(out.join("model.safetensors")).unwrap();
    assert!(bytes(&whole) == bytes(&parts));
    for name in ["privacy.json", "metrics.jsonl", "recipe.toml", "reconstructions.png", "report.html"] {
        assert!(parts.join(name).exists(), "{name}");
    }
    assert_eq!(fs::read_to_string(parts.join("metrics.jsonl")).unwrap().lines().count(), 12);
}

#[test]
fn probes_and_sheets() {
    let folder = tempfile::tempdir().unwrap();
    let sheet = folder.path().join("sheet.png");
    let arguments = [
        "synthetic",
        "--size",
        "16",
        "--columns",
        "3",
        "--device",
        "cpu",
        "--out",
        sheet.to_str().unwrap(),
        "--json",
    ];
    assert!(json(&arguments)["families"].as_u64().unwrap() >= 12);
    assert!(image::open(&sheet).unwrap().width() > 3 * 16);

    // Two classes that differ in colour: any features tell them apart.
    for set in ["train", "test"] {
        for (class, red) in [("red", 220u8), ("blue", 20)] {
            let path = folder.path().join(set).join(class);
            fs::create_dir_all(&path).unwrap();
            for i in 0..12u8 {
                let pixel = image::Rgb([red.saturating_add(i), 90 + i, 240 - red]);
                image::RgbImage::from_pixel(32, 32, pixel).save(path.join(format!("{i}.png"))).unwrap();
            }
        }
    }
    let recipe = folder.path().join("r.toml");
    fs::write(&recipe, "[model]\nsize = \"micro32\"\n[data]\nsynthetic = true\n[train]\nsteps = 1\nbatch = 4\nphysical_batch = 4\nlearning_rate = 1e-4\n").unwrap();
    let out = folder.path().join("run");
    assert!(pretrain(&recipe, &out, &[]).output().unwrap().status.success());
    let (model, train, test) =
        (out.join("model.safetensors"), folder.path().join("train"), folder.path().join("test"));
    let paths = [&model, &train, &test].map(|p| p.to_str().unwrap());
    let result = json(&[
        "probe", paths[0], "--train", paths[1], "--test", paths[2], "--device", "cpu", "--batch", "8",
        "--json",
    ]);
    assert!(result["top1"].as_f64().unwrap() > 0.9, "{result}");
}
