//! Sources, decoding and loading, on good, odd, broken and hostile files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use veilgrad::data::augment::{Augment, Transform};
use veilgrad::data::decode::decode;
use veilgrad::data::loader::{Prefetch, in_order};
use veilgrad::data::{self, Source};
use veilgrad::rng::Key;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn png(w: u32, h: u32, value: u8) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(w, h, image::Rgb([value, 0, 255 - value]))
        .write_to(&mut out, image::ImageFormat::Png)
        .unwrap();
    out.into_inner()
}

fn shard(path: &Path, members: &[(&str, &[u8])]) {
    let mut tar = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.finish().unwrap();
}

#[test]
fn hostile_files_never_panic() {
    let manifest = fs::read_to_string(root("tests/fixtures/robust/MANIFEST.tsv")).unwrap();
    let (mut good, mut bad) = (0, 0);
    for line in manifest.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        let (file, expected) = (cells[0], cells[5]);
        let result = decode(&fs::read(root("tests/fixtures/robust").join(file)).unwrap());
        match &result {
            Ok(image) => {
                assert!(expected.starts_with("OK"), "{file}: decoded, expected {expected}");
                assert!(image.width() > 0 && image.height() > 0);
                good += 1;
            }
            Err(what) => {
                assert!(
                    !what.is_empty() && !expected.starts_with("OK"),
                    "{file}: {what}, expected {expected}"
                );
                bad += 1;
            }
        }
    }
    assert!(good >= 15 && bad >= 3 && good + bad >= 30, "{good} good, {bad} bad");
    for bytes in [&b""[..], b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBP", &[0; 100]]
    {
        assert!(decode(bytes).is_err());
    }
}

#[test]
fn orientation_is_applied() {
    let read = |name: &str| decode(&fs::read(root("tests/fixtures/robust").join(name)).unwrap()).unwrap();
    let upright = read("pillow__hopper.jpg");
    for name in ["3", "5", "8"] {
        let turned = read(&format!("pillow__hopper_orientation_{name}.jpg"));
        let small = |image: &image::RgbImage| {
            let t = image::imageops::resize(image, 8, 8, image::imageops::FilterType::Triangle);
            t.into_raw().into_iter().map(f64::from).collect::<Vec<_>>()
        };
        let (a, b) = (small(&upright), small(&turned));
        let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f64>() / a.len() as f64;
        assert!(error <= 12.0, "orientation {name}: {error}");
    }
}

#[test]
fn the_shipped_shards_are_whole() {
    for (name, count) in [("train", 4550), ("test", 1130)] {
        let source = data::open(&root(&format!("assets/emoji32/{name}-00000.tar"))).unwrap();
        assert_eq!((source.len(), source.classes().len(), source.warnings().len()), (count, 9, 0));
        for index in [0, 1, count / 2, count - 1] {
            let record = source.record(index).unwrap();
            assert_eq!(decode(&record.image).unwrap().dimensions(), (32, 32));
            assert!(record.class.unwrap() < 9 && !record.caption.unwrap().is_empty(), "{}", record.name);
        }
    }
}

#[test]
fn shards_group_by_stem_and_survive_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a-000.tar");
    let (red, blue) = (png(4, 4, 255), png(4, 4, 0));
    shard(
        &path,
        &[
            ("x/one.two.txt", b"not mine"),
            ("x/one.png", &red),
            ("no-image.txt", b"alone"),
            ("\u{fc}ber.cls", b" 3\n"),
            ("\u{fc}ber.png", &blue),
            ("\u{fc}ber.txt", b"caption"),
        ],
    );
    let source = data::open(&path).unwrap();
    assert_eq!(source.len(), 2);
    assert!(source.warnings()[0].contains("no-image"), "{:?}", source.warnings());
    let record = source.record(1).unwrap();
    assert_eq!((record.class, record.caption.as_deref()), (Some(3), Some("caption")));
    assert_eq!(record.image, blue);
    assert_eq!(source.record(0).unwrap().image, red);

    let whole = fs::read(&path).unwrap();
    let before = source.fingerprint();
    for cut in [whole.len() - 1600, 3000, 700, 100] {
        fs::write(&path, &whole[..cut]).unwrap();
        match data::open(&path) {
            Ok(source) => {
                assert!(source.len() < 2 || cut > 3000);
                assert_ne!(source.fingerprint(), before);
                assert!(!source.warnings().is_empty());
                (0..source.len()).for_each(|i| assert!(!source.record(i).unwrap().image.is_empty()));
            }
            Err(e) => assert!(e.to_string().contains("a-000.tar"), "{e}"),
        }
    }
    fs::write(&path, [0xab; 5000]).unwrap();
    assert!(data::open(&path).is_err());
    fs::write(&path, b"").unwrap();
    assert!(data::open(&path).is_err());
}

#[test]
fn braces_folders_and_missing_paths() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..3 {
        shard(&folder.path().join(format!("s-{i:03}.tar")), &[(&format!("{i}.png"), &png(3, 3, i as u8))]);
    }
    assert_eq!(data::open(&folder.path().join("s-{000..002}.tar")).unwrap().len(), 3);
    assert_eq!(data::open(folder.path()).unwrap().len(), 3);
    assert!(data::open(&folder.path().join("s-{000..003}.tar")).is_err());
    assert!(data::open(&folder.path().join("s-{5..1}.tar")).is_err());
    assert!(data::open(&folder.path().join("none")).is_err());
    let images = folder.path().join("images");
    for class in ["cat", "dog"] {
        fs::create_dir_all(images.join(class)).unwrap();
        fs::write(images.join(class).join("a.png"), png(5, 6, 9)).unwrap();
    }
    fs::write(images.join("dog/notes.md"), b"").unwrap();
    let source = data::open(&images).unwrap();
    assert_eq!((source.len(), source.classes()), (2, &["cat".to_owned(), "dog".to_owned()][..]));
    assert_eq!(source.record(1).unwrap().class, Some(1));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(data::open(&folder.path().join("empty")).is_err());
}

#[test]
fn loading_skips_what_cannot_be_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    shard(&path, &[("0.png", &png(8, 8, 10)), ("1.png", b"broken"), ("2.png", &png(9, 4, 200))]);
    let source: Arc<dyn Source> = data::open(&path).unwrap().into();
    let load = |threads: usize| {
        let transform = Transform::Augmented(Augment::PRETRAIN, Key::from_seed(1));
        let mut loader = Prefetch::new(source.clone(), transform, 8, threads, in_order(3, 2, 7)).unwrap();
        let batches: Vec<_> = std::iter::from_fn(|| loader.next_batch().unwrap()).collect();
        (batches, loader.report())
    };
    let (batches, report) = load(1);
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[0].weights, [1.0, 0.0]);
    assert_eq!(batches[1].weights, [1.0, 0.0]);
    assert!(batches[1].job.last && batches[1].job.indices == [Some(2), None]);
    assert!(batches[0].images[3 * 64..].iter().all(|x| *x == 0.0));
    assert!(report.failed == 1 && report.named[0].contains("a.tar/1"), "{report:?}");
    let (again, _) = load(3);
    assert!(batches.iter().zip(&again).all(|(a, b)| a.images == b.images));
    // Dropping a loader that nobody drained stops it.
    drop(Prefetch::new(source.clone(), Transform::Centre, 8, 2, in_order(1 << 40, 2, 0)).unwrap());
}

/// A source whose third record panics, as a faulty decoder or an embedder's own source may.
struct Faulty;

impl Source for Faulty {
    fn len(&self) -> u64 {
        6
    }

    fn record(&self, index: u64) -> veilgrad::Result<data::Record> {
        assert!(index != 2, "a fault of the source");
        Ok(data::Record { image: png(4, 4, 9), ..data::Record::default() })
    }

    fn classes(&self) -> &[String] {
        &[]
    }

    fn describe(&self) -> String {
        "faulty".into()
    }

    fn fingerprint(&self) -> u64 {
        0
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

#[test]
fn a_failing_loader_does_not_look_like_the_end() {
    let mut loader = Prefetch::new(Arc::new(Faulty), Transform::Centre, 4, 1, in_order(6, 2, 0)).unwrap();
    assert!(loader.next_batch().unwrap().is_some());
    assert!(loader.next_batch().unwrap_err().to_string().contains("loader"));
    let mut whole = Prefetch::new(Arc::new(Faulty), Transform::Centre, 4, 1, in_order(2, 2, 0)).unwrap();
    assert!(whole.next_batch().unwrap().is_some() && whole.next_batch().unwrap().is_none());
}
