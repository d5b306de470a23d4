//! What people do with a captioner, as they run it: it learns two colours, names them, tells them apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(arguments)
        .args(["--device", "cpu", "--json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn error(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Red and blue images in folders of their names, each with its caption beside it.
fn images(root: &Path) {
    for (class, caption, pixel) in
        [("red", "a red square", [220, 40, 30]), ("blue", "the blue sky", [20, 60, 230u8])]
    {
        let folder = root.join(class);
        fs::create_dir_all(&folder).unwrap();
        for i in 0..8u8 {
            let pixel = image::Rgb(pixel.map(|c: u8| c.saturating_add(2 * i)));
            image::RgbImage::from_pixel(32, 32, pixel).save(folder.join(format!("{i}.png"))).unwrap();
            fs::write(folder.join(format!("{i}.txt")), caption).unwrap();
        }
    }
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_captioner_names_what_it_sees() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(folder.path().join(name));
    images(&folder.path().join("images"));
    fs::write(at("words.txt"), "a red square\nthe blue sky\n").unwrap();
    let recipe = format!(
        "[model]\nsize = \"cap-micro32\"\n[data]\npath = \"{}\"\n[text]\nlength = 6\nvocabulary = \"{}\"\n[train]\nsteps = 40\n\
         batch = 16\nphysical_batch = 16\nlearning_rate = 1e-3\nwarmup = 5\nschedule = \"warmup-cosine\"\n",
        at("images"),
        at("words.txt")
    );
    fs::write(at("r.toml"), recipe).unwrap();
    lines(&["pretrain", &at("r.toml"), "--out", &at("run"), "--seed", "1"]);
    let model = at("run/model.safetensors");
    let (red, blue) = (at("images/red/0.png"), at("images/blue/0.png"));

    fs::write(at("broken.png"), b"no image").unwrap();
    let written = lines(&["caption", &model, &red, &at("broken.png"), &blue]);
    let captions: Vec<&str> = written.iter().map(|w| w["caption"].as_str().unwrap()).collect();
    assert_eq!(captions, ["a red square", "the blue sky"]);
    let beams = lines(&["caption", &model, &blue, "--beams", "3"]);
    assert_eq!(beams[0]["caption"], "the blue sky");
    assert!(beams[0]["captions"].as_array().unwrap().len() > 1);

    let labels = at("labels.txt");
    fs::write(&labels, "red, a red square\nblue, the blue sky, sky\n").unwrap();
    for method in ["likelihood", "trie"] {
        let found = lines(&["classify", &model, &blue, "--labels", &labels, "--method", method]);
        assert_eq!(found[0]["class"], "blue", "{method}");
        let eval = ["classify", &model, "--eval", &at("images"), "--labels", &labels, "--method", method];
        let result = &lines(&eval)[0];
        assert_eq!((result["top1"].as_f64(), result["examples"].as_u64()), (Some(1.0), Some(16)), "{result}");
    }
    let one = error(&["classify", &model, &red, "--labels", "zebra,giraffe"]);
    assert!(one.contains("zebra") && one.contains("synonym"), "{one}");
    assert!(
        error(&["classify", &model, "--eval", &at("images"), "--labels", "a,red,sky"]).contains("classes")
    );

    let questions = "{\"image\": \"images/red/1.png\", \"captions\": [\"a red square\", \"square red a\"]}\n\
                     {\"image\": \"images/blue/1.png\", \"captions\": [\"the blue sky\", \"a red square\", \"sky blue the\"]}\n";
    fs::write(at("questions.jsonl"), questions).unwrap();
    let answers = lines(&["order", &model, "--captions", &at("questions.jsonl")]);
    let last = answers.last().unwrap();
    assert_eq!((last["accuracy"].as_f64(), last["questions"].as_u64()), (Some(1.0), Some(2)), "{last}");
    fs::write(at("bad.jsonl"), "{\"image\": \"a.png\", \"caption\": 3}\n").unwrap();
    assert!(error(&["order", &model, "--captions", &at("bad.jsonl")]).contains("line 1"));

    let out = at("f.safetensors");
    let rows = lines(&["features", &model, &at("images"), "--out", &out]);
    assert_eq!((rows[0]["rows"].as_u64(), rows[0]["width"].as_u64()), (Some(16), Some(128)));
    let file = veilgrad::checkpoint::Checkpoint::read(Path::new(&out)).unwrap();
    assert_eq!(file.tensors["features"].shape, [16, 128].into());
    assert_eq!(file.tensors["class"].values.iter().filter(|c| **c == 1.0).count(), 8);
    let npy = lines(&["features", &model, &at("images"), "--out", &at("f.npy"), "--kind", "blocks"]);
    assert_eq!(npy[0]["width"].as_u64(), Some(6 * 128));
    assert_eq!(fs::metadata(at("f.npy")).unwrap().len(), 128 + 4 * 16 * 768);
    assert!(error(&["features", &model, &at("images"), "--out", &at("f.csv")]).contains(".npy"));

    let few = ["fewshot", &model, "--train", &at("images"), "--test", &at("images"), "--shots", "1,2"];
    let result = &lines(&few)[0];
    assert_eq!(result["shots"][1]["mean"].as_f64(), Some(1.0), "{result}");
    let many = ["fewshot", &model, "--train", &at("images"), "--test", &at("images"), "--shots", "9"];
    assert!(error(&many).contains("8 training images only"));
}

#[test]
fn a_simulation_says_that_it_is_not_private() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(folder.path().join(name));
    images(&folder.path().join("images"));
    let recipe = format!(
        "[model]\nsize = \"cap-micro32\"\n[data]\npath = \"{}\"\n[text]\nlength = 6\nvocabulary = \"{}\"\n[train]\nsteps = 1\n\
         batch = 8\nphysical_batch = 4\nlearning_rate = 1e-3\n[privacy]\nclipping_norm = 1.0\nnoise_multiplier = 2.0\n",
        at("images"),
        at("words.txt")
    );
    fs::write(at("words.txt"), "a red square\n").unwrap();
    fs::write(at("r.toml"), recipe).unwrap();
    let told = &lines(&["pretrain", &at("r.toml"), "--out", &at("run"), "--simulate-batch", "2"])[0];
    assert_eq!(told["privacy"]["noise_multiplier"].as_f64(), Some(0.5), "{told}");
    let notes = told["warnings"].to_string();
    assert!(notes.contains("simulation of batch 8") && notes.contains("NOT private"), "{notes}");
    assert!(
        error(&["pretrain", &at("r.toml"), "--out", &at("x"), "--simulate-batch", "8"]).contains("below")
    );
}
