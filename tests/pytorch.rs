//! Files of PyTorch: what `torch.save` wrote (scripts/pytorch_fixtures.py) and what nobody should.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use proptest::prelude::*;
use veilgrad::Error;
use veilgrad::checkpoint::Checkpoint;
use veilgrad::checkpoint::pytorch::{self, PyTorchFile};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch").join(name)
}

/// A container with these members.
fn container(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A container with this pickle and a storage `0` of four floats.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    let floats: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    container(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", &floats)])
}

fn short(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

fn long(n: u64) -> Vec<u8> {
    [&[0x8a, 9][..], &n.to_le_bytes(), &[0]].concat()
}

fn int(n: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &n.to_le_bytes()].concat()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".to_vec(), items.concat(), b"t".to_vec()].concat()
}

/// A tensor's instructions.
fn tensor(key: &str, len: Vec<u8>, offset: Vec<u8>, size: &[Vec<u8>], stride: &[Vec<u8>]) -> Vec<u8> {
    let class = b"ctorch\nFloatStorage\n".to_vec();
    let storage = [tuple(&[short("storage"), class, short(key), short("cpu"), len]), b"Q".to_vec()].concat();
    let hooks = b"ccollections\nOrderedDict\n)R".to_vec();
    let arguments = tuple(&[storage, offset, tuple(size), tuple(stride), vec![0x89], hooks]);
    [b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), arguments, b"R".to_vec()].concat()
}

/// A state dict of these entries.
fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items: Vec<u8> =
        entries.iter().flat_map(|(name, value)| [short(name), value.clone()].concat()).collect();
    [b"\x80\x04}(".to_vec(), items, b"u.".to_vec()].concat()
}

fn parse(bytes: &[u8]) -> Result<PyTorchFile, String> {
    pytorch::parse(bytes, false)
}

/// The message that refuses these bytes.
fn refused(bytes: &[u8]) -> String {
    parse(bytes).expect_err("must be refused")
}

#[track_caller]
fn assert_refused(bytes: &[u8], says: &str) {
    let message = refused(bytes);
    assert!(message.contains(says), "{message}\n  does not say: {says}");
}

#[test]
fn every_element_type_and_view_is_read() {
    let file = pytorch::read(&fixture("kinds.pth"), false).unwrap();
    let want = Checkpoint::read(&fixture("kinds.safetensors")).unwrap();
    assert_eq!(file.tensors.keys().collect::<Vec<_>>(), want.tensors.keys().collect::<Vec<_>>());
    for (name, tensor) in &want.tensors {
        assert_eq!(&file.tensors[name], tensor, "{name}");
    }
    assert_eq!(file.tensors["transposed"].shape.dims(), [4, 3]);
    assert_eq!(file.tensors["scalar"].shape.rank(), 0);
    assert!(file.ignored.is_empty());
}

#[test]
fn a_training_checkpoint_gives_its_model() {
    let file = pytorch::read(&fixture("training.pth"), false).unwrap();
    assert_eq!(file.ignored, ["optimizer", "epoch", "scaler", "args"]);
    assert_eq!(file.tensors, Checkpoint::read(&fixture("training.safetensors")).unwrap().tensors);
    let later = pytorch::read(&fixture("protocol4.pth"), false).unwrap();
    assert_eq!(later.tensors["w"].values, [1.0, 1.0]);
}

#[test]
fn other_files_of_pytorch_are_told_apart() {
    let says = |name: &str| match pytorch::read(&fixture(name), false) {
        Err(Error::Checkpoint { what, .. }) => what,
        other => panic!("{name}: {other:?}"),
    };
    assert!(says("legacy.pth").contains("before 1.6"));
    assert!(says("script.pth").contains("TorchScript"));
    assert!(says("tensor.pth").contains("no dict of tensors"));
    assert!(says("kinds.safetensors").contains("no ZIP container"));
    assert!(matches!(pytorch::read(&fixture("none.pth"), false), Err(Error::Io { .. })));
}

#[test]
fn code_is_refused_by_its_name() {
    for (pickle, name) in [
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.".to_vec(), "os.system"),
        (b"cposix\nsystem\n(S'true'\ntR.".to_vec(), "posix.system"),
        (b"(S'true'\nios\nsystem\n.".to_vec(), "os.system"),
        ([b"\x80\x04".to_vec(), short("os"), short("system"), b"\x93)R.".to_vec()].concat(), "os.system"),
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.".to_vec(), "builtins.eval"),
        (b"\x80\x02cbuiltins\ngetattr\n.".to_vec(), "builtins.getattr"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\n.".to_vec(), "numpy.core.multiarray.scalar"),
        (b"\x80\x02ctorch\nload\n.".to_vec(), "torch.load"),
        (b"\x80\x02ctorch.storage\n_load_from_bytes\n.".to_vec(), "torch.storage._load_from_bytes"),
        (b"\x80\x02cargparse\nArgumentParser\n)\x81.".to_vec(), "argparse.ArgumentParser"),
        (b"\x80\x02ca\x1b[2J\nb\n.".to_vec(), "a\\u{1b}[2J.b"),
    ] {
        assert_refused(&with_pickle(&pickle), &format!("`{name}`"));
    }
    // Nor beside the weights.
    let entries = [("model", b"}".to_vec()), ("hook", b"cos\nsystem\nX\x01\x00\x00\x00x\x85R".to_vec())];
    assert_refused(&with_pickle(&dict(&entries)), "`os.system`");
    // Names of the list cannot be used for anything else.
    for pickle in [
        &b"\x80\x02ctorch\nFloatStorage\n)R."[..],
        b"\x80\x02ccollections\nOrderedDict\n](K\x01K\x02\x86e\x85R.",
        b"\x80\x02cargparse\nNamespace\nK\x01\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\nK\x01\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    ] {
        assert_refused(&with_pickle(pickle), "with arguments that are not read");
    }
    assert_refused(&with_pickle(b"\x80\x02K\x01)R."), "calls something that is no function");
    assert_refused(&with_pickle(b"\x80\x02(ccollections\nOrderedDict\no."), "OBJ");
    assert_refused(&with_pickle(b"\x80\x02\x82\x01."), "EXT1");
    assert_refused(&with_pickle(b"\x80\x04\x8f."), "EMPTY_SET");
    assert_refused(&with_pickle(b"\x80\x02P1\n."), "PERSID");
    assert_refused(&with_pickle(b"\x80\x02\xfe."), "0xfe");
}

#[test]
fn broken_pickles_are_refused() {
    for (pickle, says) in [
        (&b""[..], "ends in the middle"),
        (b"\x80", "ends in the middle"),
        (b"\x80\x02}", "ends in the middle"),
        (b"\x80\x09.", "protocol 9"),
        (b".", "empty stack"),
        (b"0.", "empty stack"),
        (b"(K\x01tt.", "was not opened"),
        (b"K\x01(s.", "empty stack"),
        (b"}(K\x01u.", "key without a value"),
        (b"K\x01K\x02a.", "no list"),
        (b"K\x01K\x02K\x03s.", "no dict"),
        (b"h\x05.", "memo 5"),
        (b"gx\n.", "memo number"),
        (b"K\x01}b.", "state"),
        (b"Ix\n.", "no number"),
        (b"K\x01Q.", "no storage"),
        (b"\x80\x02X\xff\xff\xff\xff.", "ends in the middle"),
        (b"\x80\x04\x8d\x00\x00\x00\x00\x00\x00\x00\x10.", "ends in the middle"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "ends in the middle"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "ends in the middle"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"),
        (b"]q\x00h\x00a.", "no dict of tensors"),
        (b"}.", "no tensors"),
        (b"}K\x01K\x02s.", "no tensors"),
    ] {
        assert_refused(&with_pickle(pickle), says);
    }
    // A million lists in one another.
    let deep = [vec![b']'; 1_000_000], vec![b'a'; 999_999], b".".to_vec()].concat();
    assert_refused(&with_pickle(&deep), "no dict of tensors");
    let deep = [vec![b'('; 1_000_000], b".".to_vec()].concat();
    assert_refused(&with_pickle(&deep), "empty stack");
}

#[test]
fn views_beyond_their_storage_are_refused() {
    let one = |value: Vec<u8>| with_pickle(&dict(&[("w", value)]));
    let good = tensor("0", int(4), int(0), &[int(2), int(2)], &[int(2), int(1)]);
    assert_eq!(parse(&one(good.clone())).unwrap().tensors["w"].values, [1.0, 2.0, 3.0, 4.0]);
    let swapped = tensor("0", int(4), int(0), &[int(2), int(2)], &[int(1), int(2)]);
    assert_eq!(parse(&one(swapped)).unwrap().tensors["w"].values, [1.0, 3.0, 2.0, 4.0]);
    let huge = 1i64 << 60;
    for (value, says) in [
        (tensor("0", int(4), int(1), &[int(4)], &[int(1)]), "reaches beyond its storage of 4"),
        (tensor("0", int(4), int(huge), &[int(1)], &[int(1)]), "reaches beyond"),
        (tensor("0", int(4), int(0), &[int(2)], &[int(huge)]), "reaches beyond"),
        (tensor("0", int(4), int(0), &[int(3), int(3)], &[int(i64::MAX), int(i64::MAX)]), "reaches beyond"),
        (tensor("0", int(4), int(0), &[int(huge)], &[int(0)]), "more values than a file of this length may"),
        (tensor("0", int(4), int(0), &[int(huge), int(huge)], &[int(0), int(0)]), "more values"),
        (tensor("0", int(4), int(0), &[int(1 << 26)], &[int(0)]), "more values"),
        (tensor("0", int(huge), int(0), &[int(4)], &[int(1)]), "is cut off"),
        (tensor("0", int(5), int(0), &[int(4)], &[int(1)]), "16 bytes, 20 are declared"),
        (tensor("0", int(3), int(0), &[int(3)], &[int(1)]), "16 bytes, 12 are declared"),
        (tensor("0", int(4), int(-1), &[int(4)], &[int(1)]), "offset of -1"),
        (tensor("0", int(4), int(0), &[int(-4)], &[int(1)]), "-4"),
        (tensor("0", int(4), int(0), &[int(4)], &[]), "other strides than extents"),
        (tensor("0", int(4), int(0), &vec![int(1); 65], &vec![int(1); 65]), "at most 64"),
        (tensor("0", long(u64::MAX), int(0), &[int(4)], &[int(1)]), "no integer"),
        (tensor("1", int(4), int(0), &[int(4)], &[int(1)]), "has no member \"data/1\""),
        (tensor("../data/0", int(4), int(0), &[int(4)], &[int(1)]), "has no member"),
        (b"K\x01".to_vec(), "holds no tensors"),
    ] {
        assert_refused(&one(value), says);
    }
    // An axis of length one may have any stride, an empty tensor any offset.
    let odd = tensor("0", int(4), int(3), &[int(1), int(1)], &[int(i64::MAX), int(i64::MAX)]);
    assert_eq!(parse(&one(odd)).unwrap().tensors["w"].values, [4.0]);
    let empty = tensor("0", int(4), int(huge), &[int(0), int(huge)], &[int(1), int(1)]);
    assert!(parse(&one(empty)).unwrap().tensors["w"].values.is_empty());
    // Many views of one storage.
    let view = tensor("0", int(4), int(0), &[int(1 << 20), int(4)], &[int(0), int(1)]);
    let many: Vec<(String, Vec<u8>)> = (0..20).map(|i| (format!("w{i}"), view.clone())).collect();
    let many: Vec<(&str, Vec<u8>)> = many.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
    assert_refused(&with_pickle(&dict(&many)), "more values");

    assert_refused(&with_pickle(&dict(&[("w", good.clone()), ("w", good.clone())])), "w is there twice");
    let nested = dict(&[("model", b"}".to_vec()), ("model", b"}".to_vec())]);
    assert_refused(&with_pickle(&nested), "two entries \"model\"");
    let mixed = [b"}(".to_vec(), short("a"), b"K\x01".to_vec(), b"u".to_vec()].concat();
    assert_refused(&with_pickle(&dict(&[("model", mixed)])), "a is no tensor");
}

#[test]
fn broken_containers_are_refused() {
    let pickle = dict(&[("w", tensor("0", int(4), int(0), &[int(4)], &[int(1)]))]);
    let good = with_pickle(&pickle);
    assert!(parse(&good).is_ok());
    for n in 0..good.len() {
        assert!(parse(&good[..n]).is_err(), "the first {n} bytes");
    }
    assert_refused(b"", "no ZIP container");
    assert_refused(&[0x80, 2, b'}', b'.'], "bare pickle");
    assert_refused(&container(&[("a/readme", b"")]), "no data.pkl");
    assert_refused(&container(&[("a/data.pkl", b""), ("b/data.pkl", b"")]), "more than one");
    assert_refused(&container(&[("adata.pkl", b"")]), "no data.pkl");
    let big = container(&[("a/data.pkl", &pickle), ("a/byteorder", b"big"), ("a/data/0", &[0; 16])]);
    assert_refused(&big, "big-endian");
    // A flipped bit of the weights.
    let at = good.windows(4).position(|w| w == 3.0f32.to_le_bytes()).unwrap();
    let mut flipped = good.clone();
    flipped[at] ^= 1;
    assert_refused(&flipped, "cannot be read");
    // A name that is there twice: one directory entry is renamed.
    let twice = container(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 16]), ("a/data/1", &[0; 16])]);
    let text = String::from_utf8_lossy(&twice).replace("a/data/1", "a/data/0");
    let twice: Vec<u8> = match text.contains('\u{fffd}') {
        false => text.into_bytes(),
        true => {
            let mut bytes = twice;
            let places: Vec<usize> =
                bytes.windows(8).enumerate().filter(|(_, w)| *w == b"a/data/1").map(|(i, _)| i).collect();
            places.iter().for_each(|&i| bytes[i + 7] = b'0');
            bytes
        }
    };
    assert_refused(&twice, "two members of one name");
}

#[test]
fn weights_that_are_not_finite_need_a_word() {
    let pickle = dict(&[("w", tensor("0", int(2), int(0), &[int(2)], &[int(1)]))]);
    let data = [1.0f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
    let bytes = container(&[("a/data.pkl", &pickle), ("a/data/0", &data)]);
    assert_refused(&bytes, "w[1] is NaN");
    assert!(pytorch::parse(&bytes, true).unwrap().tensors["w"].values[1].is_nan());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any change to a real file is an error or a file, never a panic or an endless loop.
    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = std::fs::read(fixture("training.pth")).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = pytorch::parse(&bytes, true);
    }

    /// Any pickle too.
    #[test]
    fn random_pickles_never_panic(pickle in prop::collection::vec(prop::sample::select(
        b"\x00\x01\x02\x80\x04.(012}])aestuqhQRbcNKJMXl\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\n".to_vec()), 0..60)) {
        let _ = pytorch::parse(&with_pickle(&pickle), true);
    }
}
