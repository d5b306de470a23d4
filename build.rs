//! Lists every file below `shaders/` as (module name, text) for `src/wgsl/link.rs`. Nothing else.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("shaders");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let mut out = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).expect("below root").with_extension("");
        let name = name.to_string_lossy().replace('\\', "/");
        writeln!(out, "    ({name:?}, include_str!({:?})),", file.display().to_string()).expect("string");
    }
    out.push_str("]\n");
    let target = PathBuf::from(std::env::var("OUT_DIR").expect("set by cargo")).join("shaders.rs");
    std::fs::write(target, out).expect("OUT_DIR is writable");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("shaders/ is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "wgsl") {
            files.push(path);
        }
    }
}
