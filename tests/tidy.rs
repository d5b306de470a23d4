//! House rules that a reader of the sources can check: floors, file lengths, same stems, words.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut todo = vec![root().join(folder)];
    let mut out = Vec::new();
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| endings.iter().any(|x| *x == e)) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
                out.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    out.sort();
    out
}

fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// Floor of a source file; the highest rule that matches its path.
fn floor(name: &str) -> Option<u32> {
    let rules = [
        ("error", 0),
        ("files", 0),
        ("shape", 0),
        ("rng", 0),
        ("privacy/accounting", 0),
        ("privacy/sampling", 0),
        ("wgsl", 1),
        ("kernel", 1),
        ("record", 1),
        ("gpu", 2),
        ("cpu", 2),
        ("ops", 3),
        ("data", 3),
        ("graph", 4),
        ("model", 5),
        ("privacy", 5),
        ("optim", 5),
        ("checkpoint", 6),
        ("train", 6),
        ("eval", 6),
        ("cli", 7),
        ("main", 7),
        ("lib", 7),
    ];
    rules.iter().find(|(room, _)| *room == name || name.starts_with(&format!("{room}/"))).map(|(_, f)| *f)
}

/// Rooms named in `crate::a::b` and `crate::{a, b::c}` of one file.
fn imports(text: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + 7..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut item = String::new();
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        out.insert(std::mem::take(&mut item).trim().to_owned());
                        continue;
                    }
                    _ => {}
                }
                item.push(c);
            }
            out.insert(item.trim().to_owned());
        } else {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
            out.insert(rest[..end].trim_end_matches(':').to_owned());
        }
    }
    out.into_iter().map(|path| path.replace("::", "/")).collect()
}

#[test]
fn imports_go_down() {
    let mut faults = Vec::new();
    for (file, text) in files("src", &["rs"]) {
        let name =
            file.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
        let own =
            floor(&name).unwrap_or_else(|| panic!("{file} is in no room: say its floor in tests/tidy.rs"));
        for import in imports(code(&text)) {
            // Macros and names re-exported at the root have no floor of their own.
            let Some(theirs) = floor(&import) else { continue };
            let room = |s: &str| s.split('/').next().unwrap_or("").to_owned();
            let sideways_ok =
                room(&name) == room(&import) || own != theirs || own == 0 || own == 1 || own >= 5;
            if theirs > own || !sideways_ok {
                faults.push(format!("{file} (floor {own}) imports {import} (floor {theirs})"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn accounting_stands_alone() {
    let mut seen = 0;
    for (file, text) in files("src/privacy/accounting", &["rs"]) {
        seen += 1;
        for line in code(&text).lines().filter(|l| l.starts_with("use ") || l.starts_with("pub use ")) {
            let ok =
                ["std::", "rustfft::", "crate::error", "super::", "crate::privacy::accounting", "self::"]
                    .iter()
                    .any(|p| line.contains(&format!("use {p}")))
                    || (line.starts_with("pub use ") && !line.contains("crate::"));
            assert!(ok, "{file}: {line}");
        }
    }
    assert!(seen >= 3);
}

#[test]
fn naga_and_wgpu_stay_in_their_rooms() {
    for (file, text) in files("src", &["rs"]) {
        for (word, room) in [("naga::", "src/wgsl/"), ("wgpu::", "src/gpu/")] {
            let used =
                code(&text).lines().any(|l| !l.trim_start().starts_with("//") && contains_path(l, word));
            assert!(!used || file.starts_with(room), "{file} uses {word}");
        }
    }
}

fn contains_path(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

#[test]
fn files_stay_short() {
    let mut faults = Vec::new();
    for folder in ["src", "shaders", "tests", "examples", "benches"] {
        for (file, text) in files(folder, &["rs", "wgsl"]) {
            let lines = text.lines().count();
            if lines > 500 {
                faults.push(format!("{file}: {lines} lines"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (file, text) in files("examples", &["rs"]) {
        assert!(text.lines().count() < 120, "{file} has {} lines", text.lines().count());
    }
}

#[test]
fn every_op_has_its_three_files() {
    let stems = |folder: &str, ending: &str| -> BTreeSet<String> {
        files(folder, &[ending])
            .into_iter()
            .map(|(f, _)| Path::new(&f).file_stem().unwrap().to_string_lossy().into_owned())
            .collect()
    };
    let rust: BTreeSet<String> = stems("src/ops", "rs");
    let tests = stems("tests/ops", "rs");
    let mut seen = 0;
    for stem in stems("shaders/ops", "wgsl") {
        // Variants of one op are files named OP_VARIANT.
        let owner =
            rust.iter().filter(|r| stem == **r || stem.starts_with(&format!("{r}_"))).max_by_key(|r| r.len());
        let owner = owner.unwrap_or_else(|| panic!("shaders/ops/{stem}.wgsl has no src/ops/{stem}.rs"));
        assert!(tests.contains(owner), "src/ops/{owner}.rs has no tests/ops/{owner}.rs");
        seen += 1;
    }
    assert!(seen > 5);
}

#[test]
fn words_that_do_not_belong() {
    let marks =
        [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["/wo", "rk/"].concat(), ["../sha", "red"].concat()];
    for folder in ["src", "shaders", "tests", "examples", "benches", "scripts", "docs", ".ci"] {
        for (file, text) in files(folder, &["rs", "wgsl", "md", "toml", "py", "sh"]) {
            for mark in &marks {
                assert!(!text.contains(mark.as_str()), "{file} contains {mark}");
            }
        }
    }
}
