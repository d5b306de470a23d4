//! Published weights in and out: kinds, faults, other sides and lengths, the commands, and hostile safetensors files.

use std::path::{Path, PathBuf};
use std::process::Command;

use veilgrad::Error;
use veilgrad::checkpoint::import::{ImportOptions, Imported, import};
use veilgrad::checkpoint::kind::{Kind, describe};
use veilgrad::checkpoint::{Checkpoint, Tensor, export, pytorch, resize};
use veilgrad::graph::ParamSpec;
use veilgrad::model::captioner::{self, CaptionerConfig};
use veilgrad::model::mae::{self, MaeConfig};
use veilgrad::model::positions::{table_1d, table_2d};
use veilgrad::shape::Shape;

fn filled(file: &mut Checkpoint, name: &str, shape: Shape) {
    let seed = file.tensors.len() as f32;
    let values = (0..shape.len()).map(|i| (seed + i as f32).sin()).collect();
    file.tensors.insert(name.into(), Tensor { shape, values });
}

fn of_params(params: &[ParamSpec]) -> Checkpoint {
    let mut file = Checkpoint::default();
    params.iter().for_each(|p| filled(&mut file, &p.name, p.shape.clone()));
    file
}

fn small_mae() -> Checkpoint {
    let config = MaeConfig { image: 32, ..MaeConfig::preset("micro32").unwrap() };
    of_params(mae::training_graph(&config, 1).unwrap().graph.params())
}

fn small_encoder() -> Checkpoint {
    of_params(mae::encoder_graph(&MaeConfig::preset("micro32").unwrap(), 1).unwrap().graph.params())
}

/// A captioner of 50 words with all tensors of a published file.
fn small_captioner() -> Checkpoint {
    let config = CaptionerConfig { vocabulary: 50, ..CaptionerConfig::preset("cap-micro32").unwrap() };
    let mut file = of_params(captioner::training_graph(&config, 1).unwrap().graph.params());
    config.unused_tensors().into_iter().for_each(|(name, shape)| filled(&mut file, &name, shape));
    for (name, width) in [("text_pos_embed", config.width), ("text_decoder_pos_embed", config.decoder_width)]
    {
        file.tensors.get_mut(name).unwrap().values = table_1d(config.length, width);
    }
    file
}

/// A file of these weights in a folder of its own.
fn stored(file: &Checkpoint) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pth");
    export::write(file, &path).unwrap();
    (folder, path)
}

fn imported(file: &Checkpoint, options: &ImportOptions) -> Result<(Checkpoint, Imported), Error> {
    let (_folder, path) = stored(file);
    import(&path, options)
}

/// The message of a refused import.
fn refused(file: &Checkpoint, options: &ImportOptions) -> String {
    imported(file, options).expect_err("must be refused").to_string()
}

#[test]
fn kinds_are_told_by_their_names() {
    let mut classifier = small_encoder();
    filled(&mut classifier, "head.weight", [10, 128].into());
    filled(&mut classifier, "head.bias", [10].into());
    filled(&mut classifier, "fc_norm.weight", [128].into());
    let mut probe = small_encoder();
    for (name, shape) in [
        ("head.0.running_mean", [768].into()),
        ("head.0.running_var", [768].into()),
        ("head.0.num_batches_tracked", Shape::default()),
        ("head.1.weight", [9, 768].into()),
        ("head.1.bias", [9].into()),
    ] {
        filled(&mut probe, name, shape);
    }
    let mut head = probe.clone();
    head.tensors.retain(|name, _| name.starts_with("head."));
    for (file, kind, model, image) in [
        (small_mae(), Kind::Mae, Some("micro32"), 32),
        (small_encoder(), Kind::Encoder, Some("micro32"), 32),
        (classifier, Kind::Classifier, Some("micro32"), 32),
        (probe, Kind::Probe, Some("micro32"), 32),
        (head, Kind::Probe, None, 0),
        (small_captioner(), Kind::Captioner, Some("cap-micro32"), 32),
    ] {
        let found = describe(&file.tensors).unwrap();
        assert_eq!((found.kind, found.model.as_deref(), found.image), (kind, model, image));
        assert!(
            found.missing.is_empty() && found.unexpected.is_empty() && found.misshaped.is_empty(),
            "{found:?}"
        );
    }
    let error = describe(&[("w".into(), small_mae().tensors["mask_token"].clone())].into()).unwrap_err();
    assert!(error.to_string().contains("no masked autoencoder"), "{error}");
}

#[test]
fn published_files_have_all_their_tensors() {
    // Shapes alone matter: the values are one small tensor's.
    let config = CaptionerConfig { length: 77, ..CaptionerConfig::preset("cap-tiny").unwrap() };
    let params = captioner::training_graph(&config, 1).unwrap().graph.params().to_vec();
    let published = params.into_iter().map(|p| (p.name, p.shape)).chain(config.unused_tensors());
    let file = published.map(|(name, shape)| (name, Tensor { shape, values: vec![0.0] })).collect();
    let found = describe(&file).unwrap();
    assert_eq!((file.len(), found.model.as_deref(), found.caption_length), (238, Some("cap-tiny"), Some(77)));
    assert!(
        found.missing.is_empty() && found.unexpected.is_empty() && found.misshaped.is_empty(),
        "{found:?}"
    );

    let config = CaptionerConfig::preset("cap-base-biased").unwrap();
    let params = captioner::training_graph(&config, 1).unwrap().graph.params().to_vec();
    let file = params.into_iter().map(|p| (p.name, Tensor { shape: p.shape, values: vec![0.0] })).collect();
    let found = describe(&file).unwrap();
    assert_eq!((found.kind, found.model.as_deref()), (Kind::CaptionerBiased, Some("cap-base-biased")));
    assert!(found.missing.is_empty(), "what no computation reads may be missing: {found:?}");
}

#[test]
fn faults_are_listed_by_name() {
    let whole = small_mae();
    let mut broken = whole.clone();
    broken.tensors.remove("blocks.3.mlp.fc1.bias");
    broken.tensors.remove("decoder_norm.weight");
    filled(&mut broken, "blocks.2.attn.proj.weight", [128, 127].into());
    let message = refused(&broken, &ImportOptions::default());
    for part in [
        "missing: blocks.3.mlp.fc1.bias, decoder_norm.weight",
        "blocks.2.attn.proj.weight is (128, 127), must be (128, 128)",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let mut more = whole.clone();
    filled(&mut more, "teacher.weight", [2].into());
    let (file, report) = imported(&more, &ImportOptions::default()).unwrap();
    assert_eq!(report.description.unexpected, ["teacher.weight"]);
    assert_eq!(file.tensors, whole.tensors);
    assert_eq!(file.metadata["model"], "micro32");

    let mut gone = whole.clone();
    gone.tensors.retain(|name, _| name.starts_with("blocks.") || name.starts_with("patch_embed."));
    assert!(refused(&gone, &ImportOptions::default()).contains("pos_embed"));
    // Sizes that would make a huge model before anything is compared.
    for (name, shape) in [
        ("pos_embed", [1, 1 << 40, 0]),
        ("pos_embed", [1, 100 * 100 + 1, 1]),
        ("cls_token", [1, 1, 1 << 16]),
        ("decoder_pos_embed", [1, 66, 64]),
    ] {
        let mut huge = whole.clone();
        filled(&mut huge, name, shape.into());
        let message = refused(&huge, &ImportOptions::default());
        assert!(message.contains("pos_embed"), "{message}");
    }
    let mut numbered = whole.clone();
    filled(&mut numbered, "blocks.4000000000.norm1.weight", [1].into());
    assert_eq!(imported(&numbered, &ImportOptions::default()).unwrap().1.description.unexpected.len(), 1);
}

#[test]
fn tables_are_interpolated_as_by_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch/tables.safetensors");
    let file = Checkpoint::read(&path).unwrap();
    let mut seen = 0;
    for (name, table) in &file.tensors {
        let Some(sizes) = name.strip_prefix("from.") else { continue };
        let want = &file.tensors[&format!("to.{sizes}")];
        let grid = sizes.split_once('.').unwrap().1.parse().unwrap();
        let got = resize::positions(table, grid).unwrap();
        assert_eq!(got.shape, want.shape);
        assert_eq!(got.values[..4], table.values[..4], "the class token's row");
        for (a, b) in got.values.iter().zip(&want.values) {
            assert!((a - b).abs() <= 2e-6, "{name}: {a} {b}");
        }
        seen += 1;
    }
    assert_eq!(seen, 6);
}

#[test]
fn other_sides_and_lengths() {
    let whole = small_captioner();
    let options = ImportOptions { resolution: Some(48), caption_length: Some(40), allow_nan: false };
    let (file, report) = imported(&whole, &options).unwrap();
    assert_eq!(report.resized.len(), 4, "{:?}", report.resized);
    assert_eq!((report.description.image, report.description.caption_length), (48, Some(40)));
    for name in ["pos_embed", "decoder_pos_embed"] {
        assert_eq!(file.tensors[name].shape.dims(), [1, 145, 128]);
    }
    assert_eq!(file.tensors["text_decoder_pos_embed"].values, table_1d(40, 128));
    let again = describe(&file.tensors).unwrap();
    assert!(again.missing.is_empty() && again.misshaped.is_empty() && again.unexpected.is_empty());
    assert_eq!(again.model.as_deref(), Some("cap-micro32"));

    let shorter = ImportOptions { caption_length: Some(8), ..ImportOptions::default() };
    assert_eq!(imported(&whole, &shorter).unwrap().0.tensors["text_pos_embed"].values, table_1d(8, 128));
    // A smooth table stays close to the one made for the new side.
    let smooth = Tensor { shape: [1, 197, 64].into(), values: table_2d(14, 64) };
    let same = resize::positions(&smooth, 14).unwrap();
    assert_eq!(same, smooth);

    for (options, says) in [
        (
            ImportOptions { resolution: Some(30), ..options },
            "resolution = 30: must be 1 to 64 times the patch side 4",
        ),
        (ImportOptions { resolution: Some(0), ..options }, "resolution = 0"),
        (ImportOptions { resolution: Some(1 << 40), ..options }, "resolution"),
        (ImportOptions { caption_length: Some(129), ..options }, "2 to 128"),
        (ImportOptions { caption_length: Some(1), ..options }, "2 to 128"),
    ] {
        let message = refused(&whole, &options);
        assert!(message.contains(says), "{message}");
    }
    let longer = ImportOptions { caption_length: Some(25), ..ImportOptions::default() };
    assert!(
        refused(&small_mae(), &longer).contains("is for captioners, this is of a ViP masked autoencoder")
    );
    let mut trained = whole.clone();
    trained.tensors.get_mut("text_decoder_pos_embed").unwrap().values[700] += 0.5;
    assert!(refused(&trained, &longer).contains("no table of sines and cosines"));
}

#[test]
fn what_is_exported_is_imported() {
    let mut file = small_captioner();
    file.metadata.insert("model".into(), "cap-micro32".into());
    file.metadata.insert("vocabulary".into(), "[0,100]".into());
    let (_folder, path) = stored(&file);
    let (back, report) = import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(back, file);
    assert!(report.ignored.is_empty());
    // Scalars and empty tensors too.
    let mut odd = Checkpoint::default();
    filled(&mut odd, "scalar", Shape::default());
    filled(&mut odd, "empty", [0, 3].into());
    filled(&mut odd, "näme", [2, 1, 3].into());
    let (_folder, path) = stored(&odd);
    assert_eq!(pytorch::read(&path, false).unwrap().tensors, odd.tensors);
    let bytes = std::fs::read(&path).unwrap();
    export::write(&odd, &path).unwrap();
    assert!(bytes == std::fs::read(&path).unwrap(), "the same bytes twice");
}

#[test]
fn weights_that_are_not_finite_need_a_word() {
    let mut file = small_mae();
    file.tensors.get_mut("norm.bias").unwrap().values[5] = f32::INFINITY;
    let message = refused(&file, &ImportOptions::default());
    assert!(message.contains("norm.bias[5] is inf"), "{message}");
    assert!(imported(&file, &ImportOptions { allow_nan: true, ..ImportOptions::default() }).is_ok());
}

/// A safetensors file of this header and so many bytes.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn hostile_safetensors_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let tensor = |name: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{from},{to}]}}"#)
    };
    let good = safetensors(&format!("{{{},{}}}", tensor("a", 0, 8), tensor("b", 8, 16)), 16);
    std::fs::write(&path, &good).unwrap();
    assert_eq!(Checkpoint::read(&path).unwrap().tensors.len(), 2);
    let claimed = |n: u64| [&n.to_le_bytes()[..], &good[8..]].concat();
    let shape = r#"{"a":{"dtype":"F32","shape":[1152921504606846976,16],"data_offsets":[0,8]}}"#;
    for (bytes, says) in [
        (safetensors(&format!("{{{},{}}}", tensor("a", 0, 8), tensor("a", 8, 16)), 16), "a is there twice"),
        (
            safetensors(&format!("{{{},{}}}", tensor("a", 0, 8), tensor("b", 4, 12)), 12),
            "no safetensors file",
        ),
        (safetensors(&format!("{{{},{}}}", tensor("a", 0, 8), tensor("b", 0, 8)), 8), "no safetensors file"),
        (safetensors(&format!("{{{}}}", tensor("a", 8, 16)), 16), "no safetensors file"),
        (safetensors(&format!("{{{}}}", tensor("a", 0, 1 << 60)), 8), "no safetensors file"),
        (safetensors(shape, 8), "no safetensors file"),
        (safetensors("[1]", 0), "no safetensors file"),
        (safetensors(&"[".repeat(100_000), 0), "no safetensors file"),
        (claimed(1 << 60), "cut off"),
        (claimed(u64::MAX), "cut off"),
        (good[..7].to_vec(), "cut off"),
        (good[..good.len() - 1].to_vec(), "no safetensors file"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = Checkpoint::read(&path).unwrap_err().to_string();
        assert!(message.contains(says), "{message}\n  does not say: {says}");
    }
}

#[test]
fn the_commands_import_and_export() {
    let (folder, path) = stored(&small_captioner());
    let run = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let name = path.file_name().unwrap().to_str().unwrap();
    let (ok, text, _) = run(&["import", name, "--out", "a.safetensors", "--resolution", "64"]);
    assert!(ok);
    for part in [
        "DP-Cap captioner (cap-micro32), 64 px, patch 4, captions of 24 tokens",
        "pos_embed (1, 65, 128) to (1, 257, 128)",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (ok, text, _) = run(&["export", "a.safetensors", "--out", "b.pth", "--json"]);
    assert!(ok && text.contains("\"out\":\"b.pth\""), "{text}");
    let (ok, text, _) =
        run(&["import", "b.pth", "--out", "c.safetensors", "--caption-length", "12", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(ok);
    assert_eq!(report["import"]["kind"], "captioner");
    assert_eq!(report["import"]["image"], 64);
    assert_eq!(report["import"]["caption_length"], 12);
    let (ok, _, error) = run(&["import", "a.safetensors", "--out", "d.safetensors", "--resolution", "7"]);
    assert!(!ok && error.contains("resolution = 7"), "{error}");
    let (ok, _, error) = run(&["import", "none.pth", "--out", "d.safetensors"]);
    assert!(!ok && error.contains("none.pth"), "{error}");
    assert!(!folder.path().join("d.safetensors").exists());
}
